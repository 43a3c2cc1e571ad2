"""Files of queries in, files of answers out: streamed, and gone on with after a kill.

    answer_file(completer, "queries.tsv", "answers.parquet", SearchConfig())

In: TSV, CSV or Parquet with the columns lang, subject, relation, or lang, name, to (`-` is standard
input, as TSV). Out: Parquet, TSV or JSONL, by the name of the file: one row for each answer, with
the number of its query, and one row with an `error` for each query that cannot be asked. Finished
parts lie in OUT.partial until all are there; the same command takes them up again.
"""

import hashlib
import itertools
import json
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from prixlm.decoding.completer import Completer, SearchConfig
from prixlm.errors import PrixError
from prixlm.files import ROW_FORMATS, disk_errors, locked, write_atomically, write_rows
from prixlm.types import Progress, Query

_PART = 256
"""Queries of one part: what a kill can lose."""
SCHEMA = pa.schema(
    [
        ("query", pa.int64()),  # the row of the file, from 0
        ("lang", pa.string()),
        ("subject", pa.string()),
        ("relation", pa.string()),  # null where a name is asked for
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
    candidates: Any = None,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Answer every query of a file; how many there were, and how many could not be asked."""
    check_out(out)
    work = out.with_name(out.name + ".partial")
    with disk_errors(out), locked(work):
        path = _spool(work) if str(source) == "-" else Path(source)
        try:
            total = sum(batch.num_rows for batch in _read(path))
        except PrixError:
            if not any(work.glob("part-*")):  # nothing was lost, and nothing is left behind
                shutil.rmtree(work)
            raise
        _check_stamp(work, path, completer, config, candidates)
        counts = {"queries": 0, "errors": 0}
        parts = []
        for number, queries in enumerate(_queries(path)):
            part = work / f"part-{number:07d}.parquet"
            parts.append(part)
            if not part.exists():
                first = number * _PART
                table = _answers(completer, queries, first, config, candidates)
                temporary = part.with_suffix(".tmp")
                with temporary.open("wb") as file:
                    pq.write_table(table, file)
                    file.flush()
                    os.fsync(file.fileno())
                temporary.rename(part)
            counts["queries"] += len(queries)
            if progress is not None:
                progress("answer", counts["queries"], total)

        def tables() -> Iterator[pa.Table]:
            for part in parts:
                table = pq.read_table(part)
                counts["errors"] += table.num_rows - table["error"].null_count
                yield table

        write_rows(tables(), SCHEMA, out)
        shutil.rmtree(work)
    return counts


def check_out(out: Path) -> None:
    """Refuse a file of answers that cannot be written, before anything is loaded."""
    if out.suffix not in ROW_FORMATS:
        raise PrixError(f"--out {out}: expected a name that ends in {', '.join(ROW_FORMATS)}.")
    if out.exists():
        raise PrixError(f"{out} is already there: move it, or name another file.")
    work = out.with_name(out.name + ".partial")
    if work.exists() and not (work.is_dir() and all(map(_is_ours, work.iterdir()))):
        raise PrixError(f"{work} is there and is not ours: move it, or name another file.")


def _is_ours(path: Path) -> bool:
    return path.name in ("lock", "stamp", "input.tsv") or path.name.startswith("part-")


def _answers(
    completer: Completer,
    queries: list["Query | _Bad"],
    first: int,
    config: SearchConfig,
    candidates: Any,
) -> pa.Table:
    asked = [query for query in queries if isinstance(query, Query)]
    found = iter(completer.answer(asked, config, candidates))
    rows: list[dict[str, Any]] = []
    for number, query in enumerate(queries, start=first):
        if isinstance(query, _Bad):
            rows.append({"query": number, **query.cells, "error": query.error})
            continue
        fixed = {"query": number, **asdict(query)}
        answers = next(found)
        if isinstance(answers, PrixError):
            rows.append(fixed | {"error": str(answers)})
            continue
        for answer in answers:
            values = {"rank": answer.rank, "object": answer.name, "entity": answer.entity}
            rows.append(fixed | values | {"score": answer.score})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


@dataclass(frozen=True)
class _Bad:
    """A row that is no query: its cells, by the columns of the answers, and why."""

    cells: dict[str, str]
    error: str


def _read(path: Path) -> Iterator[pa.RecordBatch]:
    """The rows of a file of queries, all columns as text."""
    shown = "standard input" if path.parent.suffix == ".partial" else str(path)
    refused: list[Any] = []

    def refuse(row: Any) -> str:
        refused.append(row)
        return "error"

    try:
        if path.suffix == ".parquet":
            file = pq.ParquetFile(path)
            _columns(file.schema_arrow.names, shown)
            yield from file.iter_batches(_PART)
            return
        parse = pc.ParseOptions(
            delimiter="," if path.suffix == ".csv" else "\t",
            quote_char='"' if path.suffix == ".csv" else False,
            invalid_row_handler=refuse,
        )
        # The head decides which columns there are; all of them are text.
        with pc.open_csv(path, parse_options=parse) as reader:
            names = reader.schema.names
        _columns(names, shown)
        convert = pc.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        )
        with pc.open_csv(path, parse_options=parse, convert_options=convert) as reader:
            yield from reader
    except OSError as error:
        raise PrixError(f"{shown} cannot be read: {error.strerror or error}.") from None
    except pa.ArrowInvalid as error:
        if refused:
            row = refused[0]
            raise PrixError(
                f"{shown}: a row has {row.actual_columns} columns, expected "
                f"{row.expected_columns}: {str(row.text)[:80]!r}."
            ) from None
        raise PrixError(f"{shown} cannot be read: {str(error).splitlines()[0]}.") from None


def _columns(names: Collection[str], shown: str) -> tuple[str, str, str]:
    """Which of the two kinds of queries a file has."""
    for wanted in (("lang", "subject", "relation"), ("lang", "name", "to")):
        if set(wanted) <= set(names):
            return wanted
    raise PrixError(
        f"{shown} has the columns {', '.join(names)}; expected lang, subject, relation, "
        "or lang, name, to."
    )


def _queries(path: Path) -> Iterator[list[Query | _Bad]]:
    """Queries in parts; a row with an empty cell is an error of its own."""
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in _read(path))
    while part := list(itertools.islice(rows, _PART)):
        yield [_query(row, path) for row in part]


def _query(row: dict[str, Any], path: Path) -> Query | _Bad:
    wanted = _columns(row.keys(), str(path))
    cells = [str(row[name] or "").strip() for name in wanted]
    if not all(cells):
        empty = [name for name, cell in zip(wanted, cells, strict=True) if not cell]
        named = dict(zip(("lang", "subject", wanted[2]), cells, strict=True))
        return _Bad(named, f"empty: {', '.join(empty)}.")
    if wanted[1] == "subject":
        return Query(cells[0], cells[1], cells[2])
    return Query(cells[0], cells[1], None, cells[2])


def _spool(work: Path) -> Path:
    """Standard input as a file: it is read more than once."""
    path = work / "input.tsv"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def _check_stamp(
    work: Path, path: Path, completer: Completer, config: SearchConfig, candidates: Any
) -> None:
    """Parts of another question are thrown away."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    digest.update(json.dumps(asdict(config)).encode())
    digest.update(completer.kb.fingerprint().encode())
    digest.update(completer.identity().encode())
    digest.update(b"" if candidates is None else candidates.tobytes())
    stamp = work / "stamp"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        for part in work.glob("part-*"):
            part.unlink()
        write_atomically(stamp, digest.hexdigest())
