"""Files of queries: in every format, with bad rows, stopped and resumed."""

import csv
import io
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from prixlm import KB, EngineConfig, PrixError, PrixLM
from prixlm.decoding import batch
from prixlm.decoding.batch import answer_file
from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.engine import jobs
from prixlm.engine.parts import shard_size
from prixlm.types import Query

QUERIES = [
    ("en", "France", "capital"),
    ("xx", "France", "capital"),
    ("fi", "Suomi", "Capital"),
    ("en", "", "capital"),
    ("ja", "フランス", "capital"),
]
COLUMNS = ("lang", "subject", "relation")


def as_text(separator: str = "\t") -> str:
    return "".join(separator.join(row) + "\n" for row in [COLUMNS, *QUERIES])


def write_queries(path: Path) -> Path:
    if path.suffix == ".parquet":
        columns = (list(column) for column in zip(*QUERIES, strict=True))
        pq.write_table(pa.table(dict(zip(COLUMNS, columns, strict=True))), path)
    else:
        path.write_text(as_text("," if path.suffix == ".csv" else "\t"), "utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, object]]:
    """The rows of answers, with numbers as numbers."""
    if path.suffix == ".parquet":
        return [
            {name: value for name, value in row.items() if value is not None}
            for row in pq.read_table(path).to_pylist()
        ]
    lines = path.read_text("utf-8").splitlines()
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in lines]
    if path.suffix == ".tsv":  # without quotes, as our own reader has it
        names, *cells = (line.split("\t") for line in lines)
        rows = [dict(zip(names, row, strict=True)) for row in cells]
    else:
        rows = list(csv.DictReader(lines))
    integers = ("query", "rank", "entity")
    return [
        {name: int(value) if name in integers else value for name, value in row.items() if value}
        for row in rows
    ]


@pytest.mark.parametrize("suffix", [".parquet", ".tsv", ".csv", ".jsonl"])
def test_a_file_of_queries_becomes_a_file_of_answers(
    completer: Completer, tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_PART", 2)
    source = write_queries(tmp_path / ("q.tsv" if suffix == ".jsonl" else f"q{suffix}"))
    out = tmp_path / f"a{suffix}"
    steps: list[tuple[str, int, int]] = []
    counts = answer_file(
        completer, source, out, SearchConfig(k=2), progress=lambda *step: steps.append(step)
    )
    assert counts == {"queries": 5, "errors": 2}
    assert steps == [("answer", 2, 5), ("answer", 4, 5), ("answer", 5, 5)]
    rows = read_rows(out)
    assert len(rows) == 8
    best = {row["query"]: row["object"] for row in rows if row.get("rank") == 1}
    assert best == {0: "Paris", 2: "Helsinki", 4: "パリ"}
    errors = {row["query"]: str(row["error"]) for row in rows if "error" in row}
    assert errors.keys() == {1, 3} and "no language 'xx'" in errors[1]
    assert rows[0]["subject"] == "France" and rows[0]["lang"] == "en"
    assert not out.with_name(out.name + ".partial").exists()
    with pytest.raises(PrixError, match="is already there"):
        answer_file(completer, source, out, SearchConfig(k=2))


def test_names_are_translated(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("lang\tname\tto\nen\tFinland\tja\nen\tFinland\t\n", "utf-8")
    answer_file(completer, tmp_path / "q.tsv", tmp_path / "a.jsonl", SearchConfig(k=1))
    first, second = read_rows(tmp_path / "a.jsonl")
    assert (first["to"], first["object"]) == ("ja", "フィンランド") and "relation" not in first
    assert (second["subject"], second["error"]) == ("Finland", "empty: to.")


def test_queries_come_from_standard_input(
    completer: Completer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def give(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    give(as_text())
    out = tmp_path / "new" / "a.tsv"
    assert answer_file(completer, "-", out, SearchConfig(k=1)) == {"queries": 5, "errors": 2}
    source = write_queries(tmp_path / "q.tsv")
    answer_file(completer, source, tmp_path / "b.tsv", SearchConfig(k=1))
    assert out.read_bytes() == (tmp_path / "b.tsv").read_bytes()
    give("subject\tobject\n")
    with pytest.raises(PrixError, match="standard input has the columns subject, object"):
        answer_file(completer, "-", tmp_path / "new" / "c.tsv", SearchConfig())
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.tsv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("en\tFinland\tcapital\n", "has the columns en, Finland, capital; expected lang, subject"),
        ("lang\tsubject\trelation\nen\tFinland\n", "a row has 2 columns, expected 3: 'en"),
        ("", "cannot be read: Empty CSV file"),
    ],
)
def test_a_bad_file_of_queries_is_one_line_and_leaves_nothing(
    completer: Completer, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "q.tsv").write_text(text, "utf-8")
    with pytest.raises(PrixError, match=message):
        answer_file(completer, tmp_path / "q.tsv", tmp_path / "a.tsv", SearchConfig())
    assert [path.name for path in tmp_path.iterdir()] == ["q.tsv"]


def test_a_row_that_cannot_be_asked_keeps_its_cells(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "q.tsv").write_text("lang\tsubject\trelation\nen\t\tcapital\n", "utf-8")
    answer_file(completer, tmp_path / "q.tsv", tmp_path / "a.parquet", SearchConfig())
    [row] = pq.read_table(tmp_path / "a.parquet").to_pylist()
    assert (row["lang"], row["relation"], row["error"]) == ("en", "capital", "empty: subject.")


def test_a_folder_that_is_not_ours_is_left_alone(completer: Completer, tmp_path: Path) -> None:
    source = write_queries(tmp_path / "q.tsv")
    (tmp_path / "a.tsv.partial").mkdir()
    (tmp_path / "a.tsv.partial" / "thesis.txt").write_text("years of work")
    with pytest.raises(PrixError, match=r"a\.tsv\.partial is in the way"):
        answer_file(completer, source, tmp_path / "a.tsv", SearchConfig())
    assert (tmp_path / "a.tsv.partial" / "thesis.txt").exists()


class Watched:
    """Counts which queries a completer is asked, and may stop it."""

    def __init__(self, completer: Completer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.stop_after: int | None = None
        real = completer.answer

        def answer(queries: list[Query], *rest: object) -> object:
            if self.stop_after is not None and len(self.asked) >= self.stop_after:
                raise KeyboardInterrupt
            self.asked.extend(query.subject for query in queries)
            return real(queries, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(completer, "answer", answer)
        monkeypatch.setattr(batch, "_PART", 2)


def stop_halfway(
    completer: Completer, source: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> Watched:
    """Answer two parts of two rows, and stop in the third."""
    watched = Watched(completer, monkeypatch)
    watched.stop_after = 3
    with pytest.raises(KeyboardInterrupt):
        answer_file(completer, source, out, SearchConfig(k=2))
    assert watched.asked == ["France", "France", "Suomi"] and not out.exists()
    watched.asked.clear()
    watched.stop_after = None
    return watched


def test_a_stopped_file_is_resumed_without_asking_again(
    completer: Completer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, out = write_queries(tmp_path / "q.tsv"), tmp_path / "a.tsv"
    watched = stop_halfway(completer, source, out, monkeypatch)
    answer_file(completer, source, out, SearchConfig(k=2))
    assert watched.asked == ["フランス"]
    answer_file(completer, source, tmp_path / "b.tsv", SearchConfig(k=2))
    assert out.read_bytes() == (tmp_path / "b.tsv").read_bytes()


@pytest.fixture(scope="module")
def saved(trained: PrixLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trained model, for workers."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    trained.save(folder)
    return folder


def engines() -> list[EngineConfig]:
    """One worker, which is the reference, two, and two on Ray if it is installed."""
    found = [EngineConfig(workers=1), EngineConfig(workers=2)]
    return found + [EngineConfig(kind="ray", workers=2)] * (find_spec("ray") is not None)


@pytest.mark.filterwarnings("ignore")  # of Ray itself
def test_workers_write_the_bytes_of_one_process(
    saved: Path, shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "_PART", 2)
    source = write_queries(tmp_path / "q.tsv")
    completer = Completer(saved, shared_toy)
    candidates = np.arange(shared_toy.num_entities)
    outs = [tmp_path / f"{number}.parquet" for number in range(len(engines()))]
    for engine, out in zip(engines(), outs, strict=True):
        config = SearchConfig(k=2)
        answer_file(completer, source, out, config, candidates=candidates, engine=engine)
    assert len({out.read_bytes() for out in outs}) == 1
    assert pq.read_table(outs[0])["error"].null_count == 6


@pytest.mark.parametrize(
    ("owner", "method", "what"), [(KB, "fingerprint", "KB"), (Completer, "identity", "model")]
)
def test_a_worker_with_another_kb_or_model_is_refused(
    saved: Path,
    shared_toy: KB,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    method: str,
    what: str,
) -> None:
    """As on a machine with another folder at the same path."""
    source, engine = write_queries(tmp_path / "q.tsv"), EngineConfig(workers=2)
    completer = Completer(saved, shared_toy)
    monkeypatch.setattr(owner, method, lambda _: "of the driver")
    with pytest.raises(PrixError, match=rf"has another {what} than the driver: found .*, expected"):
        answer_file(completer, source, tmp_path / "a.tsv", SearchConfig(), engine=engine)


def test_a_model_in_memory_cannot_be_sent_to_workers(completer: Completer, tmp_path: Path) -> None:
    source, engine = write_queries(tmp_path / "q.tsv"), EngineConfig(workers=2)
    with pytest.raises(PrixError, match="the model is in memory only: save it"):
        answer_file(completer, source, tmp_path / "a.tsv", SearchConfig(), engine=engine)


def test_large_files_have_larger_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [shard_size(total, 256) for total in (0, 10, 1 << 22)] == [256] * 3
    assert shard_size(100_000_000, 256) == 6104


@pytest.mark.parametrize("change", ["config", "candidates", "queries", "threads", "versions"])
def test_parts_of_another_question_are_not_reused(
    completer: Completer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    source, out, found = write_queries(tmp_path / "q.tsv"), tmp_path / "a.tsv", jobs.versions()
    watched = stop_halfway(completer, source, out, monkeypatch)
    if change == "queries":
        source.write_text(as_text().replace("Suomi", "Ranska"), "utf-8")
    if change == "versions":
        monkeypatch.setattr(jobs, "versions", lambda: {**found, "torch": "0.0.1"})
        monkeypatch.setattr(jobs, "check_versions", lambda _: None)
    every = np.arange(completer.kb.num_entities)
    answer_file(
        completer,
        source,
        out,
        SearchConfig(k=1 if change == "config" else 2),
        candidates=every if change == "candidates" else None,
        engine=EngineConfig(workers=1) if change == "threads" else None,
    )
    assert len(watched.asked) == 4, "all queries that can be asked, from the first on"


def test_files_that_cannot_be_read_are_named(completer: Completer, tmp_path: Path) -> None:
    (tmp_path / "odd.tsv").write_text("subject\tobject\nA\tB\n", "utf-8")
    for source, out, message in (
        ("odd.tsv", "a.tsv", "has the columns subject, object; expected lang, subject, relation"),
        ("none.tsv", "a.tsv", "cannot be read"),
        ("odd.tsv", "a.xlsx", "expected a name that ends in .parquet"),
    ):
        with pytest.raises(PrixError, match=message):
            answer_file(completer, tmp_path / source, tmp_path / out, SearchConfig())


def test_a_file_that_is_not_utf8_is_refused_with_the_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "queries.tsv"
    path.write_bytes(b"lang\tsubject\trelation\nen\ta\tb\nen\t\x94\tb\tc\td\n")
    with pytest.raises(PrixError, match="is not UTF-8 after line"):
        batch._QueriesFile(path, "queries.tsv").count()
    assert capfd.readouterr().err == "", "and nothing else is printed"


def test_the_model_of_a_driver_leaves_the_gpu_while_workers_answer() -> None:
    """There is no GPU here: the model is a stand-in that notes where it goes."""
    moves: list[str] = []
    model = SimpleNamespace(
        backbone=SimpleNamespace(device=torch.device("cuda", 1)),
        cpu=lambda: moves.append("cpu"),
        to=lambda device: moves.append(str(device)),
    )
    driver: Any = SimpleNamespace(model=model)
    with batch._leaving_the_gpu(driver, EngineConfig(workers=2)):
        assert moves == ["cpu"]
    assert moves == ["cpu", "cuda:1"]
    with batch._leaving_the_gpu(driver, None):  # it answers itself
        assert moves == ["cpu", "cuda:1"]
