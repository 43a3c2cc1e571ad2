"""Tables that others may have written: refused in one line where they are opened."""

import json
import shutil
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import KB, PrixError
from prixlm.kb import checks
from prixlm.kb.checks import check_ids, check_pages, check_table

SCHEMA = pa.schema({"id": pa.int32(), "name": pa.string(), "origin": pa.list_(pa.string())})
ROWS = {"id": [0, 1], "name": ["a", "b"], "origin": [["en"], []]}


def written(path: Path, rows: dict[str, list[object]], schema: pa.Schema = SCHEMA) -> Path:
    pq.write_table(pa.table(rows, schema=schema), path)
    return path


def test_what_we_write_passes(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", ROWS)
    assert check_table(path, SCHEMA, "Again.", bounds={"id": 2}) == 2
    assert check_table(written(tmp_path / "b", {name: [] for name in ROWS}), SCHEMA, "Again.") == 0


def test_millions_of_rows_in_a_few_bytes_are_refused(tmp_path: Path) -> None:
    schema = pa.schema({"id": pa.int32()})
    for rows, varied in ((2_000_000, True), (1 << 20, False), (2_000_000, False)):
        ids = np.arange(rows) if varied else np.zeros(rows)
        path = tmp_path / f"{rows} {varied}"
        pq.write_table(pa.table({"id": ids.astype("int32")}), path, compression="zstd")
        if varied or rows == 1 << 20:
            assert check_table(path, schema, "Again.") == rows
        else:
            with pytest.raises(PrixError, match=r"2,000,000 rows in [\d,]+ bytes\. Again\."):
                check_table(path, schema, "Again.")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": pa.array(["0", "1"])}, "id is string, expected int32"),
        ({"name": pa.array([b"a", b"b"])}, "name is binary, expected string"),
        ({"name": pa.array([["a"], ["b"]])}, "name is list<.*>, expected string"),
        ({"origin": pa.array(["en", "fi"])}, "origin is string, expected list"),
        ({"name": pa.array(["a", None])}, "name has nulls"),
        ({"id": pa.array([0, 2], pa.int32())}, "id has ids from 0 to 2, expected 0 to 1"),
        ({"id": pa.array([-1, 1], pa.int32())}, "id has ids from -1 to 1, expected 0 to 1"),
    ],
)
def test_other_types_nulls_and_ids_are_refused(
    changes: dict[str, pa.Array], message: str, tmp_path: Path
) -> None:
    table = pa.table(ROWS, schema=SCHEMA)
    for name, column in changes.items():
        table = table.set_column(table.column_names.index(name), name, column)
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(PrixError, match=message + ".* Again."):
        check_table(tmp_path / "a.parquet", SCHEMA, "Again.", bounds={"id": 2})


def test_missing_and_double_columns_are_refused(tmp_path: Path) -> None:
    table = pa.table(ROWS, schema=SCHEMA)
    pq.write_table(table.drop_columns(["name"]), tmp_path / "a.parquet")
    with pytest.raises(PrixError, match="has 0 columns name, expected 1"):
        check_table(tmp_path / "a.parquet", SCHEMA, "Again.")
    assert check_table(tmp_path / "a.parquet", SCHEMA, "Again.", optional={"name"}) == 2
    pq.write_table(table.append_column("name", table["name"]), tmp_path / "b.parquet")
    with pytest.raises(PrixError, match="has 2 columns name, expected 1"):
        check_table(tmp_path / "b.parquet", SCHEMA, "Again.")


def test_a_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and more")
    with pytest.raises(PrixError, match=r"cannot be read \(.+\)\. Again"):
        check_table(tmp_path / "a.parquet", SCHEMA, "Again.")


def test_a_kb_with_other_numbers_of_rows_than_it_states_is_refused(toy: KB) -> None:
    path = toy.folder / "manifest.json"
    values = json.loads(path.read_text("utf-8"))
    values["counts"]["relations"] += 1
    path.write_text(json.dumps(values), "utf-8")
    with pytest.raises(
        PrixError, match=r"relations.parquet has 3 rows, and manifest.json states 4"
    ):
        KB(toy.folder)


def test_ids_that_the_footer_is_silent_about_are_refused_as_rows_are_read(
    toy: KB, tmp_path: Path
) -> None:
    folder = tmp_path / "kb"
    shutil.copytree(toy.folder, folder)
    for table, column in (("triples", "object"), ("entities", "id")):
        path = folder / f"{table}.parquet"
        rows = pq.read_table(path)
        wrong = pa.array([*rows[column].to_pylist()[:-1], 10**6], pa.int32())
        rows = rows.set_column(rows.column_names.index(column), column, wrong)
        pq.write_table(rows, path, write_statistics=False)
    kb = KB(folder)
    with pytest.raises(PrixError, match="object has ids from 1 to 1000000, expected 0 to"):
        list(kb.batches("triples"))
    with pytest.raises(PrixError, match="object has ids from"):
        list(kb.batches("triples", langs=toy.languages))
    with pytest.raises(PrixError, match=r"id has ids from 0 to 1000000.*Import the KB again\."):
        list(kb.all_names())


def test_null_ids_are_refused_as_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    check_ids(path, pa.record_batch({"id": pa.array([], pa.int32())}), {"id": 2}, "Again.")
    with pytest.raises(PrixError, match=r"id has nulls\. Again\."):
        check_ids(path, pa.record_batch({"id": pa.array([0, None])}), {"id": 2}, "Again.")


# The sizes of pages, as the writers of others make them.

MIB = 1 << 20
NAMES = [f"name {number % 500}" for number in range(20_000)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("encoding", ["dictionary", "PLAIN", "DELTA_BYTE_ARRAY"])
def test_pages_of_every_kind_are_walked_to_the_end(
    encoding: str, codec: str, version: str, tmp_path: Path
) -> None:
    table = pa.table({"a": NAMES, "b": [None if len(n) == 6 else n for n in NAMES]})
    how = {"column_encoding": encoding} if encoding != "dictionary" else {}
    pq.write_table(
        table,
        tmp_path / "a.parquet",
        compression=codec,
        data_page_version=version,
        use_dictionary=not how,
        row_group_size=7000,
        write_page_checksum=codec == "zstd",
        **how,
    )
    width = check_pages(tmp_path / "a.parquet", ["a", "b"])
    if encoding == "DELTA_BYTE_ARRAY":
        assert width > 1000, "any text of the page may be as long as the page"
    else:
        assert width < 3 if encoding == "dictionary" else 10 < width < 15


def test_pages_of_duckdb_are_read(tmp_path: Path) -> None:
    rows = "SELECT 'name ' || i AS a, i AS b FROM range(300000) t(i)"
    duckdb.sql(f"COPY ({rows}) TO '{tmp_path}/a.parquet' (FORMAT parquet)")
    assert 4 <= check_pages(tmp_path / "a.parquet", ["a", "b"]) < 20


def test_a_large_page_is_read_if_the_file_is_large_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "MAX_COLUMN", MIB)
    path, table = tmp_path / "a.parquet", pa.table({"a": ["x" * 2 * MIB]})
    pq.write_table(table, path, compression="none", use_dictionary=False)
    assert check_pages(path, ["a"]) >= 2 * MIB
    pq.write_table(table, path, compression="zstd")
    with pytest.raises(PrixError, match=r"expand to 2 MiB, expected at most 1\. Write it in"):
        check_pages(path, ["a"])


@pytest.mark.parametrize("place", range(4, 30))
def test_a_damaged_header_is_one_line(place: int, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": NAMES}), path)
    data = bytearray(path.read_bytes())
    for value in (0x00, 0x1C, 0x19, 0xFF):
        data[place] = value
        path.write_bytes(bytes(data))
        try:
            check_pages(path, ["a"])
        except PrixError as error:
            assert "a.parquet" in str(error) and "\n" not in str(error)
