"""The proposals folder: parts become one table, and an incomplete folder is refused."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError
from prixlm.proposals.tables import (
    FACT_SCHEMA,
    GROUP_ROWS,
    LABEL_SCHEMA,
    PART_SCHEMA,
    join_parts,
    read_manifest,
    read_timings,
    write_table,
    write_timings,
)
from tests.helpers import fact_row, label_row, make_proposals


def part_row(kb: KB, subject: str, object_: str, **values: object) -> dict[str, object]:
    """Return a row of a part: Finnish entities by name, relation 0."""
    ids = {name: kb.find(name, "fi")[0].id for name in (subject, object_)}
    row = fact_row(0, subject=ids[subject], object=ids[object_], runner_up=ids[subject])
    return {name: row[name] for name in PART_SCHEMA.names} | values


@pytest.fixture
def parts(toy: KB, tmp_path: Path) -> list[Path]:
    rows = [
        [part_row(toy, "Suomi", "Helsinki", confidence=0.6)],
        [
            part_row(toy, "Ranska", "Helsinki", confidence=0.7, why="usual"),
            part_row(toy, "Ranska", "Euro", confidence=0.9, runner_up=-1),
        ],
    ]
    paths = [tmp_path / f"part-{number}.parquet" for number in range(len(rows))]
    for path, some in zip(paths, rows, strict=True):
        pq.write_table(pa.Table.from_pylist(some, schema=PART_SCHEMA), path)
    return paths


def test_labels_are_written_in_small_row_groups_so_that_one_row_is_read_fast(
    tmp_path: Path,
) -> None:
    rows = pa.Table.from_pylist([label_row()] * (2 * GROUP_ROWS + 1), schema=LABEL_SCHEMA)
    write_table(tmp_path, "labels", rows)
    found = pq.read_metadata(tmp_path / "labels.parquet")
    assert [found.row_group(n).num_rows for n in range(3)] == [GROUP_ROWS, GROUP_ROWS, 1]


def join(
    kb: KB, parts: list[Path], folder: Path, limit: int | None = None
) -> tuple[pa.Table, object]:
    scratch = folder / "scratch"
    scratch.mkdir()
    counts = join_parts(kb, parts, folder / "all.parquet", limit, scratch)
    return pq.read_table(folder / "all.parquet"), counts


def test_parts_become_one_table_with_names_the_most_confident_first(
    toy: KB, parts: list[Path], tmp_path: Path
) -> None:
    table, counts = join(toy, parts, tmp_path)
    assert table.schema.equals(FACT_SCHEMA)
    assert table["object_name"].to_pylist() == ["Euro", "Helsinki", "Helsinki"]
    assert table["id"].to_pylist() == [0, 1, 2]
    assert table["subject_name"].to_pylist() == ["Ranska", "Ranska", "Suomi"]
    assert table["runner_up"].to_pylist() == [None, "Ranska", "Suomi"]
    assert counts == {"fi": {"elsewhere": 2, "usual": 1}}


def test_a_limit_keeps_the_most_confident(toy: KB, parts: list[Path], tmp_path: Path) -> None:
    table, counts = join(toy, parts, tmp_path, limit=2)
    assert table["confidence"].to_pylist() == [0.9, 0.7]
    assert counts == {"fi": {"elsewhere": 1, "usual": 1}}


def test_many_parts_are_read_some_at_a_time(
    toy: KB, parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in (None, 2):
        tables, shown = [], []
        for number in (512, 1):
            monkeypatch.setattr("prixlm.proposals.tables._JOINED_PARTS", number)
            folder = tmp_path / f"{limit}-{number}"
            folder.mkdir()
            tables.append(join(toy, parts, folder, limit))
            shown.append((folder / "all.parquet").read_bytes())
        assert tables[0] == tables[1] and shown[0] == shown[1]


def test_no_part_makes_an_empty_table(toy: KB, tmp_path: Path) -> None:
    table, counts = join(toy, [], tmp_path)
    assert table.num_rows == 0 and table.schema.equals(FACT_SCHEMA) and counts == {}


def test_an_incomplete_or_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="not a complete proposals folder"):
        read_manifest(tmp_path)
    folder = make_proposals(tmp_path / "p", [fact_row(0)])
    assert read_manifest(folder)["licence"] == "CC BY-SA"
    manifest = (folder / "manifest.json").read_text("utf-8")
    for text in ("[]", json.dumps(json.loads(manifest) | {"format": "prixlm-kb"})):
        (folder / "manifest.json").write_text(text, "utf-8")
        with pytest.raises(PrixError, match="is not a proposals folder"):
            read_manifest(folder)
    (folder / "manifest.json").write_text(manifest, "utf-8")
    (folder / "proposals.parquet").unlink()
    with pytest.raises(PrixError, match="is not a proposals folder"):
        read_manifest(folder)


def test_timings_are_read_back_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    assert read_timings(tmp_path) == {}
    write_timings(tmp_path, {"enrich": 1.5})
    assert read_timings(tmp_path) == {"enrich": 1.5}
    for text in ("[", "[1]", '{"enrich": "long"}'):
        (tmp_path / "timings.json").write_text(text)
        with pytest.raises(PrixError, match=r"timings.json cannot be read .* delete it"):
            read_timings(tmp_path)
