"""What a KB format yields: rows of names, facts, links and redirects, and an account of the rest.

A format turns a source into chunks, and a parser turns each chunk into `Parsed`, in any process.
Keys are strings that the source chooses (an IRI, `Q42`, `en:London`). An *entity* is a key in one
language; one key named in several languages is one concept. Nothing is lost on the way: every row
that a parser reads is staged, rejected (it is bad) or filtered (it is not asked for).
"""

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

NAMES = pa.schema(
    [
        ("key", pa.string()),
        ("lang", pa.string()),
        ("name", pa.string()),
        ("rank", pa.int8()),  # which name of an entity is its own: the lowest
        ("line", pa.int64()),
    ]
)
FACTS = pa.schema(
    [
        ("subject", pa.string()),
        ("relation", pa.string()),
        ("object", pa.string()),
        ("lang", pa.string()),  # null: true in every language that names both ends
        ("split", pa.string()),
        ("line", pa.int64()),
    ]
)
LINKS = pa.schema([("a", pa.string()), ("b", pa.string()), ("line", pa.int64())])
REDIRECTS = pa.schema([("key", pa.string()), ("target", pa.string()), ("line", pa.int64())])
STAGED = {
    "names": NAMES,
    "facts": FACTS,
    "links": LINKS,
    "redirects": REDIRECTS,
    "relations": NAMES,  # names of keys that are relations; null where only the key is known
}

LABEL, VARIANT, ALIAS, REDIRECTED, FROM_KEY = 0, 1, 2, 10, 20
"""Ranks of names: a label, one in a variant of the language, an alias, one that came through a
redirect (added to its own rank), and one made from the key because there was nothing better."""

NUM_SAMPLES = 100
"""How many rejected rows are kept for the rejects file, for each reason."""


class Reject(NamedTuple):
    reason: str
    source: int
    line: int
    text: str


@dataclass(frozen=True)
class Source:
    """One file to read: `role` is what its format knows about it (`entities`, `links`, ...)."""

    path: Path
    name: str
    role: str = ""


@dataclass(frozen=True)
class Chunk:
    """Whole lines of one source, or another unit that its parser knows; `line` is the first.

    `broken` names what was wrong with a stretch of the source that cannot be parsed (`data` is then
    a sample of it), and `done` says how far into the file on disk the reader had come.
    """

    source: int
    line: int
    data: bytes | pa.RecordBatch
    broken: str = ""
    done: int = 0


@dataclass
class Parsed:
    """The rows of one chunk. `read` counts them all; `check` says that none was lost."""

    source: int
    read: int = 0
    tables: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    rejected: Counter[str] = field(default_factory=Counter)
    filtered: Counter[str] = field(default_factory=Counter)
    samples: list[Reject] = field(default_factory=list)

    def stage(self, table: str, **columns: object) -> None:
        """Add rows of names, facts, links or redirects; every column of its schema is given."""
        schema = STAGED[table]
        batch = pa.record_batch([_column(columns[f.name], f.type) for f in schema], schema=schema)
        if batch.num_rows:
            self.tables.setdefault(table, []).append(batch)

    def reject(self, reason: str, line: int, text: str | bytes) -> None:
        """Count one bad row and keep it as a sample while there is room for its reason."""
        self.rejected[reason] += 1
        if self.rejected[reason] <= NUM_SAMPLES:
            self.samples.append(Reject(reason, self.source, line, printable(text)))

    def reject_rows(
        self, reason: str, bad: Array, lines: Array, text: Callable[[int], str]
    ) -> None:
        """Count the rows where `bad` is true; `text` shows one of them, for the samples."""
        rows = np.flatnonzero(bad)
        for row in rows[:NUM_SAMPLES].tolist():
            self.reject(reason, int(lines[row]), text(row))
        self.rejected[reason] += max(0, len(rows) - NUM_SAMPLES)

    def filter(self, reason: str, count: int = 1) -> None:
        """Count rows that are well formed but not asked for."""
        if count:
            self.filtered[reason] += count

    def num_staged(self) -> int:
        return sum(batch.num_rows for batches in self.tables.values() for batch in batches)

    def check(self) -> "Parsed":
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
        """Add rows that were read, and those of them that went no further."""
        self.read += read
        self.rejected += rejected
        self.filtered += filtered
        self.samples += samples

    def check(self) -> None:
        parts = [c.total() for c in (self.imported, self.rejected, self.filtered)]
        assert self.read == sum(parts), f"read {self.read} rows, accounted for {parts}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "read": self.read,
            "imported": {k: v for k, v in sorted(self.imported.items()) if v},
            "rejected": {k: v for k, v in sorted(self.rejected.items()) if v},
            "filtered": {k: v for k, v in sorted(self.filtered.items()) if v},
        }


Parser = Callable[[Chunk], Parsed]
"""A parser is picklable: it may run in another thread or process."""


def name_from_key(key: str) -> str:
    """A relation's name from its key: `http://.../ontology/birthPlace` is "birth place"."""
    if "://" not in key:
        return key
    local = unquote(re.split(r"[/#]", key.rstrip("/#"))[-1]).replace("_", " ")
    local = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", local)
    local = re.sub(r"\b[A-Z][a-z]+\b", lambda word: word.group().lower(), local)
    return local.strip() or key


@dataclass(frozen=True)
class Format:
    """A KB format. `langs` is the sorted tuple of asked languages, or None for all of them."""

    name: str
    title: str
    recognises: Callable[[Path], bool]
    sources: Callable[[Sequence[Path]], list[Source]]
    chunks: Callable[[Source, int], Iterator[Chunk]]
    parser: Callable[[Sequence[Source], int, tuple[str, ...] | None], Parser]
    licence: str = "not stated by the source"
    in_processes: bool = False  # its parser works in Python, not in Arrow: threads would not help
    names_from_keys: Callable[[pa.Array], tuple[pa.Array, pa.Array]] | None = None
    """Languages and names of keys that no name was given for (null where there is none)."""
    relation_name: Callable[[str], str] = name_from_key
    """The name of a relation that no name was given for."""


def clean_names(names: pa.Array) -> pa.Array:
    """Names on one line: white space and control characters are one space, none at the ends."""
    spaced = pc.replace_substring_regex(names, r"[\s\x00-\x1f\x7f-\x{9f}\x{2028}\x{2029}]+", " ")
    return pc.utf8_trim_whitespace(spaced)


def map_unique(values: pa.Array, function: Callable[[str], str | None]) -> pa.Array:
    """Apply a Python function to each distinct string of `values`."""
    encoded = values.dictionary_encode()
    mapped = [None if v is None else function(v) for v in encoded.dictionary.to_pylist()]
    return pa.array(mapped, pa.string()).take(encoded.indices)


def printable(text: str | bytes, limit: int = 300) -> str:
    """`text` on one line, for a rejects file: control characters escaped, cut at `limit`."""
    if isinstance(text, bytes):
        text = text[: 4 * limit].decode("utf-8", "backslashreplace")
    text = text[:limit] + ("…" if len(text) > limit else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _column(values: object, kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return values if isinstance(values, pa.Array) else pa.array(values, kind)
