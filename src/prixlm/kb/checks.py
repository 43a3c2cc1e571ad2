"""Checks of Parquet tables that others may have written: columns, types, nulls and ranges of ids.

    check_table(path, SCHEMAS["triples"], "Import the KB again.", bounds={"subject": 812})

Only the footer and the headers of pages are read, and columns of lists, whose nulls they do not
tell. The footer has the type of each column and, for each row group, how many values are null and
which are the least and the greatest. The headers tell what reading a column takes. So a table that
is not what we write is refused in one line where it is opened, not by an error deep in a query. A
footer can lie about the values: what is read then is wrong, as it would be with other values, but
`check_ids` refuses ids that no row has.

    width = check_pages(path, ["subject", "object"])

Arrow decompresses a page as a whole and keeps the different texts of a column in a row group, so a
few kB may take GiB. The footer tells their size, and may lie. So the header of each page is read
here, as Arrow reads it (Thrift's compact protocol), before any page is.
"""

import os
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import parquet_rows, quote_path

_FREE_ROWS, _ROWS_A_BYTE = 1 << 20, 32
"""Rows that a table may have, and values in lists: this many in any case, or for each byte of the
file. Ids and names differ from row to row, so ours take a byte or more; 20 million equal rows take
315 kB."""

# DuckDB reads them, because Arrow's reader of statistics ends the process (std::terminate) where
# a flipped bit gives a column another type. What another tool wrote need not have any: null.
# Inside of lists, a column has a path such as `origin, list, element`.
_STATISTICS = """
    SELECT path_in_schema, sum(stats_null_count), bool_and(stats_null_count IS NOT NULL),
        min(try_cast(coalesce(stats_min_value, stats_min) AS DOUBLE)),
        max(try_cast(coalesce(stats_max_value, stats_max) AS DOUBLE))
    FROM parquet_metadata({path}) GROUP BY ALL
"""

MAX_COLUMN = 64 << 20
ORDINARY_EXPANSION = 16
"""The pages of a column in one row group may expand to this many bytes, or times their size."""
TEXT_A_ROW = 1 << 10
"""Bytes of text that a row of a table may have on average; `MAX_COLUMN` is on top."""
_HEADER_BYTES = 1 << 20
"""Longest text in a header, which has the least and the greatest value of its page."""
_DICTIONARY_ENCODINGS, _DELTA_BYTE_ARRAY = (2, 8), 7
# Field numbers of `PageHeader` and of the headers in it, from parquet.thrift.
_EXPANDED, _COMPRESSED, _DATA, _DICTIONARY, _DATA_V2 = 2, 3, 5, 7, 8
_NUM_VALUES, _ENCODING = 1, {_DATA: 2, _DATA_V2: 4}

# DuckDB reads the footer: Arrow ends the process where a flipped bit gives a column another type.
# As in Arrow, the pages of a column start with its dictionary. The path of a column inside of
# lists begins with the column's name.
_CHUNKS = """
    SELECT path_in_schema, row_group_id, row_group_num_rows,
        if(dictionary_page_offset > 0 AND dictionary_page_offset < data_page_offset,
        dictionary_page_offset, data_page_offset), total_compressed_size
    FROM parquet_metadata({path})
    WHERE list_contains($columns, path_in_schema)
        OR list_contains($columns, split_part(path_in_schema, ', ', 1))
"""

Fields = dict[int, Any]


@dataclass
class Pages:
    """The pages of a column in one row group, as their headers state them."""

    path: str  # of the column: `name`, or `origin, list, element` inside of lists
    group: int
    num_rows: int
    size: int  # in the file
    width: int = 0  # bytes of a value in the page where they are most, on average
    num_values: int = 0
    num_in_dictionary: int = 0  # values that are given as numbers of words
    dictionary: int = 0  # bytes of all words
    other: int = 0  # bytes that the other values may have

    @property
    def column(self) -> str:
        """The name of the column."""
        return self.path.partition(", ")[0]

    def add(self, header: Fields, size: int) -> None:
        """Add a page that expands to `size` bytes."""
        if _DICTIONARY in header:
            self.dictionary += size
        for kind, encoding in _ENCODING.items():
            if kind not in header:
                continue
            number, how = max(0, header[kind][_NUM_VALUES]), header[kind][encoding]
            self.num_values += number
            if how in _DICTIONARY_ENCODINGS:
                self.num_in_dictionary += number
            # Of what each text adds to the one before: any may be as long as the page.
            self.other += 0 if how in _DICTIONARY_ENCODINGS else size
            if how == _DELTA_BYTE_ARRAY:
                self.other += size * number
            self.width = max(
                self.width, size if how == _DELTA_BYTE_ARRAY else size // max(1, number)
            )

    def most_text(self, longest: int) -> int:
        """Return the most bytes of text that all values have, if no word is longer."""
        return self.other + self.num_in_dictionary * min(longest, self.dictionary)


def check_table(
    path: Path,
    schema: pa.Schema,
    remedy: str,
    *,
    nullable: Container[str] = (),
    optional: Container[str] = (),
    bounds: Mapping[str, int] | None = None,
    shares: Container[str] = (),
) -> int:
    """Refuse a table that is not what we write; return its number of rows.

    nullable, optional: columns that may have nulls, or be missing.
    bounds: columns of ids, each with the number of ids that there are.
    shares: columns of numbers from 0 to 1.
    """
    try:
        footer = pq.read_metadata(path)
        found = footer.schema.to_arrow_schema()
    except (OSError, ValueError, pa.ArrowException) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise PrixError(f"{path} cannot be read ({reason}). {remedy}") from None
    _check_number(path, footer.num_rows, "rows", remedy)
    for field in schema:
        number = found.get_all_field_indices(field.name)
        if len(number) > 1 or (not number and field.name not in optional):
            raise PrixError(f"{path} has {len(number)} columns {field.name}, expected 1. {remedy}")
        if number and found.field(number[0]).type != field.type:
            kind = str(found.field(number[0]).type)[:100]
            raise PrixError(f"{path}: {field.name} is {kind}, expected {field.type}. {remedy}")
    pages = read_pages(path, schema.names, remedy)
    _check_numbers(path, footer.num_rows, pages, remedy)
    texts = {field.name for field in schema if _is_text(field.type)}
    check_texts(path, [one for one in pages if one.column in texts], remedy)
    statistics = _read_statistics(path, remedy)
    for one in statistics:
        if one.name in schema.names:
            bound = (bounds or {}).get(one.name)
            wrong = one.find_wrong(one.name not in nullable, bound, one.name in shares)
            if wrong is not None:
                raise PrixError(f"{path}: {one.name} {wrong}. {remedy}")
    _check_lists(path, schema, statistics, remedy)
    return int(footer.num_rows)


def _check_number(path: Path, number: int, what: str, remedy: str) -> None:
    """Refuse more rows, or values in lists, than a file of its size can have."""
    size = path.stat().st_size
    if number > max(_FREE_ROWS, _ROWS_A_BYTE * size):
        raise PrixError(f"{path}: {number:,} {what} in {size:,} bytes. {remedy}")


def _check_numbers(path: Path, num_rows: int, every: Sequence[Pages], remedy: str) -> None:
    """Refuse row groups that have more rows than the table, and lists without end."""
    rows: Counter[str] = Counter()
    values: Counter[str] = Counter()
    for one in every:
        rows[one.path] += one.num_rows
        values[one.path] += one.num_values
    for column, number in rows.items():
        if number != num_rows:
            raise PrixError(
                f"{path}: {column} has {number:,} rows, expected {num_rows:,}. {remedy}"
            )
        _check_number(path, values[column], f"values of {column.partition(', ')[0]}", remedy)


def _is_text(kind: pa.DataType) -> bool:
    """Tell whether a column has texts or lists of texts."""
    return bool(pa.types.is_string(kind.value_type if pa.types.is_list(kind) else kind))


def read_checked(path: Path, schema: pa.Schema, remedy: str) -> pa.Table:
    """Read the columns of a whole table; refuse it as `check_table` does, and by its values.

    The footer need not count the nulls.
    """
    check_table(path, schema, remedy)
    table = pq.read_table(path, columns=schema.names)
    for name in schema.names:
        if table[name].null_count:
            raise PrixError(f"{path}: {name} has nulls. {remedy}")
    return table


def check_ids(path: Path, batch: pa.RecordBatch, bounds: Mapping[str, int], remedy: str) -> None:
    """Refuse rows of a table whose ids are null or beyond the number that there are.

    bounds: columns of ids, each with the number of ids that there are.
    """
    for name in bounds.keys() & set(batch.schema.names):
        column, number = batch.column(name), bounds[name]
        if column.null_count:
            raise PrixError(f"{path}: {name} has nulls. {remedy}")
        if not len(column):
            continue
        ends = pc.min_max(column).as_py()
        if ends["min"] < 0 or ends["max"] >= number:
            found = f"ids from {ends['min']} to {ends['max']}"
            raise PrixError(f"{path}: {name} has {found}, expected 0 to {number - 1}. {remedy}")


@dataclass(frozen=True)
class _Statistics:
    """What the row groups tell of a column of plain values, or of what is inside of lists."""

    name: str  # of a column in a list: `origin, list, element`
    num_nulls: int | None
    is_counted: bool  # in every row group
    least: float | None
    greatest: float | None

    def find_wrong(self, is_complete: bool, bound: int | None, is_share: bool) -> str | None:
        """Return what is wrong with the values of a column of plain values."""
        if is_complete and self.num_nulls:
            return "has nulls"
        if self.least is None or self.greatest is None:
            return None
        if bound is not None and (self.least < 0 or self.greatest >= bound):
            return (
                f"has ids from {self.least:.0f} to {self.greatest:.0f}, expected 0 to {bound - 1}"
            )
        if is_share and not (self.least >= 0 and self.greatest <= 1):
            return f"has numbers from {self.least:.3g} to {self.greatest:.3g}, expected 0 to 1"
        return None


def _read_statistics(path: Path, remedy: str) -> list[_Statistics]:
    """Return the statistics of all columns."""
    try:
        rows = query_file(_STATISTICS, path)
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise PrixError(f"{path}: its footer cannot be read ({reason}). {remedy}") from None
    return [_Statistics(*row) for row in rows]


def _check_lists(path: Path, schema: pa.Schema, statistics: list[_Statistics], remedy: str) -> None:
    """Refuse lists with nulls. A footer counts empty lists as nulls too: so some are read."""
    doubtful = set()
    for one in statistics:
        name = one.name.partition(",")[0]
        is_list = name in schema.names and pa.types.is_list(schema.field(name).type)
        if is_list and (one.num_nulls or not one.is_counted):
            doubtful.add(name)
    if not doubtful:
        return
    try:
        table = pq.read_table(path, columns=sorted(doubtful))
    except (OSError, pa.ArrowInvalid) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise PrixError(f"{path} cannot be read ({reason}). {remedy}") from None
    for name in table.column_names:
        if pc.list_flatten(table[name]).null_count:
            raise PrixError(f"{path}: {name} has lists with nulls. {remedy}")


@lru_cache(maxsize=1)  # a new one takes 15 ms, ten times as long as a query of a footer
def _database(_process: int) -> duckdb.DuckDBPyConnection:
    # One thread, as more would only wait. A file may be replaced, so none is kept in memory.
    return duckdb.connect(config={"threads": 1, "enable_external_file_cache": False})


def query_file(sql: str, path: Path, **values: Any) -> list[Any]:
    """Run SQL over the file `{path}`, or over its `{rows}`, and return all rows."""
    # A connection of this process: a fork must not use that of its parent.
    with _database(os.getpid()).cursor() as db:
        return db.execute(
            sql.format(path=quote_path(path), rows=parquet_rows(path)), values
        ).fetchall()


def check_pages(
    path: Path,
    columns: Sequence[str],
    remedy: str = "Write it in smaller row groups, with shorter texts.",
) -> int:
    """Refuse a file whose pages of some columns expand beyond the limit in one row group.

    Returns the bytes of a value in the page where they are most, on average.
    """
    return max((pages.width for pages in read_pages(path, columns, remedy)), default=0)


def read_pages(path: Path, columns: Sequence[str], remedy: str) -> list[Pages]:
    """Return the pages of some columns; refuse them as `check_pages` does."""
    try:
        chunks = query_file(_CHUNKS, path, columns=list(columns))
        # Pages are in the file once. Else a footer could name the same ones for a thousand row
        # groups, and the time to walk through them would grow with the square of its size.
        if sum(max(0, size) for *_, size in chunks) > path.stat().st_size:
            raise ValueError("row groups share pages")
        with path.open("rb") as file:
            return [_read_chunk(path, file, remedy, *chunk) for chunk in chunks]
    except (duckdb.Error, IndexError, KeyError, TypeError, ValueError, OSError):
        copy = remedy if remedy.endswith("again.") else "Copy it again."
        raise PrixError(f"{path}: the header of a page is damaged. {copy}") from None


def _read_chunk(
    path: Path,
    file: IO[bytes],
    remedy: str,
    column: str,
    group: int,
    num_rows: int,
    start: int,
    size: int,
) -> Pages:
    """Read the headers of the pages of a column in one row group."""
    pages = Pages(column, group, num_rows, size)
    if not start and not num_rows:  # Arrow writes a row group without rows and data for no rows
        return pages
    read = expanded = 0
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
                f"most {MAX_COLUMN >> 20}. {remedy}"
            )
        file.seek(compressed, 1)
        pages.add(header, page)
    return pages


def check_texts(path: Path, every: Sequence[Pages], remedy: str) -> None:
    """Refuse a table whose texts expand beyond the limit: a word may stand for a million values.

    every: the pages of its columns of text. A row has `TEXT_A_ROW` bytes on average. A column may
    have `MAX_COLUMN` more, or 16 times what it takes in the file.
    """
    more: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for pages in every:
        free = TEXT_A_ROW * pages.num_rows
        most = pages.most_text(pages.dictionary)
        if most > free and pages.num_in_dictionary:
            # Only words that are read tell how long they are. Ours are short, so that hardly ever
            # all values of a column are read.
            try:
                most = pages.most_text(next(_lengths(path, pages, 1), (0, 0))[0])
                if most > free:
                    most = sum(total for _, total in _lengths(path, pages, 1 << 13))
            except (OSError, ValueError, pa.ArrowException) as error:
                reason = (str(error).splitlines() or [""])[0]
                raise PrixError(f"{path} cannot be read ({reason}). {remedy}") from None
        more[pages.column] += max(0, most - free)
        sizes[pages.column] += pages.size
    for column, number in more.items():
        if number > max(MAX_COLUMN, ORDINARY_EXPANSION * sizes[column]):
            raise PrixError(
                f"{path}: {column} expands from {sizes[column]:,} bytes to more than "
                f"{number >> 20:,} MiB. {remedy}"
            )


def _lengths(path: Path, pages: Pages, rows: int) -> Iterator[tuple[int, int]]:
    """Yield the bytes of the longest word so far, and of all values, of batches of a row group.

    No text is expanded: the values stay numbers of words.
    """
    leaf = pages.path.replace(", ", ".")
    with pq.ParquetFile(path, read_dictionary=[leaf], buffer_size=1 << 20) as file:
        for batch in file.iter_batches(rows, [pages.group], [leaf]):
            column = batch.column(0)
            while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
                column = column.flatten()
            if not pa.types.is_dictionary(column.type):
                raise ValueError("a column of text without words")
            # (words,) and (values,) bytes of each
            words = np.asarray(pc.fill_null(pc.binary_length(column.dictionary), 0), np.int64)
            used = words[np.asarray(column.indices.drop_null())]
            yield int(words.max(initial=0)), int(used.sum())


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
