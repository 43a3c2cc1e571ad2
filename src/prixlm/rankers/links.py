"""Facts carried along links: rankers that read what other languages state, without learning.

Entities are merged along links: the concept of an entity stands for it in every language. Four
rules rank the objects of a query (subject, relation), from the simplest to the best:

- `UsualObjects`: the objects that the relation has most often, whatever the subject;
- `DirectLookup`: the objects that an explicitly linked entity has for this very relation;
- `MergedLookup`: the same along chains of links, by way of third languages;
- `RelatedPairs`: all objects with any relation to the subject, weighed by what that relation
  implies.

    ranker = RelatedPairs(kb)              # reads the train triples of all languages, and no others
    ranked = ranker.best(queries, 10)
    ranker.origins(queries, ranked)        # the languages that state a relation of each pair

Dimension letters: R relations (relation r backwards is r + R), C concepts, E entities.
"""

from collections.abc import Sequence

import numpy as np
from scipy.sparse import csr_array

from prixlm.arrays import (
    find_ranges,
    group_starts,
    pair_keys,
    ragged_ranges,
    rank_in_group,
    split_keys,
    unique_rows,
)
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND
from prixlm.rankers.base import (
    ConceptRanker,
    PairRanker,
    Pairs,
    Queries,
    Ranked,
    Ranker,
    drop_filtered,
    noisy_or,
    read_merged_triples,
    read_triples,
)
from prixlm.types import Array

PRIOR = 0.3
"""The weight of how often a relation has an object. Chosen on DBP-5L's valid facts: mean MRR 66.05,
66.35, 66.37, 66.38, 66.32, 65.94 at 0.02, 0.1, 0.2, 0.3, 0.5, 1."""
_CERTAIN = 1 - 1e-6
"""The highest probability of one piece of evidence: among certain objects the others decide."""


class LinkRanker(ConceptRanker):
    """Base class: the merged graph of all languages, and the languages behind an answer."""

    def __init__(self, kb: KB, name: str, splits: Sequence[str]) -> None:
        super().__init__(kb, name)
        self.merged = read_merged(kb, splits)
        # (C + 1,): the merged triples of concept c are the rows starts[c]:starts[c + 1].
        self.starts = np.searchsorted(self.merged.source, np.arange(self.num_concepts + 1))

    def origins(self, queries: Queries, ranked: Ranked) -> list[list[str]]:
        """Return, for each answer, the languages that state a relation of subject and answer."""
        owner = ranked.owners()
        source, target = self.concept[queries.subject][owner], self.concept[ranked.entity]
        # All merged triples of each answer's subject, then those that lead to the answer.
        triple, answer = ragged_ranges(self.starts[source], self.starts[source + 1])
        kept = self.merged.target[triple] == target[answer]
        kept &= self._is_origin(triple, queries.relation[owner][answer])
        triple, answer = triple[kept], answer[kept]
        stated, row = ragged_ranges(self.merged.offset[triple], self.merged.offset[triple + 1])
        # A language counts once for an answer, however many relations it states.
        keys = np.unique(pair_keys(answer[row], self.merged.lang[stated]))
        langs: list[list[str]] = [[] for _ in owner]
        for number, lang in zip(*(part.tolist() for part in split_keys(keys)), strict=True):
            langs[number].append(self.kb.languages[lang])
        return langs

    def _is_origin(self, triple: Array, relation: Array) -> Array:
        """Return which merged triples of a pair count as origins of an answer to `relation`."""
        return np.ones(len(triple), bool)

    def _triples_of(self, queries: Queries) -> tuple[Array, Array]:
        """Return the merged triples of each query's subject, and the query of each."""
        source = self.concept[queries.subject]
        return ragged_ranges(self.starts[source], self.starts[source + 1])


class UsualObjects(LinkRanker):
    """The objects that the relation has most often, whatever the subject.

    The score is the share of the relation's triples with this object. It is the reference that
    every other ranker has to beat.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "usual object", splits)
        self._shares = ObjectShares(kb, splits)

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and share of each query's usual objects."""
        return self.to_entities(queries, self._shares.of(queries))


class MergedLookup(LinkRanker):
    """The objects that any language states for the merged subject and this very relation.

    The score is the number of languages that state the fact.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "links: lookup", splits)

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and number of languages of each fact that is stated."""
        triple, owner = self._triples_of(queries)
        kept = self.merged.relation[triple] == queries.relation[owner]
        triple, owner = triple[kept], owner[kept]
        num_languages = np.diff(self.merged.offset)[triple].astype(float)
        return self.to_entities(queries, (owner, self.merged.target[triple], num_languages))

    def _is_origin(self, triple: Array, relation: Array) -> Array:
        return np.asarray(self.merged.relation[triple] == relation)


class WhereUnstated(PairRanker):
    """Another ranker, asked only where no language states an object that this one lacks.

    For weak evidence in a fusion. Where a language states the answer it is not needed, and its
    candidates would double the time of all that follows.
    """

    def __init__(self, ranker: PairRanker, lookup: MergedLookup) -> None:
        self.ranker, self.lookup = ranker, lookup
        self.kb, self.name = ranker.kb, ranker.name

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and score of what the other ranker scores."""
        stated, _, _ = self.lookup.scored(queries)
        rows = np.setdiff1d(np.arange(len(queries)), stated)
        owner, entity, score = self.ranker.scored(queries.select(rows))
        return rows[owner], entity, score


def where_unstated(ranker: Ranker, lookup: Ranker) -> Ranker:
    """Return a ranker that is asked only where the lookup finds nothing."""
    assert isinstance(ranker, PairRanker) and isinstance(lookup, MergedLookup)
    return WhereUnstated(ranker, lookup)


class DirectLookup(LinkRanker):
    """The objects that the subject, or an entity linked to it, has for this very relation.

    Only explicit links count, at both ends of a fact: not the links that follow by way of a third
    language. The score is the number of triples that lead to the object.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "links: direct", splits)
        # (E + 1,): entity e is linked to the entities linked[starts[e]:starts[e + 1]], itself among
        # them.
        pairs = [np.stack([np.arange(kb.num_entities)] * 2)]
        for batch in kb.link_pairs(explicit=True):
            pair = np.stack([np.asarray(column, np.int64) for column in batch.columns])
            pairs += [pair, pair[::-1]]
        keys = np.unique(pair_keys(*np.concatenate(pairs, axis=1)))
        entity, self._linked = split_keys(keys)
        self._link_starts = np.searchsorted(entity, np.arange(kb.num_entities + 1))
        # The stated triples sorted by (subject, relation), each once.
        (subject, relation, self._objects), _ = unique_rows(*read_triples(kb, splits))
        self._questions = pair_keys(subject, relation)

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and number of triples that lead to it along explicit links."""
        subject, owner = self._linked_to(queries.subject.astype(np.int64))
        keys = pair_keys(subject, queries.relation[owner])
        triple, row = find_ranges(self._questions, keys)
        owner = owner[row]
        entity, row = self._linked_to(self._objects[triple])
        owner = owner[row]
        entities = self.kb.entity_range(queries.lang)
        kept = (entity >= entities.start) & (entity < entities.stop)
        pairs, count = np.unique(pair_keys(owner[kept], entity[kept]), return_counts=True)
        return drop_filtered(queries, (*split_keys(pairs), count.astype(float)))

    def _linked_to(self, entity: Array) -> tuple[Array, Array]:
        """Return the entities linked to each given one, and the row that each belongs to."""
        rows, owner = ragged_ranges(self._link_starts[entity], self._link_starts[entity + 1])
        return self._linked[rows], owner


class RelatedPairs(LinkRanker):
    """The objects with any relation to the merged subject, in any language and direction.

    A relation q of the pair implies the asked one r as often as pairs with q also have r, in the
    triples of all languages. The score is the noisy-or of these implications and, with the weight
    PRIOR, of how often r has the object at all; so an object without any relation to the subject is
    ranked by how usual it is.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "links: pairs", splits)
        self.implication = self._count_implications()
        self._shares = ObjectShares(kb, splits)

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and -log(1 - p) of every object with evidence."""
        triple, owner = self._triples_of(queries)
        implied = np.zeros(0)
        if len(triple):  # scipy returns no array for an empty index
            relation = queries.relation.astype(np.int64)[owner]
            implied = np.asarray(self.implication[self.merged.relation[triple], relation], float)
        usual_owner, usual, share = self._shares.of(queries)
        pairs = noisy_or(
            np.concatenate([owner, usual_owner]),
            np.concatenate([self.merged.target[triple], usual]),
            np.concatenate([implied.reshape(-1), PRIOR * share]),
            _CERTAIN,
        )
        return self.to_entities(queries, pairs)

    def _count_implications(self) -> csr_array:
        """Return how often a pair with relation q (or q backwards) has r: (2R, R), sparse."""
        merged, num_relations = self.merged, self.kb.num_relations
        # Number the pairs of concepts: the triples are sorted by pair, so count its first rows.
        is_first = np.zeros(len(merged.source), np.int64)
        is_first[group_starts(merged.source, merged.target)] = 1
        pair = np.cumsum(is_first) - 1
        shape = (int(pair.max(initial=-1)) + 1, 2 * num_relations)
        has = csr_array((np.ones(len(pair)), (pair, merged.relation)), shape=shape)
        # (2R, R) pairs with both q and r, each row divided by the number of pairs with q.
        both = (has.T @ has[:, :num_relations]).tocsr()
        counts = np.maximum(1, np.asarray(has.sum(axis=0)).reshape(-1))
        both.data /= np.repeat(counts, np.diff(both.indptr))
        return both


class ObjectShares:
    """The most frequent objects of each relation, and their share of its triples."""

    def __init__(self, kb: KB, splits: Sequence[str], most: int = BEYOND) -> None:
        """Count in some splits; keep the `most` frequent objects of each relation."""
        _, relation, target = read_merged_triples(kb, splits)
        (relation, target), counts = unique_rows(relation, target)
        total = np.bincount(relation, counts, kb.num_relations)
        # Sorted by relation, the most frequent object first.
        order = np.lexsort((target, -counts, relation))
        order = order[rank_in_group(relation[order]) < most]
        self._object = target[order]
        self._share = counts[order] / total[relation[order]]
        self._starts = np.searchsorted(relation[order], np.arange(kb.num_relations + 1))

    def of(self, queries: Queries) -> Pairs:
        """Return query, concept and share of the usual objects of each query's relation."""
        relation = queries.relation.astype(np.int64)
        row, owner = ragged_ranges(self._starts[relation], self._starts[relation + 1])
        return owner, self._object[row], self._share[row]
