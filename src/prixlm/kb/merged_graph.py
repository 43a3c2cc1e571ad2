"""The triples of all languages as one graph: entities merged along their links.

An entity's concept stands for it, so that the same fact in several languages is one fact, with the
languages that state it.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from prixlm.arrays import group_starts
from prixlm.kb.store import KB
from prixlm.types import Array


@dataclass(frozen=True)
class Merged:
    """Triples in both directions, sorted by (source, target, relation), each once.

    A relation r backwards is r + R. The languages that state row i are the numbers
    lang[offset[i]:offset[i + 1]], in the order of the KB's languages.
    """

    source: Array  # concept
    target: Array  # concept
    relation: Array
    offset: Array
    lang: Array

    def __len__(self) -> int:
        return len(self.source)


_READ: WeakKeyDictionary[KB, dict[tuple[str, ...], Merged]] = WeakKeyDictionary()


def read_merged(kb: KB, splits: Sequence[str] = ("train",)) -> Merged:
    """The triples of some splits, of all languages; read once for an opened KB, and shared."""
    read = _READ.setdefault(kb, {})
    key = tuple(sorted(set(splits)))
    if key not in read:
        read[key] = _read(kb, key)
    return read[key]


def _read(kb: KB, splits: Sequence[str]) -> Merged:
    concept = kb.concepts().astype(np.int64)
    numbers = {lang: place for place, lang in enumerate(kb.languages)}
    parts = [np.zeros((4, 0), np.int64)]
    columns = ["lang", "subject", "relation", "object"]
    for batch in itertools.chain(*(kb.batches("triples", columns, split=one) for one in splits)):
        subject, relation, target = (
            np.asarray(batch.column(place)).astype(np.int64) for place in (1, 2, 3)
        )
        lang = np.array([numbers[code] for code in batch.column(0).to_pylist()])
        parts.append(np.stack([concept[subject], relation, concept[target], lang]))
    a, r, b, lang = np.concatenate(parts, axis=1)
    a, b = np.concatenate([a, b]), np.concatenate([b, a])
    r, lang = np.concatenate([r, r + kb.num_relations]), np.tile(lang, 2)
    order = np.lexsort((lang, r, b, a))
    a, b, r, lang = a[order], b[order], r[order], lang[order]
    kept = group_starts(a, b, r, lang)  # a language may state it of several entities
    a, b, r, lang = a[kept], b[kept], r[kept], lang[kept]
    first = group_starts(a, b, r)
    return Merged(a[first], b[first], r[first], np.append(first, len(a)), lang)
