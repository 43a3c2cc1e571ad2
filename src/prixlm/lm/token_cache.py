"""Token caches: every name of a KB, tokenised once and mapped into memory.

    KB/tokens/HASH/   entities.ids, entities.offsets, relations.ids, relations.offsets, stamp.json

There is one cache for each tokenizer and way of reading, named by its hash, and it is built again
only when the KB, the tokenizer or the reading changes. A name is a slice of one flat array of ids,
so that array operations gather a batch of names.

    tokens = build_tokens(kb, tokenizer)
    ids, lengths = tokens.entities.take(np.array([3, 1, 4]))
"""

import hashlib
import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from prixlm.arrays import ragged_offsets, ragged_ranges
from prixlm.engine.workspace import drop_oldest_caches, is_cached, open_workspace, partial_folder
from prixlm.errors import PrixError
from prixlm.files import locked, publish, refuse_link
from prixlm.kb.store import KB, inner_folder
from prixlm.romanise import Reading, read_names, reading_version
from prixlm.types import Array, Progress

VERSION = 1
MAX_CACHES = 8
"""Caches kept for one KB. Every compact model has its own tokenizer, so they add up."""

_ROWS = 1 << 14
"""Names that are tokenised at once."""
_ABANDONED = 3600.0
"""Seconds without a write after which an unlocked half-built cache is removed."""
_UNKNOWN = ("<unk>", "[UNK]")


@dataclass(frozen=True)
class Ragged:
    """Rows of ids of unequal length: row i is `ids[offsets[i]:offsets[i + 1]]`."""

    offsets: Array  # (N + 1,) int64
    ids: Array  # (total,) int32

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> Array:
        """Return the ids of one row."""
        return np.asarray(self.ids[self.offsets[index] : self.offsets[index + 1]])

    def lengths(self, rows: Array) -> Array:
        """Return the number of ids in each of these rows."""
        return np.asarray(self.offsets[rows + 1] - self.offsets[rows])

    def take(self, rows: Array) -> tuple[Array, Array]:
        """Return the ids of these rows, concatenated, and the number of ids in each row."""
        positions, _ = ragged_ranges(self.offsets[rows], self.offsets[rows + 1])
        return np.asarray(self.ids[positions]), self.lengths(rows)


@dataclass(frozen=True)
class TokenCache:
    """The tokenised names of a KB."""

    entities: Ragged  # by entity id
    subjects: Ragged  # the same, as a model reads them before [O]; more only if it reads both forms
    relations: Ragged  # by language * num_relations + relation, in the order of `KB.languages`
    folder: Path  # files derived from the tokens may be put here: they are removed with it


def tokenizer_hash(tokenizer: Tokenizer) -> str:
    """Return a hash of everything that decides how a tokenizer splits names."""
    return hashlib.sha256(tokenizer.to_str().encode()).hexdigest()


def word_space(tokenizer: Tokenizer) -> str:
    """Return what to put before a word, so that it is read as in the middle of a sentence.

    A space, or nothing if the tokenizer adds one itself, as XLM-R's, or ignores it, as mBERT's.
    """
    alone, spaced = encode_names(tokenizer, ["x", " x"])
    first = (tokenizer.id_to_token(alone[0]) or "") if alone else ""
    return "" if first.startswith(("▁", "Ġ")) or alone == spaced else " "


def encode_names(tokenizer: Tokenizer, names: list[str], space: str = "") -> list[list[int]]:
    """Return the ids of names. A name that contains `</s>` or the like is plain text.

    space: put before each name that is not empty; see `word_space`.
    """
    if space:
        names = [space + name if name else name for name in names]
    before = tokenizer.encode_special_tokens
    tokenizer.encode_special_tokens = True
    try:
        rows = [e.ids for e in tokenizer.encode_batch_fast(names, add_special_tokens=False)]
        # A unigram vocabulary contains `</s>` as a piece too. Names that came out with a special
        # id are encoded again with a space between the characters of the token.
        special = {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items()}
        forbidden = np.array([i for i, text in special.items() if text not in _UNKNOWN])
        flat, lengths = flatten(rows, np.int64)
        owner = np.repeat(np.arange(len(rows)), lengths)  # the name of each token in `flat`
        for row in np.unique(owner[np.isin(flat, forbidden)]).tolist():
            text = names[row]
            for content in special.values():
                text = text.replace(content, " ".join(content))
            rows[row] = tokenizer.encode(text, add_special_tokens=False).ids
    finally:
        tokenizer.encode_special_tokens = before
    return rows


def make_ragged(rows: list[list[int]]) -> Ragged:
    """Return lists of ids as a ragged array in memory."""
    flat, lengths = flatten(rows, np.int32)
    return Ragged(ragged_offsets(lengths), flat)


def build_tokens(
    kb: KB,
    tokenizer: Tokenizer,
    progress: Progress | None = None,
    *,
    reading: Reading = "script",
    space: str = "",
) -> TokenCache:
    """Open the token cache of a KB, after building it if it is missing or out of date.

    reading: how the model reads names. Where it reads both forms, objects are romanised.
    space: what the model reads before each name.
    """
    # The hash names the folder; the stamp also holds what the folder's name does not.
    key = tokenizer_hash(tokenizer)
    name = key[:16]
    stamp = {"version": VERSION, "kb": kb.fingerprint(), "tokenizer": key}
    if reading != "script":
        name += f"-{reading}"
        stamp["reading"] = f"{reading} {reading_version()}"
    if space:
        name += "-space"
        stamp["space"] = space
    folder = inner_folder(kb, f"tokens/{name}")
    if not is_cached(folder, stamp):
        with open_workspace(partial_folder(folder), stamp, wait=True) as work:
            if is_cached(folder, stamp):  # another worker of this machine has built it meanwhile
                work.remove()
            else:
                _write_tokens(kb, tokenizer, work.folder, progress, reading, space)
                publish(work.folder, folder)
        drop_oldest_caches(folder.parent, MAX_CACHES)
        _drop_abandoned(folder.parent)
    entities = open_ragged(folder / "entities")
    subjects = open_ragged(folder / "subjects") if reading == "both" else entities
    return TokenCache(entities, subjects, open_ragged(folder / "relations"), folder)


def name_batches(kb: KB, reading: Reading = "script") -> Iterator[list[str]]:
    """Yield every name that a model of the KB reads: entities, then relations by language."""
    yield from _entity_names(kb, reading)
    yield from _relation_names(kb, reading)


def object_reading(reading: Reading) -> Reading:
    """Return how the names to predict are read: a model that reads both forms writes one."""
    return "romanised" if reading == "both" else reading


def _write_tokens(
    kb: KB,
    tokenizer: Tokenizer,
    folder: Path,
    progress: Progress | None,
    reading: Reading,
    space: str,
) -> None:
    total = kb.num_entities + len(kb.languages) * kb.num_relations
    num_batches = itertools.count()

    def encode(names: list[str]) -> list[list[int]]:
        if progress is not None:
            progress("tokenise", min(total, next(num_batches) * _ROWS), total)
        return encode_names(tokenizer, names, space)

    objects = object_reading(reading)
    _write_ragged(folder / "entities", map(encode, _entity_names(kb, objects)))
    if reading != objects:
        _write_ragged(folder / "subjects", map(encode, _entity_names(kb, reading)))
    _write_ragged(folder / "relations", map(encode, _relation_names(kb, reading)))


def _drop_abandoned(parent: Path) -> None:
    """Remove half-built caches of killed runs: old ones whose lock nobody holds."""
    with tempfile.NamedTemporaryFile(dir=parent) as file:
        # By the clock of the folder's disk: that of another machine that shares it may differ.
        now = Path(file.name).stat().st_mtime
    for partial in parent.glob("*.partial"):
        with suppress(PrixError, OSError):  # locked: another command is building it
            if now - partial.stat().st_mtime > _ABANDONED:
                refuse_link(partial)
                with locked(partial):
                    shutil.rmtree(partial)


def _entity_names(kb: KB, reading: Reading) -> Iterator[list[str]]:
    for batch in kb.batches("entities", ["name", "lang"], batch_rows=_ROWS):
        yield read_names(batch["name"].to_pylist(), reading, batch["lang"].to_pylist())


def _relation_names(kb: KB, reading: Reading) -> Iterator[list[str]]:
    for lang in kb.languages:
        names = kb.relation_names(lang)
        for start in range(0, len(names), _ROWS):
            yield read_names(names[start : start + _ROWS], reading, lang)


def flatten(rows: list[list[int]], dtype: type) -> tuple[Array, Array]:
    """Return lists of ids as one array, (total,), and the length of each list."""
    lengths = np.fromiter(map(len, rows), np.int64, len(rows))
    flat = itertools.chain.from_iterable(rows)
    return np.fromiter(flat, dtype, int(lengths.sum())), lengths


def _write_ragged(path: Path, batches: Iterable[list[list[int]]]) -> None:
    """Write batch after batch to a flat file of ids, and the offsets of all rows beside it."""
    # Offsets continue from batch to batch: the last one so far is added to each batch's own.
    offsets = [np.zeros(1, np.int64)]
    with path.with_suffix(".ids").open("wb") as file:
        for rows in batches:
            flat, lengths = flatten(rows, np.int32)
            file.write(flat.tobytes())
            offsets.append(offsets[-1][-1] + np.cumsum(lengths))
    np.concatenate(offsets).tofile(path.with_suffix(".offsets"))


def open_ragged(path: Path) -> Ragged:
    """Map what `_write_ragged` wrote into memory."""
    offsets = np.memmap(path.with_suffix(".offsets"), np.int64, "r")
    if path.with_suffix(".ids").stat().st_size == 0:  # an empty file cannot be mapped
        return Ragged(offsets, np.zeros(0, np.int32))
    return Ragged(offsets, np.memmap(path.with_suffix(".ids"), np.int32, "r"))
