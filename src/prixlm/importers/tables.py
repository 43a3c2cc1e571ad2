"""Tables of names: the user's TSV, CSV or Parquet, or the authors' link-prediction files.

Facts have the columns `lang, subject, relation, object` and optionally `split`; links have
`lang_a, name_a, lang_b, name_b`; described entities have `lang, name, description` and a header,
and a description may be empty. With a header, columns may come in any order and further columns
are ignored. Without a header they come in that order, and a file holds links if its name contains
`link`. The authors' folder has `triples.txt` (test facts), `filtered.txt` (known facts) and
`entities.txt`, without headers. Names identify entities: the key of London is `en:London`.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from prixlm.errors import PrixError
from prixlm.importers.format import (
    LABEL,
    Chunk,
    Format,
    Parsed,
    Parser,
    Source,
    clean_names,
    map_unique,
)
from prixlm.importers.streams import (
    CHUNK_BYTES,
    describe_bomb,
    head,
    is_bomb,
    line_chunks,
    plain_suffix,
)
from prixlm.kb.checks import check_pages
from prixlm.languages import normalise
from prixlm.types import Array
from prixlm.untrusted import unguard_formula

FACT_COLUMNS = ("lang", "subject", "relation", "object")
LINK_COLUMNS = ("lang_a", "name_a", "lang_b", "name_b")
DESCRIBED_COLUMNS = ("lang", "name", "description")
SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_AUTHORS = {
    "triples": ("subject", "relation", "object", "lang"),
    "filtered": ("subject", "relation", "object", "lang"),
    "entities": ("name", "lang"),
}
_AUTHORS_SPLIT = {"triples": "test", "filtered": "known"}

_EXPORTED = {*FACT_COLUMNS, "confidence", "why", "origin"}
"""The columns of a TSV file of `prixlm export`."""
_KNOWN = {*FACT_COLUMNS, *LINK_COLUMNS, *DESCRIBED_COLUMNS, "split"}
_EXPECTED = (
    f"{', '.join(FACT_COLUMNS)} for facts, {', '.join(LINK_COLUMNS)} for links, or "
    f"{', '.join(DESCRIBED_COLUMNS)} for descriptions"
)
_HEADER_WORDS = _KNOWN | {"language", "predicate", "property", "head", "tail"}
_LONE_CR = re.compile(rb"\r(?!\n)")
_NO_TEXT = "\ufdd0"  # a noncharacter in the place of bytes that are not UTF-8

Rows = dict[str, pa.Array]


def _as_text(data: bytes) -> bytes:
    """Prepare bytes for Arrow's CSV reader.

    Arrow ends a line at a lone CR, drops a byte order mark, and cannot report a bad row that is not
    UTF-8: the CR becomes a space, the mark is protected, and bytes that are not UTF-8 are marked.
    """
    # Line ends must stay where they are: a row's line number is its position among them.
    data = _LONE_CR.sub(b" ", data) if b"\r" in data else data
    data = b" " + data if data.startswith(b"\xef\xbb\xbf") else data
    try:
        data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        data = re.sub("[\udc80-\udcff]+", _NO_TEXT, text).encode()
    return data


def _spoil_open_quotes(data: bytes) -> bytes:
    """Turn a line with an unclosed quote into a bad row, which would else swallow the next line."""
    # Without commas and double quotes, the line is one column, which is never the right number.
    lines = data.split(b"\n")
    return b"\n".join(
        line.replace(b'"', b"'").replace(b",", b";") if line.count(b'"') % 2 else line
        for line in lines
    )


def split_columns(
    data: bytes, first_line: int, columns: Sequence[str], delimiter: str
) -> tuple[Rows, Array, list[tuple[int, str, int]]]:
    """Split delimited lines into columns.

    Returns the columns as binary arrays, the line of each row, and the bad lines, each with its
    number, its text and the number of columns found.
    """
    bad: list[tuple[int, str, int]] = []
    data = _as_text(data)
    if delimiter == "," and b'"' in data:
        data = _spoil_open_quotes(data)

    def skip(row: pacsv.InvalidRow) -> str:
        bad.append((row.number, row.text, row.actual_columns))
        return "skip"

    # Only without threads does Arrow tell the number of a bad row. Columns are read as bytes, so
    # that invalid text is rejected row by row later.
    table = pacsv.read_csv(
        io.BytesIO(data),
        read_options=pacsv.ReadOptions(
            column_names=list(columns), use_threads=False, block_size=len(data) + 1
        ),
        parse_options=pacsv.ParseOptions(
            delimiter=delimiter,
            quote_char='"' if delimiter == "," else False,
            invalid_row_handler=skip,
            ignore_empty_lines=False,
        ),
        convert_options=pacsv.ConvertOptions(
            column_types={column: pa.binary() for column in columns},
            strings_can_be_null=False,
            check_utf8=False,
        ),
    ).combine_chunks()
    rows = {name: table[name].combine_chunks() for name in columns}
    # Rows are numbered from 1 with the bad ones, which the table lacks.
    total = table.num_rows + len(bad)
    lines = np.delete(np.arange(1, total + 1), [number - 1 for number, _, _ in bad])
    return rows, first_line - 1 + lines, [(first_line - 1 + n, t, k) for n, t, k in bad]


def reject_lines(bad: list[tuple[int, str, int]], num_columns: int, parsed: Parsed) -> None:
    """Reject the bad lines of `split_columns`; blank ones are filtered."""
    for number, text, found in bad:
        if text.strip():
            parsed.reject(f"{found} columns, expected {num_columns}", number, text)
        else:
            parsed.filter("comment or blank line")


@dataclass(frozen=True)
class TableParser:
    """Stages rows of facts, links or entities."""

    langs: tuple[str, ...] | None
    columns: tuple[str, ...]
    delimiter: str = "\t"
    has_header: bool = False
    split: str | None = None  # of facts in a table without a split column
    guarded: bool = False  # `prixlm export` wrote it, with apostrophes before formulas

    def __call__(self, chunk: Chunk) -> Parsed:
        parsed = Parsed(chunk.source)
        rows, lines = self._read(chunk, parsed)
        rows, lines = _clean(rows, lines, parsed)
        if self.guarded:
            rows = {name: _without_guard(column) for name, column in rows.items()}
        rows, lines = self._languages(rows, lines, parsed)
        if "subject" in rows:
            self._stage_facts(rows, lines, parsed)
        elif "name" in rows:
            self._stage_names(rows, lines, parsed)
        else:
            self._stage_links(rows, lines, parsed)
        return parsed.check()

    def _read(self, chunk: Chunk, parsed: Parsed) -> tuple[Rows, Array]:
        """Return the known columns of a chunk, as bytes, and the line of each row."""
        if isinstance(chunk.data, pa.RecordBatch):
            parsed.read += chunk.data.num_rows
            rows = {n: chunk.data.column(n).cast(pa.binary()) for n in self.columns}
            return rows, chunk.line + np.arange(chunk.data.num_rows)
        data, first = chunk.data, chunk.line
        if first == 1 and self.has_header:
            data, first = data.partition(b"\n")[2], 2
        if not data:
            return {n: pa.array([], pa.binary()) for n in self.columns}, np.zeros(0, np.int64)
        # Columns are read by position: a header may name one twice, or an unknown one.
        names = [str(position) for position in range(len(self.columns))]
        cells, lines, bad = split_columns(data, first, names, self.delimiter)
        known = _KNOWN - ({"description"} if "subject" in self.columns else set())
        rows = {c: cells[str(self.columns.index(c))] for c in self.columns if c in known}
        parsed.read += len(lines) + len(bad)
        reject_lines(bad, len(self.columns), parsed)
        # A blank line of a table with one column, or of commas alone, is not a bad line for Arrow.
        blank = np.all([np.asarray(pc.equal(c, b"")) for c in cells.values()], axis=0)
        parsed.filter("comment or blank line", int(blank.sum()))
        return _keep(rows, lines, ~blank) if blank.any() else (rows, lines)

    def _languages(self, rows: Rows, lines: Array, parsed: Parsed) -> tuple[Rows, Array]:
        """Normalise the language columns; reject unknown codes and filter unwanted languages."""
        for name in [n for n in rows if n.startswith("lang")]:
            codes = map_unique(rows[name], normalise)
            bad = np.asarray(codes.is_null())
            rows, lines = _drop(rows, lines, bad, "unknown language code", parsed)
            rows = {**rows, name: codes.drop_null()}
            if self.langs is not None:
                asked = np.asarray(pc.is_in(rows[name], pa.array(self.langs, pa.string())))
                parsed.filter("language not asked for", int((~asked).sum()))
                rows, lines = _keep(rows, lines, asked)
        return rows, lines

    def _stage_facts(self, rows: Rows, lines: Array, parsed: Parsed) -> None:
        """Stage rows as facts of their language, with the split of their column or of the file."""
        if "split" in rows:
            splits = map_unique(rows["split"], lambda split: SPLITS.get(split.lower()))
            rows, lines = _drop(rows, lines, np.asarray(splits.is_null()), "unknown split", parsed)
            rows = {**rows, "split": splits.drop_null()}
        parsed.stage(
            "facts",
            subject=_key(rows["lang"], rows["subject"]),
            relation=rows["relation"],
            object=_key(rows["lang"], rows["object"]),
            lang=rows["lang"],
            split=rows.get("split", pa.array([self.split] * len(lines), pa.string())),
            line=lines,
        )

    def _stage_names(self, rows: Rows, lines: Array, parsed: Parsed) -> None:
        keys = _key(rows["lang"], rows["name"])
        ranks = np.full(len(lines), LABEL, np.int8)
        parsed.stage(
            "names", key=keys, lang=rows["lang"], name=rows["name"], rank=ranks, line=lines
        )
        if "description" not in rows:
            return
        # A line with a description is two rows: a name and its description.
        filled = pc.not_equal(rows["description"], "")
        parsed.read += pc.sum(filled).as_py() or 0
        parsed.stage(
            "descriptions",
            key=keys.filter(filled),
            lang=rows["lang"].filter(filled),
            text=rows["description"].filter(filled),
            rank=pa.array(ranks).filter(filled),
            line=pa.array(lines).filter(filled),
        )

    def _stage_links(self, rows: Rows, lines: Array, parsed: Parsed) -> None:
        parsed.stage(
            "links",
            a=_key(rows["lang_a"], rows["name_a"]),
            b=_key(rows["lang_b"], rows["name_b"]),
            line=lines,
        )


def _key(lang: pa.Array, name: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(lang, name, ":")


def names_from_keys(keys: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return language and name of keys: `en:London` is "London" in English."""
    parts = pc.extract_regex(keys, r"^(?P<lang>[^:]+):(?s:(?P<name>.*))$")
    return parts.field("lang"), parts.field("name")


def _without_guard(names: pa.Array) -> pa.Array:
    """Return names without the apostrophe of `guard_formula`."""
    return map_unique(names, unguard_formula)


def _clean(rows: Rows, lines: Array, parsed: Parsed) -> tuple[Rows, Array]:
    """Return bytes as clean text; reject rows with invalid UTF-8 or an empty name."""
    # One column after the other: a row leaves at its first fault, which is the reason given.
    for name in list(rows):
        bad = np.asarray(pc.fill_null(pc.match_substring(rows[name], _NO_TEXT.encode()), False))
        rows, lines = _drop(rows, lines, bad, "invalid UTF-8", parsed)
        text = rows[name].cast(pa.string())
        folded = clean_names(text)
        if name == "description":  # may be empty, or null in a Parquet file
            rows = {**rows, name: pc.fill_null(folded, "")}
            continue
        rows = {**rows, name: folded}
        empty = np.asarray(pc.fill_null(pc.equal(folded, ""), True))
        rows, lines = _drop(rows, lines, empty, "empty name", parsed)
    return rows, lines


def _drop(rows: Rows, lines: Array, bad: Array, reason: str, parsed: Parsed) -> tuple[Rows, Array]:
    """Reject the rows where `bad` is true, and return the others."""
    if not bad.any():
        return rows, lines

    def show(row: int) -> str:
        values = [column[row].as_py() for column in rows.values()]
        return "\t".join(
            v.decode("utf-8", "replace") if isinstance(v, bytes) else str(v) for v in values
        )

    parsed.reject_rows(reason, bad, lines, show)
    return _keep(rows, lines, ~bad)


def _keep(rows: Rows, lines: Array, good: Array) -> tuple[Rows, Array]:
    """Return the rows where `good` is true."""
    mask = pa.array(good)
    return {name: column.filter(mask) for name, column in rows.items()}, lines[good]


def read_header(path: Path) -> tuple[tuple[str, ...], bool]:
    """Return the columns of a table, in its order, and whether its first line names them."""
    if plain_suffix(path) == ".parquet":
        try:
            schema = pq.read_schema(path)
        except (pa.ArrowException, OSError) as error:
            raise PrixError(f"{path}: not a whole Parquet file ({error}). Copy it again.") from None
        columns = _known_columns(path, tuple(schema.names))
        for name in columns:
            kinds = [field.type for field in schema if field.name == name]
            if len(kinds) > 1 or pa.types.is_nested(kinds[0]):
                found = str(kinds[0])[:100] if len(kinds) == 1 else f"{len(kinds)} columns"
                raise PrixError(f"{path}: {name} is {found}, expected one column of texts.")
        return columns, True
    delimiter = _DELIMITERS.get(plain_suffix(path))
    if delimiter is None:
        raise PrixError(f"{path}: expected a file name that ends in .tsv, .txt, .csv or .parquet.")
    # The first line, as a CSV reader splits it: a column's name may be quoted.
    first = _as_text(head(path).partition(b"\n")[0].rstrip(b"\r")).decode()
    names = tuple(next(csv.reader([first], delimiter=delimiter), []))
    lowered = tuple(name.strip().lower() for name in names)
    known = (FACT_COLUMNS, LINK_COLUMNS, DESCRIBED_COLUMNS)
    if any(set(columns) <= set(lowered) for columns in known):
        return lowered, True
    if len(_HEADER_WORDS & set(lowered)) >= 2:
        # Most likely a header with other names: reading it as a row would swap the columns.
        raise PrixError(
            f"{path}: header {', '.join(names)}; expected {_EXPECTED}. Rename the columns."
        )
    # Without a header, the file's name tells facts from links; five columns are facts with a split.
    expected = LINK_COLUMNS if "link" in path.name.lower() else FACT_COLUMNS
    if len(names) == 5 and expected is FACT_COLUMNS:
        return (*FACT_COLUMNS, "split"), False
    return expected, False


def _known_columns(path: Path, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the columns to read of a Parquet file that has these."""
    for known in (FACT_COLUMNS, LINK_COLUMNS, DESCRIBED_COLUMNS):
        if set(known) <= set(names):
            return known + (("split",) if "split" in names and known is FACT_COLUMNS else ())
    raise PrixError(
        f"{path}: columns {', '.join(names)}; expected {_EXPECTED}. Rename the columns."
    )


def _table_chunks(source: Source, index: int) -> Iterator[Chunk]:
    """Yield the lines of a text table, or the batches of a Parquet file; row 1 is its first."""
    if plain_suffix(source.path) != ".parquet":
        yield from line_chunks(source, index)
        return
    try:
        yield from _parquet_chunks(source, index)
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).splitlines() or [""])[0][:300]
        raise PrixError(f"{source.path}: cannot be read ({reason}). Write it again.") from None


def _parquet_chunks(source: Source, index: int) -> Iterator[Chunk]:
    """Yield the batches of a Parquet file; a last one is broken if it expands beyond measure."""
    path, limits = source.path, source.limits
    columns, _ = read_header(path)
    line, served = 1, 0
    longest = max(limits.name, limits.description)
    # A few bytes of a dictionary stand for any number of long texts: cut them before they expand.
    with pq.ParquetFile(path, read_dictionary=list(columns), pre_buffer=False) as file:
        total = max(1, file.metadata.num_rows)
        # Values of a fixed length are read without a dictionary, however few are different.
        fixed = max(file.schema.column(i).length for i in range(len(file.schema)))
        width = max(fixed, check_pages(path, columns))
        rows = max(1, min(1 << 16, CHUNK_BYTES // max(1, width)))
        # One row group after the other: Arrow keeps the words of all that it reads at once.
        groups = range(file.num_row_groups)
        for batch in chain.from_iterable(
            file.iter_batches(rows, [group], list(columns)) for group in groups
        ):
            # Parsers read text only: numbers and dates are names too.
            texts = [_cast(_cut(column, longest)) for column in batch]
            served += sum(text.nbytes for text in texts)
            if is_bomb(path, served):
                yield Chunk(
                    index, line, describe_bomb().encode(), broken="truncated or damaged archive"
                )
                return
            done = path.stat().st_size * (line - 1) // total
            yield Chunk(index, line, pa.record_batch(texts, names=batch.schema.names), done=done)
            line += batch.num_rows


def _cut(column: pa.Array, longest: int) -> pa.Array:
    """Return a column without dictionary; texts that are too long keep one character too many."""
    if not pa.types.is_dictionary(column.type):
        return column
    words = column.dictionary
    if pa.types.is_binary(words.type) or pa.types.is_large_binary(words.type):
        return pc.binary_slice(words, 0, 4 * longest + 4).take(column.indices)
    return pc.utf8_slice_codeunits(words, 0, longest + 1).take(column.indices)


def _cast(column: pa.Array) -> pa.Array:
    """Return a column of a Parquet file as text."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return pa.array([v and _as_text(v) for v in column.to_pylist()], pa.binary())
    return column.cast(pa.string())


def _table_parser(sources: Sequence[Source], index: int, langs: tuple[str, ...] | None) -> Parser:
    path = sources[index].path
    columns, has_header = read_header(path)
    return TableParser(
        langs,
        columns,
        _DELIMITERS.get(plain_suffix(path), ""),
        has_header,
        guarded=set(columns) >= _EXPORTED,
    )


def _authors_files(folder: Path) -> dict[str, Path]:
    """Return the files of the authors' folder, plain or compressed, by what they hold."""
    files = sorted(p for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
    stems = {p.name.split(".")[0]: p for p in files if p.suffix in (".txt", ".zip", ".gz")}
    return {name: stems[name] for name in _AUTHORS if name in stems}


def _authors_sources(paths: Sequence[Path]) -> list[Source]:
    return [
        Source(file, f"{path.name}/{file.name}", role)
        for path in paths
        for role, file in _authors_files(path).items()
    ]


def _authors_parser(sources: Sequence[Source], index: int, langs: tuple[str, ...] | None) -> Parser:
    role = sources[index].role
    return TableParser(langs, _AUTHORS[role], split=_AUTHORS_SPLIT.get(role))


TABLES = Format(
    name="table",
    title="TSV, CSV or Parquet of names (facts, links, descriptions)",
    recognises=lambda path: path.is_file() and plain_suffix(path) in (*_DELIMITERS, ".parquet"),
    chunks=_table_chunks,
    parser=_table_parser,
    names_from_keys=names_from_keys,
    relation_name=str,
)

AUTHORS = Format(
    name="authors",
    title="the Prix-LM authors' link-prediction folder (triples, filtered, entities)",
    whole_folders=True,
    recognises=lambda path: {"triples", "entities"} <= set(_authors_files(path)),
    sources=_authors_sources,
    chunks=line_chunks,
    parser=_authors_parser,
    licence="CC BY-SA 3.0 and GFDL (DBpedia)",
    names_from_keys=names_from_keys,
    relation_name=str,
)
