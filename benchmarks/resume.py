"""Kill `prixlm enrich` at random moments over all of its steps, and compare the bytes in the end.

    python benchmarks/resume.py --kills 10 --minutes 2

The reference is an undisturbed run. The other run has the same plan, because what is trained
depends on measured speed, and the same untrained model, because the trainer of its tokenizer is not
deterministic. It is killed with SIGKILL again and again, in every step, each time after a random
share of the time that the step takes. Both train on one thread.

Not compared are files with times (timings.json, metrics.jsonl, state.json, work.json) and what is
made from them (loss.png, the report).
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from kill_cases import digests

FOLDERS = {
    "split": "split.partial",
    "graph": "graph",
    "graph-all": "graph-all",
    "model": "model/run.toml",
    "propose": "proposals.partial",
}
"""Steps to kill in, and what appears when each has begun."""


def command(source: Path, to: Path, minutes: float) -> list[str]:
    """Return the command under test."""
    return [
        *(sys.executable, "-m", "prixlm", "enrich", str(source), "--into", "et"),
        *("--to", str(to), "--minutes", str(minutes)),
    ]


def main() -> None:
    """Run undisturbed, run with kills, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    generator = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, whole, killed = (folder / name for name in ("world", "whole", "killed"))
        import_ = ["--format", "world", "--langs", "en,et", "--max-triples", "3000"]
        import_ += ["--to", str(source)]
        run = [sys.executable, "-m", "prixlm", "import", *import_]
        subprocess.run(run, check=True, env=environment, stdout=subprocess.DEVNULL)
        started = time.monotonic()
        call = command(source, whole, args.minutes)
        process = subprocess.Popen(call, env=environment, stdout=subprocess.DEVNULL)
        start = None
        while process.poll() is None:
            for path in (whole / "model" / "checkpoints").glob("start-*/prixlm.json"):
                if start is None:
                    start = path.parent.name
                    shutil.copytree(path.parent, folder / start)
            time.sleep(0.1)
        assert process.returncode == 0
        seconds = time.monotonic() - started
        state = json.loads((whole / "work.json").read_text("utf-8"))
        print(f"Undisturbed: {seconds:.0f} s; steps {state['seconds']}", flush=True)

        # The same plan and untrained model, and nothing else.
        killed.mkdir()
        if start is not None:
            shutil.copytree(folder / start, killed / "model" / "checkpoints" / start)
        kept = {name: state[name] for name in ("format", "version", "source", "planned", "plan")}
        (killed / "work.json").write_text(json.dumps(kept), "utf-8")
        call = command(source, killed, args.minutes)
        seconds_of = state["seconds"]
        steps = [step for step in FOLDERS if step in seconds_of]
        for number in range(args.kills):
            step = steps[number * len(steps) // args.kills]
            process = subprocess.Popen(
                call, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            # Wait until the step has begun, then for a random share of the time that it takes.
            while process.poll() is None and not (killed / FOLDERS[step]).exists():
                time.sleep(0.05)
            time.sleep(generator.uniform(0, 0.9 * seconds_of[step]))
            is_killed = process.poll() is None
            process.send_signal(signal.SIGKILL)
            process.wait()
            done = json.loads((killed / "work.json").read_text("utf-8")).get("made", [])
            what = "killed" if is_killed else "had finished"
            print(f"{number + 1}: {what} in {step}; trained so far: {done}", flush=True)
        subprocess.run(call, check=True, env=environment, stdout=subprocess.DEVNULL)
        one, other = digests(whole), digests(killed)
        differing = sorted(
            name for name in one.keys() | other.keys() if one.get(name) != other.get(name)
        )
        print(f"{len(one)} files compared, {len(differing)} differ. {differing}")
        sys.exit(1 if differing else 0)


if __name__ == "__main__":
    main()
