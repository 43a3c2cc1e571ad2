"""What the facts around two entities say about whether they are the same.

A Greek film whose director is linked has few counterparts: the films of that director. An entity
is described by its *neighbours*, the other ends of its facts. Neighbours are concepts, so what is
linked already is one neighbour for both sides. Three descriptions are compared:

- the neighbours, rare ones counting more;
- the neighbours with their relations. Two KBs may name relations differently: relations that join
  the same linked concepts are taken for one (as PARIS does);
- what lies up to three facts away (LightEA: Mao et al., EMNLP 2022). Linked concepts get random
  vectors, which the facts pass on. Unit sums of a neighbourhood are the description.

Dimension letters: E entities, C concepts, F facts, R relations, H width.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from prixlm.arrays import group_starts, pair_keys, split_keys
from prixlm.linking.grams import row_numbers, unit_rows
from prixlm.linking.translation import unit
from prixlm.types import Array

_WIDTH = 128
_HOPS = 3
_LEAST_AGREED = 0.2
"""Share of the linked facts of a relation that another must join, to be taken for the same."""


@dataclass(frozen=True)
class Facts:
    """Facts between entities, in all languages: (F,) each."""

    subject: Array
    relation: Array
    object: Array


class Neighbourhoods:
    """Descriptions of all entities by the facts around them, given which entities are linked."""

    def __init__(self, facts: Facts, concept: Array, seeds: Array, seed: int = 0) -> None:
        """concept: (E,). seeds: concepts that both sides have, whose vectors are passed on."""
        num = len(concept)
        # Each fact describes both its ends: (2F,) each; relation 2r + 1 is r read backwards.
        entity = np.concatenate([facts.subject, facts.object])
        other = concept[np.concatenate([facts.object, facts.subject])]
        relation = np.concatenate([2 * facts.relation, 2 * facts.relation + 1])
        self.degree = np.bincount(entity, minlength=num).astype(np.float32)  # (E,)
        is_seed = np.zeros(int(concept.max(initial=-1)) + 1, bool)
        is_seed[seeds] = True
        self.num_linked = np.bincount(entity, is_seed[other], num).astype(np.float32)  # (E,)
        # Only neighbours that both sides have can be shared.
        near = is_seed[other]
        self.neighbours = _describe(entity[near], other[near], num)
        self.facts = _describe(entity[near], pair_keys(relation[near], other[near]), num)
        self.relations = _describe(entity, relation, num)
        self.around = _propagate(entity, other, concept, seeds, seed)

    def similarity_columns(self) -> dict[str, sp.csr_matrix]:
        """Return the sparse descriptions by name; rows have unit length."""
        return {
            "neighbours": self.neighbours,
            "facts": self.facts,
            "relations": self.relations,
        }


def unify_relations(facts: Facts, concept: Array, is_ours: Array) -> Facts:
    """Return the facts with one number for relations of the two sides that join the same concepts.

    is_ours: (F,) whether a fact is of our side. A relation of theirs becomes the relation of ours
    that most often joins the same two concepts, unless it is also a relation of ours.
    """
    key = pair_keys(concept[facts.subject], concept[facts.object])
    ours, theirs = np.flatnonzero(is_ours), np.flatnonzero(~is_ours)
    theirs = theirs[~np.isin(facts.relation[theirs], facts.relation[ours])]
    if not len(ours) or not len(theirs):
        return facts
    # (C pairs, R) which relations join which pairs of concepts, on either side.
    _, row = np.unique(key, return_inverse=True)
    shape = (int(row.max()) + 1, int(facts.relation.max()) + 1)
    sides = [
        sp.csr_matrix((np.ones(len(s), np.float32), (row[s], facts.relation[s])), shape)
        for s in (ours, theirs)
    ]
    together = (sides[1].T @ sides[0]).tocsr()  # (R theirs, R ours) pairs that both join
    if not together.nnz:
        return facts
    rows = row_numbers(together)
    order = np.lexsort((together.indices, -together.data, rows))
    first = order[group_starts(rows[order])]
    relation_of = np.arange(shape[1])
    total = np.bincount(rows, together.data, shape[1])
    agreed = together.data[first] >= _LEAST_AGREED * total[rows[first]]
    relation_of[rows[first[agreed]]] = together.indices[first[agreed]]
    relation = facts.relation.copy()
    relation[theirs] = relation_of[relation[theirs]]
    return Facts(facts.subject, relation, facts.object)


def _describe(entity: Array, feature: Array, num: int) -> sp.csr_matrix:
    """Return unit rows of the features of each entity, rarer features with more weight: (E, X)."""
    features, column = np.unique(feature, return_inverse=True)
    keys = np.unique(pair_keys(entity, column))
    row, column = split_keys(keys)
    have = np.bincount(column, minlength=len(features))
    weight = np.log(1 + num / np.maximum(1, have)).astype(np.float32)
    shape = (num, max(1, len(features)))
    return unit_rows(sp.csr_matrix((weight[column], (row, column)), shape))


def _propagate(entity: Array, other: Array, concept: Array, seeds: Array, seed: int) -> Array:
    """Return what lies one to three facts away from each entity, as unit vectors: (E, 3 H)."""
    num, num_concepts = len(concept), int(concept.max(initial=-1)) + 1
    start = np.zeros((num_concepts, _WIDTH), np.float32)
    start[seeds] = unit(np.random.default_rng(seed).standard_normal((len(seeds), _WIDTH)))
    # A concept that many facts mention says little about any of them.
    mentions = np.bincount(other, minlength=num_concepts)
    weight = np.log(1 + num / np.maximum(1, mentions)).astype(np.float32)
    spread = sp.csr_matrix((weight[other], (entity, other)), (num, num_concepts))
    cells = (np.ones(num, np.float32), (concept, np.arange(num)))
    gather = sp.csr_matrix(cells, (num_concepts, num))
    layers, state = [], start
    for _ in range(_HOPS):
        layers.append(unit(spread @ state))
        state = unit(gather @ layers[-1])
        state[seeds] = start[seeds]  # what is linked stays what it is
    return unit(np.concatenate(layers, axis=1))
