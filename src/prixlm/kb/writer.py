"""Writing a KB's tables: the same rows give the same bytes.

with TableWriter(folder, "triples") as writer:
    writer.write(lang=..., subject=..., relation=..., object=..., split=...)
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.kb.store import SCHEMAS

ROW_GROUP = 1 << 17


class TableWriter:
    """Writes one table in row groups of a fixed size, under a temporary name until it is whole.

    The same rows give the same bytes, in whatever batches they come.
    """

    def __init__(self, folder: Path, table: str) -> None:
        self.num_rows = 0
        self._schema = SCHEMAS[table]
        self._path = folder / f"{table}.parquet"
        self._waiting: list[pa.RecordBatch] = []
        self._num_waiting = 0
        few = [f.name for f in self._schema if f.name in ("lang", "split")]
        self._writer = pq.ParquetWriter(
            self._path.with_suffix(".tmp"), self._schema, compression="zstd", use_dictionary=few
        )

    def __enter__(self) -> Self:
        return self

    def write(self, **columns: Any) -> None:
        """Add rows, given as arrays by column name."""
        arrays = [_as(columns[f.name], f.type) for f in self._schema]
        batch = pa.record_batch(arrays, schema=self._schema)
        self._waiting.append(batch)
        self._num_waiting += batch.num_rows
        self.num_rows += batch.num_rows
        if self._num_waiting >= ROW_GROUP:
            self._flush(last=False)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._flush(last=True)
        self._writer.close()
        if kind is None:
            self._path.with_suffix(".tmp").replace(self._path)

    def _flush(self, last: bool) -> None:
        # Pages follow the chunks of a column: one chunk, or the bytes would follow the batches.
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        end = table.num_rows if last else table.num_rows - table.num_rows % ROW_GROUP
        if end:
            self._writer.write_table(table.slice(0, end), row_group_size=ROW_GROUP)
        rest = table.slice(end)
        self._waiting = rest.to_batches()
        self._num_waiting = rest.num_rows


def _as(values: Any, kind: pa.DataType) -> pa.Array:
    array = values if isinstance(values, pa.Array) else pa.array(values)
    return array if array.type == kind else array.cast(kind)
