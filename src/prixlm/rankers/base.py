"""The `Ranker` protocol: what every kind of evidence implements, and the base classes for it.

    ranked = ranker.best(queries, 10)             # the best objects of each query, with scores
    ranks = ranker.ranks(queries, objects)        # the rank of a given object among all candidates
    scores = ranker.scores(queries, owner, entity)
    asked = ranker.ask(queries, 10, given)        # both at once, for half the work

Queries are arrays: one language, and subjects and relations of a KB. The candidates of a query are
all entities of the language except the *filtered* ones: known objects that do not count as answers
(Sec. 3.2, filtered setting).

A ranker that scores only some pairs of query and object subclasses `PairRanker` and implements
`scored`; if it scores concepts it subclasses `ConceptRanker`, which turns them into entities. To
add a ranker, write such a class in a file of this room and add its line to `suite.py`.

Dimension letters: Q queries, N answers of all queries, one query after another, R relations.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np

from prixlm.arrays import (
    find_ranges,
    group_starts,
    pair_keys,
    ragged_offsets,
    ragged_ranges,
    rank_in_group,
)
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.types import Array

_CHUNK = 1024
"""Queries that are scored together, so that memory does not grow with their number."""

Pairs = tuple[Array, Array, Array]
"""Scored pairs, (N,) each: the query's row, the object (an entity or a concept), and the score."""
GivenPairs = tuple[Array, Array]
"""Pairs whose score will be asked for, (N,) each: the query's row, sorted, and the entity."""
NO_PAIRS: GivenPairs = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Queries:
    """Questions in one language, each with the objects that are filtered from its candidates."""

    lang: str
    subject: Array  # (Q,) entity ids
    relation: Array  # (Q,)
    offset: Array  # (Q + 1,): query i filters filtered[offset[i]:offset[i + 1]]
    filtered: Array  # entity ids, query after query

    def __len__(self) -> int:
        return len(self.subject)

    def select(self, rows: Array) -> "Queries":
        """Return the queries of the given rows, in that order."""
        # The filtered objects are ragged: copy the slice of each selected query.
        starts, counts = self.offset[:-1][rows], np.diff(self.offset)[rows]
        kept, _ = ragged_ranges(starts, starts + counts)
        return Queries(
            self.lang,
            self.subject[rows],
            self.relation[rows],
            ragged_offsets(counts),
            self.filtered[kept],
        )

    def owners(self) -> Array:
        """Return the row of the query that each filtered object belongs to."""
        return np.repeat(np.arange(len(self)), np.diff(self.offset))

    def filtered_of(self, row: int) -> Array:
        """Return the objects that one query filters."""
        return self.filtered[self.offset[row] : self.offset[row + 1]]


@dataclass(frozen=True)
class Ranked:
    """Answers: those of query i are entity[offset[i]:offset[i + 1]], best first."""

    offset: Array  # (Q + 1,)
    entity: Array  # (N,)
    score: Array  # (N,)

    def owners(self) -> Array:
        """Return the row of the query that each answer belongs to."""
        return np.repeat(np.arange(len(self.offset) - 1), np.diff(self.offset))


@dataclass(frozen=True)
class Answered:
    """What a ranker says about some queries: its best objects, and the score of any other one."""

    ranked: Ranked
    scores: Callable[[Array, Array], Array]  # (owner, entity) to scores, as `Ranker.scores`


class Ranker(Protocol):
    """Anything that ranks the objects of queries."""

    name: str  # as in tables and manifests
    max_rank: int  # the largest rank that `ranks` returns exactly; higher ones are infinity
    turn: int = 0  # a fusion asks those with a higher one later, and gives them what others list

    def best(self, queries: Queries, k: int) -> Ranked:
        """Return the k best objects of each query; fewer if it has a score for fewer."""

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        """Return the rank of one object per query among all candidates; infinity above `beyond`."""

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return the score of entity[i] for query owner[i]; -infinity if it has none."""

    def ask(self, queries: Queries, k: int, given: GivenPairs = NO_PAIRS) -> Answered:
        """Return the k best objects of each query, and the scores of others without asking again.

        given: pairs whose scores the caller will want. A ranker for which they are costly finds
        them on the way.
        """
        return Answered(self.best(queries, k), partial(self.scores, queries))


def make_ranked(num_queries: int, owner: Array, entity: Array, score: Array, k: int) -> Ranked:
    """Keep the k best of each query's scored pairs; among equal scores the lower id is first."""
    # lexsort takes its most important key last: sort by query, then score, then id.
    order = np.lexsort((entity, -score, owner))
    order = order[rank_in_group(owner[order]) < k]
    offset = np.searchsorted(owner[order], np.arange(num_queries + 1))
    return Ranked(offset, entity[order], score[order])


def ranks_from_pairs(queries: Queries, pairs: Pairs, objects: Array, num_candidates: int) -> Array:
    """Return the rank of each query's object when only some pairs have a score.

    Objects without a score share the ranks below all scored ones: each has the mean of these.
    """
    owner, entity, score = pairs
    size = len(queries)
    is_object = entity == objects[owner]
    object_score = np.full(size, -np.inf)
    object_score[owner[is_object]] = score[is_object]
    # (Q,) counts of the scored candidates above the object, level with it, and of all.
    higher = np.bincount(owner[score > object_score[owner]], minlength=size)
    equal = np.bincount(owner[(score == object_score[owner]) & ~is_object], minlength=size)
    scored = np.bincount(owner, minlength=size)
    unscored = num_candidates - np.diff(queries.offset) - scored - 1  # besides the object itself
    above = np.where(np.isinf(object_score), scored + unscored / 2, higher + equal / 2)
    return np.asarray(above + 1)


def scores_from_pairs(pairs: Pairs, owner: Array, entity: Array) -> Array:
    """Look up the score of entity[i] for query owner[i] in scored pairs; -infinity if not there."""
    keys, score = pair_keys(pairs[0], pairs[1]), pairs[2]
    if not len(keys):
        return np.full(len(owner), -np.inf)
    wanted = pair_keys(owner, entity)
    order = np.argsort(keys)
    # The row where a key would be inserted; a key that is not there meets another one.
    row = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(order) - 1)]
    return np.where(keys[row] == wanted, score[row], -np.inf)


def drop_filtered(queries: Queries, pairs: Pairs) -> Pairs:
    """Return the pairs of query and entity without those that a query filters."""
    owner, entity, score = pairs
    filtered = pair_keys(queries.owners(), queries.filtered)
    kept = ~np.isin(pair_keys(owner, entity), filtered)
    return owner[kept], entity[kept], score[kept]


class PairRanker(Ranker, ABC):
    """A ranker that scores some pairs of query and object and knows nothing about the others."""

    name: str
    kb: KB
    max_rank: int = BEYOND

    @abstractmethod
    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and score of every pair with a score, without filtered ones."""

    def best(self, queries: Queries, k: int) -> Ranked:
        """Return the k best objects of each query; fewer if fewer have a score."""
        chunks = [
            make_ranked(len(chunk), *self.scored(chunk), k) for _, chunk in self._chunks(queries)
        ]
        counts = np.concatenate([np.zeros(0, np.int64), *(np.diff(c.offset) for c in chunks)])
        entity = np.concatenate([np.zeros(0, np.int64), *(chunk.entity for chunk in chunks)])
        score = np.concatenate([np.zeros(0), *(chunk.score for chunk in chunks)])
        return Ranked(ragged_offsets(counts), entity, score)

    def ranks(self, queries: Queries, objects: Array, beyond: int = BEYOND) -> Array:
        """Return the rank of one object per query among all candidates; infinity above `beyond`."""
        num_candidates = len(self.kb.entity_range(queries.lang))
        ranks = np.zeros(len(queries))
        for rows, chunk in self._chunks(queries):
            pairs = self.scored(chunk)
            ranks[rows] = ranks_from_pairs(chunk, pairs, objects[rows], num_candidates)
        return np.where(ranks > beyond, np.inf, ranks)

    def scores(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """Return the score of entity[i] for query owner[i]; -infinity if it has none."""
        scores = np.full(len(owner), -np.inf)
        order = np.argsort(owner, kind="stable")
        for rows, chunk in self._chunks(queries):
            # The given pairs whose query is in this chunk, renumbered from the chunk's start.
            low, high = np.searchsorted(owner, (rows[0], rows[-1] + 1), sorter=order)
            wanted = order[low:high]
            pairs = self.scored(chunk)
            scores[wanted] = scores_from_pairs(pairs, owner[wanted] - rows[0], entity[wanted])
        return scores

    def ask(self, queries: Queries, k: int, given: GivenPairs = NO_PAIRS) -> Answered:
        """Return the k best objects of each query, and the scores of all scored pairs."""
        chunks: list[Pairs] = [(*NO_PAIRS, np.zeros(0))]
        for rows, chunk in self._chunks(queries):
            owner, entity, score = self.scored(chunk)
            chunks.append((owner + rows[0], entity, score))
        owner, entity, score = (np.concatenate(part) for part in zip(*chunks, strict=True))
        pairs = owner, entity, score
        return Answered(make_ranked(len(queries), *pairs, k), partial(scores_from_pairs, pairs))

    def _chunks(self, queries: Queries) -> Iterator[tuple[Array, Queries]]:
        """Yield the rows of each chunk of queries, and the chunk."""
        for start in range(0, len(queries), _CHUNK):
            rows = np.arange(start, min(start + _CHUNK, len(queries)))
            yield rows, queries.select(rows)


class ConceptRanker(PairRanker):
    """A pair ranker that scores concepts, which stand for the same thing in every language."""

    def __init__(self, kb: KB, name: str) -> None:
        self.kb, self.name = kb, name
        self.concept = kb.concepts().astype(np.int64)  # (entities,)
        self.num_concepts = int(self.concept.max(initial=-1)) + 1
        self._by_concept: dict[str, tuple[Array, Array]] = {}

    def to_entities(self, queries: Queries, pairs: Pairs) -> Pairs:
        """Replace each concept by the entities that the queries' language has for it.

        A concept has none, one or several of them; filtered entities are left out.
        """
        # The concepts of the language's entities, sorted, and the entities in that order. It is
        # made once per language, because rankers are asked in many chunks.
        if queries.lang not in self._by_concept:
            entities = self.kb.entity_range(queries.lang)
            concepts = self.concept[entities.start : entities.stop]
            order = np.argsort(concepts, kind="stable")
            self._by_concept[queries.lang] = (concepts[order], order + entities.start)
        concepts, entity = self._by_concept[queries.lang]
        owner, concept, score = pairs
        rows, pair = find_ranges(concepts, concept)
        return drop_filtered(queries, (owner[pair], entity[rows], score[pair]))


def noisy_or(owner: Array, target: Array, probability: Array, certain: float) -> Pairs:
    """Combine independent pieces of evidence for the same query and target into one score.

    The score is -log(1 - p), where p is the probability that at least one piece holds: logarithms
    of (1 - probability) add up. No piece counts more than `certain`, or one of probability 1 would
    make all others irrelevant.
    """
    order = np.lexsort((target, owner))
    owner, target = owner[order], target[order]
    evidence = -np.log1p(-np.minimum(probability[order], certain))
    first = group_starts(owner, target)
    # np.add.reduceat sums each group, but fails without any group.
    score = np.add.reduceat(evidence, first) if len(first) else evidence
    kept = score > 0
    return owner[first][kept], target[first][kept], score[kept]


def read_triples(kb: KB, splits: Sequence[str] = ("train",), lang: str | None = None) -> Array:
    """Read subject, relation and object of all triples of some splits, in one or all languages.

    Returns (3, triples) int64: entity and relation ids.
    """
    columns, langs = ["subject", "relation", "object"], None if lang is None else [lang]
    parts = [np.zeros((3, 0), np.int64)]
    for split in splits:
        for batch in kb.batches("triples", columns, langs=langs, split=split):
            parts.append(np.stack([np.asarray(column, np.int64) for column in batch.columns]))
    return np.concatenate(parts, axis=1)


def read_merged_triples(kb: KB, splits: Sequence[str] = ("train",)) -> Array:
    """Read the triples of all languages with concepts as ends, each once: (3, triples) int64."""
    merged = read_merged(kb, splits)
    forward = merged.relation < kb.num_relations  # the others are the same triples backwards
    return np.stack([column[forward] for column in (merged.source, merged.relation, merged.target)])
