"""The commands that `kills.py` kills: how each is called, and what of its result is compared."""

import contextlib
import hashlib
import json
import re
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dumps import make_dumps

LOGS = {"timings.json", "metrics.jsonl", "state.json", "work.json", "loss.png", "lock", "run.json"}
"""Files that hold times."""
ENRICH = ("--effort", "quick", "--min-confidence", 0.02)
"""With few trees, few answers are sure."""


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


@dataclass(frozen=True)
class Case:
    """A command that writes: its arguments for a folder of results, and what it writes there."""

    args: Callable[[Path], list[object]]
    target: str
    content: Callable[[Path], dict[str, str]] = digests  # of the target, for the comparison
    prepare: Callable[[Path], None] | None = None  # puts what the command changes into the folder
    resumes: bool = False  # it is run again although its target is there
    replaces: bool = False  # its target is there before, and then another whole one


def marks_of(folder: Path) -> dict[str, str]:
    """Return what is marked, without the times, as content to compare."""
    with contextlib.closing(sqlite3.connect(folder / "marks.db")) as db:
        rows = db.execute("SELECT DISTINCT tab, row, verdict, name FROM marks").fetchall()
    return {"marks": str(sorted(map(str, rows)))}


def cases(inputs: Path) -> dict[str, Case]:
    """Return every command that writes."""
    kb, model, split = inputs / "kb", inputs / "base", inputs / "split"
    ask: list[object] = [model, "--kb", kb]
    few: list[object] = ["--kb", split, "--langs", "et"]

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
            lambda to: ["graph", kb, "--to", to / "graph", "--rank", 16, "--epochs", 8],
            "graph",
            resumes=True,
        ),
        "pretrain": Case(
            lambda to: ["pretrain", kb, "--to", to / "model", "--config", inputs / "run.toml"],
            "model",
            resumes=True,
        ),
        "mirror": Case(
            lambda to: [
                *("mirror", model, "--to", to / "encoder", "--kb", kb, "--preset", "compact"),
                *("--number", 400, "--batch", 32, "--epochs", 2),
            ],
            "encoder",
            resumes=True,
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
            lambda to: ["enrich", kb, "--into", "et", "--to", to / "work", *ENRICH],
            "work",
            resumes=True,
        ),
        "review (write)": Case(
            lambda to: ["review", inputs / "work", "--to", to / "sheet.tsv"], "sheet.tsv"
        ),
        "review (read)": Case(
            lambda to: ["review", to / "proposals", "--marks", inputs / "marked.tsv"],
            "proposals",
            marks_of,
            copy_proposals,
            resumes=True,
        ),
        "export": Case(
            lambda to: ["export", inputs / "work", "--format", "nq", "--to", to / "facts.nq"],
            "facts.nq",
        ),
        "report": Case(
            lambda to: ["report", inputs / "work", "--to", to / "page"],
            "page",
            _pages,
            resumes=True,
        ),
        "sample": Case(
            lambda to: ["sample", inputs / "work", "--to", to / "sample", "--number", 20], "sample"
        ),
        "evaluate lp": Case(
            lambda to: ["evaluate", "lp", *few, "--most", 50, "--to", to / "lp"],
            "lp",
            _results,
            resumes=True,
        ),
        "evaluate labels": Case(
            lambda to: ["evaluate", "labels", *few, "--to", to / "labels"],
            "labels",
            _results,
            resumes=True,
        ),
        "evaluate enrich": Case(
            lambda to: ["evaluate", "enrich", *few, "--most", 50, "--to", to / "trial"],
            "trial",
            _results,
            resumes=True,
        ),
        "reproduce lp": Case(
            lambda to: [
                *("reproduce", "lp", "--kb", split, "--rows", "lookup,pairs"),
                *("--to", to / "table"),
            ],
            "table",
            _results,
            resumes=True,
        ),
        **import_cases(inputs),
    }


def import_cases(inputs: Path) -> dict[str, Case]:
    """Return an import of each format, parsed here and by workers, and one that replaces a KB."""
    made: dict[str, Case] = {}

    def copy_kb(to: Path) -> None:
        shutil.copytree(inputs / "kb", to / "kb")

    for name, sources in make_dumps(inputs / "dumps").items():
        made[f"import {name}"] = Case(partial(_import, sources), "kb")
        made[f"import {name}, workers"] = Case(partial(_import, sources, "--workers", 2), "kb")
        overwriting = partial(_import, sources, "--overwrite")
        made[f"import {name}, overwrite"] = Case(
            overwriting, "kb", prepare=copy_kb, resumes=True, replaces=True
        )
    return made


def _import(sources: list[Path], *options_and_folder: object) -> list[object]:
    """Return the arguments of an import: its options, and last the folder of results."""
    *options, to = options_and_folder
    assert isinstance(to, Path)
    return ["import", *sources, *options, "--to", to / "kb"]


def _results(folder: Path) -> dict[str, str]:
    """Return the hash of every file of a result, without times and without pictures."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".png" and path.name not in LOGS:
            content = path.read_text("utf-8") if path.suffix in (".json", ".md") else None
            if path.suffix == ".json" and content is not None:
                content = json.dumps(_without_times(json.loads(content)))
            if path.suffix == ".md" and content is not None:
                content = re.sub(r"(?m)^Made by .*$", "", content)
            data = path.read_bytes() if content is None else content.encode()
            found[str(path.relative_to(folder))] = hashlib.sha256(data).hexdigest()
    return found


def _without_times(values: object) -> object:
    if isinstance(values, dict):
        return {k: _without_times(v) for k, v in values.items() if "seconds" not in k}
    return [_without_times(value) for value in values] if isinstance(values, list) else values


def _pages(folder: Path) -> dict[str, str]:
    """Return which pages there are and that each is whole: they hold times and paths."""
    pages = sorted(path for path in folder.rglob("*.html"))
    ends = (path.read_text("utf-8").rstrip().endswith("</html>") for path in pages)
    return {path.name: str(end) for path, end in zip(pages, ends, strict=True)}
