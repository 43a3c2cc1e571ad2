"""The database of a merge: DuckDB over staged parts, with the account of what leaves it.

Each staged table is a view of its name (`names`, `facts`, `links`, `redirects`, `relations`).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from prixlm.kb.disk import open_database, quote_path
from prixlm.kb.stage import POS_BITS, positioned
from prixlm.kb.staging import NUM_SAMPLES, STAGED, Account, Reject, printable

BATCH_ROWS = 1 << 17


class Scratch:
    """Small verbs over SQL: make tables, count, stream, reject."""

    def __init__(self, folder: Path, parts: Path, memory: str, account: Account) -> None:
        self._account = account
        self._db = open_database(folder, memory)
        for table, schema in STAGED.items():
            files = sorted(parts.glob(f"*-{table}.parquet"))
            if not files:
                files = [folder / f"no-{table}.parquet"]
                pq.write_table(positioned(schema).empty_table(), files[0])
            self.view(table, *files)

    def view(self, name: str, *files: Path) -> None:
        """Parquet files as a table."""
        listed = ", ".join(map(quote_path, files))
        self.run(f"CREATE VIEW {name} AS SELECT * FROM read_parquet([{listed}])")

    def run(self, sql: str) -> list[Any]:
        return self._db.execute(sql).fetchall()

    def count(self, rows: str) -> int:
        """How many rows there are; `rows` is what stands after FROM."""
        return int(self.run(f"SELECT count(*) FROM {rows}")[0][0])

    def stream(self, query: str, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        with self._db.cursor() as cursor:
            reader: Any = cursor.sql(query).to_arrow_reader(rows)
            yield from (batch for batch in reader if batch.num_rows)

    def reject(self, reason: str, rows: str, staged: str) -> int:
        """Count `rows`, which have a `pos`, as rejected; the first are shown as staged."""
        number = self.count(rows)
        if not number:
            return 0
        self._account.rejected[reason] += number
        first = f"SELECT pos FROM {rows} ORDER BY pos LIMIT {NUM_SAMPLES}"
        columns = ", ".join(n for n in STAGED[staged].names if n not in ("line", "lang", "split"))
        shown = self.run(
            f"SELECT pos, min(concat_ws(' ', {columns})) FROM {staged} "
            f"WHERE pos IN ({first}) GROUP BY pos ORDER BY pos"
        )
        for pos, text in shown:
            source, line = pos >> POS_BITS, pos & ((1 << POS_BITS) - 1)
            self._account.samples.append(Reject(reason, source, line, printable(text)))
        return number

    def close(self) -> None:
        self._db.close()
