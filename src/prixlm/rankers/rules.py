"""Rules counted in the merged graph of all languages: rankers that combine several triples.

Two kinds of rule rank the objects of a query (subject, relation):

- `PathRules`: a path of two relations implies a third. Who was born in y, which lies in z, has the
  country z;
- `SimilarRules`: a property of the subject implies an object. Who plays for this club plays in that
  league.

The confidence of a rule is how often it holds in the train triples of all languages, with a few
cases counted against it, so that a rule seen once is not certain. Rules below `_LEAST` are dropped.
The score of an object is -log(1 - p), where p is the noisy-or of all rules that name it. AnyBURL
(Meilicke et al., 2019) learns such rules by sampling; here all of them are counted, with arrays.

    SimilarRules(kb).best(queries, 10)

Dimension letters: R relations (relation r backwards is r + R), C concepts, T triples.
"""

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from prixlm.arrays import find_ranges, group_starts, pair_keys, ragged_ranges, unique_rows
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.rankers.base import ConceptRanker, Pairs, Queries, noisy_or, read_merged_triples
from prixlm.types import Array

_LEAST = 0.01
"""The lowest confidence of a rule."""
_CERTAIN = 1 - 1e-3
"""The highest confidence of a rule in the noisy-or."""
_AGAINST_PATH, _AGAINST_SIMILAR = 5, 2
"""Cases counted against a path rule, and against a rule of similar subjects."""
_MAX_RELATIONS = 300
"""Concepts with more triples than this are not examples of similar subjects: each says little."""
_ROWS = 1 << 24
"""Rows that are counted at once, to bound memory."""


class RuleRanker(ConceptRanker):
    """Base class: the merged graph, and the noisy-or of the rules that apply to a query."""

    confidence: Array  # of each rule

    def __init__(self, kb: KB, name: str, splits: Sequence[str]) -> None:
        super().__init__(kb, name)
        # The triples in both directions, sorted by (source, relation, target); those of concept c
        # are the rows starts[c]:starts[c + 1].
        merged = read_merged(kb, splits)
        columns = merged.source, merged.relation, merged.target
        (self.source, self.relation, self.target), _ = unique_rows(*columns)
        self.starts = np.searchsorted(self.source, np.arange(self.num_concepts + 1))

    @abstractmethod
    def apply_rules(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Return query, concept and rule of each object that a rule names; repeats are allowed."""

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and -log(1 - p) of every object that a rule names."""
        # A rule counts once for an object, however many paths or properties lead to it.
        (owner, target, rule), _ = unique_rows(*self.apply_rules(queries))
        pairs = noisy_or(owner, target, self.confidence[rule], _CERTAIN)
        return self.to_entities(queries, pairs)

    def _triples_of(self, queries: Queries) -> tuple[Array, Array]:
        """Return the triples of each query's subject, and the query of each."""
        subject = self.concept[queries.subject]
        return ragged_ranges(self.starts[subject], self.starts[subject + 1])


class PathRules(RuleRanker):
    """A path of relations (q1, q2) from the subject implies the asked relation r to its end.

    Its confidence is the number of triples of r whose ends the path joins, divided by the number of
    all such paths in the graph.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "rules: paths", splits)
        self._step_keys = pair_keys(self.source, self.relation)  # (T,) sorted
        (first, second, relation), holds = self._count_paths(read_merged_triples(kb, splits))
        total = self._count_all_paths(first, second)
        confidence = holds / (total + _AGAINST_PATH)
        kept = np.flatnonzero(confidence >= _LEAST)
        # The rules sorted by relation and first step, which is how a query finds them.
        order = kept[np.lexsort((second[kept], first[kept], relation[kept]))]
        self.confidence, self._second = confidence[order], second[order]
        self._rule_keys = pair_keys(relation[order], first[order])

    def apply_rules(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Follow the paths of all rules for the asked relation."""
        # First step: all triples of the subject, and the rules that begin with their relation.
        triple, owner = self._triples_of(queries)
        keys = pair_keys(queries.relation[owner], self.relation[triple])
        rule, row = find_ranges(self._rule_keys, keys)
        middle, owner = self.target[triple[row]], owner[row]
        # Second step: from there, all triples with the second relation of the rule.
        end, row = find_ranges(self._step_keys, pair_keys(middle, self._second[rule]))
        owner, rule, middle, end = owner[row], rule[row], middle[row], self.target[end]
        # A path that returns to its start or stays at its middle says nothing.
        kept = (end != self.concept[queries.subject][owner]) & (end != middle)
        return owner[kept], end[kept], rule[kept]

    def _count_paths(self, triples: Array) -> tuple[list[Array], Array]:
        """Count the triples (x, r, z) that a path (x, q1, y), (y, q2, z) joins.

        Returns distinct q1, q2 and r, and the number of triples of each.
        """
        subject, relation, object_ = triples
        # The graph sorted by both ends, to find the relations between two concepts.
        (source, target, between), _ = unique_rows(self.source, self.target, self.relation)
        ends = pair_keys(source, target)
        degree = self.starts[subject + 1] - self.starts[subject]
        parts = [[np.zeros(0, np.int64)] * 3]
        for rows in _cut(degree):
            # First steps (x, q1, y) of each triple, without those that lead to z or stay at x.
            step, triple = ragged_ranges(self.starts[subject[rows]], self.starts[subject[rows] + 1])
            triple = triple + rows.start
            middle, end = self.target[step], object_[triple]
            kept = (middle != end) & (middle != subject[triple])
            step, triple, middle, end = (x[kept] for x in (step, triple, middle, end))
            # Second steps: the relations from y to z. A path joins a triple once.
            second, row = find_ranges(ends, pair_keys(middle, end))
            columns = triple[row], self.relation[step[row]], between[second]
            (triple, first, last), _ = unique_rows(*columns)
            parts.append([first, last, relation[triple]])
        return unique_rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _count_all_paths(self, first: Array, second: Array) -> Array:
        """Return the number of paths in the graph with the relations first[i] and second[i]."""
        if not len(first):  # scipy returns no array for an empty index
            return np.zeros(0)
        ones, wide = np.ones(len(self.relation)), 2 * self.kb.num_relations
        # (2R, C) triples of each relation into a concept, times (C, 2R) triples out of it.
        into = csr_array((ones, (self.relation, self.target)), shape=(wide, self.num_concepts))
        out = csr_array((ones, (self.source, self.relation)), shape=(self.num_concepts, wide))
        paths = (into @ out).tocsr()
        return np.asarray(paths[first, second]).reshape(-1)


class SimilarRules(RuleRanker):
    """A property of the subject, which is a relation and its other end, implies an object.

    Its confidence is the share of the triples of r with this object among all triples of r whose
    subject has the property.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "rules: similar", splits)
        properties = pair_keys(self.relation, self.target)
        order = np.argsort(properties, kind="stable")
        self._properties, number = np.unique(properties[order], return_inverse=True)
        rules = self._count_rules(number, self.source[order], read_merged_triples(kb, splits))
        key, target, confidence = rules
        # The rules sorted by property and relation, which is how a query finds them.
        order = np.lexsort((target, key))
        self._rule_keys, self._objects = key[order], target[order]
        self.confidence = confidence[order]

    def apply_rules(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Name the objects that go with each property of the subject."""
        triple, owner = self._triples_of(queries)
        properties = pair_keys(self.relation[triple], self.target[triple])
        number = np.searchsorted(self._properties, properties)
        rule, row = find_ranges(self._rule_keys, pair_keys(number, queries.relation[owner]))
        return owner[row], self._objects[rule], rule

    def _count_rules(self, number: Array, subject: Array, triples: Array) -> list[Array]:
        """Count the triples of all subjects with each property.

        number, subject: (T,) a property and a concept that has it, sorted by property.
        Returns (property, relation) as a key, object and confidence of each rule.
        """
        source, relation, object_ = triples
        starts = np.searchsorted(source, np.arange(self.num_concepts + 1))
        counts = np.diff(starts)[subject]
        counts[np.diff(self.starts)[subject] > _MAX_RELATIONS] = 0
        parts: list[list[Array]] = [[np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)]]
        # All rows of a property stay in one chunk, so that each chunk has complete counts.
        for rows in _cut(counts, number):
            first = starts[subject[rows]]
            triple, row = ragged_ranges(first, first + counts[rows])
            known = number[row + rows.start]
            # A triple is not evidence for the property that it is itself.
            itself = self._properties[known] == pair_keys(relation[triple], object_[triple])
            triple, known = triple[~itself], known[~itself]
            (key, target), holds = unique_rows(pair_keys(known, relation[triple]), object_[triple])
            group = np.unique(key, return_inverse=True)[1]
            total = np.bincount(group, holds)
            confidence = holds / (total[group] + _AGAINST_SIMILAR)
            kept = confidence >= _LEAST
            parts.append([key[kept], target[kept], confidence[kept]])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _cut(counts: Array, groups: Array | None = None) -> list[slice]:
    """Cut rows into slices with about `_ROWS` counts each; groups of equal rows stay together.

    counts: (N,). groups: (N,) sorted.
    """
    if not len(counts):
        return []
    number = np.cumsum(counts) // _ROWS  # of the slice that each row would be in
    if groups is not None:
        number = number[np.searchsorted(groups, groups)]
    starts = group_starts(number)
    ends = np.append(starts[1:], len(counts))
    return [slice(*bounds) for bounds in zip(starts, ends, strict=True)]
