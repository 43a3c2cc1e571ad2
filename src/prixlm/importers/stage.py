"""Staging: sources are parsed in parallel into Parquet parts, which are then read as SQL tables.

A part holds a fixed number of chunks of one source. It is a folder with a Parquet file for each
staged table, and a JSON file with the account of its rows. A folder that has its name is whole, so
an interrupted import resumes after the last one. A staged row keeps its origin in one integer,
`pos`: the source in the upper bits, the line in the lower ones.

Parts are made here, from one stream of chunks that are parsed in parallel (`stage_source`), or by
the workers of an engine (`PartMaker`). These begin at the first byte of a part in a plain file of
lines. Of other sources, each reads past the chunks of the others' parts, which is many times as
fast as parsing them.
"""

import itertools
import json
import multiprocessing
import platform
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.config import checked
from prixlm.engine.local import end_with_parent
from prixlm.engine.workspace import Workspace
from prixlm.errors import PrixError
from prixlm.files import open_database, parquet_rows, read_json, sketch, whole_folder
from prixlm.importers.format import (
    NUM_SAMPLES,
    STAGED,
    Account,
    Chunk,
    Parsed,
    Parser,
    Reject,
    as_sample,
)
from prixlm.threads import usable_cores
from prixlm.untrusted import log_to_stderr

PART_CHUNKS = 64
PARTS = f"{'?' * 5}-{'?' * 6}"
"""The names of parts, as a pattern."""
BATCH_ROWS = 1 << 17
LINE_BITS = 40
_ACCOUNT = "account.json"
_ACCOUNT_KINDS: dict[str, Any] = {
    "read": int,
    "rejected": dict[str, int],
    "filtered": dict[str, int],
    "samples": list[list[Any]],
}
"""Kinds of the values of an account: a work folder may come from anyone."""
_INLINE_BYTES = 32 << 20  # smaller imports are parsed here: starting workers takes longer

Parse = Callable[[Parser, Iterable[Chunk]], Iterator[Parsed]]


def stage_source(
    index: int, parser: Parser, chunks: Iterator[Chunk], work: Workspace, parse: Parse
) -> Iterator[Account]:
    """Write the missing parts of one source, and yield the account of every part."""
    for number in itertools.count():
        first = next(chunks, None)
        if first is None:
            return
        # Chunks end where the bytes say, so a part holds the same lines in every attempt.
        group = itertools.chain([first], itertools.islice(chunks, PART_CHUNKS - 1))
        part = work.folder / part_name(index, number)
        if not part.is_dir():
            with whole_folder(part) as temporary:
                _write_part(temporary, parse(parser, group))
        deque(group, maxlen=0)  # of a finished part: skip its chunks
        yield read_account(part)


def part_name(source: int, number: int) -> str:
    """Return the name of a part; `StagedTables` looks for names of this form."""
    return f"{source:05d}-{number:06d}"


Start = tuple[int, int] | None
"""Byte and line of a source that a part starts at; None if it has to be read from its start."""


class PartMaker:
    """Makes any part of any source: what a worker of an engine has loaded.

    It keeps its place in the last source, since a worker gets parts in ascending order.
    """

    def __init__(
        self,
        chunks: Callable[[int, Start], Iterator[Chunk]],
        parser: Callable[[int], Parser],
        sources: Sequence[Path],
    ) -> None:
        """chunks, parser: those of a source, by its number; chunks from a start on."""
        self._chunks_of, self._parser_of, self._sources = chunks, parser, sources
        self._source = -1
        self._next = 0  # the part that `_chunks` is at
        self._chunks: Iterator[Chunk] = iter(())

    def inputs(self) -> dict[str, str]:
        """Return what tells the sources from others."""
        return {
            f"source {number} ({path.name})": sketch(path)
            for number, path in enumerate(self._sources, start=1)
            if path.is_file()
        }

    def __call__(self, value: tuple[int, int, int, Start], path: Path) -> None:
        """Write a part as a folder. value: its source, number, number of chunks, and start."""
        source, number, num_chunks, start = value
        is_next = source == self._source and number == self._next
        if start is not None and not is_next:  # of a plain file: read nothing of other parts
            self._chunks = self._chunks_of(source, start)
            self._next = number
        elif source != self._source or number < self._next:
            self._chunks = self._chunks_of(source, None)
            self._next = 0
        skipped = (number - self._next) * PART_CHUNKS
        deque(itertools.islice(self._chunks, skipped), maxlen=0)
        group = self._group(source, num_chunks)
        self._source = -1  # if parsing fails, the place is lost
        parser = self._parser_of(source)
        path.mkdir()
        _write_part(path, (parse_chunk(parser, chunk) for chunk in group))
        self._source, self._next = source, number + 1

    def _group(self, source: int, num_chunks: int) -> Iterator[Chunk]:
        """Yield the chunks of a part; refuse a source that ends before them."""
        for done in range(num_chunks):
            chunk = next(self._chunks, None)
            if chunk is None:
                raise PrixError(
                    f"{self._sources[source]} on {platform.node()} ends {num_chunks - done} chunks "
                    "before the driver's. Copy the driver's file to all machines, or use a folder "
                    "that they share."
                )
            yield chunk


@contextmanager
def parsing(num_bytes: int, in_processes: bool) -> Iterator[Parse]:
    """Yield a function that parses chunks in order: inline if they are few, else in parallel.

    Threads suffice for parsers that spend their time in Arrow, which releases Python's lock, and
    they save sending rows between processes.
    """
    if num_bytes < _INLINE_BYTES:
        yield lambda parser, chunks: (parse_chunk(parser, chunk) for chunk in chunks)
        return
    # One chunk is read while the others are parsed.
    workers = max(2, usable_cores())
    executor: Executor
    if in_processes:
        # Not fork: Arrow's and DuckDB's threads do not survive it.
        context = multiprocessing.get_context("spawn")
        executor = ProcessPoolExecutor(workers, context, initializer=_start_worker)
    else:
        executor = ThreadPoolExecutor(workers)
    with executor:
        try:
            yield partial(_parse_ahead, executor, workers + 1)
        finally:
            executor.shutdown(cancel_futures=True)


def parse_chunk(parser: Parser, chunk: Chunk) -> Parsed:
    """Parse a chunk; a broken one is one rejected row."""
    if not chunk.broken:
        return parser(chunk)
    parsed = Parsed(chunk.source, read=1)
    assert isinstance(chunk.data, bytes)
    parsed.reject(chunk.broken, chunk.line, chunk.data)
    return parsed


def _parse_ahead(
    executor: Executor, num_ahead: int, parser: Parser, chunks: Iterable[Chunk]
) -> Iterator[Parsed]:
    """Yield results in the order of the chunks, at most `num_ahead` chunks in memory."""
    # Futures in the order of their chunks; the oldest is awaited before the next is submitted.
    waiting: deque[Future[Parsed]] = deque()
    try:
        for chunk in chunks:
            waiting.append(executor.submit(parse_chunk, parser, chunk))
            if len(waiting) >= num_ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise PrixError(
            "the parsing processes ended early. Either they were killed (check the memory), or the "
            "script that imports needs `if __name__ == '__main__':` around its code."
        ) from None


def _start_worker() -> None:
    """Limit a worker process to one thread, and end it when its parent ends in any way."""
    log_to_stderr()
    pa.set_cpu_count(1)
    end_with_parent()


def _write_part(folder: Path, results: Iterable[Parsed]) -> None:
    """Write the tables of a part and its account."""
    account = Account()
    with ExitStack() as stack:
        # A table is opened with its first row: most parts have rows of one or two tables.
        writers: dict[str, pq.ParquetWriter] = {}
        for parsed in results:
            for table, batches in parsed.tables.items():
                if table not in writers:
                    path = folder / f"{table}.parquet"
                    writers[table] = stack.enter_context(_open_writer(path, table))
                for batch in batches:
                    writers[table].write_batch(_with_position(batch, parsed.source))
            account.add(parsed.read, parsed.rejected, parsed.filtered, parsed.samples)
    values = {
        "read": account.read,
        "rejected": account.rejected,
        "filtered": account.filtered,
        "samples": account.samples,
    }
    (folder / _ACCOUNT).write_text(json.dumps(values, ensure_ascii=False), "utf-8")


def _open_writer(path: Path, table: str) -> pq.ParquetWriter:
    """Open a staged table for writing, with options for speed rather than size."""
    schema = on_disk(STAGED[table])
    repeated = [name for name in schema.names if name in ("relation", "lang", "split")]
    return pq.ParquetWriter(
        path, schema, compression="lz4", use_dictionary=repeated, write_statistics=False
    )


def on_disk(schema: pa.Schema) -> pa.Schema:
    """Return the schema of a staged table on disk: `pos` in the place of `line`."""
    return schema.set(schema.get_field_index("line"), pa.field("pos", pa.int64()))


def _with_position(batch: pa.RecordBatch, source: int) -> pa.RecordBatch:
    index = batch.schema.get_field_index("line")
    columns = list(batch.columns)
    columns[index] = pc.add(columns[index], pa.scalar(source << LINE_BITS, pa.int64()))
    return pa.record_batch(columns, schema=on_disk(batch.schema))


def read_account(part: Path) -> Account:
    """Return the account of the rows of a part; ValueError if it is none."""
    values = checked(read_json(part / _ACCOUNT), _ACCOUNT_KINDS)
    if any(
        [type(value) for value in sample] != [str, int, int, str] for sample in values["samples"]
    ):
        raise ValueError("a sample is not a reason, a source, a line and a text")
    account = Account()
    samples = [Reject(*sample) for sample in values["samples"]]
    account.add(values["read"], Counter(values["rejected"]), Counter(values["filtered"]), samples)
    return account


def first_samples(samples: Iterable[Reject]) -> list[Reject]:
    """Return the first rejected rows of each reason, by source and line."""
    # Rejects sort by reason, source and line.
    taken: Counter[str] = Counter()
    kept = []
    for sample in sorted(samples):
        taken[sample.reason] += 1
        if taken[sample.reason] <= NUM_SAMPLES:
            kept.append(sample)
    return kept


class StagedTables:
    """A DuckDB database with a view for each staged table, in which the joins make their tables.

    Rows that a join cannot use are rejected here and entered in the account.
    """

    def __init__(self, folder: Path, parts: Path, memory: str, account: Account) -> None:
        self._account = account
        self._db = open_database(folder, memory)
        # A staged table without rows has no file, but the joins read all tables.
        for table, schema in STAGED.items():
            # Folders with longer names are temporary ones, left by a kill.
            files = sorted(parts.glob(f"{PARTS}/{table}.parquet"))
            if not files:
                files = [folder / f"no-{table}.parquet"]
                pq.write_table(on_disk(schema).empty_table(), files[0])
            self.view(table, *files)

    def view(self, name: str, *files: Path) -> None:
        """Make a view `name` of Parquet files."""
        self.run(f"CREATE VIEW {name} AS SELECT * FROM {parquet_rows(*files)}")

    def run(self, sql: str) -> list[Any]:
        """Run SQL and return all rows."""
        return self._db.execute(sql).fetchall()

    def count(self, rows: str) -> int:
        """Return the number of rows of `SELECT ... FROM rows`."""
        return int(self.run(f"SELECT count(*) FROM {rows}")[0][0])

    def stream(self, query: str, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
        """Run SQL and yield its rows in batches of about `rows`, none of them empty."""
        with self._db.cursor() as cursor:
            reader: Any = cursor.sql(query).to_arrow_reader(rows)
            yield from (batch for batch in reader if batch.num_rows)

    def reject(self, reason: str, rows: str, staged: str, which: str = "") -> int:
        """Count the rows of `SELECT ... FROM rows` as rejected, and return their number.

        They have a `pos`; the first of them are sampled as they are in the table `staged`. If a
        line may have other rows in that table, `which` tells the rejected ones: SQL that follows
        `FROM staged f`.
        """
        number = self.count(rows)
        if not number:
            return 0
        self._account.rejected[reason] += number
        first = f"SELECT pos FROM {rows} ORDER BY pos LIMIT {NUM_SAMPLES}"
        # A small table of its own: `which` may join it, and must not join all staged rows.
        self.run(f"CREATE TEMP TABLE sampled AS SELECT * FROM {staged} WHERE pos IN ({first})")
        names = [n for n in STAGED[staged].names if n not in ("line", "lang", "split")]
        columns = ", ".join(f"f.{name}" for name in names)
        shown = self.run(
            f"SELECT DISTINCT f.pos, concat_ws(' ', {columns}) AS text FROM sampled f {which} "
            f"ORDER BY f.pos, text LIMIT {NUM_SAMPLES}"
        )
        self.run("DROP TABLE sampled")
        for pos, text in shown:
            source, line = pos >> LINE_BITS, pos & ((1 << LINE_BITS) - 1)
            self._account.samples.append(Reject(reason, source, line, as_sample(text)))
        return number

    def close(self) -> None:
        """Close the database."""
        self._db.close()
