"""The scores of given names: no search, only the paths that lead to them.

    score_nodes(model, trie, prefixes, trie.nodes_of(entities))

The score of a name is the paper's: the sum of the log-probabilities of its tokens and of `[EOS]`.
"""

from typing import Any

import numpy as np

from prixlm.model import PrixLM
from prixlm.stepper import Asked, NewTokens, Stepper
from prixlm.trie import Trie

Array = np.ndarray[Any, Any]


def score_nodes(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    nodes: Array,
    query: Array | None = None,
) -> Array:
    """The score of the name at each node, for the query beside it (or one for each query).

    What names have in common goes through the model once.
    """
    nodes = np.asarray(nodes, np.int64)
    if not len(nodes):
        return np.zeros(0)
    query = np.arange(len(nodes)) if query is None else np.asarray(query, np.int64)
    number = trie.num_nodes
    level = ends = query * number + nodes
    levels = []
    while len(level):
        levels.append(level)
        above = trie.parent[level % number].astype(np.int64)
        level = np.unique((level // number * number + above)[above > 0])
    pairs = np.unique(np.concatenate(levels))  # of a query and a node; parents come first
    owner, node = pairs // number, pairs % number
    above = trie.parent[node].astype(np.int64)
    parent = np.where(above > 0, np.searchsorted(pairs, owner * number + above), -1)
    token, depth = trie.token[node].astype(np.int64), trie.depth[node].astype(np.int64) - 1
    end = np.searchsorted(pairs, ends)
    later = np.flatnonzero(parent >= 0)
    stepper = Stepper(model, prefixes, int(depth.max()) + 1)
    asked = Asked(
        np.concatenate([parent[later], end]),
        np.append(token[later], np.full(len(end), model.encoder.id("[EOS]"))),
    )
    new = NewTokens(owner, np.where(parent < 0, -1, -2 - parent), depth, token)
    _, found = stepper.extend(new, asked)
    total = np.zeros(len(pairs))
    first = np.flatnonzero(parent < 0)
    total[first] = stepper.first_of(owner[first], token[first])
    total[later] = found[: len(later)]
    for turn in range(1, int(depth.max()) + 1):
        rows = np.flatnonzero(depth == turn)
        total[rows] += total[parent[rows]]
    return np.asarray(total[end] + found[len(later) :])
