"""Checks of Parquet tables that others may have written: columns, types, nulls and ranges of ids.

    check_table(path, SCHEMAS["triples"], "Import the KB again.", bounds={"subject": 812})

Only the footer and the headers of pages are read, and columns of lists, whose nulls they do not
tell. The footer has the type of each column and, for each row group, how many values are null and
which are the least and the greatest. The headers tell what reading a column takes (`pages.py`). So
a table that is not what we write is refused in one line where it is opened, not by an error deep in
a query. A footer can lie about the values: what is read then is wrong, as it would be
with other values, but `check_ids` refuses ids that no row has.
"""

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.kb.pages import Pages, check_texts, query_file, read_pages

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
