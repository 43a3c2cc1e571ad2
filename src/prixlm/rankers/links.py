"""Facts carried along links: what the other languages say of the same things, without learning.

Entities are merged along links: an entity's concept stands for it. Four rules rank the objects of
a query (subject, relation) in a language:

- `lookup`: the objects that another language, or this one, states for the merged subject and this
  very relation;
- `direct`: the same, along explicit links only: not by way of a third language;
- `usual`: the objects that the relation has most often, whatever the subject: what every other
  ranker has to beat;
- `pairs`: every object that has any known relation to the merged subject, in any language and
  direction. Each such relation q implies the asked one r as often as pairs that have q have r, in
  the training triples of all languages; the score is the noisy-or of these, and of how often r has
  the object at all (a share of that: it says nothing of the subject), so that an object with no
  relation to the subject is ranked by it.

    rule = Transfer(kb)                   # reads the train triples of all languages, and no others
    rule.best(queries, 10)
    rule.origins(queries, ranked)         # which languages say so
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.sparse import csr_array

from prixlm.arrays import group_starts, ragged_ranges
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import ConceptRanker, Queries, Ranked, drop_hidden
from prixlm.types import Array

PRIOR = 0.3
"""The weight of how often a relation has an object. Chosen on DBP-5L's valid facts: mean MRR 66.05,
66.35, 66.37, 66.38, 66.32, 65.94 at 0.02, 0.1, 0.2, 0.3, 0.5, 1."""
_CERTAIN = 1 - 1e-6
"""No evidence is more than this: among certain objects the other evidence decides."""


class Transfer(ConceptRanker):
    """A ranker along links."""

    def __init__(
        self,
        kb: KB,
        rule: Literal["usual", "lookup", "direct", "pairs"] = "pairs",
        *,
        prior: float = PRIOR,
        splits: Sequence[str] = ("train",),
    ) -> None:
        """splits: whose facts are evidence. Where anything is tested or fitted: train alone."""
        super().__init__(kb, "usual object" if rule == "usual" else f"links: {rule}")
        self.rule, self.prior = rule, prior
        self.num_relations = kb.num_relations
        self.merged, self.splits = read_merged(kb, splits), splits
        self.starts = np.searchsorted(
            self.merged.source, np.arange(int(self.concept.max(initial=-1)) + 2)
        )
        self.weight = self._implications() if rule == "pairs" else None
        self._count_objects()
        self._rules = {"usual": self._usual, "lookup": self._look_up, "pairs": self._weigh}
        if rule == "direct":
            self._read_links()

    def _implications(self) -> csr_array:
        """How often a pair that has relation q (or its inverse) has r: (2R, R), sparse."""
        merged = self.merged
        begins = np.zeros(len(merged.source), np.int64)
        begins[group_starts(merged.source, merged.target)] = 1
        pair = np.cumsum(begins) - 1
        ones = np.ones(len(pair))
        shape = (int(pair.max(initial=-1)) + 1, 2 * self.num_relations)
        has = csr_array((ones, (pair, merged.relation)), shape=shape)
        counts = np.maximum(1, np.asarray(has.sum(axis=0)).reshape(-1))
        together = (has.T @ has[:, : self.num_relations]).tocsr()
        together.data /= np.repeat(counts, np.diff(together.indptr))
        return together

    def weigh(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Scores are -log(1 - p), p the noisy-or; in a lookup, how many languages say so; of usual
        objects, their share."""
        return self._rules[self.rule](queries)

    def _look_up(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, concept and number of languages that state this very fact."""
        place, owner = self._rows_of(queries)
        kept = self.merged.relation[place] == queries.relation[owner]
        place, owner = place[kept], owner[kept]
        score = np.diff(self.merged.offset)[place].astype(float)
        return owner, self.merged.target[place], score

    def _read_links(self) -> None:
        """Explicit links in both directions and of each entity to itself, and the triples."""
        parts = [np.stack([np.arange(self.kb.num_entities)] * 2)]
        for batch in self.kb.link_pairs(explicit=True):
            pair = np.stack([np.asarray(column, np.int64) for column in batch.columns])
            parts += [pair, pair[::-1]]
        source, self.linked = np.unique(np.concatenate(parts, axis=1), axis=1)
        self.link_starts = np.searchsorted(source, np.arange(self.kb.num_entities + 1))
        columns = ["subject", "relation", "object"]
        stated = [np.zeros((3, 0), np.int64)]
        for split in self.splits:
            for batch in self.kb.batches("triples", columns, split=split):
                stated.append(np.stack([np.asarray(column, np.int64) for column in batch.columns]))
        subject, relation, self.stated = np.unique(np.concatenate(stated, axis=1), axis=1)
        self.asked = subject * self.num_relations + relation

    def scored(self, queries: Queries) -> tuple[Array, Array, Array]:
        return self._direct(queries) if self.rule == "direct" else super().scored(queries)

    def _direct(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, entity and number of statements, along explicit links of both ends."""
        subject = queries.subject.astype(np.int64)
        place, owner = ragged_ranges(self.link_starts[subject], self.link_starts[subject + 1])
        keys = self.linked[place] * self.num_relations + queries.relation.astype(np.int64)[owner]
        stated, row = ragged_ranges(
            np.searchsorted(self.asked, keys), np.searchsorted(self.asked, keys, side="right")
        )
        object_, owner = self.stated[stated], owner[row]
        place, row = ragged_ranges(self.link_starts[object_], self.link_starts[object_ + 1])
        entity, owner = self.linked[place], owner[row]
        own = self.kb.entity_range(queries.lang)
        kept = (entity >= own.start) & (entity < own.stop)
        pairs, number = np.unique(np.stack([owner[kept], entity[kept]]), axis=1, return_counts=True)
        kept = drop_hidden(queries, *pairs)
        return pairs[0][kept], pairs[1][kept], number[kept].astype(float)

    def _usual(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, concept and share of the objects of each query's relation."""
        relation = queries.relation.astype(np.int64)
        place, owner = ragged_ranges(self.object_starts[relation], self.object_starts[relation + 1])
        return owner, self.object[place], self.object_share[place]

    def _weigh(self, queries: Queries) -> tuple[Array, Array, Array]:
        """Query, concept and -log(1 - p) of all that have a relation to the subject, or are objects
        of the relation."""
        assert self.weight is not None
        relation = queries.relation.astype(np.int64)
        place, owner = self._rows_of(queries)
        weights = np.zeros(0)
        if len(place):  # scipy gives no array for no place
            weights = self.weight[self.merged.relation[place], relation[owner]]
        asking, usual, share = self._usual(queries)
        owner = np.concatenate([owner, asking])
        target = np.concatenate([self.merged.target[place], usual])
        chance = np.concatenate([np.asarray(weights, float).reshape(-1), self.prior * share])
        evidence = -np.log1p(-np.minimum(chance, _CERTAIN))
        order = np.lexsort((target, owner))
        owner, target = owner[order], target[order]
        first = group_starts(owner, target)
        total = np.add.reduceat(evidence[order], first) if len(first) else evidence
        kept = total > 0
        return owner[first][kept], target[first][kept], total[kept]

    def _rows_of(self, queries: Queries) -> tuple[Array, Array]:
        """The merged triples of each query's subject, and whose they are."""
        source = self.concept[queries.subject]
        return ragged_ranges(self.starts[source], self.starts[source + 1])

    def _count_objects(self) -> None:
        """How often each relation has each object, the most frequent ones of each relation."""
        forward = self.merged.relation < self.num_relations
        relation, target = self.merged.relation[forward], self.merged.target[forward]
        order = np.lexsort((target, relation))
        relation, target = relation[order], target[order]
        first = group_starts(relation, target)
        counts = np.diff(np.append(first, len(relation)))
        relation, target = relation[first], target[first]
        total = np.bincount(relation, counts, self.num_relations)
        order = np.lexsort((target, -counts, relation))
        relation = relation[order]
        rank = np.arange(len(order)) - np.searchsorted(relation, relation)
        order, relation = order[rank < BEYOND], relation[rank < BEYOND]
        self.object = target[order]
        self.object_share = counts[order] / total[relation]
        self.object_starts = np.searchsorted(relation, np.arange(self.num_relations + 1))

    def origins(self, queries: Queries, ranked: Ranked) -> list[list[str]]:
        """For each answer, the languages whose triples have its pair of things."""
        owner = ranked.owners()
        source = self.concept[queries.subject][owner]
        target = self.concept[ranked.entity]
        place, row = ragged_ranges(self.starts[source], self.starts[source + 1])
        kept = self.merged.target[place] == target[row]
        if self.rule == "lookup":
            kept &= self.merged.relation[place] == queries.relation[owner][row]
        stated, answer = ragged_ranges(
            self.merged.offset[place[kept]], self.merged.offset[place[kept] + 1]
        )
        pairs = np.unique(np.stack([row[kept][answer], self.merged.lang[stated]]), axis=1)
        found: list[list[str]] = [[] for _ in owner]
        for answer_, lang in pairs.T.tolist():
            found[answer_].append(self.kb.languages[lang])
        return found
