"""Kill every command that writes at random moments, resume it, and compare the bytes.

    python benchmarks/kills.py --kills 200            # spread evenly over all commands
    python benchmarks/kills.py --kills 6 --commands 'import tsv;export' --seed 3

For each command the reference is an undisturbed run in a process of its own. The others are killed
with SIGKILL after a random share of an undisturbed run's time, some of them several times in a row,
and then run to their end: every file that does not hold times must have the bytes of the reference,
and nothing may be left over beside it. Kills that come after the end do not count and are drawn
again. `import` is killed on dumps of all formats, cut into small parts; half of the time only its
first process is killed, and the others must end by themselves. What was being done at each kill is
counted. One import in three that replaces a KB is killed between the two renames. What is killed is
forked from a process that has imported everything, so that the kills fall
into the work and not into the seconds that torch takes to import. Fusions and the confidence of
labels have few trees and examples: more of them take longer and write nothing.

The server is killed while a client marks proposals. Every mark that it had answered must be there
when the folder is opened again; the mark in flight may be there or not.

`benchmarks/resume.py` kills `prixlm enrich` in each step of a job that trains.
"""

import argparse
import contextlib
import http.client
import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NoReturn
from unittest import mock

import pyarrow.parquet as pq

import prixlm
from dumps import small_parts
from kill_cases import ENRICH, Case, cases
from prixlm.files import REPLACED

_LONGEST = 600.0
"""Seconds after which a command hangs."""
_ORPHANS = 30.0
"""Seconds after which processes whose first one was killed must have ended."""
_STAGES, _ENOUGH = {"parse", "join"}, 20
"""Stages of an import that must have a kill, if imports have at least this many."""
_SAME_KILL = 0.3
"""Share of the kills after which the command is killed once more before it may end."""
_ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
_RUN = """\
batch = 64
epochs = 2
token_budget = 2048
[supply]
max_links = 2
[training]
lr = 0.001
log_every = 5
checkpoints = [0.25, 0.5, 0.75, 1.0]
"""
_MARKED = 20
"""Facts that the client of the server marks, over and over."""
_COMPACT = "[compact]\nvocab = 2000\nwidth = 64\nlayers = 2\nheads = 4\n"


def finish(*args: object) -> None:
    """Run a command of prixlm to its end, in a process of its own."""
    words = [sys.executable, __file__, "--run", *map(str, args)]
    ran = subprocess.run(words, env=_ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{args}: {ran.stderr}"


def import_everything() -> None:
    """Import what the commands import, so that forks need not.

    Nothing is computed: threads of this process would be missing in its forks.
    """
    os.environ.update(_ENVIRONMENT)
    for module in pkgutil.walk_packages(prixlm.__path__, "prixlm."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("sklearn.ensemble", "sklearn.isotonic", "duckdb", "faiss", "matplotlib.pyplot"):
        importlib.import_module(name)


def run_command(*args: object, dies_between_renames: bool = False) -> None:
    """Be the command: with small parts, few trees and few examples."""
    # Here, because the parsers of an import are processes that import this file.
    import prixlm.enrichment.run as enrichment_run
    from prixlm.cli import app
    from prixlm.enrichment import labels
    from prixlm.enrichment.naming import confidence
    from prixlm.rankers.fusion import FusionConfig

    small_parts()
    if dies_between_renames:
        _die_between_renames()
    few: dict[str, object] = {
        "FusionConfig": partial(FusionConfig, iterations=10, parts=2, facts=100, depth=5),
        "LabelConfig": partial(labels.LabelConfig, learnt=300, asked=200),
    }
    for name, value in few.items():
        setattr(enrichment_run, name, value)
    confidence._TREES = replace(confidence._TREES, iterations=10)
    confidence._FIRST = replace(confidence._FIRST, iterations=10)
    sys.argv = ["prixlm", *map(str, args)]
    app.main()


def _die_between_renames() -> None:
    """Kill this process when the old folder has been moved away and the new one is not there."""
    rename = Path.rename

    def rename_and_die(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if Path(target).name.endswith(REPLACED):
            os.kill(os.getpid(), signal.SIGKILL)
        return moved

    mock.patch.object(Path, "rename", rename_and_die).start()


def living(group: int) -> list[str]:
    """Return the processes of a group that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, its_group = path.read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group and state not in "ZX":
                found.append(path.parent.name)
    return found


class Forked:
    """A command of prixlm in a fork of this process, with a process group of its own."""

    def __init__(self, *args: object, dies_between_renames: bool = False) -> None:
        self._dies_between_renames = dies_between_renames
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # `kill` closes it
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            self._run(args)

    def _run(self, args: tuple[object, ...]) -> NoReturn:
        """Be the command."""
        code = 1
        try:
            os.setsid()  # parsing and training start processes of their own
            for stream in (1, 2):
                os.dup2(self._output.fileno(), stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w", 1), os.fdopen(2, "w", 1)
            run_command(*args, dies_between_renames=self._dies_between_renames)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def output(self) -> str:
        """Return what it has printed so far."""
        # Read in place: the command writes at the position that both share.
        return os.pread(self._output.fileno(), 1 << 20, 0).decode("utf-8", "replace")

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float) -> int | None:
        """Return the exit code as soon as it has ended; None if it still runs after `seconds`."""
        end = time.monotonic() + seconds
        while self.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        return self._code

    def kill_first(self) -> bool:
        """Kill only its first process and wait until the others have ended by themselves.

        Tells whether it was still running.
        """
        was_running = self.poll() is None
        if was_running:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._code = -signal.SIGKILL
        end = time.monotonic() + _ORPHANS
        while (left := living(self.pid)) and time.monotonic() < end:
            time.sleep(0.02)
        assert not left, f"processes outlived the one that started them: {left}"
        self._output.close()
        return was_running

    def kill(self) -> bool:
        """Kill it with all of its processes; tell whether it was still running."""
        was_running = self.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if was_running:
            os.kill(self.pid, signal.SIGKILL)  # it may not have its own group yet
            os.waitpid(self.pid, 0)
            self._code = -signal.SIGKILL
        self._output.close()
        return was_running


def kill_after(seconds: float, *args: object, first_alone: bool = False) -> bool:
    """Start a command and kill it, or its first process; tell whether it was still running."""
    process = Forked(*args)
    process.wait(seconds)
    return process.kill_first() if first_alone else process.kill()


def die_between_renames(*args: object) -> bool:
    """Run a command that is killed when it has moved the old result away; tell whether it was."""
    process = Forked(*args, dies_between_renames=True)
    died = process.wait(_LONGEST) == -signal.SIGKILL
    process.kill_first()
    return died


def stage_of(partial: Path, old: Path) -> str:
    """Return what a killed import was doing, by what it left."""
    if old.exists():
        return "renames"
    if (partial / "kb").exists():
        return "join"
    return "parse" if [*partial.glob("?????-??????")] else "hash"


def finish_forked(*args: object) -> None:
    """Run a command to its end in a fork."""
    process = Forked(*args)
    code, output = process.wait(_LONGEST), process.output()
    process.kill()
    assert code == 0, f"{args}: {code} {output}"


@dataclass
class Tally:
    """What came of the kills of one command."""

    seconds: float = 0.0  # of an undisturbed run in a fork
    kills: int = 0
    resumed: int = 0
    compared: int = 0  # files
    differing: int = 0
    left_over: int = 0
    lost: int = 0  # answered marks, or old results that were there
    stages: Counter[str] = field(default_factory=Counter)  # kills of an import, by stage

    def is_good(self) -> bool:
        """Tell whether everything was as in the reference."""
        return not (self.differing or self.left_over or self.lost)


def make_kb(folder: Path) -> None:
    """Make the KB that the commands read and that imports replace."""
    to = ("--to", folder / "kb")
    finish("import", "--format", "world", "--langs", "en,et", "--max-triples", 3000, *to)


def make_inputs(folder: Path) -> None:
    """Make what the commands read beside the KB: a split, a base, models, questions, proposals."""
    kb = folder / "kb"
    finish("split", kb, "--to", folder / "split", "--test", 0.1, "--valid", 0.05)
    (folder / "base.toml").write_text(f'base = "compact"\n{_RUN}{_COMPACT}', "utf-8")
    finish("pretrain", kb, "--to", folder / "base", "--config", folder / "base.toml")
    # A tokenizer is not trained to the same bytes twice, so that the runs have one as their base.
    (folder / "run.toml").write_text(f'base = "{folder / "base"}"\n{_RUN}', "utf-8")
    names = [f"en\tname {n}\tet" for n in range(600)]
    (folder / "names.tsv").write_text("lang\tname\tto\n" + "\n".join(names) + "\n", "utf-8")
    subjects = [f"en\tname {n}\tcapital" for n in range(600)]
    (folder / "queries.tsv").write_text("lang\tsubject\trelation\n" + "\n".join(subjects) + "\n")
    (folder / "mentions.txt").write_text("\n".join(f"name {n}" for n in range(200)), "utf-8")
    finish("enrich", kb, "--into", "et", "--to", folder / "work", *ENRICH)
    assert count_facts(folder / "work") >= _MARKED, "too few proposals to mark"
    finish("review", folder / "work", "--to", folder / "sheet.tsv")
    lines = (folder / "sheet.tsv").read_text("utf-8").split("\n")
    marked = [lines[0], *("accept" + line for line in lines[1:] if line)]
    (folder / "marked.tsv").write_text("\n".join(marked) + "\n", "utf-8")


def count_facts(work: Path) -> int:
    """Return the number of proposed facts of a work folder."""
    return int(pq.read_metadata(work / "proposals" / "proposals.parquet").num_rows)


def new_folder(parent: Path, case: Case) -> Path:
    """Return an empty folder of results with what the command changes."""
    folder = Path(tempfile.mkdtemp(dir=parent))
    if case.prepare is not None:
        case.prepare(folder)
    return folder


def kill_command(case: Case, kills: int, parent: Path, generator: random.Random) -> Tally:
    """Kill a command `kills` times, resume it each time, and compare with an undisturbed run."""
    tally = Tally()
    whole, forked = new_folder(parent, case), new_folder(parent, case)
    finish(*case.args(whole))  # sets are in another order in another process: bytes must not be
    expected = case.content(whole / case.target)
    beside = {path.name for path in whole.iterdir()}
    started = time.monotonic()
    finish_forked(*case.args(forked))
    tally.seconds = time.monotonic() - started
    assert case.content(forked / case.target) == expected, f"a second run differs: {forked}"
    old = case.content(new_folder(parent, case) / case.target) if case.replaces else {}
    tries = 0
    while tally.kills < kills and tries < 4 * kills + 10:
        folder = new_folder(parent, case)
        again = True
        while again and tally.kills < kills:
            tries += 1
            if not kill_once(case, folder, tally, generator):
                break
            if case.replaces and not is_whole(case, folder, old, expected):
                tally.lost += 1
            again = generator.random() < _SAME_KILL
        # A file or a KB that is there is whole: the command would refuse to write it again.
        if case.resumes or not (folder / case.target).exists():
            finish_forked(*case.args(folder))
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


def kill_once(case: Case, folder: Path, tally: Tally, generator: random.Random) -> bool:
    """Kill a command at a random moment, and count it; tell whether it was still running."""
    args = case.args(folder)
    if case.replaces and tally.kills % 3 == 2:
        was_running = die_between_renames(*args)
    else:
        seconds = generator.uniform(0, 1.05 * tally.seconds)
        was_running = kill_after(seconds, *args, first_alone=generator.random() < 0.5)
    tally.kills += was_running
    if was_running and args[0] == "import":
        partial = folder / f"{case.target}.partial"
        tally.stages[stage_of(partial, partial / f"{case.target}{REPLACED}")] += 1
    return was_running


def is_whole(case: Case, folder: Path, old: dict[str, str], new: dict[str, str]) -> bool:
    """Tell whether a target is the old one or the new one; between two renames it is set aside."""
    target = folder / case.target
    if target.exists():
        return case.content(target) in (old, new)
    aside = folder / f"{case.target}.partial" / f"{case.target}{REPLACED}"
    moved = {name.replace(REPLACED, ""): digest for name, digest in case.content(aside).items()}
    return moved == old


def kill_server(kills: int, inputs: Path, parent: Path, generator: random.Random) -> Tally:
    """Kill the server while a client marks; count the answered marks that are not there after."""
    tally = Tally()
    folder = Path(tempfile.mkdtemp(dir=parent))
    shutil.copytree(inputs / "work" / "proposals", folder / "proposals")
    answered: dict[int, str] = {}
    while tally.kills < kills:
        with _serving(inputs / "kb", folder / "proposals") as (process, address):
            killer = threading.Timer(generator.uniform(0.05, 2.0), os.kill, (process.pid, 9))
            killer.start()
            while process.poll() is None:
                row, verdict = generator.randrange(_MARKED), generator.choice(["accept", "reject"])
                try:
                    _post(f"{address}/api/marks", {"id": f"fact-{row}", "verdict": verdict})
                    answered[row] = verdict
                except urllib.error.HTTPError:
                    raise  # an answer, and not the one that is expected
                except (OSError, http.client.HTTPException):
                    answered.pop(row, None)  # in flight: either is right
            killer.join()
        tally.kills += 1
        tally.resumed += 1
        found = _verdicts(folder / "proposals")
        tally.compared += len(answered)
        tally.lost += sum(found.get(row) != verdict for row, verdict in answered.items())
    assert tally.compared, "the server answered no mark"
    return tally


def _verdicts(folder: Path) -> dict[int, str]:
    from prixlm.proposals.marks import Marks

    with contextlib.closing(Marks.open(folder, read_only=True)) as marks:
        return {
            int(row): verdict
            for verdict in ("accept", "reject")
            for row in marks.rows_of("Anna", "facts", verdict)
        }


@contextlib.contextmanager
def _serving(kb: Path, proposals: Path) -> Iterator[tuple[Forked, str]]:
    """Start a server and yield it with its address, once it answers."""
    process = Forked("serve", "--kb", kb, "--proposals", proposals, "--port", 0)
    try:
        while process.wait(0.02) is None:
            found = re.search(r"^Open (http://\S+?)/?$", process.output(), re.MULTILINE)
            if found:
                yield process, found[1]
                return
        raise AssertionError(f"the server did not start: {process.output()}")
    finally:
        process.kill()


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
    parser.add_argument("--commands", help="only these, with ; between them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=Path, help="keep the inputs here, and reuse them")
    args = parser.parse_args()
    import_everything()
    with tempfile.TemporaryDirectory() as temporary:
        inputs = args.inputs or Path(temporary) / "inputs"
        inputs.mkdir(parents=True, exist_ok=True)
        if not (inputs / "kb").exists():
            make_kb(inputs)
        known = [*cases(inputs), "server"]
        chosen = known if args.commands is None else args.commands.split(";")
        is_import = [name.startswith("import") for name in chosen]
        if not all(is_import) and not (inputs / "marked.tsv").is_file():
            make_inputs(inputs)
        tallies: dict[str, Tally] = {}
        print("| command | seconds | kills | resumed | compared | differ | left over | lost |")
        print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |", flush=True)
        for number, name in enumerate(chosen):
            generator = random.Random(f"{args.seed} {name}")
            kills = (number + 1) * args.kills // len(chosen) - number * args.kills // len(chosen)
            if name == "server":
                tally = kill_server(kills, inputs, Path(temporary), generator)
            else:
                tally = kill_command(cases(inputs)[name], kills, Path(temporary), generator)
            tallies[name] = tally
            figures = (
                *(f"{tally.seconds:.1f}", tally.kills, tally.resumed, tally.compared),
                *(tally.differing, tally.left_over, tally.lost),
            )
            print(f"| {name} | {' | '.join(map(str, figures))} |", flush=True)
        total = sum(tally.kills for tally in tallies.values())
        stages: Counter[str] = Counter()
        for tally in tallies.values():
            stages.update(tally.stages)
        if stages:
            print(f"imports were killed in: {dict(stages)}")
            assert stages.total() < _ENOUGH or stages.keys() >= _STAGES, f"expected {_STAGES}"
        bad = [name for name, tally in tallies.items() if not tally.is_good()]
        print(f"{total} kills; commands with a difference: {bad or 'none'}.")
        sys.exit(1 if bad else 0)


if __name__ == "__mp_main__":  # a parser of an import
    small_parts()
if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run_command(*sys.argv[2:])
    else:
        main()
