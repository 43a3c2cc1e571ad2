"""Which entities mean the same: connected components over links, streamed.

Memory is one integer for each entity, however many links there are.
"""

from collections.abc import Iterable

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from prixlm.types import Array


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


def count_linked(concepts: Array, num_entities: dict[str, int]) -> dict[str, int]:
    """Return how many entities of each language share their concept with another entity.

    num_entities: by language, in the order of the entities.
    """
    is_linked = np.bincount(concepts, minlength=1)[concepts] > 1
    ends = np.cumsum(list(num_entities.values()), dtype=np.int64)
    by_language = np.split(is_linked, ends[:-1]) if len(ends) else []
    return {lang: int(rows.sum()) for lang, rows in zip(num_entities, by_language, strict=True)}
