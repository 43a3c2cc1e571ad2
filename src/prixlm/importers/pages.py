"""The pages of a Parquet file, whose sizes bound what reading it takes.

    width = check_pages(path, ["subject", "object"])

Arrow decompresses a page as a whole and keeps the different texts of a column in a row group, so a
few kB may take GiB. The footer tells their size, and may lie. So the header of each page is read
here, as Arrow reads it (Thrift's compact protocol), before any page is.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import duckdb

from prixlm.errors import PrixError
from prixlm.files import quote_path

MAX_COLUMN = 64 << 20
ORDINARY_EXPANSION = 16
"""The pages of a column in one row group may expand to this many bytes, or times their size."""
_HEADER_BYTES = 1 << 20
"""Longest text in a header, which has the least and the greatest value of its page."""
_DELTA_BYTE_ARRAY = 7
# Field numbers of `PageHeader` and of the headers in it, from parquet.thrift.
_EXPANDED, _COMPRESSED, _DATA, _DATA_V2 = 2, 3, 5, 8
_NUM_VALUES, _ENCODING = 1, {_DATA: 2, _DATA_V2: 4}

# DuckDB reads the footer: Arrow ends the process where a flipped bit gives a column another type.
# As in Arrow, the pages of a column start with its dictionary.
_CHUNKS = """
    SELECT if(dictionary_page_offset > 0 AND dictionary_page_offset < data_page_offset,
        dictionary_page_offset, data_page_offset), total_compressed_size
    FROM parquet_metadata({path}) WHERE list_contains(?, path_in_schema)
"""

Fields = dict[int, Any]


def check_pages(path: Path, columns: Sequence[str]) -> int:
    """Refuse a file whose pages of some columns expand beyond the limit in one row group.

    Returns the bytes of a value in the page where they are most, on average.
    """
    widest = 0
    try:
        with duckdb.connect(config={"threads": 1}) as db, path.open("rb") as file:
            query = _CHUNKS.format(path=quote_path(path))
            for start, size in db.execute(query, [list(columns)]).fetchall():
                widest = max(widest, _check_chunk(path, file, start, size))
    except (duckdb.Error, IndexError, KeyError, TypeError, ValueError, OSError):
        raise PrixError(f"{path}: the header of a page is damaged. Copy it again.") from None
    return widest


def _check_chunk(path: Path, file: IO[bytes], start: int, size: int) -> int:
    """Check the pages of a column in one row group, as `check_pages` does."""
    widest = read = expanded = 0
    file.seek(start)
    while file.tell() < start + size:
        header = _read_struct(file)
        compressed = header[_COMPRESSED]
        if compressed < 0:
            raise ValueError("a page of negative size")
        page = max(compressed, header[_EXPANDED])
        read, expanded = read + compressed, expanded + page
        if expanded > max(MAX_COLUMN, ORDINARY_EXPANSION * read):
            raise PrixError(
                f"{path}: {read:,} bytes of a column expand to {expanded >> 20:,} MiB, expected at "
                f"most {MAX_COLUMN >> 20}. Write it in smaller row groups, with shorter texts."
            )
        file.seek(compressed, 1)
        widest = max(widest, _width(header, page))
    return widest


def _width(header: Fields, size: int) -> int:
    """Return the bytes of a value in a page of `size` bytes, 0 for one of a dictionary."""
    for kind, encoding in _ENCODING.items():
        if kind in header:
            # Of what each text adds to the one before: any may be as long as the page.
            is_delta = header[kind][encoding] == _DELTA_BYTE_ARRAY
            return int(size if is_delta else size // max(1, header[kind][_NUM_VALUES]))
    return 0


def _read_struct(file: IO[bytes], depth: int = 0) -> Fields:
    """Return the fields of a struct by number. Raises ValueError or IndexError if there is none."""
    if depth > 3:
        raise ValueError("nested too deep")
    fields: Fields = {}
    number = 0
    while byte := file.read(1)[0]:
        # A field has its distance to the last number and its kind, or 0, kind and number.
        number = number + (byte >> 4) if byte >> 4 else _read_integer(file)
        fields[number] = _read_value(file, byte & 15, depth)
    return fields


def _read_value(file: IO[bytes], kind: int, depth: int) -> Any:
    match kind:
        case 1 | 2:
            return kind == 1
        case 3:
            return file.read(1)[0]
        case 4 | 5 | 6:
            return _read_integer(file)
        case 7:
            return file.read(8)
        case 8:
            size = _read_varint(file)
            if size > _HEADER_BYTES:
                raise ValueError("text too long")
            return file.read(size)
        case 12:
            return _read_struct(file, depth + 1)
    raise ValueError("lists, sets and maps are in no header")


def _read_integer(file: IO[bytes]) -> int:
    value = _read_varint(file)
    return value >> 1 ^ -(value & 1)  # zigzag: 0, -1, 1, -2, ...


def _read_varint(file: IO[bytes]) -> int:
    """Return an integer in groups of seven bits, the lowest first; at most 64 bits."""
    value = 0
    for shift in range(0, 70, 7):
        byte = file.read(1)[0]
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("integer too long")
