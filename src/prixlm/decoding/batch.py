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
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.errors import PrixError
from prixlm.files import (
    ROW_FORMATS,
    check_new_file,
    disk_errors,
    open_workspace,
    partial_folder,
    write_rows,
)
from prixlm.types import Array, Progress, Query

_PART = 256
"""Queries per part: the most that a kill can lose."""
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


def answer_file(
    completer: Completer,
    source: Path | str,
    out: Path,
    config: SearchConfig,
    *,
    candidates: Array | None = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Answer every query of a file; return the number of `queries` and of `errors`."""
    check_out(out)
    with disk_errors(out), _open_source(source, out) as queries_file:
        # Counted before anything is written: a file that cannot be read leaves nothing behind.
        total = queries_file.count()
        stamp = _stamp(queries_file.path, completer, config, candidates)
        with open_workspace(partial_folder(out), stamp) as work:
            counts = {"queries": 0, "errors": 0}
            parts = []
            for index, rows in enumerate(queries_file.parts()):
                write = partial(_write_part, completer, rows, index, config, candidates)
                parts.append(work.make(f"part-{index:07d}.parquet", write))
                counts["queries"] += len(rows)
                if progress is not None:
                    progress("answer", counts["queries"], total)

            # Errors are counted while the parts are read back: some may be of an earlier command.
            def tables() -> Iterator[pa.Table]:
                for part in parts:
                    table = pq.read_table(part)
                    counts["errors"] += table.num_rows - table["error"].null_count
                    yield table

            write_rows(tables(), SCHEMA, out, new=True)
            work.remove()
    return counts


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
class _BadRow:
    """A row of the file that is not a query: its cells, by the columns of SCHEMA, and why."""

    cells: dict[str, str]
    error: str


def _write_part(
    completer: Completer,
    queries: list[Query | _BadRow],
    index: int,
    config: SearchConfig,
    candidates: Array | None,
    path: Path,
) -> None:
    """Answer the queries of one part and write them as Parquet."""
    # Bad rows are not asked, so results are taken one by one beside the queries.
    asked = [query for query in queries if isinstance(query, Query)]
    results = iter(completer.answer(asked, config, candidates))
    rows: list[dict[str, Any]] = []
    for number, query in enumerate(queries, start=index * _PART):
        if isinstance(query, _BadRow):
            rows.append({"query": number, **query.cells, "error": query.error})
            continue
        cells = {"query": number, **asdict(query)}
        answers = next(results)
        if isinstance(answers, PrixError):
            rows.append(cells | {"error": str(answers)})
            continue
        for answer in answers:
            values = {"rank": answer.rank, "object": answer.name, "entity": answer.entity}
            rows.append(cells | values | {"score": answer.score})
    with path.open("wb") as file:
        pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), file)


# --- queries --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _QueriesFile:
    """A file of queries. It is read twice: to count the rows, and to answer them."""

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

    def parts(self) -> Iterator[list[Query | _BadRow]]:
        """Yield the queries of each part."""
        rows = itertools.chain.from_iterable(batch.to_pylist() for batch in self._batches())
        while part := list(itertools.islice(rows, _PART)):
            yield [self._query(row) for row in part]

    def _query(self, row: dict[str, Any]) -> Query | _BadRow:
        """Make the query of a row; a row with an empty cell gets an error of its own."""
        columns = self._columns(row.keys())
        cells = [str(row[name] or "").strip() for name in columns]
        lang, subject, last = cells
        if not all(cells):
            empty = [name for name, cell in zip(columns, cells, strict=True) if not cell]
            named = {"lang": lang, "subject": subject, columns[2]: last}
            return _BadRow(named, f"empty: {', '.join(empty)}.")
        if columns[2] == "relation":
            return Query(lang, subject, last)
        return Query(lang, subject, None, last)

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


@contextlib.contextmanager
def _open_source(source: Path | str, out: Path) -> Iterator[_QueriesFile]:
    """Yield the file of queries; standard input is first copied to a file beside `out`."""
    if str(source) != "-":
        yield _QueriesFile(Path(source), str(source))
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        dir=out.parent, prefix=f".{out.name}.", suffix=".tsv"
    ) as spool:
        shutil.copyfileobj(sys.stdin.buffer, spool)
        spool.flush()
        yield _QueriesFile(Path(spool.name), "standard input")
