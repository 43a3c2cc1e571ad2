"""One signature for whatever ranks objects for a query: decoder, transfer, graph embedding, fusion.

    ranked = ranker.best(queries, 10)             # the best objects of each query, with scores
    ranks = ranker.ranks(queries, objects)        # where given objects stand among all candidates

Queries are arrays: a language, subjects and relations of a KB. The candidates are all entities of
the language, without those that `hidden` lists for a query (the known objects of Sec. 3.2).

Dimension letters: Q queries, N answers of all queries, one query after another.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from prixlm.metrics import BEYOND

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Queries:
    """Questions in one language, and what is not to be answered."""

    lang: str
    subject: Array  # (Q,) entity ids
    relation: Array  # (Q,)
    offset: Array  # (Q + 1,): the hidden objects of query i are hidden[offset[i]:offset[i + 1]]
    hidden: Array

    def __len__(self) -> int:
        return len(self.subject)

    def select(self, rows: Array) -> "Queries":
        counts = np.diff(self.offset)[rows]
        starts = self.offset[:-1][rows]
        offset = np.append(0, np.cumsum(counts))
        places = np.arange(offset[-1]) + np.repeat(starts - offset[:-1], counts)
        return Queries(
            self.lang, self.subject[rows], self.relation[rows], offset, self.hidden[places]
        )

    def owners(self) -> Array:
        """The query of each hidden object."""
        return np.repeat(np.arange(len(self)), np.diff(self.offset))


@dataclass(frozen=True)
class Ranked:
    """Answers: those of query i are entity[offset[i]:offset[i + 1]], best first."""

    offset: Array  # (Q + 1,)
    entity: Array  # (N,)
    score: Array  # (N,)

    def owners(self) -> Array:
        return np.repeat(np.arange(len(self.offset) - 1), np.diff(self.offset))


class Ranker(Protocol):
    """Whatever ranks objects."""

    name: str

    def best(self, queries: Queries, k: int) -> Ranked:
        """The best k of each query, fewer where it has nothing to say of the others."""

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        """The rank of one object a query among all candidates; infinity beyond `beyond`."""


def make_ranked(num_queries: int, owner: Array, entity: Array, score: Array, k: int) -> Ranked:
    """The best k of each query from scored pairs; of equal scores the lower id comes first."""
    order = np.lexsort((entity, -score, owner))
    owner = owner[order]
    rank = np.arange(len(owner)) - np.searchsorted(owner, owner)
    order, owner = order[rank < k], owner[rank < k]
    offset = np.searchsorted(owner, np.arange(num_queries + 1))
    return Ranked(offset, entity[order], score[order])


def ranks_from_pairs(
    queries: Queries, owner: Array, entity: Array, score: Array, objects: Array, candidates: int
) -> Array:
    """Ranks where only some pairs have a score: the others share the places below them."""
    number = len(queries)
    own = np.full(number, -np.inf)
    itself = entity == objects[owner]
    own[owner[itself]] = score[itself]
    better = np.bincount(owner[score > own[owner]], minlength=number)
    equal = np.bincount(owner[(score == own[owner]) & ~itself], minlength=number)
    listed = np.bincount(owner, minlength=number)
    hidden = np.diff(queries.offset)
    others = candidates - hidden - listed - 1  # nothing is known of these, nor of the object
    return np.asarray(np.where(np.isinf(own), listed + others / 2, better + equal / 2) + 1)


def drop_hidden(queries: Queries, owner: Array, entity: Array) -> Array:
    """Which pairs may be answered: not those that a query hides."""
    hidden = _keys(queries.owners(), queries.hidden)
    return np.asarray(~np.isin(_keys(owner, entity), hidden))


def _keys(owner: Array, entity: Array) -> Array:
    return (owner.astype(np.int64) << 32) | entity.astype(np.int64)
