"""What a KB format is, and what its parser yields: rows of names, descriptions, facts and links.

To add a format, write one file with a `Format` and add one line to the table in `plan.py`:

    @dataclass(frozen=True)
    class MyParser:
        langs: tuple[str, ...] | None

        def __call__(self, chunk: Chunk) -> Parsed:
            parsed = Parsed(chunk.source)
            ...  # count every row in parsed.read, then parsed.stage, .reject or .filter it
            return parsed.check()

    MINE = Format(
        name="mine",
        title="my own dumps",
        recognises=lambda path: plain_suffix(path) == ".mine",
        chunks=line_chunks,
        parser=lambda sources, index, langs: MyParser(langs),
    )

A format cuts its sources into chunks, and a parser turns each chunk into `Parsed`, in any thread or
process. Keys are strings that the source chooses (an IRI, `Q42`, `en:London`). An *entity* is a key
in one language; a key named in several languages is one concept. No row is lost: each row that a
parser reads is staged, rejected (it is malformed) or filtered (it is valid but not wanted).
"""

import functools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from prixlm.types import Array
from prixlm.untrusted import printable

_TEXT, _LINE = pa.string(), pa.int64()
_NAMES = {
    "key": _TEXT,
    "lang": _TEXT,
    "name": _TEXT,
    "rank": pa.int8(),  # the name of lowest rank is the entity's own, the others are aliases
    "line": _LINE,
}
STAGED = {
    "names": pa.schema(_NAMES),
    "facts": pa.schema(
        {
            "subject": _TEXT,
            "relation": _TEXT,
            "object": _TEXT,
            "lang": _TEXT,  # null: true in every language that names both ends
            "split": _TEXT,  # null: train
            "line": _LINE,
        }
    ),
    "links": pa.schema({"a": _TEXT, "b": _TEXT, "line": _LINE}),
    "redirects": pa.schema({"key": _TEXT, "target": _TEXT, "line": _LINE}),
    "relations": pa.schema(_NAMES),  # names of relations; null where only the key is known
    "descriptions": pa.schema(
        {
            "key": _TEXT,
            "lang": _TEXT,
            "text": _TEXT,
            "rank": pa.int8(),  # the text of lowest rank is kept
            "line": _LINE,
        }
    ),
}
"""The tables that parsers stage rows in; keys are still the source's own."""

_RELATION_COLUMNS = {"facts": ["relation"], "relations": ["key", "name"]}
"""Where staged tables have the keys and names of relations."""
LABEL, VARIANT, ALIAS, REDIRECTED, FROM_KEY = 0, 1, 2, 10, 20
"""Ranks of names: a label, a label in a variant of the language, an alias; 10 is added to a name
that came through a redirect; 20 is a name made from the key because there is no other."""

NUM_SAMPLES = 100
"""Maximum number of rejected rows that are kept for the rejects file, for each reason."""


SAMPLE_CHARS = 300
"""Characters that the rejects file shows of a row."""


class Reject(NamedTuple):
    """A rejected row, for the rejects file."""

    reason: str
    source: int
    line: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How long what a source states may be; longer rows are rejected.

    Without limits, a hostile file of a few hundred bytes expands to more than memory holds.
    """

    name: int = 2000  # characters of a name or key; Wikidata's names have at most 250
    description: int = 2000  # characters of a description; Wikidata's have at most 250
    line: int = 16 << 20  # bytes of a line or, in RDF without lines, of the text of a statement


@dataclass(frozen=True)
class Source:
    """One file to read; `role` is its format's note on what it holds (`entities`, `links`, ...)."""

    path: Path
    name: str
    role: str = ""
    limits: Limits = Limits()
    start: tuple[int, int] = (0, 1)  # byte and line to begin at, of a plain file: see `Chunk.start`


@dataclass(frozen=True)
class Chunk:
    """A piece of one source: whole lines, or another unit that the format's parser knows."""

    source: int  # index in the sources of the import
    line: int  # number of its first line
    data: bytes | pa.RecordBatch
    broken: str = ""  # why it cannot be parsed; `data` is then a sample for the rejects file
    done: int = 0  # bytes of the file on disk that were read so far
    start: int | None = None  # its first byte in a plain file of lines, where reading can begin


@dataclass
class Parsed:
    """The rows of one chunk: staged, rejected or filtered. `read` counts them all."""

    source: int
    read: int = 0
    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    samples: list[Reject] = field(default_factory=list)

    def stage(self, table: str, **columns: object) -> None:
        """Add rows to a table of `STAGED`, given as arrays for all of its columns."""
        schema = STAGED[table]
        batch = pa.record_batch([_column(columns[f.name], f.type) for f in schema], schema=schema)
        if batch.num_rows:
            self.tables.setdefault(table, []).append(batch)

    def reject(self, reason: str, line: int, text: str | bytes) -> None:
        """Count one malformed row, and keep it as a sample if its reason has few so far."""
        self.rejected[reason] += 1
        if self.rejected[reason] <= NUM_SAMPLES:
            self.samples.append(Reject(reason, self.source, line, as_sample(text)))

    def reject_rows(
        self, reason: str, bad: Array, lines: Array, text: Callable[[int], str]
    ) -> None:
        """Count the rows where `bad` is true; `text(row)` shows a row, for the samples."""
        # `text` is slow, so it is called for samples only; the other rows are just counted.
        rows = np.flatnonzero(bad)
        for row in rows[:NUM_SAMPLES].tolist():
            self.reject(reason, int(lines[row]), text(row))
        self.rejected[reason] += max(0, len(rows) - NUM_SAMPLES)

    def filter(self, reason: str, count: int = 1) -> None:
        """Count rows that are well formed but not wanted."""
        if count:
            self.filtered[reason] += count

    def drop_descriptions(self) -> None:
        """Filter all staged descriptions."""
        dropped = self.tables.pop("descriptions", [])
        self.filter("description not asked for", sum(batch.num_rows for batch in dropped))

    def clean_relations(self) -> None:
        """Put the keys and names of relations on one line, as the names of entities are.

        Rows whose relation is nothing but white space and controls are rejected.
        """
        for table, columns in _RELATION_COLUMNS.items():
            for place, batch in enumerate(self.tables.get(table, ())):
                self.tables[table][place] = self._with_clean(batch, columns)

    def _with_clean(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        for name in columns:
            # There are few relations and many facts: each distinct key is cleaned once.
            encoded = batch.column(name).dictionary_encode()
            cleaned = clean_names(encoded.dictionary)
            if cleaned.equals(encoded.dictionary):
                continue
            position = batch.schema.get_field_index(name)
            before, values = batch.column(name), cleaned.take(encoded.indices)
            batch = batch.set_column(position, batch.schema.field(position), values)
            empty = np.asarray(pc.fill_null(pc.equal(values, ""), False))
            lines = np.asarray(batch.column("line"))
            self.reject_rows("empty name", empty, lines, functools.partial(_text_of, before))
            batch = batch.filter(pa.array(~empty))
        return batch

    def reject_long(self, limits: Limits) -> None:
        """Reject the staged rows with a name, key or description beyond the limits."""
        for batches in self.tables.values():
            kept = [self._without_long(batch, limits) for batch in batches]
            batches[:] = [batch for batch in kept if batch.num_rows]

    def _without_long(self, batch: pa.RecordBatch, limits: Limits) -> pa.RecordBatch:
        columns = [field.name for field in batch.schema if pa.types.is_string(field.type)]
        names = [name for name in columns if name != "text"]
        batch = self._without_longer(batch, names, limits.name, "name or key too long")
        texts = [name for name in columns if name == "text"]
        return self._without_longer(batch, texts, limits.description, "description too long")

    def _without_longer(
        self, batch: pa.RecordBatch, columns: Sequence[str], longest: int, reason: str
    ) -> pa.RecordBatch:
        texts = [batch.column(name) for name in columns]
        # No text has more characters than bytes, and bytes are counted without reading the text.
        if all((pc.max(pc.binary_length(text)).as_py() or 0) <= longest for text in texts):
            return batch
        lengths = [pc.fill_null(pc.utf8_length(text), 0) for text in texts]
        long = np.any([np.asarray(length) > longest for length in lengths], axis=0)

        def show(row: int) -> str:
            return " ".join(
                text[row].as_py()[:SAMPLE_CHARS] for text in texts if text[row].is_valid
            )

        self.reject_rows(reason, long, np.asarray(batch.column("line")), show)
        return batch.filter(pa.array(~long))

    def num_staged(self) -> int:
        """Return the number of rows staged so far, in all tables."""
        return sum(batch.num_rows for batches in self.tables.values() for batch in batches)

    def check(self) -> "Parsed":
        """Assert that no row was lost, and return self."""
        left = self.num_staged() + self.rejected.total() + self.filtered.total()
        assert self.read == left, f"read {self.read} rows, but {left} are accounted for"
        return self


@dataclass
class Account:
    """Where every row that was read has gone: read = imported + rejected + filtered."""

    read: int = 0
    imported: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    samples: list[Reject] = field(default_factory=list)

    def add(
        self, read: int, rejected: Counter[str], filtered: Counter[str], samples: list[Reject]
    ) -> None:
        """Add rows that were read, and those of them that were rejected or filtered."""
        self.read += read
        self.rejected += rejected
        self.filtered += filtered
        self.samples += samples

    def check(self) -> None:
        """Assert that no row was lost."""
        totals = [c.total() for c in (self.imported, self.rejected, self.filtered)]
        assert self.read == sum(totals), f"read {self.read} rows, accounted for {totals}"

    def as_dict(self) -> dict[str, Any]:
        """Return the account for the manifest, without zeros."""
        return {
            "read": self.read,
            "imported": {k: v for k, v in sorted(self.imported.items()) if v},
            "rejected": {k: v for k, v in sorted(self.rejected.items()) if v},
            "filtered": {k: v for k, v in sorted(self.filtered.items()) if v},
        }


Parser = Callable[[Chunk], Parsed]
"""Turns a chunk into rows. It must be picklable: it may run in another process."""


@dataclass(frozen=True)
class LimitedParser:
    """A parser whose rows are within the limits, without descriptions if they are not wanted."""

    parser: Parser
    limits: Limits
    descriptions: bool = True

    def __call__(self, chunk: Chunk) -> Parsed:
        parsed = self.parser(chunk)
        if not self.descriptions:
            parsed.drop_descriptions()
        parsed.clean_relations()
        parsed.reject_long(self.limits)
        return parsed


def name_from_key(key: str) -> str:
    """Make a relation's name from its key: `http://.../ontology/birthPlace` is "birth place"."""
    if "://" not in key:
        return key
    # The last part of the IRI, with spaces for underscores and between words in camel case.
    local = unquote(re.split(r"[/#]", key.rstrip("/#"))[-1]).replace("_", " ")
    local = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", local)
    local = re.sub(r"\b[A-Z][a-z]+\b", lambda word: word.group().lower(), local)
    # Percent-encoded controls are decoded only here: the name is cleaned as a name of a source is.
    return clean_names(pa.array([local], pa.string()))[0].as_py() or key


def file_sources(paths: Sequence[Path]) -> list[Source]:
    """Return one source for each file: what most formats read."""
    return [Source(path, path.name) for path in paths]


@dataclass(frozen=True, kw_only=True)
class Format:
    """A KB format: how to recognise its files, cut them into chunks and parse these.

    `langs` is the sorted tuple of wanted languages, or None for all.
    """

    name: str  # as given to --format
    title: str  # what it reads, for help and error messages
    recognises: Callable[[Path], bool]  # whether a file or folder is of this format
    sources: Callable[[Sequence[Path]], list[Source]] = file_sources
    chunks: Callable[[Source, int], Iterator[Chunk]]  # (source, its index)
    parser: Callable[[Sequence[Source], int, tuple[str, ...] | None], Parser]
    licence: str = "not stated by the source"
    in_processes: bool = False  # parse in processes: the parser is Python, threads would not help
    whole_folders: bool = False  # `sources` takes folders as they are, not the files in them
    needs_source: bool = True  # False: the data comes with the program
    default_langs: tuple[str, ...] | None = None  # the languages to keep if none are asked for
    beside: tuple[str, ...] = ()  # names of formats whose files it reads too, beside its own
    names_from_keys: Callable[[pa.Array], tuple[pa.Array, pa.Array]] | None = None
    """Languages and names of keys that have no name in the source (null where there is none)."""
    relation_name: Callable[[str], str] = name_from_key
    """The name of a relation that has no name in the source."""


def clean_names(names: pa.Array) -> pa.Array:
    """Put names on one line: runs of white space and control characters become one space."""
    spaced = pc.replace_substring_regex(names, r"[\s\x00-\x1f\x7f-\x{9f}\x{2028}\x{2029}]+", " ")
    return pc.utf8_trim_whitespace(spaced)


def map_unique(values: pa.Array, function: Callable[[str], str | None]) -> pa.Array:
    """Apply a Python function to strings, once for each distinct one; null stays null."""
    encoded = values.dictionary_encode()
    mapped = [None if v is None else function(v) for v in encoded.dictionary.to_pylist()]
    return pa.array(mapped, pa.string()).take(encoded.indices)


def as_sample(text: str | bytes, limit: int = SAMPLE_CHARS) -> str:
    """Return `text` on one line for a rejects file, cut at `limit`."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "backslashreplace")
    text = text[:limit] + ("…" if len(text) > limit else "")
    return printable(text)


def _text_of(column: pa.Array, row: int) -> str:
    return str(column[row].as_py())


def _column(values: object, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
