"""Sources to staged Parquet parts: chunks are parsed in parallel, in order.

A part is a fixed number of chunks of one source. It is there when its `.json` is, which is written
last, so an interrupted import goes on after its last whole part. A staged row says where it came
from in one number, its `pos`: the source in the upper bits, the line in the lower ones.
"""

import itertools
import json
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.files import open_database, quote_path, write_atomically
from prixlm.importers.format import (
    NUM_SAMPLES,
    STAGED,
    Account,
    Chunk,
    Parsed,
    Parser,
    Reject,
    printable,
)

POS_BITS = 40
PART_CHUNKS = 64
_INLINE_BYTES = 32 << 20  # less than this is parsed here: starting processes takes longer

Parse = Callable[[Parser, Iterable[Chunk]], Iterator[Parsed]]


def positioned(schema: pa.Schema) -> pa.Schema:
    """The schema of a staged table on disk: the place of a row instead of its line."""
    return schema.set(schema.get_field_index("line"), pa.field("pos", pa.int64()))


def stage_source(
    index: int, parser: Parser, chunks: Iterator[Chunk], parts: Path, parse: Parse
) -> Iterator[Account]:
    """Write the parts of one source that are not there yet; yields what each part accounts for."""
    for number in itertools.count():
        first = next(chunks, None)
        if first is None:
            return
        group = itertools.chain([first], itertools.islice(chunks, PART_CHUNKS - 1))
        prefix = parts / f"{index:05d}-{number:06d}"
        if _done(prefix).exists():
            deque(group, maxlen=0)
        else:
            _write_part(prefix, parse(parser, group))
        yield _read_account(prefix)


@contextmanager
def parsing(num_bytes: int, in_processes: bool) -> Iterator[Parse]:
    """A function that parses chunks in order: here if they are few, else in threads or processes.

    Threads are enough for parsers that spend their time in Arrow, outside Python's lock: nothing
    has to be sent from process to process.
    """
    if num_bytes < _INLINE_BYTES:
        yield lambda parser, chunks: (parse_chunk(parser, chunk) for chunk in chunks)
        return
    workers = max(2, os.cpu_count() or 1)
    executor: Executor
    if in_processes:
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
    if not chunk.broken:
        return parser(chunk)
    parsed = Parsed(chunk.source, read=1)
    assert isinstance(chunk.data, bytes)
    parsed.reject(chunk.broken, chunk.line, chunk.data)
    return parsed


def _parse_ahead(
    executor: Executor, num_ahead: int, parser: Parser, chunks: Iterable[Chunk]
) -> Iterator[Parsed]:
    """Results in the order of the chunks, with a bounded number of chunks under way."""
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
            "the parsing processes ended early: they were killed (out of memory?), or the script "
            "that imports has no `if __name__ == '__main__':` around it."
        ) from None


def _start_worker() -> None:
    """One thread, and an end when the parent ends, however it does."""
    pa.set_cpu_count(1)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch(sentinel: int = parent.sentinel) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _done(prefix: Path) -> Path:
    return prefix.with_suffix(".json")


def _write_part(prefix: Path, results: Iterable[Parsed]) -> None:
    account = Account()
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for parsed in results:
            for table, batches in parsed.tables.items():
                if table not in writers:
                    writer = _open_writer(f"{prefix}-{table}.parquet", positioned(STAGED[table]))
                    writers[table] = stack.enter_context(writer)
                for batch in batches:
                    writers[table].write_batch(_with_position(batch, parsed.source))
            account.add(parsed.read, parsed.rejected, parsed.filtered, parsed.samples)
    values = {
        "read": account.read,
        "rejected": account.rejected,
        "filtered": account.filtered,
        "samples": account.samples,
    }
    write_atomically(_done(prefix), json.dumps(values, ensure_ascii=False))


def _open_writer(path: str, schema: pa.Schema) -> pq.ParquetWriter:
    """Fast rather than small: dictionaries only where values recur, no statistics."""
    few = [name for name in schema.names if name in ("relation", "lang", "split")]
    return pq.ParquetWriter(
        path, schema, compression="lz4", use_dictionary=few, write_statistics=False
    )


def _with_position(batch: pa.RecordBatch, source: int) -> pa.RecordBatch:
    place = batch.schema.get_field_index("line")
    columns = list(batch.columns)
    columns[place] = pc.add(columns[place], pa.scalar(source << POS_BITS, pa.int64()))
    return pa.record_batch(columns, schema=positioned(batch.schema))


def _read_account(prefix: Path) -> Account:
    values = json.loads(_done(prefix).read_text("utf-8"))
    account = Account()
    samples = [Reject(*sample) for sample in values["samples"]]
    account.add(values["read"], Counter(values["rejected"]), Counter(values["filtered"]), samples)
    return account


def first_samples(samples: Iterable[Reject]) -> list[Reject]:
    """The first rejected rows of each reason, by source and line."""
    taken: Counter[str] = Counter()
    kept = []
    for sample in sorted(samples):
        taken[sample.reason] += 1
        if taken[sample.reason] <= NUM_SAMPLES:
            kept.append(sample)
    return kept


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
