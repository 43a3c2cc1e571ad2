"""Which entities mean the same: connected components over links, streamed; and pairs of them.

Memory is a few integers for each entity, however many links or pairs there are.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from prixlm.arrays import group_starts, ragged_ranges
from prixlm.types import Array

MAX_CONCEPT = 1024
"""Entities of one concept, in all languages: n of them have n * (n - 1) / 2 pairs. An item that
every Wikipedia names has some 350."""
_BLOCK_PAIRS = 1 << 18


def number_concepts(num_entities: int, links: Iterable[tuple[Array, Array]]) -> Array:
    """Return the concept id of each entity, (num_entities,) int32.

    Ids run from 0 without gaps, in the order of the concepts' first entities.
    links: batches of two equally long arrays of entity ids.
    """
    # (num_entities,) the smallest entity that is known to be of the same concept.
    first = np.arange(num_entities, dtype=np.int32)
    for a, b in links:
        _merge_pairs(first, a, b)
    is_first = first == np.arange(num_entities, dtype=np.int32)
    numbers = np.cumsum(is_first, dtype=np.int32) - 1
    return numbers[first]


def _merge_pairs(first: Array, a: Array, b: Array) -> None:
    """Join the concepts of every pair, in place: `first` stays the smallest entity of each."""
    a, b = first[a], first[b]
    apart = a != b
    if not apart.any():
        return
    # The graph has only the entities of these pairs as nodes, renumbered from 0, so that a small
    # batch costs little in a large KB.
    nodes, places = np.unique(np.concatenate([a[apart], b[apart]]), return_inverse=True)
    rows, columns = np.split(places, 2)
    edges = coo_array((np.ones(len(rows), bool), (rows, columns)), shape=(len(nodes), len(nodes)))
    num_groups, group = connected_components(edges, directed=False)
    smallest = np.full(num_groups, nodes[-1], first.dtype)
    np.minimum.at(smallest, group, nodes)
    # Entities whose `first` is one of the nodes follow it to the smallest of its group.
    moved = np.arange(len(first), dtype=first.dtype)
    moved[nodes] = smallest[group]
    first[:] = moved[first]


def in_large_concepts(concepts: Array) -> Array:
    """Return which entities are of a concept with more than `MAX_CONCEPT`: (num_entities,) bool."""
    return np.asarray(np.bincount(concepts, minlength=1)[concepts] > MAX_CONCEPT)


class ConceptPairs:
    """All pairs of some entities that are of one concept and of different languages.

    pairs = ConceptPairs(kb.concepts(), kb.language_of(np.arange(kb.num_entities)), wanted)
    """

    def __init__(self, concepts: Array, languages: Array, wanted: Array | None = None) -> None:
        """Prepare five arrays over the entities; the pairs are made by `blocks`.

        concepts, languages: (num_entities,) each; languages ascend with the ids.
        wanted: (num_entities,) bool, the entities to pair; all by default.
        """
        ids = np.arange(len(concepts)) if wanted is None else np.flatnonzero(wanted)
        self._ids = ids
        # (W,) wanted entities by concept; those of a concept ascend, so they are by language too.
        self._by_concept = ids[np.argsort(concepts[ids], kind="stable")]
        concept, language = concepts[self._by_concept], languages[self._by_concept]
        # An entity's partners with larger ids follow the last one of its own language.
        ends = [_run_ends(concept, language), _run_ends(concept)]
        place = np.argsort(self._by_concept, kind="stable")  # (W,) of each entity in `_by_concept`
        self._low, self._high = (end[place] for end in ends)
        self._total = np.cumsum(self._high - self._low)  # (W,) pairs up to each entity

    def __len__(self) -> int:
        """Return the number of pairs."""
        return int(self._total[-1]) if len(self._total) else 0

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield pairs as two arrays `a`, `b` with a < b, sorted by a, then b."""
        start = 0
        while start < len(self._ids):
            done = self._total[start - 1] if start else 0
            end = int(np.searchsorted(self._total, done + _BLOCK_PAIRS, side="right"))
            end = max(start + 1, end)
            places, owner = ragged_ranges(self._low[start:end], self._high[start:end])
            if len(places):
                yield self._ids[start:end][owner], self._by_concept[places]
            start = end


def _run_ends(*columns: Array) -> Array:
    """Return of each row where its group of equal rows ends; the columns are sorted together."""
    starts = group_starts(*columns)
    ends = np.append(starts[1:], len(columns[0])) if len(starts) else starts
    return np.repeat(ends, ends - starts)


def count_linked(concepts: Array, num_entities: dict[str, int]) -> dict[str, int]:
    """Return how many entities of each language share their concept with another entity.

    num_entities: by language, in the order of the entities.
    """
    is_linked = np.bincount(concepts, minlength=1)[concepts] > 1
    ends = np.cumsum(list(num_entities.values()), dtype=np.int64)
    by_language = np.split(is_linked, ends[:-1]) if len(ends) else []
    return {lang: int(rows.sum()) for lang, rows in zip(num_entities, by_language, strict=True)}
