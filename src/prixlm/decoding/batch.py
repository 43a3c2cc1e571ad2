"""Answer files of queries: streamed, and resumed after a kill.

    answer_file(completer, "queries.tsv", "answers.parquet", SearchConfig())

In: TSV, CSV or Parquet with the columns lang, subject, relation, or lang, name, to. `-` is standard
input, as TSV. Out: Parquet, TSV, CSV or JSONL, by the ending of the file's name. It has one row per
answer, with the number of its query, and one row with an `error` per query that cannot be asked.
Finished parts lie in OUT.partial until all are there; the same command resumes from them.
"""

import codecs
import contextlib
import hashlib
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.engine.jobs import EngineConfig, Shard, ShardJob, made_by, make_parts
from prixlm.engine.overwriting import check_new_file
from prixlm.engine.parts import shard_size
from prixlm.engine.workspace import open_workspace, partial_folder
from prixlm.errors import PrixError
from prixlm.files import ROW_FORMATS, disk_errors, write_rows
from prixlm.kb.store import KB
from prixlm.remote import is_remote, local_copy, local_source, uri_of
from prixlm.types import Array, Progress, Query

_PART = 256
"""Queries per part: the most that a kill can lose."""
_QUERIES = "queries.parquet"
_KINDS = (("lang", "subject", "relation"), ("lang", "name", "to"))
"""The columns of the two kinds of files: facts to complete, and names to translate."""
SCHEMA = pa.schema(
    [
        ("query", pa.int64()),  # the row of the file of queries, from 0
        ("lang", pa.string()),
        ("subject", pa.string()),
        ("relation", pa.string()),  # null where a name is translated
        ("to", pa.string()),
        ("rank", pa.int32()),
        ("object", pa.string()),
        ("entity", pa.int64()),  # the object's id in the KB
        ("score", pa.float64()),
        ("error", pa.string()),
    ]
)
QUERIES_SCHEMA = pa.schema(
    [SCHEMA.field(name) for name in ("query", "lang", "subject", "relation", "to", "error")]
)


def answer_file(
    completer: Completer,
    source: Path | str,
    out: Path,
    config: SearchConfig,
    *,
    candidates: Array | None = None,
    engine: EngineConfig | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Answer every query of a file; return the number of `queries` and of `errors`.

    engine: where the parts are answered; other processes load the model and the KB again.
    """
    check_out(out)
    with disk_errors(out), _open_source(source, out) as queries_file:
        # Counted before anything is written: a file that cannot be read leaves nothing behind.
        total = queries_file.count()
        stamp = _stamp(queries_file.path, completer, config, candidates)
        stamp |= {"made by": made_by(engine)}
        with open_workspace(partial_folder(out), stamp, out) as work:
            rows = shard_size(total, _PART)
            queries = work.make(_QUERIES, partial(_write_queries, queries_file, rows))
            shards = [
                Shard(f"part-{index:07d}.parquet", index, min(rows, total - index * rows))
                for index in range(-(-total // rows))
            ]
            loaded = _Answering(completer, queries, config, candidates)
            load = loaded.recipe(work.share(queries))
            job = ShardJob("answer", shards, load, loaded, loaded.inputs())
            with _leaving_the_gpu(completer, engine):
                parts = make_parts(job, work, engine, progress)
            counts = {"queries": total, "errors": 0}

            # Errors are counted while the parts are read back: some may be of an earlier command.
            def tables() -> Iterator[pa.Table]:
                for part in parts:
                    table = pq.read_table(part)
                    counts["errors"] += table.num_rows - table["error"].null_count
                    yield table

            write_rows(tables(), SCHEMA, out, new=True)
            work.remove()
    return counts


@contextlib.contextmanager
def _leaving_the_gpu(completer: Completer, engine: EngineConfig | None) -> Iterator[None]:
    """Move the model of a driver off the GPU while workers answer, each with a copy of its own.

    In main memory it takes no room: weights are mapped from their file, and processes share them.
    """
    device = completer.model.backbone.device
    if engine is None or engine.is_here or device.type == "cpu":
        yield
        return
    completer.model.cpu()
    try:
        yield
    finally:
        completer.model.to(device)


def check_out(out: Path) -> None:
    """Refuse a file of answers that cannot be written, before anything is loaded."""
    if out.suffix not in ROW_FORMATS:
        raise PrixError(f"--out {out}: expected a name that ends in {', '.join(ROW_FORMATS)}.")
    check_new_file(out)


def _stamp(
    path: Path, completer: Completer, config: SearchConfig, candidates: Array | None
) -> dict[str, Any]:
    """Return everything that the answers depend on."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    chosen = None if candidates is None else hashlib.sha256(candidates.tobytes()).hexdigest()
    return {
        "queries": digest,
        "search": asdict(config),
        "kb": completer.kb.fingerprint(),
        "model": completer.identity(),
        "candidates": chosen,
    }


# --- answers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Answering:
    """Answers the queries of a part: what a worker has loaded."""

    completer: Completer
    queries: Path  # a row group for each part, of QUERIES_SCHEMA
    config: SearchConfig
    candidates: Array | None

    @cached_property
    def _file(self) -> pq.ParquetFile:
        """The file, opened once: the list of its row groups may be long."""
        return pq.ParquetFile(self.queries)

    def recipe(self, queries: Path) -> "Callable[[], _Answering] | None":
        """Return a function that loads the same in another process, which finds `queries`.

        None if the model has no folder.
        """
        asked = self.completer
        if asked.folder is None:
            return None
        load = partial(_load_answering, asked.folder, asked.kb, asked.mask)
        return partial(load, queries, self.config, self.candidates)

    def inputs(self) -> dict[str, str]:
        """Return what tells KB and model from others."""
        return {"KB": self.completer.kb.fingerprint(), "model": self.completer.identity()}

    def __call__(self, index: int, path: Path) -> None:
        """Answer the queries of one part and write them as Parquet."""
        queries = self._file.read_row_group(index).to_pylist()
        # Bad rows are not asked, so results are taken one by one beside the queries.
        asked = [_query(row) for row in queries if row["error"] is None]
        results = iter(self.completer.answer(asked, self.config, self.candidates))
        rows: list[dict[str, Any]] = []
        for cells in queries:
            answers = [] if cells["error"] is not None else next(results)
            if cells["error"] is not None:
                rows.append(cells)
            elif isinstance(answers, PrixError):
                rows.append(cells | {"error": str(answers)})
            else:
                for answer in answers:
                    values = {"rank": answer.rank, "object": answer.name, "entity": answer.entity}
                    rows.append(cells | values | {"score": answer.score})
        with path.open("wb") as output:
            pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), output)


def _load_answering(
    model: Path,
    kb: KB,
    mask: str | None,
    queries: Path,
    config: SearchConfig,
    candidates: Array | None,
) -> _Answering:
    """Load the model and the KB in a worker."""
    return _Answering(Completer(model, kb, mask=mask), local_copy(queries), config, candidates)


def _query(row: dict[str, Any]) -> Query:
    return Query(row["lang"], row["subject"], row["relation"], row["to"])


# --- queries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _QueriesFile:
    """A file of queries. It is read twice: to count the rows, and to cut it into parts."""

    path: Path
    shown: str  # its name in errors

    def count(self) -> int:
        """Count the rows; refuse a file that cannot be read to its end."""
        if self.path.suffix != ".parquet":
            self._check_text()
        return sum(batch.num_rows for batch in self._batches())

    def _check_text(self) -> None:
        """Refuse a file that is not UTF-8: Arrow would print a traceback for a bad row of it."""
        decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
        try:
            with self.path.open("rb") as file:
                while block := file.read(1 << 20):
                    line += decoder.decode(block).count("\n")
                decoder.decode(b"", final=True)
        except OSError as error:
            raise PrixError(f"{self.shown} cannot be read: {error.strerror or error}.") from None
        except UnicodeDecodeError as error:
            raise PrixError(
                f"{self.shown} is not UTF-8 after line {line} ({error.reason}): save it as UTF-8."
            ) from None

    def parts(self, num_rows: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of each part, as cells of QUERIES_SCHEMA."""
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in self._batches())
        numbered = enumerate(rows)
        while part := list(itertools.islice(numbered, num_rows)):
            yield [{"query": number, **self._cells(row)} for number, row in part]

    def _cells(self, row: dict[str, Any]) -> dict[str, str]:
        """Return the cells of a row; a row with an empty cell gets an error of its own."""
        columns = self._columns(row.keys())
        cells = [str(row[name] or "").strip() for name in columns]
        named = dict(zip(("lang", "subject", columns[2]), cells, strict=True))
        if not all(cells):
            empty = [name for name, cell in zip(columns, cells, strict=True) if not cell]
            named["error"] = f"empty: {', '.join(empty)}."
        return named

    def _columns(self, names: Collection[str]) -> tuple[str, str, str]:
        """Return the columns of the kind of queries that the file has."""
        for columns in _KINDS:
            if set(columns) <= set(names):
                return columns
        raise PrixError(
            f"{self.shown} has the columns {', '.join(names)}; expected lang, subject, relation, "
            "or lang, name, to."
        )

    def _batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the file, with all columns of a text file as text."""
        bad_rows: list[Any] = []

        def keep_bad_row(row: Any) -> str:
            bad_rows.append(row)
            return "error"

        try:
            if self.path.suffix == ".parquet":
                file = pq.ParquetFile(self.path)
                self._columns(file.schema_arrow.names)
                yield from file.iter_batches(_PART)
                return
            parse = pc.ParseOptions(
                delimiter="," if self.path.suffix == ".csv" else "\t",
                quote_char='"' if self.path.suffix == ".csv" else False,
                invalid_row_handler=keep_bad_row,
            )
            # Opened twice: the header says which columns there are, and so which are text.
            with pc.open_csv(self.path, parse_options=parse) as reader:
                names = reader.schema.names
            self._columns(names)
            convert = pc.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
            )
            with pc.open_csv(self.path, parse_options=parse, convert_options=convert) as reader:
                yield from reader
        except OSError as error:
            raise PrixError(f"{self.shown} cannot be read: {error.strerror or error}.") from None
        except pa.ArrowInvalid as error:
            # Arrow's own message does not show the row; the handler has kept it.
            if bad_rows:
                row = bad_rows[0]
                raise PrixError(
                    f"{self.shown}: a row has {row.actual_columns} columns, expected "
                    f"{row.expected_columns}: {str(row.text)[:80]!r}."
                ) from None
            raise PrixError(f"{self.shown} cannot be read: {str(error).splitlines()[0]}.") from None


def _write_queries(source: _QueriesFile, num_rows: int, path: Path) -> None:
    """Write the queries as Parquet with a row group for each part, so that any can be read."""
    with pq.ParquetWriter(path, QUERIES_SCHEMA) as writer:
        for rows in source.parts(num_rows):
            writer.write_table(pa.Table.from_pylist(rows, schema=QUERIES_SCHEMA), len(rows))


@contextlib.contextmanager
def _open_source(source: Path | str, out: Path) -> Iterator[_QueriesFile]:
    """Yield the file of queries; standard input is first copied to a file beside `out`."""
    if str(source) != "-":
        named = uri_of(source) if is_remote(source) else str(source)
        yield _QueriesFile(local_source(source), named)
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=out.parent, prefix=f".{out.name}.", suffix=".tsv"
    ) as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.flush()
        yield _QueriesFile(Path(spool.name), "standard input")
