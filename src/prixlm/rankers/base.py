"""One signature for whatever ranks objects for a query: decoder, transfer, graph embedding, fusion.

    ranked = ranker.best(queries, 10)             # the best objects of each query, with scores
    ranks = ranker.ranks(queries, objects)        # where given objects stand among all candidates

Queries are arrays: a language, subjects and relations of a KB. The candidates are all entities of
the language, without those that `hidden` lists for a query (the known objects of Sec. 3.2).

Dimension letters: Q queries, N answers of all queries, one query after another.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from prixlm.arrays import ragged_ranges
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.types import Array

_CHUNK = 1024
"""Queries that are scored together."""


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

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Its scores of given objects: entity[i] for query owner[i]; -infinity: nothing to say."""


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


def scores_from_pairs(pairs: tuple[Array, Array, Array], owner: Array, entity: Array) -> Array:
    """The scores of given pairs where only some have one: query, object and score."""
    keys = _keys(pairs[0], pairs[1])
    order = np.argsort(keys)
    if not len(order):
        return np.full(len(owner), -np.inf)
    asked = _keys(owner, entity)
    place = order[np.minimum(np.searchsorted(keys, asked, sorter=order), len(order) - 1)]
    return np.where(keys[place] == asked, pairs[2][place], -np.inf)


def drop_hidden(queries: Queries, owner: Array, entity: Array) -> Array:
    """Which pairs may be answered: not those that a query hides."""
    hidden = _keys(queries.owners(), queries.hidden)
    return np.asarray(~np.isin(_keys(owner, entity), hidden))


def _keys(owner: Array, entity: Array) -> Array:
    return (owner.astype(np.int64) << 32) | entity.astype(np.int64)


class PairRanker(ABC):
    """A ranker that scores some pairs of query and object, and has nothing to say of the others.

    Some queries are scored at a time, so memory does not grow with their number.
    """

    name: str
    kb: KB

    @abstractmethod
    def scored(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, object and score of every pair with a score; hidden ones are left out."""

    def best(self, queries: Queries, k: int) -> Ranked:
        parts = [make_ranked(len(some), *self.scored(some), k) for _, some in self._parts(queries)]
        counts = np.concatenate([np.zeros(1, np.int64), *(np.diff(part.offset) for part in parts)])
        entity = np.concatenate([np.zeros(0, np.int64), *(part.entity for part in parts)])
        score = np.concatenate([np.zeros(0), *(part.score for part in parts)])
        return Ranked(np.cumsum(counts), entity, score)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        candidates = len(self.kb.entity_range(queries.lang))
        ranks = np.zeros(len(queries))
        for rows, some in self._parts(queries):
            pairs = self.scored(some)
            ranks[rows] = ranks_from_pairs(some, *pairs, objects[rows], candidates)
        return np.where(ranks > beyond, np.inf, ranks)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        found = np.full(len(owner), -np.inf)
        order = np.argsort(owner, kind="stable")
        for rows, some in self._parts(queries):
            low, high = np.searchsorted(owner, (rows[0], rows[-1] + 1), sorter=order)
            asked = order[low:high]
            pairs = self.scored(some)
            found[asked] = scores_from_pairs(pairs, owner[asked] - rows[0], entity[asked])
        return found

    def _parts(self, queries: Queries) -> Iterator[tuple[Array, Queries]]:
        for start in range(0, len(queries), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(queries)))
            yield rows, queries.select(rows)


class ConceptRanker(PairRanker):
    """A pair ranker that scores concepts: things, in whatever language."""

    def __init__(self, kb: KB, name: str) -> None:
        self.kb, self.name = kb, name
        self.concept = kb.concepts().astype(np.int64)
        self._sorted: dict[str, tuple[Array, Array]] = {}

    @abstractmethod
    def weigh(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, concept and score of every pair with a score."""

    def scored(self, queries: Queries) -> tuple[Array, Array, Array]:
        owner, entity, score = self._named(queries.lang, *self.weigh(queries))
        kept = drop_hidden(queries, owner, entity)
        return owner[kept], entity[kept], score[kept]

    def _named(
        self, lang: str, owner: Array, target: Array, score: Array
    ) -> tuple[Array, Array, Array]:
        """Concepts as the entities that a language has of them."""
        if lang not in self._sorted:
            own = self.kb.entity_range(lang)
            concepts = self.concept[own.start : own.stop]
            order = np.argsort(concepts, kind="stable")
            self._sorted[lang] = (concepts[order], order + own.start)
        concepts, entities = self._sorted[lang]
        low = np.searchsorted(concepts, target)
        high = np.searchsorted(concepts, target, side="right")
        place, row = ragged_ranges(low, high)
        return owner[row], entities[place], score[row]


class PerLanguage:
    """A ranker for each language, as one."""

    def __init__(self, name: str, rankers: Mapping[str, Ranker]) -> None:
        self.name, self.rankers = name, rankers

    def best(self, queries: Queries, k: int) -> Ranked:
        return self._of(queries).best(queries, k)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        return self._of(queries).ranks(queries, objects, beyond)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        return self._of(queries).scores(queries, owner, entity)

    def _of(self, queries: Queries) -> Ranker:
        if queries.lang not in self.rankers:
            raise PrixError(f"{self.name} has no {queries.lang}: {', '.join(self.rankers)}.")
        return self.rankers[queries.lang]
