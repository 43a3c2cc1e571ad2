"""Evidence from names alone: rankers that can answer for entities without any fact.

Names are compared by the rare n-grams that they share. A concept has the n-grams of all its names,
in all languages and with aliases. Where a KB has descriptions, they count as further names, but not
in `SharedNames`: what is described alike is of one type, and not related. Three rankers, and one
that has a graph embedding beside the names:

- `SimilarNames`: the objects of subjects with similar names. `Oulu railway station` lies in the
  country where other railway stations do;
- `NewObjects`: entities without facts whose names are like those of the relation's objects. The
  only evidence for an object that training never saw and that shares nothing with the subject;
- `SharedNames`: entities named like the subject, or like what the subject is known to be related
  to. `Paris Saint-Germain` lies in Paris;
- `OpenWorldRanker`: entities without facts by the graph embedding, in which their names place them.
  The subject counts too: it finds a new member of *this* band, `NewObjects` a new musician.

    ranker = SimilarNames(kb)
    ranked = ranker.best(queries, 10)

Dimension letters: R relations (relation r backwards is r + R), C concepts, F n-grams, T triples,
Q queries, H width of a vector.
"""

import logging
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csr_array, hstack
from torch import Tensor

from prixlm.arrays import (
    group_starts,
    pair_keys,
    ragged_ranges,
    rank_in_group,
    split_keys,
    unique_rows,
)
from prixlm.entities.names import MAX_TEXT, fold
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.rankers.base import ConceptRanker, Pairs, Queries, read_merged_triples
from prixlm.rankers.complex import ComplEx, GraphRanker
from prixlm.rankers.links import ObjectShares
from prixlm.romanise import romanise
from prixlm.types import Array

logger = logging.getLogger(__name__)
_GRAMS = (2, 5)
"""Characters of the shortest and of the longest n-gram."""
_NUM_BUCKETS = 1 << 18
"""Hashed n-grams. Two rare n-grams of one bucket do little harm."""
_MAX_SHARE, _MIN_NAMES, _MAX_NAMES = 0.01, 30, 1000
"""N-grams that more than this share of the concepts have are left out, within these bounds: they
tell little, and nearly all the time of comparing names would be theirs."""
_POWER = 3
"""Exponent of a similarity when similar names vote."""
_PRIOR = 0.1
"""Weight of what is usual, where a vote of one equal name is 1."""
_MOST = 100
"""Objects of a query, or of a relation, that get a score."""
_VOTERS, _SHARED = 50, 10
"""Similar names that vote on a name's relations, and that are listed for a name."""
_MAX_NEW = 1 << 17
"""Concepts without facts that may be new objects."""
_MAX_AROUND = 8
"""Concepts around a subject whose names are compared; of more, those with the fewest triples."""
_BLOCK = 512
"""Names that are compared with all others at once."""

_GRAMS_OF: "WeakKeyDictionary[KB, dict[tuple[bool, bool], csr_array]]" = WeakKeyDictionary()


def read_grams(kb: KB, *, descriptions: bool = False, romanised: bool = False) -> csr_array:
    """Return the n-grams of each concept's names by weight (tf-idf): (C, F), rows of length 1.

    The rankers of one KB share them. descriptions: those of the descriptions too, if it has any.
    romanised: those of the names in Latin letters.
    """
    kind = descriptions and kb.has_descriptions, romanised
    made = _GRAMS_OF.setdefault(kb, {})
    if kind not in made:
        made[kind] = _count_grams(kb, *kind)
    return made[kind]


def _count_grams(kb: KB, descriptions: bool, romanised: bool = False) -> csr_array:
    from sklearn.feature_extraction.text import HashingVectorizer

    concept = kb.concepts().astype(np.int64)
    # char_wb: n-grams within words, with a space where a word begins or ends.
    hashing = HashingVectorizer(
        analyzer="char_wb",
        ngram_range=_GRAMS,
        n_features=_NUM_BUCKETS,
        alternate_sign=False,
        norm=None,
        lowercase=False,
    )
    parts = [np.zeros(0, np.int64)]
    for entity, names in kb.all_names(descriptions=descriptions):
        texts = [fold(name)[:MAX_TEXT] for name in names]
        if romanised:
            langs = [kb.languages[number] for number in kb.language_of(entity).tolist()]
            # A name without any Latin letters stands for itself.
            read = zip(romanise(texts, langs), texts, strict=True)
            texts = [(new or old)[:MAX_TEXT] for new, old in read]
        found = csr_array(hashing.transform(texts))
        owner = np.repeat(concept[entity], np.diff(found.indptr))
        parts.append(np.unique(pair_keys(owner, found.indices)))
    # The languages of a concept are in different batches, so an n-gram may come again.
    row, gram = split_keys(np.unique(np.concatenate(parts)))
    num_concepts = int(concept.max(initial=-1)) + 1
    # (F,) concepts that have each n-gram.
    count = np.bincount(gram, minlength=_NUM_BUCKETS)
    kept = count[gram] <= np.clip(_MAX_SHARE * num_concepts, _MIN_NAMES, _MAX_NAMES)
    row, gram = row[kept], gram[kept]
    weight = np.log((num_concepts + 1) / (count[gram] + 1)) + 1
    length = np.sqrt(np.bincount(row, weight**2, num_concepts))
    data = (weight / length[row]).astype(np.float32)
    return csr_array((data, (row, gram)), shape=(num_concepts, _NUM_BUCKETS))


def most_similar(grams: csr_array, others: csr_array, k: int) -> Pairs:
    """Return row, column and cosine of the k most similar others of each row, sorted by row.

    grams: (N, F). others: (F, M), transposed. Names that share no n-gram are left out.
    """
    parts: list[Pairs] = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))]
    for start in range(0, grams.shape[0], _BLOCK):
        row, column, cosine = _largest_cells(grams[start : start + _BLOCK] @ others, k)
        # lexsort takes its most important key last.
        order = np.lexsort((column, -cosine, row))
        order = order[rank_in_group(row[order]) < k]
        parts.append((row[order] + start, column[order], cosine[order]))
    owner, other, score = (np.concatenate(part) for part in zip(*parts, strict=True))
    return owner, other, score


def _largest_cells(matrix: csr_array, k: int) -> Pairs:
    """Return row, column and value of the k largest cells of each row, and of those as large.

    Most rows have thousands of cells: to sort only these is ten times faster.
    """
    starts = matrix.indptr
    least = np.full(matrix.shape[0], -np.inf, np.float32)  # the k-th largest cell of each row
    for long in np.flatnonzero(np.diff(starts) > k).tolist():
        cells = matrix.data[starts[long] : starts[long + 1]]
        least[long] = np.partition(cells, len(cells) - k)[len(cells) - k]
    row = np.repeat(np.arange(matrix.shape[0]), np.diff(starts))
    kept = np.flatnonzero(matrix.data >= least[row])
    return row[kept], matrix.indices[kept].astype(np.int64), matrix.data[kept]


class NameRanker(ConceptRanker):
    """Base class: the n-grams of all concepts."""

    reads_descriptions = True

    def __init__(self, kb: KB, name: str) -> None:
        super().__init__(kb, name)
        self.grams = read_grams(kb, descriptions=self.reads_descriptions)  # (C, F)


class SimilarNames(NameRanker):
    """The objects of subjects with similar names.

    Every subject of the relation votes for its objects with the cosine of the names to the power
    of 3. The usual objects of the relation have votes of `_PRIOR` together. The score is the
    logarithm of an object's share of all votes.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "names: similar")
        subject, relation, object_ = read_merged_triples(kb, splits)
        (self._relation, self._subject, self._object), _ = unique_rows(relation, subject, object_)
        # (R + 1,): the triples of relation r are the rows starts[r]:starts[r + 1].
        self._starts = np.searchsorted(self._relation, np.arange(kb.num_relations + 1))
        self._shares = ObjectShares(kb, splits, _MOST)

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and log share of the votes of each object."""
        usual_owner, usual, share = self._shares.of(queries)
        parts: list[Pairs] = [(usual_owner, usual, _PRIOR * share)]
        order = np.argsort(queries.relation, kind="stable")
        for rows in np.split(order, group_starts(queries.relation[order])[1:]):
            if len(rows):
                parts.append(self._vote(rows, queries))
        owner, target, votes = (np.concatenate(part) for part in zip(*parts, strict=True))
        owner, target, votes = sum_rows(owner, target, votes)
        total = np.bincount(owner, votes, len(queries))
        pairs = keep_best(owner, target, np.log(votes / total[owner]), _MOST)
        return self.to_entities(queries, pairs)

    def _vote(self, rows: Array, queries: Queries) -> Pairs:
        """Return query, object and votes of some queries, all of one relation."""
        relation = int(queries.relation[rows[0]])
        triples = slice(self._starts[relation], self._starts[relation + 1])
        subject, number = np.unique(self._subject[triples], return_inverse=True)
        target, column = np.unique(self._object[triples], return_inverse=True)
        has = csr_array((np.ones(len(number)), (number, column)), shape=(len(subject), len(target)))
        # In blocks: the similarities of all queries and subjects would be a dense matrix.
        none = np.zeros(0, np.int64)
        parts: list[Pairs] = [(none, none, np.zeros(0))]
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK]
            powered = self._similarity(self.concept[queries.subject[block]], subject)
            found = (powered @ has).tocoo()
            parts.append((block[found.row], target[found.col], found.data))
        owner, voted, votes = (np.concatenate(part) for part in zip(*parts, strict=True))
        return owner, voted, votes

    def _similarity(self, asked: Array, subject: Array) -> csr_array:
        """Return the votes of subjects in the names that are asked with: (asked, subjects)."""
        # The smaller matrix is the one to turn round: that costs a pass over all its cells.
        if len(asked) < len(subject):
            votes = (self.grams[subject] @ self.grams[asked].T).T.tocoo()
        else:
            votes = (self.grams[asked] @ self.grams[subject].T).tocoo()
        # A subject does not vote for itself.
        kept = subject[votes.col] != asked[votes.row]
        cells = (votes.data[kept].astype(float) ** _POWER, (votes.row[kept], votes.col[kept]))
        return csr_array(cells, shape=(len(asked), len(subject)))


class NewObjects(NameRanker):
    """Entities without facts whose names are like those of the relation's objects.

    The score is the logarithm of the share of similarly named concepts that are objects of the
    relation, see `RelationGuesser`.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "names: new objects")
        guesser = RelationGuesser(kb, splits)
        new = np.flatnonzero(~guesser.is_known)
        if len(new) > _MAX_NEW:
            logger.warning(
                "%d entities without facts may be new objects: only the %d that most languages "
                "name are answers of %r",
                *(len(new), _MAX_NEW, self.name),
            )
        num_names = np.bincount(self.concept, minlength=self.num_concepts)[new]
        self._new = new[np.argsort(-num_names, kind="stable")[:_MAX_NEW]]
        # (R, new concepts): the inverse of a relation is what its objects have.
        self._fits = guesser.guess(self._new)[:, kb.num_relations :].T.tocsr()
        self._lists: dict[str, tuple[Array, Array, Array]] = {}  # by language

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and log share of the entities that fit each relation best."""
        if queries.lang not in self._lists:
            self._lists[queries.lang] = self._best_of(queries.lang)
        starts, target, share = self._lists[queries.lang]
        row, owner = ragged_ranges(starts[queries.relation], starts[queries.relation + 1])
        return self.to_entities(queries, (owner, target[row], np.log(share[row])))

    def _best_of(self, lang: str) -> tuple[Array, Array, Array]:
        """Return the new concepts of a language that fit each relation best.

        (R + 1,) where the list of each relation starts; concepts and shares of all lists.
        """
        entities = self.kb.entity_range(lang)
        is_named = np.zeros(self.num_concepts, bool)
        is_named[self.concept[entities.start : entities.stop]] = True
        fits = self._fits.tocoo()
        relation, target, share = fits.row.astype(np.int64), self._new[fits.col], fits.data
        kept = is_named[target]
        pairs = keep_best(relation[kept], target[kept], share[kept], _MOST)
        starts = np.searchsorted(pairs[0], np.arange(self.kb.num_relations + 1))
        return starts, pairs[1], pairs[2]


class SharedNames(NameRanker):
    """Entities named like the subject, or like what the subject is known to be related to.

    The score is the largest cosine.
    """

    reads_descriptions = False

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        super().__init__(kb, "names: shared")
        # What is around concept c: the rows starts[c]:starts[c + 1].
        merged = read_merged(kb, splits)
        (source, target), _ = unique_rows(merged.source, merged.target)
        degree = np.bincount(source, minlength=self.num_concepts)
        # What few things are related to tells more about the subject: keep those.
        source, self._around, _ = keep_best(source, target, -degree[target], _MAX_AROUND)
        self._starts = np.searchsorted(source, np.arange(self.num_concepts + 1))
        self._columns: dict[str, tuple[Array, csr_array]] = {}  # by language

    def scored(self, queries: Queries) -> Pairs:
        """Return query, entity and the largest cosine of the most similar names."""
        subject = self.concept[queries.subject]
        row, owner = ragged_ranges(self._starts[subject], self._starts[subject + 1])
        # The names that are compared: those of the subject itself and of the concepts around it.
        owner = np.concatenate([np.arange(len(queries)), owner])
        source, number = np.unique(
            np.concatenate([subject, self._around[row]]), return_inverse=True
        )
        named, grams = self._named(queries.lang)
        found, column, cosine = most_similar(self.grams[source], grams, _SHARED)
        # Each query gets what is similar to each of its sources.
        starts = np.searchsorted(found, np.arange(len(source) + 1))
        row, pair = ragged_ranges(starts[number], starts[number + 1])
        target = named[column[row]]
        kept = target != source[found[row]]
        pairs = keep_best(owner[pair][kept], target[kept], cosine[row][kept].astype(float), _MOST)
        return self.to_entities(queries, pairs)

    def _named(self, lang: str) -> tuple[Array, csr_array]:
        """Return the M concepts that a language names, and their n-grams: (M,) and (F, M)."""
        if lang not in self._columns:
            entities = self.kb.entity_range(lang)
            named = np.unique(self.concept[entities.start : entities.stop])
            self._columns[lang] = named, self.grams[named].T.tocsr()
        return self._columns[lang]


class RelationGuesser:
    """Guesses which relations a concept without facts would have, from its names.

    Concepts with similar names and with facts vote with the cosine to the power of 3. The guess is
    the share of the votes of those that have a relation (r), or are its object (r + R), shrunk
    towards 0 by `_PRIOR` votes.
    """

    def __init__(self, kb: KB, splits: Sequence[str] = ("train",)) -> None:
        merged = read_merged(kb, splits)
        self._grams = read_grams(kb, descriptions=True)
        pairs = np.unique(pair_keys(merged.source, merged.relation))
        shape = (self._grams.shape[0], 2 * kb.num_relations)
        held = csr_array((np.ones(len(pairs)), split_keys(pairs)), shape=shape)
        self.is_known = np.diff(held.indptr) > 0  # (C,) concepts with facts
        known = np.flatnonzero(self.is_known)
        self._held, self._columns = held[known], self._grams[known].T.tocsr()

    def guess(self, concepts: Array) -> csr_array:
        """Return the share of similarly named concepts with each relation: (concepts, 2R) sparse.

        The concepts are those without facts: others would vote for themselves.
        """
        row, column, cosine = most_similar(self._grams[concepts], self._columns, _VOTERS)
        votes = cosine.astype(float) ** _POWER
        votes /= (np.bincount(row, votes, len(concepts)) + _PRIOR)[row]
        shape = (len(concepts), self._held.shape[0])
        return (csr_array((votes, (row, column)), shape=shape) @ self._held).tocsr()


class OpenWorldRanker(GraphRanker):
    """Ranks entities without facts by a graph embedding in which their names place them.

    The graph embedding knows nothing about an entity that train does not have. Here such an entity
    gets the mean vector of the known concepts with the most similar names, an open-world extension
    of the embedding (Shah et al., 2019), and the embedding scores it like any other.

    A subject with facts has the vector that was trained. Objects with facts have no score: other
    evidence lists them, and here they would push the new ones out of every list (docs/log.md).
    """

    def __init__(
        self,
        kb: KB,
        model: ComplEx,
        splits: Sequence[str] = ("train",),
        name: str = "graph: new objects",
    ) -> None:
        """Place the entities without facts in some splits."""
        super().__init__(kb, model, name=name)
        known = np.unique(read_merged(kb, splits).source)
        self.is_known = np.zeros(model.num_nodes, bool)
        self.is_known[known] = True
        new = np.flatnonzero(~self.is_known)
        self.extended = extend(model, new, place(kb, new, known, model.node))
        self.model = self.extended
        # (C,) whether a concept has a vector: a new one whose name is like no other has none.
        self.is_placed = self.is_known | self.extended.node.any(dim=1).cpu().numpy()

    def _tables(self, queries: Queries) -> Iterator[tuple[int, Tensor]]:
        """Yield the scores of all candidates; only new ones that have a vector are finite."""
        entities = self.kb.entity_range(queries.lang)
        candidate = self.node[entities.start : entities.stop]
        is_out = torch.from_numpy(self.is_known[candidate] | ~self.is_placed[candidate])
        is_lost = torch.from_numpy(~self.is_placed[self.node[queries.subject]])  # (Q,) subjects
        for start, table in super()._tables(queries):
            table[:, is_out] = float("-inf")
            table[is_lost[start : start + len(table)]] = float("-inf")
            yield start, table


def extend(model: ComplEx, new: Array, vectors: Tensor) -> ComplEx:
    """Return a copy of an embedding with other vectors for new concepts, and without biases.

    What training did to the vector and the bias of a concept without facts is to push them away
    from every question. vectors: (new, H).
    """
    rank = model.node.shape[1] // 2
    extended = type(model)(model.num_nodes, len(model.relation) // 2, rank, len(model.bias))
    with torch.no_grad():
        extended.node.copy_(model.node)
        extended.node[torch.from_numpy(new)] = vectors
        extended.relation.copy_(model.relation)
        extended.bias.zero_()
    return extended


def place(kb: KB, new: Array, known: Array, node: Tensor) -> Tensor:
    """Return the vectors of concepts without facts, 0 if no known name is similar: (new, H).

    Known concepts vote with the cosine of the names to the power of 3; `_PRIOR` votes for 0 keep
    the vectors short where names are little alike. node: (C, H).
    """
    grams = _read_both(kb)
    row, column, cosine = most_similar(grams[new], grams[known].T.tocsr(), _VOTERS)
    votes = cosine.astype(float) ** _POWER
    votes /= (np.bincount(row, votes, len(new)) + _PRIOR)[row]
    weights = csr_array((votes, (row, column)), shape=(len(new), len(known)))
    trained = node.detach().cpu().numpy()[known]
    return torch.from_numpy(np.asarray(weights @ trained, np.float32))


def _read_both(kb: KB) -> csr_array:
    """Return the n-grams of each concept's names, as they are spelled and romanised: (C, 2F)."""
    both = (read_grams(kb, descriptions=True, romanised=is_read) for is_read in (False, True))
    # Divided by the root of 2, two rows of length 1 side by side are one row of length 1.
    return csr_array(hstack([grams * np.float32(0.5**0.5) for grams in both], format="csr"))


def keep_best(owner: Array, target: Array, score: Array, k: int) -> Pairs:
    """Return the k best pairs of each owner, sorted by owner; of equal pairs the best counts."""
    order = np.lexsort((-score, target, owner))
    order = order[group_starts(owner[order], target[order])]
    order = order[np.lexsort((target[order], -score[order], owner[order]))]
    order = order[rank_in_group(owner[order]) < k]
    return owner[order], target[order], score[order]


def sum_rows(owner: Array, target: Array, value: Array) -> Pairs:
    """Return the distinct pairs of owner and target, sorted, with the sum of their values."""
    order = np.lexsort((target, owner))
    first = group_starts(owner[order], target[order])
    # np.add.reduceat sums each group, but fails without any group.
    total = np.add.reduceat(value[order], first) if len(first) else np.zeros(0)
    return owner[order][first], target[order][first], total
