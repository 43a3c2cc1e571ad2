"""The sizes of pages, as the writers of others make them."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prixlm import PrixError
from prixlm.kb import pages
from prixlm.kb.pages import check_pages

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
    monkeypatch.setattr(pages, "MAX_COLUMN", MIB)
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
