"""Helpers that tests of several rooms share."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from prixlm.cli.app import main

if TYPE_CHECKING:
    from prixlm import KB

FULL = float(os.environ.get("PRIXLM_TEST_FULL") or 0)
"""0 in `make test`. In `make test-full` a factor: 1 tries about ten times as many inputs as
`make test`, 6 six times as many again."""
TRIED: Counter[str] = Counter()
"""Generated inputs that were tried, by test file; printed at the end of `make test-full`."""


def budget(small: int, large: int) -> int:
    """Return how many inputs to try: `large` times the factor in `make test-full`."""
    return round(large * FULL) if FULL else small


def count_tried(number: int = 1) -> None:
    """Count inputs that the running test has tried."""
    name = os.environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]
    TRIED[name.removeprefix("tests/")] += number


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def run_prixlm(*args: object, cwd: Path | None = None) -> Ran:
    """Run a command as a shell would, but in this process: torch is then imported only once."""
    out, err = io.StringIO(), io.StringIO()
    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    before = Path.cwd()
    code: object = 0
    try:
        if cwd is not None:
            os.chdir(cwd)
        with (
            mock.patch.object(sys, "argv", ["prixlm", *map(str, args)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            main()
    except SystemExit as end:
        code = end.code
    finally:
        os.chdir(before)
        for kind, handler in handlers.items():
            signal.signal(kind, handler)
    return Ran(code if isinstance(code, int) else 0, out.getvalue(), err.getvalue())


def run_python(code: str, *args: object, cwd: Path | None = None) -> Ran:
    """Run Python code in a new process, for what depends on imports, signals or a clean start."""
    command = [sys.executable, "-c", code, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)
    return Ran(done.returncode, done.stdout, done.stderr)


def run_killed(code: str) -> None:
    """Run Python code that kills its own process; os, signal and Path are imported for it."""
    ran = run_python(f"import os, signal\nfrom pathlib import Path\n{code}")
    assert ran.returncode == -signal.SIGKILL, ran.stderr


_TOOLS = {".coverage.json", ".hypothesis", ".pytest_cache", "__pycache__"}
"""What the tools that run the tests write beside them."""


def left_behind(folder: Path, before: set[str]) -> list[str]:
    """Return the names in a folder that are neither in `before` nor of the tools of the tests."""
    return sorted({path.name for path in folder.iterdir()} - before - _TOOLS)


def fact_row(number: int, **values: object) -> dict[str, object]:
    """Return a row of `proposals.parquet`; `values` replace columns."""
    row: dict[str, object] = {
        "id": number,
        "lang": "fi",
        "subject": number,
        "subject_key": f"http://fi.dbpedia.org/resource/S{number}",
        "subject_name": f"aihe {number}",
        "relation": 0,
        "relation_key": "http://dbpedia.org/ontology/capital",
        "relation_name": "pääkaupunki",
        "relation_is_named": True,
        "object": 100 + number,
        "object_key": f"http://fi.dbpedia.org/resource/O{number}",
        "object_name": f"kohde {number}",
        "confidence": 0.9 - 0.1 * number,
        "why": "elsewhere",
        "origin": ["en", "sv"],
        "model_score": -1.5,
        "model_rank": 1,
        "graph_rank": None,
        "runner_up": "toinen",
        "runner_up_confidence": 0.1,
    }
    return row | values


def label_row(**values: object) -> dict[str, object]:
    """Return a row of `labels.parquet`."""
    row: dict[str, object] = {"lang": "et", "concept": 1, "key": "Q42", "name": "Douglas Adams"}
    return row | {"confidence": 0.9, "origin": ["en"]} | values


def link_row(**values: object) -> dict[str, object]:
    """Return a row of `links.parquet`."""
    row: dict[str, object] = {"lang": "et", "entity": 1, "key": "http://a", "name": "a"}
    row |= {"other_lang": "en", "other": 2, "other_key": "Q7", "other_name": "b"}
    return row | {"confidence": 0.8, "similarity": 0.9} | values


def make_proposals(
    folder: Path,
    facts: Sequence[dict[str, object]],
    labels: Sequence[dict[str, object]] = (),
    links: Sequence[dict[str, object]] = (),
) -> Path:
    """Write a proposals folder by hand, without the run that would make one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from prixlm.proposals.tables import FACT_SCHEMA, FORMAT, LABEL_SCHEMA, LINK_SCHEMA

    folder.mkdir()
    tables = {
        "proposals": (facts, FACT_SCHEMA),
        "labels": (labels, LABEL_SCHEMA),
        "links": (links, LINK_SCHEMA),
    }
    for name, (rows, schema) in tables.items():
        if rows or name == "proposals":
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / f"{name}.parquet")
    manifest = {
        "format": FORMAT,
        "tool": "prixlm test",
        "kb": "ab" * 32,
        "licence": "CC BY-SA",
        "sources": ["a.nt", "b.nt"],
        "config": {"into": sorted({str(row["lang"]) for row in facts})},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), "utf-8")
    return folder


def make_linked_kb(folder: Path, num: int = 900) -> "KB":
    """Import a KB of names that are alike in two languages; some entities have no counterpart."""
    import numpy as np

    from prixlm import import_kb

    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    generator = np.random.default_rng(0)
    facts, links = ["lang\tsubject\trelation\tobject"], ["lang_a\tname_a\tlang_b\tname_b"]
    names = ["".join(generator.choice(syllables, 4)).title() for _ in range(num)]
    names = list(dict.fromkeys(names))
    # Every third has a quite different name, so that not all can be found by it.
    others = [name[::-1].title() if i % 3 == 0 else f"{name}i" for i, name in enumerate(names)]
    for number, name in enumerate(names):
        facts.append(f"en\t{name}\tnext\t{names[number - 1]}")
        facts.append(f"fi\t{others[number]}\tnext\t{others[number - 1]}")
        if number % 10:
            links.append(f"en\t{name}\tfi\t{others[number]}")
    (folder / "facts.tsv").write_text("\n".join(facts) + "\n", "utf-8")
    (folder / "links.tsv").write_text("\n".join(links) + "\n", "utf-8")
    return import_kb([folder / "facts.tsv", folder / "links.tsv"], folder / "kb")
