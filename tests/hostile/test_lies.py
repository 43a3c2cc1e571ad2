"""A server on proposals whose values lie: ids beyond the KB, odd numbers, text that is none."""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from prixlm import KB, PrixError
from prixlm.service.app import create_app
from prixlm.service.opened import Folders
from prixlm.service.workbench import Workbench
from tests.helpers import count_tried
from tests.hostile.attacks import budget, draw
from tests.hostile.conftest import run, write_proposals, write_sources

HOME = "http://127.0.0.1"
BAD_TEXT = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"]).buffers())
"""One value that Parquet calls text, in no encoding."""

LIES: dict[str, pa.Array] = {
    "text that is none": BAD_TEXT,
    "a code that is none": pa.array(["\x1b[31m"]),
    "no text": pa.array([""]),
    "a long text": pa.array(["x-" * 2000]),
    "a huge id": pa.array([2**31 - 1], pa.int32()),
    "an id beyond the KB": pa.array([10**6], pa.int32()),
    "a negative id": pa.array([-1], pa.int32()),
    "a huge number": pa.array([2**62], pa.int64()),
    "a negative number": pa.array([-3], pa.int64()),
    "infinity": pa.array([float("inf")]),
    "no number": pa.array([float("nan")]),
    "below 0": pa.array([-5.0]),
    "a list of nothing": pa.array([[None]], pa.list_(pa.string())),
    "a list of no text": pa.array([[""]], pa.list_(pa.string())),
}
TABLES = ("proposals", "labels", "links")
PATHS = [
    *("/", "/review", "/review?lang=fi", "/review?table=labels", "/review?table=links"),
    *("/review/card", "/review/facets", "/review/sample", "/entity?id=en:Finland", "/marks"),
    *("/api/status", "/api/overview", "/api/entity?id=en:Finland", "/api/gaps?id=en:France"),
    *("/api/proposals", "/api/proposals?order=doubtful&limit=5", "/api/proposals?table=labels"),
    *("/api/proposals?table=links", "/api/proposals/fact-0", "/api/proposals/label-0"),
    *("/api/proposals/link-0", "/api/facets", "/api/sample", "/api/disagreements", "/api/marks"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a KB, whose indexes are built, and proposals for it."""
    folder = tmp_path_factory.mktemp("lies")
    run("import", *write_sources(folder), "--to", folder / "kb")
    write_proposals(folder / "proposals", KB(folder / "kb"))
    Workbench(Folders(kb=folder / "kb", proposals=folder / "proposals")).close()
    return folder


def cases() -> Iterator[tuple[str, str, str]]:
    """Yield table, column and lie, where the lie has the type of the column."""
    from prixlm.proposals.tables import FACT_SCHEMA, LABEL_SCHEMA, LINK_SCHEMA

    schemas = (FACT_SCHEMA, LABEL_SCHEMA, LINK_SCHEMA)
    for table, schema in zip(TABLES, schemas, strict=True):
        for field in schema:
            for what, value in LIES.items():
                if value.type == field.type:
                    yield table, field.name, what


def spoil(path: Path, column: str, what: str) -> None:
    """Put the lie into every row of a column."""
    table = pq.read_table(path)
    values = pa.concat_arrays([LIES[what]] * table.num_rows)
    place = table.column_names.index(column)
    pq.write_table(table.set_column(place, table.schema.field(column), values), path)


def ask(client: TestClient) -> None:
    """Ask all that shows proposals, mark one and export; none may be a failure of our own."""
    answers = [client.get(path) for path in PATHS]
    for kind in ("fact", "label", "link"):
        body = {"id": f"{kind}-0", "verdict": "accept"}
        answers.append(client.post("/api/marks", json=body, headers={"X-Reviewer": "Anna"}))
    for format in ("tsv", "nq", "nt", "parquet"):
        answers.append(client.post("/api/export", json={"format": format}))
    for answer in answers:
        count_tried()
        assert answer.status_code < 500, (answer.url, answer.text)
        if answer.headers["content-type"] == "application/json":
            json.loads(answer.text, parse_constant=lambda text: pytest.fail(f"{text} is no JSON"))


@contextlib.contextmanager
def served_folder(kb: Path, proposals: Path) -> Iterator[TestClient | None]:
    """Yield a client of a server on proposals; None if they were refused in one line."""
    try:
        bench = Workbench(Folders(kb=kb, proposals=proposals))
    except PrixError as refused:
        assert str(proposals) in str(refused) and "\n" not in str(refused)
        yield None
        return
    with TestClient(create_app(bench), HOME, raise_server_exceptions=False) as client:
        yield client
    bench.close()


ONCE_FAILED = [
    ("proposals", "object", "an id beyond the KB"),
    ("proposals", "subject", "a huge id"),
    ("proposals", "confidence", "infinity"),
    ("proposals", "confidence", "no number"),
    ("proposals", "subject_name", "text that is none"),
    ("labels", "origin", "a list of nothing"),
    ("labels", "lang", "text that is none"),
    ("links", "other", "a negative id"),
]


@pytest.mark.parametrize(
    ("table", "column", "what"),
    dict.fromkeys([*ONCE_FAILED, *draw(list(cases()), budget(6, 10**6), "served lies")]),
)
def test_a_server_on_proposals_that_lie_answers_or_refuses(
    table: str, column: str, what: str, served: Path, tmp_path: Path
) -> None:
    proposals = Path(shutil.copytree(served / "proposals", tmp_path / "p"))
    spoil(proposals / f"{table}.parquet", column, what)
    with served_folder(served / "kb", proposals) as client:
        if client is not None:
            ask(client)


KNOWN = {"known": ["train"]}
FITTED: dict[str, Any] = {"rankers": ["rules"], "trained": "", "config": {"into": ["fi"]}}
FITTED["config"]["missing"] = KNOWN
FUSIONS: dict[str, tuple[dict[str, Any], object, object]] = {
    "nothing of what it was fitted on": ({"fitted_on_kb": None}, {}, {}),
    "no settings of questions": ({"config": {"into": ["fi"]}}, {}, {}),
    "rankers that are a number": ({"rankers": 5}, {}, {}),
    "settings that are a number": ({"config": {"into": ["fi"], "missing": 5}}, {}, {}),
    "unknown settings": ({"config": {"into": ["fi"], "missing": {"a": 5}}}, {}, {}),
    "settings of another kind": ({"config": {"into": ["fi"], "missing": {"usual": "x"}}}, {}, {}),
    "known that is a number": ({"config": {"into": ["fi"], "missing": {"known": 5}}}, {}, {}),
    "a model in a list": ({"trained": [[]]}, {}, {}),
    "a fusion that is a list": ({}, [], {}),
    "a fusion without a record": ({}, {"kb": "", "rankers": [], "config": {}}, {}),
    "a record of text": ({}, {"kb": "", "rankers": [], "config": {}, "record": "x"}, {}),
}


@pytest.mark.parametrize("what", FUSIONS)
def test_a_server_on_a_fusion_that_lies_answers_or_refuses(
    what: str, served: Path, tmp_path: Path
) -> None:
    proposals = Path(shutil.copytree(served / "proposals", tmp_path / "p"))
    manifest = json.loads((proposals / "manifest.json").read_text("utf-8"))
    wrong, fusion, answerable = FUSIONS[what]
    manifest |= FITTED | {"fitted_on_kb": manifest["kb"]} | wrong
    (proposals / "manifest.json").write_text(json.dumps(manifest))
    (proposals / "fusion").mkdir()
    (proposals / "fusion" / "fusion.json").write_text(json.dumps(fusion))
    (proposals / "answerable.json").write_text(json.dumps(answerable))
    with served_folder(served / "kb", proposals) as client:
        if client is None:
            return
        for path in ("/api/status", "/api/complete?relation=capital&subject=en:Finland"):
            answer = client.get(path)
            count_tried()
            assert answer.status_code < 500 or answer.status_code == 503, (path, answer.text)
