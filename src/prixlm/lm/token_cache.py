"""Every name of a KB, tokenised once: ragged arrays that are mapped into memory.

The cache lies in the KB's folder, one for each tokenizer (keyed by its hash), and is built again
only when the KB or the tokenizer is another one. A name is a slice of one flat array of ids, so a
batch of names is gathered by array operations.

    tokens = build_tokens(kb, tokenizer)
    ids, lengths = tokens.entities.take(np.array([3, 1, 4]))
"""

import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from prixlm.files import disk_errors, locked, write_atomically
from prixlm.kb.store import KB
from prixlm.types import Array, Progress

VERSION = 1
MOST_CACHES = 8
"""Caches that a KB keeps, one for each tokenizer; the one not used for longest goes first."""
_ROWS = 1 << 14
_UNKNOWN = ("<unk>", "[UNK]")


@dataclass(frozen=True)
class Ragged:
    """Rows of ids of unequal length: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    offsets: Array  # (N + 1,) int64
    ids: Array  # (total,) int32

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Array:
        return np.asarray(self.ids[self.offsets[index] : self.offsets[index + 1]])

    def lengths(self, rows: Array) -> Array:
        """How many ids each of these rows has."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])

    def take(self, rows: Array) -> tuple[Array, Array]:
        """The ids of these rows one after another, and how many each row has."""
        lengths = self.lengths(rows)
        ends = np.cumsum(lengths)
        shift = np.repeat(self.offsets[rows] - ends + lengths, lengths)
        return np.asarray(self.ids[shift + np.arange(len(shift))]), lengths


@dataclass(frozen=True)
class TokenCache:
    """The tokenised names of a KB."""

    entities: Ragged
    """By entity id."""
    relations: Ragged
    """By `language * num_relations + relation`, languages in the order of `KB.languages`."""
    folder: Path
    """Where they lie; what is made of them may lie there too, and goes when they do."""


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def encode_names(tokenizer: Tokenizer, names: list[str]) -> list[list[int]]:
    """The ids of names, in parallel. A name that spells a special token is text, like any other."""
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    try:
        rows = [e.ids for e in tokenizer.encode_batch_fast(names, add_special_tokens=False)]
        # A unigram model has `</s>` among its own pieces too: what spells one is taken apart.
        special = {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items()}
        wanted = np.array([i for i, text in special.items() if text not in _UNKNOWN])
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        flat = np.fromiter(itertools.chain.from_iterable(rows), np.int64, int(lengths.sum()))
        spelled = np.repeat(np.arange(len(rows)), lengths)[np.isin(flat, wanted)]
        for row in np.unique(spelled).tolist():
            text = names[row]
            for content in special.values():
                text = text.replace(content, " ".join(content))
            rows[row] = tokenizer.encode(text, add_special_tokens=False).ids
    finally:
        tokenizer.encode_special_tokens = before
    return rows


def make_ragged(rows: list[list[int]]) -> Ragged:
    """Rows of ids, in memory."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
    return Ragged(np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), flat)


def build_tokens(kb: KB, tokenizer: Tokenizer, progress: Progress | None = None) -> TokenCache:
    """The token cache of a KB: the one that is there, or a new one."""
    key = tokenizer_hash(tokenizer)
    folder = kb.folder / "tokens" / key[:16]
    stamp = {"version": VERSION, "kb": kb.fingerprint(), "tokenizer": key}
    if _read_stamp(folder) == stamp:
        with suppress(OSError):  # a KB may lie on a disk that cannot be written
            (folder / "stamp.json").touch()
        return open_tokens(folder)
    folder.parent.mkdir(exist_ok=True)
    with disk_errors(folder), locked(folder.with_name(folder.name + ".partial")):
        work = folder.with_name(folder.name + ".partial")
        total = kb.num_entities + len(kb.languages) * kb.num_relations
        done = itertools.count()

        def encode(names: list[str]) -> list[list[int]]:
            if progress is not None:
                progress("tokenise", min(total, next(done) * _ROWS), total)
            return encode_names(tokenizer, names)

        _write_ragged(work / "entities", map(encode, _entity_names(kb)))
        _write_ragged(work / "relations", map(encode, _relation_names(kb)))
        write_atomically(work / "stamp.json", json.dumps(stamp))
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    _drop_old(folder.parent)
    return open_tokens(folder)


def _drop_old(folder: Path) -> None:
    """Keep the caches that were used last: every compact run has a tokenizer of its own."""
    stamps = sorted(folder.glob("*/stamp.json"), key=lambda path: path.stat().st_mtime)
    for stamp in stamps[:-MOST_CACHES]:
        shutil.rmtree(stamp.parent, ignore_errors=True)


def open_tokens(folder: Path) -> TokenCache:
    names = _open_ragged(folder / "entities")
    return TokenCache(names, _open_ragged(folder / "relations"), folder)


def _read_stamp(folder: Path) -> Any:
    try:
        return json.loads((folder / "stamp.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None


def name_batches(kb: KB) -> Iterator[list[str]]:
    """Every name that a model of the KB reads: entities, then relations in each language."""
    yield from _entity_names(kb)
    yield from _relation_names(kb)


def _entity_names(kb: KB) -> Iterator[list[str]]:
    for batch in kb.batches("entities", ["name"], batch_rows=_ROWS):
        yield batch.column(0).to_pylist()


def _relation_names(kb: KB) -> Iterator[list[str]]:
    for lang in kb.languages:
        names = kb.relation_names(lang)
        for start in range(0, len(names), _ROWS):
            yield names[start : start + _ROWS]


def _write_ragged(path: Path, batches: Iterable[list[list[int]]]) -> None:
    """Append batches to a flat file of ids, and keep the offsets beside it."""
    offsets = [np.zeros(1, np.int64)]
    with path.with_suffix(".ids").open("wb") as file:
        for rows in batches:
            lengths = np.fromiter(map(len, rows), np.int64, len(rows))
            flat = np.fromiter(itertools.chain.from_iterable(rows), np.int32, int(lengths.sum()))
            file.write(flat.tobytes())
            offsets.append(offsets[-1][-1] + np.cumsum(lengths))
    np.concatenate(offsets).tofile(path.with_suffix(".offsets"))


def _open_ragged(path: Path) -> Ragged:
    offsets = np.memmap(path.with_suffix(".offsets"), np.int64, "r")
    if path.with_suffix(".ids").stat().st_size == 0:  # nothing to map
        return Ragged(offsets, np.zeros(0, np.int32))
    return Ragged(offsets, np.memmap(path.with_suffix(".ids"), np.int32, "r"))
