"""Two processes on one target: one writes, the other waits or says so, and nothing is half."""

import contextlib
import hashlib
import json
import multiprocessing
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.engine.workspace import partial_folder
from prixlm.files import alone, locked, replacing
from prixlm.proposals.marks import Marks, NewMark
from prixlm.reports.comparing import read_questions
from prixlm.reports.tables import ResultTable, read_tables, write_tables
from tests.helpers import Ran
from tests.hostile.attacks import FULL, assert_harmless, attack, budget, commands
from tests.hostile.conftest import GRAPH, MIRROR, House
from tests.hostile.test_damage import write_pair, write_result

ASK = ("--lang", "en", "--subject", "France", "--relation", "capital")


def writers(house: House, to: Path) -> dict[str, tuple[list[object], Path]]:
    """Return a call of every command that writes, and what it writes."""
    asked: list[object] = [house.model, "--kb", house.kb]
    queries = ["--queries", house.queries_tsv, "--out", to / "answers.tsv"]
    names = to / "names.tsv"
    names.write_text("lang\tname\tto\nen\tFinland\tfi\n", "utf-8")
    linking = ["--mentions", house.names_txt, "--out", to / "linked.tsv"]
    return {
        "import": ([house.facts_tsv, house.links_tsv, "--to", to / "kb"], to / "kb"),
        "split": ([house.kb, "--to", to / "split"], to / "split"),
        "graph": ([house.kb, "--to", to / "graph", *GRAPH], to / "graph"),
        "pretrain": (
            [house.kb, "--to", to / "model", "--config", house.run_toml],
            to / "model",
        ),
        "mirror": ([house.model, "--to", to / "enc", "--kb", house.kb, *MIRROR], to / "enc"),
        "complete": ([*asked, *queries], to / "answers.tsv"),
        "translate": ([*asked, "--queries", names, "--out", to / "t.tsv"], to / "t.tsv"),
        "link": (["--kb", house.kb, *linking], to / "linked.tsv"),
        "enrich": (
            [house.kb, "--into", "fi", "--to", to / "work", "--effort", "quick"],
            to / "work",
        ),
        "review": ([house.proposals, "--to", to / "review.tsv"], to / "review.tsv"),
        "export": (
            [house.proposals, "--format", "nq", "--to", to / "facts.nq"],
            to / "facts.nq",
        ),
        "sample": ([house.proposals, "--to", to / "sample", "--number", 3], to / "sample"),
        "report": ([house.proposals, "--kb", house.kb, "--to", to / "page"], to / "page"),
        "evaluate lp": (
            ["--kb", house.split, "--langs", "en", "--to", to / "lp"],
            to / "lp",
        ),
        **evaluators(house, to),
        **reproducers(house, to),
    }


def evaluators(house: House, to: Path) -> dict[str, tuple[list[object], Path]]:
    """Return a call of every command that writes a table beside those of link prediction."""
    words, tested, questions = to / "words.txt", to / "words-test.txt", to / "fi"
    pairs = [(f"{a}{b}", f"{b}{a}") for a in "abcdef" for b in "ghijk"]
    for path, some in ((words, pairs[:20]), (tested, pairs[20:])):
        path.write_text("".join(f"{a}\t{b}\n" for a, b in some), "utf-8")
    names = to / "entities.txt"
    names.write_text("Q1||France\nQ2||Finland\n", "utf-8")
    questions.write_text("Q1||Ranska\nQ2||Finlandia\n", "utf-8")
    prompts = to / "en.tsv"
    head = "Prompt\tAns\tCandidate Ans\tSubject\n"
    prompts.write_text(f"{head}It is <mask>.\tFrance\tFrance, Finland\tParis\n", "utf-8")
    pair, tables = to / "ja_en", to / "tables" / "table.json"
    if not pair.exists():  # also called to put the inputs back
        write_pair(pair)
        write_result(tables.parent)
    rows = ["--row", "a", "--row", "b"]
    calls: dict[str, list[object]] = {
        "xel": ["--names", names, "--queries", questions],
        "align": ["--data", pair],
        "bli": ["--train", words, "--test", tested, "--frequent", 0],
        "probe": ["--model", house.model, "--prompts", prompts],
        "enrich": ["--kb", house.split, "--langs", "fi"],
        "labels": ["--kb", house.kb, "--langs", "fi"],
        "proposals": ["--kb", house.split, "--langs", "fi"],
        "compare": [tables.with_suffix(".parquet"), *rows],
        "merge": [tables, tables],
    }
    return {
        f"evaluate {name}": ([*args, "--to", to / "out" / name], to / "out" / name)
        for name, args in calls.items()
    }


def reproducers(house: House, to: Path) -> dict[str, tuple[list[object], Path]]:
    """Return a call of every command that reproduces a table without training."""
    calls: dict[str, list[object]] = {
        "lp": ["--rows", "lookup,pairs"],
        "jmac": ["--rows", "lookup,usual", "--langs", "en"],
    }
    return {
        f"reproduce {name}": (["--kb", house.split, *args, "--to", to / name], to / name)
        for name, args in calls.items()
    }


READING = {
    "stats": "prints",
    "serve": "marks only, see below",
    "mcp": "marks only, see below",
    "demo": "trains for minutes; its lock is tried below",
    "reproduce xel": "trains for minutes; its lock is tried below",
    "reproduce bli": "trains for minutes; its lock is tried below",
    "reproduce probe": "trains for minutes; its lock is tried below",
    "reproduce figure": "trains for minutes; its lock is tried below",
}
"""Commands that are not tried twice at once, and why."""
QUICK = ["import", "split", "review", "export"]
"""Those without torch, tried in `make test`."""


def test_every_command_is_tried_or_has_a_reason(house: House, tmp_path: Path) -> None:
    assert {*writers(house, tmp_path), *READING} == set(commands())


def start(*args: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "prixlm", *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


RESULTS = (".parquet", ".tsv", ".nq", ".md", ".json", ".safetensors", ".skops", ".toml")
TIMES = ("timings.json", "seconds.json")
"""Files of nothing but times."""
MADE_BY = re.compile(rb"^Made by .*$|[0-9]+ seconds", re.MULTILINE)
"""The line of a report that names its own folder, and times in notes."""


def without_times(values: Any) -> Any:
    """Return nested JSON without what a clock says, or the command: two equal runs differ in it."""
    if isinstance(values, dict):
        kept = {name: without_times(value) for name, value in values.items()}
        return {n: value for n, value in kept.items() if n != "command" and "seconds" not in n}
    return [without_times(value) for value in values] if isinstance(values, list) else values


def digest(path: Path) -> dict[str, str]:
    """Return the hash of every file that two runs of a command write alike."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    hashes = {}
    for file in files:
        if file.suffix in RESULTS and file.name not in TIMES and "report" not in file.parts:
            content = file.read_bytes()
            if file.suffix in (".md", ".json"):
                content = MADE_BY.sub(b"", content)
            if file.suffix == ".json":
                content = json.dumps(without_times(json.loads(content))).encode()
            place = str(file.relative_to(path.parent))
            hashes[place] = hashlib.sha256(content).hexdigest()
    return hashes


def test_all_files_of_a_result_are_compared(tmp_path: Path) -> None:
    """Of a graph, nothing was: two different ones had the same digest, {}."""
    for name, weight, seconds in (("a", b"1", 1), ("b", b"1", 2), ("c", b"2", 1)):
        folder = tmp_path / name / "graph"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(weight)
        (folder / "graph.json").write_text(json.dumps({"rank": 4, "runs": [{"seconds": seconds}]}))
        (folder / "timings.json").write_text(str(seconds))
    one, same, other = (digest(tmp_path / name / "graph") for name in "abc")
    assert one == same != other and one.keys() == {"graph/model.safetensors", "graph/graph.json"}


@pytest.mark.parametrize("command", list(commands()) if FULL else QUICK, ids=lambda name: str(name))
def test_two_processes_on_one_target_leave_one_whole_result(
    command: str, house: House, tmp_path: Path
) -> None:
    if command in READING:
        pytest.skip(READING[command])
    alone, both = tmp_path / "alone", tmp_path / "both"
    alone.mkdir()
    both.mkdir()
    args, expected = writers(house, alone)[command]
    attack(*command.split(), *args)
    args, target = writers(house, both)[command]
    for _ in range(budget(1, 3)):
        shutil.rmtree(both)
        both.mkdir()
        writers(house, both)
        running = [start(*command.split(), *args) for _ in range(2)]
        ended = []
        for process in running:
            out, err = process.communicate(timeout=300)
            ended.append(Ran(process.returncode, out, err))
        for ran in ended:
            assert_harmless(ran)
            assert ran.returncode == 0 or any(
                words in ran.stderr for words in ("another command", "already there", "another run")
            ), ran.stderr
        assert any(ran.returncode == 0 for ran in ended) or not expected.exists()
        found, wanted = digest(target), digest(expected)
        assert found.keys() == wanted.keys() != set()
        assert found == wanted or command == "pretrain", "its tokenizer is not deterministic"
        left = [p.name for p in both.iterdir() if p.suffix in (".tmp", ".partial")]
        assert not left, left


@contextlib.contextmanager
def held(lock: Path) -> Iterator[None]:
    """Hold the lock of a folder, as another command does."""
    with locked(lock):
        yield


@pytest.mark.parametrize("command", ["import", "split", "complete", "enrich"])
def test_a_folder_that_another_command_works_in_is_refused(
    command: str, house: House, tmp_path: Path
) -> None:
    args, target = writers(house, tmp_path)[command]
    folder = target if command == "enrich" else partial_folder(target)
    with held(folder):
        ran = attack(*command.split(), *args, codes=(2,))
    assert "another command is running in" in ran.stderr


@pytest.mark.parametrize("command", [name for name in READING if "lock" in READING[name]])
def test_a_folder_of_models_that_another_command_works_in_is_refused(
    command: str, house: House, tmp_path: Path
) -> None:
    files = to_files(house, tmp_path)
    to = tmp_path / "to"
    with held(to):
        ran = attack(*command.split(), *files.get(command, []), "--to", to, codes=(2,))
    assert "another command is running in" in ran.stderr
    assert [path.name for path in to.iterdir()] in ([], ["lock"]), "nothing was begun"


def to_files(house: House, to: Path) -> dict[str, list[object]]:
    """Return what the commands that train read, beside their target."""
    evaluators(house, to)
    prompts: list[object] = ["--prompts", to / "prompts"]
    (to / "prompts").mkdir()
    shutil.copy(to / "en.tsv", to / "prompts")
    words = to / "dictionaries"
    words.mkdir()
    for name in ("train", "test"):
        shutil.copy(to / "words.txt", words / f"en-fi.{name}.txt")
    return {
        "reproduce xel": ["--kb", house.kb],
        "reproduce bli": ["--kb", house.kb, "--dictionaries", words],
        "reproduce probe": ["--kb", house.kb, *prompts],
        "reproduce figure": ["--kb", house.kb, *prompts],
    }


@pytest.mark.parametrize("command", ["review", "export", "link"])
def test_a_file_that_another_command_writes_is_refused(
    command: str, house: House, tmp_path: Path
) -> None:
    args, target = writers(house, tmp_path)[command]
    with replacing(target) as temporary:
        temporary.write_text("half of the other's", "utf-8")
        ran = attack(*command.split(), *args, codes=(2,))
        assert temporary.read_text("utf-8") == "half of the other's", "nobody writes into it"
    assert "another command is writing" in ran.stderr
    assert target.read_text("utf-8") == "half of the other's"


def test_a_file_that_appeared_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    with (
        pytest.raises(PrixError, match="was written by another command meanwhile"),
        replacing(tmp_path / "a", new=True) as temporary,
    ):
        temporary.write_text("mine")
        (tmp_path / "a").write_text("theirs")
    assert (tmp_path / "a").read_text() == "theirs" and [p.name for p in tmp_path.iterdir()] == [
        "a"
    ]


def _write_often(path: Path, letter: str, number: int) -> None:
    for _ in range(number):
        with replacing(path) as temporary, temporary.open("w") as file:
            for _ in range(20):
                file.write(letter * 1000)
                file.flush()


def test_writers_of_one_file_wait_for_each_other(tmp_path: Path) -> None:
    """Processes and threads that write one path leave a file of one of them, never a mixture."""
    path, number = tmp_path / "file", budget(20, 500)
    context = multiprocessing.get_context("fork")
    workers: list[object] = [
        context.Process(target=_write_often, args=(path, letter, number)) for letter in "ab"
    ]
    threads = [
        threading.Thread(target=_write_often, args=(path, letter, number)) for letter in "cd"
    ]
    for worker in workers:
        worker.start()  # type: ignore[attr-defined]
    for thread in threads:
        thread.start()
    seen = set()
    while any(thread.is_alive() for thread in threads):
        with contextlib.suppress(FileNotFoundError):
            seen.add(path.read_text())
    for worker in workers:
        worker.join()  # type: ignore[attr-defined]
        assert worker.exitcode == 0  # type: ignore[attr-defined]
    seen.add(path.read_text())
    assert seen <= {letter * 20_000 for letter in "abcd"}
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_reviewers_who_mark_at_once_lose_no_mark(house: House, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(house.proposals, tmp_path / "p"))

    def mark(reviewer: str) -> None:
        with contextlib.closing(Marks.open(folder)) as marks:
            for row in range(10):
                marks.add(reviewer, [NewMark("facts", row, "accept")])

    threads = [threading.Thread(target=mark, args=(f"r{n}",)) for n in range(budget(4, 16))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with contextlib.closing(Marks.open(folder, read_only=True)) as marks:
        for number in range(len(threads)):
            assert len(marks.rows_of(f"r{number}", "facts", "accept")) == 10


def test_links_in_a_folder_of_others_are_not_written_through(tmp_path: Path) -> None:
    """An archive can bring links: `lock` and `….tmp` could name any file of this machine."""
    precious = tmp_path / "precious"
    precious.write_text("keep")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "lock").symlink_to(precious)
    (folder / "a.json.tmp").symlink_to(precious)
    with pytest.raises(PrixError, match="lock is a link, so it is not written"), locked(folder):
        pass
    with replacing(folder / "a.json") as temporary:
        temporary.write_text("new")
    assert precious.read_text() == "keep" and (folder / "a.json").read_text() == "new"
    (folder / "b.json").symlink_to(precious)
    with replacing(folder / "b.json") as temporary:
        temporary.write_text("new")
    assert precious.read_text() == "keep", "a rename replaces the link, not what it names"


def test_the_files_of_a_result_are_of_one_run(tmp_path: Path) -> None:
    """Of two `evaluate --to` at once, the JSON was that of one and the Markdown of the other."""

    def table(row: str) -> list[ResultTable]:
        made = ResultTable("accuracy")
        made.add_questions(row, "fi", np.ones(3))
        return [made]

    for number in range(budget(60, 2000)):
        to = tmp_path / str(number)
        rows = ("first", "second")
        writing = [
            threading.Thread(target=write_tables, args=(to, "table", table(row))) for row in rows
        ]
        for thread in writing:
            thread.start()
        for thread in writing:
            thread.join()
        [written] = read_tables(to / "table.json")
        [row] = written.rows
        assert f"| {row} |" in (to / "table.md").read_text("utf-8")
        assert [*read_questions(to / "table.parquet")["accuracy"]] == [row]
        assert {path.name for path in to.iterdir()} == {"table.json", "table.md", "table.parquet"}


def test_a_second_evaluation_says_that_the_folder_is_being_written(
    house: House, tmp_path: Path
) -> None:
    asked = ["--kb", house.split, "--langs", "en", "--most", 1, "--without", "paths"]
    to = tmp_path / "lp"
    to.mkdir()
    with alone(to / "table.json", wait=False):
        ran = attack("evaluate", "lp", *asked, "--to", to, codes=(2,))
    assert "another command is writing" in ran.stderr
    attack("evaluate", "lp", *asked, "--to", to, codes=(0,))
    assert not [*to.glob("*.lock")]


def test_the_lock_of_a_result_is_removed(tmp_path: Path) -> None:
    with (
        alone(tmp_path / "table.json", wait=False),
        pytest.raises(PrixError, match="another command is writing"),
        alone(tmp_path / "table.json", wait=False),
    ):
        pass
    with alone(tmp_path / "table.json", wait=False):  # free again, and nothing is left
        pass
    assert not [*tmp_path.iterdir()]
