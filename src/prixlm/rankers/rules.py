"""Rules counted in the merged graph of all languages: beyond a pair's own relations, no learning.

Two kinds of rule rank the objects of a query (subject, relation):

- `paths`: a way of two relations implies a third. If x was born in y and y lies in z, then z is x's
  country: as often as such ways in train end at an object of the asked relation;
- `similar`: what is known of a subject implies an object. Who plays for this club plays in that
  league: as often as the train subjects with the same property (a relation and its other end) have
  this object.

Each rule's confidence is how often it holds in the train triples of all languages, with some more
counted against it (rules seen once are not certain); rules below `least` are forgotten. The score
of an object is -log(1 - p), p the noisy-or of all rules that name it. AnyBURL (Meilicke et al.,
2019) learns such rules by sampling; here all of them are counted, by array operations.

    Rules(kb, "similar").best(queries, 10)

Dimension letters: R relations (a relation r backwards is r + R), C concepts.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.sparse import csr_array

from prixlm.arrays import group_starts, ragged_ranges
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.rankers.base import ConceptRanker, Queries
from prixlm.types import Array

_CERTAIN = 1 - 1e-3
_BUSY = 300
"""Things with more relations than this are no examples of similar subjects: each says little."""
_ROWS = 1 << 24
"""Rows that are counted at once; those of one property stay together."""


class Rules(ConceptRanker):
    """A ranker by counted rules."""

    def __init__(
        self,
        kb: KB,
        rule: Literal["paths", "similar"] = "similar",
        *,
        least: float = 0.01,
        splits: Sequence[str] = ("train",),
    ) -> None:
        super().__init__(kb, f"rules: {rule}")
        self.rule, self.least, self.num_relations = rule, least, kb.num_relations
        self.num_concepts = int(self.concept.max(initial=-1)) + 1
        merged = read_merged(kb, splits)
        order = np.lexsort((merged.target, merged.relation, merged.source))
        self.source, self.target = merged.source[order], merged.target[order]
        self.relation = merged.relation[order]
        self.starts = np.searchsorted(self.source, np.arange(self.num_concepts + 1))
        forward = self.relation < self.num_relations
        self.triples = (self.source[forward], self.relation[forward], self.target[forward])
        if rule == "paths":
            self._count_paths(merged.source, merged.target, merged.relation)
        else:
            self._count_similar()

    def weigh(self, queries: Queries) -> tuple[Array, Array, Array]:
        owner, target, rule, chance = (
            self._along_paths(queries) if self.rule == "paths" else self._like(queries)
        )
        order = np.lexsort((rule, target, owner))  # a rule counts once for an object
        owner, target, rule, chance = (x[order] for x in (owner, target, rule, chance))
        kept = group_starts(owner, target, rule)
        owner, target, chance = owner[kept], target[kept], chance[kept]
        first = group_starts(owner, target)
        evidence = -np.log1p(-np.minimum(chance, _CERTAIN))
        total = np.add.reduceat(evidence, first) if len(first) else evidence
        return owner[first], target[first], total

    # Paths

    def _count_paths(self, source: Array, target: Array, relation: Array) -> None:
        """Rules (q1, q2) -> r, sorted by (r, q1)."""
        num, wide = self.num_relations, 2 * self.num_relations
        self.steps = self.source * wide + self.relation
        triple, way = self._ways(source, target, relation)
        keys, holds = np.unique(way * num + self.triples[1][triple], return_counts=True)
        way, asked = keys // num, keys % num
        ones = np.ones(len(relation))
        into = csr_array((ones, (relation, target)), shape=(wide, self.num_concepts))
        out = csr_array((ones, (source, relation)), shape=(self.num_concepts, wide))
        all_ways = (into @ out).tocsr()
        number = np.asarray(all_ways[way // wide, way % wide]) if len(way) else np.zeros(0)
        chance = holds / (number.reshape(-1) + 5)
        order = np.flatnonzero(chance >= self.least)
        order = order[np.lexsort((way[order], asked[order]))]
        self.chance, self.second = chance[order], way[order] % wide
        self.first_keys = asked[order] * wide + way[order] // wide

    def _ways(self, source: Array, target: Array, relation: Array) -> tuple[Array, Array]:
        """The ways of two relations between the ends of every train triple, each once."""
        wide = 2 * self.num_relations
        subject, _, object_ = self.triples
        keys = (source << 32) | target  # sorted, as the merged graph is
        counts = self.starts[subject + 1] - self.starts[subject]
        found = [np.zeros((2, 0), np.int64)]
        for rows in _chunks(counts):
            place, triple = ragged_ranges(
                self.starts[subject[rows]], self.starts[subject[rows] + 1]
            )
            triple = triple + rows.start
            middle, end = self.target[place], object_[triple]
            kept = (middle != end) & (middle != subject[triple])
            place, triple, middle, end = (x[kept] for x in (place, triple, middle, end))
            asked = (middle << 32) | end
            on, row = ragged_ranges(
                np.searchsorted(keys, asked), np.searchsorted(keys, asked, side="right")
            )
            ways = self.relation[place[row]] * wide + relation[on]
            found.append(np.unique(np.stack([triple[row], ways]), axis=1))
        triple, way = np.concatenate(found, axis=1)
        return triple, way

    def _along_paths(self, queries: Queries) -> tuple[Array, Array, Array, Array]:
        wide = 2 * self.num_relations
        subject = self.concept[queries.subject]
        place, owner = ragged_ranges(self.starts[subject], self.starts[subject + 1])
        keys = queries.relation.astype(np.int64)[owner] * wide + self.relation[place]
        rule, step = ragged_ranges(
            np.searchsorted(self.first_keys, keys),
            np.searchsorted(self.first_keys, keys, side="right"),
        )
        middle = self.target[place[step]]
        asked = middle * wide + self.second[rule]
        on, row = ragged_ranges(
            np.searchsorted(self.steps, asked), np.searchsorted(self.steps, asked, side="right")
        )
        owner, end = owner[step[row]], self.target[on]
        kept = (end != subject[owner]) & (end != middle[row])
        return owner[kept], end[kept], rule[row][kept], self.chance[rule[row]][kept]

    # Similar subjects

    def _count_similar(self) -> None:
        """Rules (property) -> (r, object), sorted by (property, r)."""
        subject, relation, object_ = self.triples
        starts = np.searchsorted(subject, np.arange(self.num_concepts + 1))
        own = self.relation * self.num_concepts + self.target
        order = np.argsort(own, kind="stable")  # all that have a property in one chunk
        self.property, number = np.unique(own[order], return_inverse=True)
        whose, known = self.source[order], own[order]
        counts = np.diff(starts)[whose]
        counts[np.diff(self.starts)[whose] > _BUSY] = 0
        parts = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))]
        for rows in _chunks(counts, number):
            begin = starts[whose[rows]]
            triple, row = ragged_ranges(begin, begin + counts[rows])
            row = row + rows.start
            is_itself = known[row] == relation[triple] * self.num_concepts + object_[triple]
            triple, row = triple[~is_itself], row[~is_itself]
            parts.append(self._similar_rules(number[row], relation[triple], object_[triple]))
        key, target, chance = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((target, key))
        self.keys, self.object, self.chance = key[order], target[order], chance[order]

    def _similar_rules(
        self, number: Array, relation: Array, target: Array
    ) -> tuple[Array, Array, Array]:
        """Property and relation as one key, object and confidence of the rules in some rows."""
        key = number * self.num_relations + relation
        order = np.lexsort((target, key))
        key, target = key[order], target[order]
        first = group_starts(key, target)
        holds = np.diff(np.append(first, len(key)))
        whole, place = np.unique(key[first], return_inverse=True)
        total = np.bincount(place, holds, len(whole))
        chance = holds / (total[place] + 2)
        kept = chance >= self.least
        return key[first][kept], target[first][kept], chance[kept]

    def _like(self, queries: Queries) -> tuple[Array, Array, Array, Array]:
        subject = self.concept[queries.subject]
        place, owner = ragged_ranges(self.starts[subject], self.starts[subject + 1])
        own = self.relation[place] * self.num_concepts + self.target[place]
        number = np.searchsorted(self.property, own)
        keys = number * self.num_relations + queries.relation.astype(np.int64)[owner]
        rule, row = ragged_ranges(
            np.searchsorted(self.keys, keys), np.searchsorted(self.keys, keys, side="right")
        )
        return owner[row], self.object[rule], rule, self.chance[rule]


def _chunks(counts: Array, groups: Array | None = None) -> list[slice]:
    """Stretches of rows with about `_ROWS` things in all; groups of equal rows stay together."""
    if not len(counts):
        return []
    marks = np.cumsum(counts) // _ROWS
    if groups is not None:
        first = np.searchsorted(groups, groups)
        marks = marks[first]
    starts = group_starts(marks)
    return [slice(*pair) for pair in zip(starts, np.append(starts[1:], len(counts)), strict=True)]
