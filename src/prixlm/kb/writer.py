"""Writing a KB's tables: the same rows give the same bytes.

with write_table(folder, "triples") as table:
    table.write(lang=..., subject=..., relation=..., object=..., split=...)
table.num_rows
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.files import replacing
from prixlm.kb.store import SCHEMAS

ROW_GROUP = 1 << 17


@contextlib.contextmanager
def write_table(folder: Path, table: str) -> Iterator["TableWriter"]:
    """Open a table of a KB folder for writing; the file appears when the block succeeds."""
    schema = SCHEMAS[table]
    repeated = [f.name for f in schema if f.name in ("lang", "split")]
    with (
        replacing(folder / f"{table}.parquet") as temporary,
        pq.ParquetWriter(temporary, schema, compression="zstd", use_dictionary=repeated) as parquet,
    ):
        writer = TableWriter(schema, parquet)
        yield writer
        writer.flush(last=True)


class TableWriter:
    """Collects rows into row groups of a fixed size, so that bytes do not depend on the batches."""

    def __init__(self, schema: pa.Schema, parquet: pq.ParquetWriter) -> None:
        self.num_rows = 0
        self._schema, self._parquet = schema, parquet
        self._waiting: list[pa.RecordBatch] = []  # rows that do not fill a row group yet
        self._num_waiting = 0

    def write(self, **columns: Any) -> None:
        """Add rows, given as arrays by column name."""
        arrays = [_as_type(columns[f.name], f.type) for f in self._schema]
        batch = pa.record_batch(arrays, schema=self._schema)
        self._waiting.append(batch)
        self._num_waiting += batch.num_rows
        self.num_rows += batch.num_rows
        if self._num_waiting >= ROW_GROUP:
            self.flush(last=False)

    def flush(self, last: bool) -> None:
        """Write the waiting rows: all of them if they are the last, else whole row groups."""
        # Parquet pages follow the chunks of a column. Without one single chunk, the bytes would
        # depend on how the rows were cut into batches.
        rows = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        end = rows.num_rows if last else rows.num_rows - rows.num_rows % ROW_GROUP
        if end:
            self._parquet.write_table(rows.slice(0, end), row_group_size=ROW_GROUP)
        rest = rows.slice(end)
        self._waiting = rest.to_batches()
        self._num_waiting = rest.num_rows


def _as_type(values: Any, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == kind else array.cast(kind)
