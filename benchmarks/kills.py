"""Kill every command that writes at random moments, resume it, and compare the bytes.

    python benchmarks/kills.py --kills 200            # spread evenly over all commands
    python benchmarks/kills.py --kills 6 --commands import,export --seed 3

For each command the reference is an undisturbed run. The others are killed with SIGKILL after a
random share of the reference's time, some of them several times in a row, and then run to their
end: every file that does not hold times must have the bytes of the reference, and nothing may be
left over beside it. Kills that come after the end do not count and are drawn again.

The server is killed while a client marks proposals. Every mark that it had answered must be there
when the folder is opened again; the mark in flight may be there or not.

`benchmarks/resume.py` kills `prixlm enrich` in each step of a job that trains.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LOGS = {"timings.json", "metrics.jsonl", "state.json", "work.json", "loss.png", "lock", "run.json"}
"""Files that hold times."""
_SAME_KILL = 0.3
"""Share of the kills after which the command is killed once more before it may end."""
_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
_RUN = """\
batch = 64
epochs = 4
token_budget = 2048
[supply]
max_links = 2
[training]
lr = 0.001
log_every = 5
checkpoints = [0.25, 0.5, 0.75, 1.0]
"""
_COMPACT = "[compact]\nvocab = 2000\nwidth = 64\nlayers = 2\nheads = 4\n"


def digests(folder: Path) -> dict[str, str]:
    """Return the hash of every file, or of the one file, that does not hold times."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    return {
        str(path.relative_to(folder.parent)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
        if path.is_file()
        and path.name not in LOGS
        and "report" not in path.relative_to(folder.parent).parts
    }


def command(*args: object) -> list[str]:
    """Return the words of a command of prixlm."""
    return [sys.executable, "-m", "prixlm", *map(str, args)]


def finish(*args: object) -> None:
    """Run a command of prixlm to its end."""
    ran = subprocess.run(
        command(*args), env=_ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, f"{args}: {ran.stderr}"


def kill_after(seconds: float, *args: object) -> bool:
    """Start a command, kill it with all of its processes; tell whether it was still running."""
    process = subprocess.Popen(
        command(*args),
        env=_ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # parsing and training start processes of their own
    )
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    was_running = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return was_running


@dataclass(frozen=True)
class Case:
    """A command that writes: its arguments for a folder of results, and what it writes there."""

    args: Callable[[Path], list[object]]
    target: str
    content: Callable[[Path], dict[str, str]] = digests  # of the target, for the comparison
    prepare: Callable[[Path], None] | None = None  # puts what the command changes into the folder


@dataclass
class Tally:
    """What came of the kills of one command."""

    kills: int = 0
    resumed: int = 0
    compared: int = 0  # files
    differing: int = 0
    left_over: int = 0
    lost: int = 0  # answered marks

    def is_good(self) -> bool:
        """Tell whether everything was as in the reference."""
        return not (self.differing or self.left_over or self.lost)


def make_inputs(folder: Path) -> None:
    """Make what the commands read: a KB, a split, a base, models, questions, proposals."""
    kb = folder / "kb"
    finish("import", "--format", "world", "--langs", "en,et", "--max-triples", 3000, "--to", kb)
    finish("split", kb, "--to", folder / "split", "--test", 0.1, "--valid", 0.05)
    (folder / "base.toml").write_text(f'base = "compact"\n{_RUN}{_COMPACT}', "utf-8")
    finish("pretrain", kb, "--to", folder / "base", "--config", folder / "base.toml")
    # A tokenizer is not trained to the same bytes twice, so that the runs have one as their base.
    (folder / "run.toml").write_text(f'base = "{folder / "base"}"\n{_RUN}', "utf-8")
    names = [f"en\tname {n}\tet" for n in range(600)]
    (folder / "names.tsv").write_text("lang\tname\tto\n" + "\n".join(names) + "\n", "utf-8")
    subjects = [f"en\tname {n}\tcapital" for n in range(600)]
    (folder / "queries.tsv").write_text("lang\tsubject\trelation\n" + "\n".join(subjects) + "\n")
    (folder / "mentions.txt").write_text("\n".join(f"name {n}" for n in range(500)), "utf-8")
    finish("enrich", kb, "--into", "et", "--to", folder / "work", "--effort", "quick")
    finish("review", folder / "work", "--to", folder / "sheet.tsv")
    lines = (folder / "sheet.tsv").read_text("utf-8").split("\n")
    marked = [lines[0], *("accept" + line for line in lines[1:] if line)]
    (folder / "marked.tsv").write_text("\n".join(marked) + "\n", "utf-8")


def marks_of(folder: Path) -> dict[str, str]:
    """Return what is marked, without the times, as content to compare."""
    with contextlib.closing(sqlite3.connect(folder / "marks.db")) as db:
        rows = db.execute("SELECT DISTINCT tab, row, verdict, name FROM marks").fetchall()
    return {"marks": str(sorted(map(str, rows)))}


def cases(inputs: Path) -> dict[str, Case]:
    """Return every command that writes."""
    kb, model = inputs / "kb", inputs / "base"
    ask: list[object] = [model, "--kb", kb]

    def copy_proposals(to: Path) -> None:
        shutil.copytree(inputs / "work" / "proposals", to / "proposals")

    return {
        "import": Case(
            lambda to: [
                *("import", "--format", "world", "--langs", "en,et,fi"),
                *("--to", to / "kb"),
            ],
            "kb",
        ),
        "split": Case(lambda to: ["split", kb, "--to", to / "split", "--test", 0.2], "split"),
        "graph": Case(
            lambda to: ["graph", kb, "--to", to / "graph", "--rank", 16, "--epochs", 8], "graph"
        ),
        "pretrain": Case(
            lambda to: ["pretrain", kb, "--to", to / "model", "--config", inputs / "run.toml"],
            "model",
        ),
        "mirror": Case(
            lambda to: [
                *("mirror", model, "--to", to / "encoder", "--kb", kb, "--preset", "compact"),
                *("--number", 400, "--batch", 32, "--epochs", 2),
            ],
            "encoder",
        ),
        "complete": Case(
            lambda to: [
                *("complete", *ask, "--queries", inputs / "queries.tsv"),
                *("--beam", 5, "--out", to / "answers.parquet"),
            ],
            "answers.parquet",
        ),
        "translate": Case(
            lambda to: [
                *("translate", *ask, "--queries", inputs / "names.tsv"),
                *("--beam", 5, "--out", to / "answers.jsonl"),
            ],
            "answers.jsonl",
        ),
        "link": Case(
            lambda to: [
                *("link", "--kb", kb, "--mentions", inputs / "mentions.txt"),
                *("--out", to / "linked.tsv"),
            ],
            "linked.tsv",
        ),
        "enrich": Case(
            lambda to: ["enrich", kb, "--into", "et", "--to", to / "work", "--effort", "quick"],
            "work",
        ),
        "review (write)": Case(
            lambda to: ["review", inputs / "work", "--to", to / "sheet.tsv"], "sheet.tsv"
        ),
        "review (read)": Case(
            lambda to: ["review", to / "proposals", "--marks", inputs / "marked.tsv"],
            "proposals",
            marks_of,
            copy_proposals,
        ),
        "export": Case(
            lambda to: ["export", inputs / "work", "--format", "nq", "--to", to / "facts.nq"],
            "facts.nq",
        ),
        "report": Case(lambda to: ["report", inputs / "work", "--to", to / "page"], "page", _pages),
    }


def _pages(folder: Path) -> dict[str, str]:
    """Return which pages there are and that each is whole: they hold times and paths."""
    pages = sorted(path for path in folder.rglob("*.html"))
    ends = (path.read_text("utf-8").rstrip().endswith("</html>") for path in pages)
    return {path.name: str(end) for path, end in zip(pages, ends, strict=True)}


def new_folder(parent: Path, case: Case) -> Path:
    """Return an empty folder of results with what the command changes."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    if case.prepare is not None:
        case.prepare(folder)
    return folder


def kill_command(case: Case, kills: int, parent: Path, generator: random.Random) -> Tally:
    """Kill a command `kills` times, resume it each time, and compare with an undisturbed run."""
    tally = Tally()
    whole = new_folder(parent, case)
    started = time.monotonic()
    finish(*case.args(whole))
    seconds = time.monotonic() - started
    expected = case.content(whole / case.target)
    beside = {path.name for path in whole.iterdir()}
    tries = 0
    while tally.kills < kills and tries < 4 * kills + 10:
        folder = new_folder(parent, case)
        again = True
        while again and tally.kills < kills:
            tries += 1
            if not kill_after(generator.uniform(0, 1.05 * seconds), *case.args(folder)):
                break
            tally.kills += 1
            again = generator.random() < _SAME_KILL
        if not (folder / case.target).exists() or case.prepare is not None or case.target in (
            "model", "graph", "encoder", "work",
        ):  # fmt: skip
            # A file that is there is whole: the command would refuse to write it again.
            finish(*case.args(folder))
        tally.resumed += 1
        found = case.content(folder / case.target)
        names = expected.keys() | found.keys()
        tally.compared += len(names)
        differing = sorted(name for name in names if expected.get(name) != found.get(name))
        left = sorted({path.name for path in folder.iterdir()} - beside)
        tally.differing += len(differing)
        tally.left_over += len(left)
        if differing or left:
            print(f"  differ: {differing[:5]}; left over: {left[:5]}; see {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return tally


def kill_server(kills: int, inputs: Path, parent: Path, generator: random.Random) -> Tally:
    """Kill the server while a client marks; count the answered marks that are not there after."""
    tally = Tally()
    folder = Path(tempfile.mkdtemp(dir=parent))
    shutil.copytree(inputs / "work" / "proposals", folder / "proposals")
    answered: dict[int, str] = {}
    while tally.kills < kills:
        with _serving(inputs / "kb", folder / "proposals") as (process, address):
            end = time.monotonic() + generator.uniform(0.05, 2.0)
            killer = _kill_at(process, end)
            next(killer)
            while process.poll() is None:
                row, verdict = generator.randrange(20), generator.choice(["accept", "reject"])
                try:
                    _post(f"{address}/api/marks", {"id": f"fact-{row}", "verdict": verdict})
                    answered[row] = verdict
                except (OSError, urllib.error.URLError, ConnectionError):
                    answered.pop(row, None)  # in flight: either is right
                next(killer, None)
        tally.kills += 1
        tally.resumed += 1
        found = _verdicts(folder / "proposals")
        tally.compared += len(answered)
        tally.lost += sum(found.get(row) != verdict for row, verdict in answered.items())
    return tally


def _verdicts(folder: Path) -> dict[int, str]:
    from prixlm.proposals.marks import Marks

    with contextlib.closing(Marks.open(folder, read_only=True)) as marks:
        return {
            int(row): verdict
            for verdict in ("accept", "reject")
            for row in marks.rows_of("Anna", "facts", verdict)
        }


def _kill_at(process: "subprocess.Popen[str]", end: float) -> Iterator[None]:
    """Kill a process group at the first step after a time."""
    while time.monotonic() < end and process.poll() is None:
        yield
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def _serving(kb: Path, proposals: Path) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Start a server and yield it with its address, once it answers."""
    process = subprocess.Popen(
        command("serve", "--kb", kb, "--proposals", proposals, "--port", 0),
        env=_ENVIRONMENT | {"PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            found = re.match(r"Open (http://\S+?)/?$", line.strip())
            if found:
                yield process, found[1]
                return
        raise AssertionError("the server did not start")
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _post(address: str, values: dict[str, str]) -> None:
    request = urllib.request.Request(
        address,
        json.dumps(values).encode(),
        {"Content-Type": "application/json", "X-Reviewer": "Anna"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert answer.status == 200


def main() -> None:
    """Make the inputs, kill each command, print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="over all commands")
    parser.add_argument("--commands", help="only these, separated by commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=Path, help="keep the inputs here, and reuse them")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        inputs = args.inputs or Path(temporary) / "inputs"
        if not (inputs / "marked.tsv").is_file():
            inputs.mkdir(parents=True, exist_ok=True)
            make_inputs(inputs)
        known = [*cases(inputs), "server"]
        chosen = known if args.commands is None else args.commands.split(",")
        tallies: dict[str, Tally] = {}
        print("| command | kills | resumed | files compared | differ | left over | lost |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for number, name in enumerate(chosen):
            generator = random.Random(f"{args.seed} {name}")
            kills = (number + 1) * args.kills // len(chosen) - number * args.kills // len(chosen)
            if name == "server":
                tally = kill_server(kills, inputs, Path(temporary), generator)
            else:
                tally = kill_command(cases(inputs)[name], kills, Path(temporary), generator)
            tallies[name] = tally
            figures = (
                *(tally.kills, tally.resumed, tally.compared),
                *(tally.differing, tally.left_over, tally.lost),
            )
            print(f"| {name} | {' | '.join(map(str, figures))} |", flush=True)
        total = sum(tally.kills for tally in tallies.values())
        bad = [name for name, tally in tallies.items() if not tally.is_good()]
        print(f"{total} kills; commands with a difference: {bad or 'none'}.")
        sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
