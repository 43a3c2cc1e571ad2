"""What a fusion knows about each candidate: named arrays, and the matrix that trees read.

    finder = CandidateFinder(kb, rankers, depth=20)
    candidates = finder.find(queries)          # all that any ranker lists among its best 20
    candidates.context["subject_languages"]    # (N,) how many languages name the subject
    candidates.views[0].rank                   # (N,) the first ranker's rank, from 0
    candidates.matrix()                        # (N, F) floats; counts become logarithms here

Two kinds of features: the *context*, counted in the train triples (how many languages name the
subject and the candidate, how often both occur), and a *view* per ranker (its score, its rank, the
gaps between its scores). Test facts are never read.

Dimension letters: Q queries, N candidates of all queries, K rankers, F features.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from prixlm.arrays import pair_keys, rank_in_group, split_keys
from prixlm.kb.store import KB
from prixlm.rankers.base import Answered, Queries, Ranker, read_merged_triples, read_triples
from prixlm.types import Array

_LANGUAGES = ("is_subject", "subject_languages", "candidate_languages", "shared_languages")
_COUNTS = (
    "subject_degree",  # train triples of the subject, in both directions
    "relation_triples",  # train triples of the relation
    "objects_per_subject",  # of the relation, on average
    "subject_facts",  # train triples of subject and relation
    "candidate_degree",  # train triples of the candidate, in both directions
    "candidate_facts",  # train triples with the relation and the candidate as object
)
CONTEXT = (
    *_LANGUAGES,
    *(f"merged_{name}" for name in _COUNTS),  # in the merged graph of all languages
    *(f"own_{name}" for name in _COUNTS),  # in the language of the query
)
"""Names of the context features, in the order of their columns in the matrix."""


@dataclass(frozen=True)
class View:
    """What one ranker says about all candidates: (N,) each, in the order of the matrix's columns.

    NaN, or -1 as rank, where the ranker has no score for a candidate.
    """

    score: Array
    rank: Array  # int, from 0, among the candidates of a query; of equal scores the lower id first
    margin: Array  # the score minus the best score of the query's other candidates
    share: Array  # log of the softmax of the scores over the query's candidates
    lead: Array  # the query's best score minus its second best; the same for all its candidates

    def select(self, rows: Array) -> "View":
        """Return the view of some candidates."""
        return View(*(column[rows] for column in vars(self).values()))

    def matrix(self) -> Array:
        """Return the columns as floats, the rank as a logarithm: (N, 5)."""
        rank = np.where(self.rank < 0, np.nan, np.log1p(np.maximum(self.rank, 0)))
        return np.stack([self.score, rank, self.margin, self.share, self.lead], axis=1)


def num_features(num_rankers: int) -> int:
    """Return the number of columns of `Candidates.matrix`."""
    return len(CONTEXT) + num_rankers * len(fields(View))


def view_of(score: Array, owner: Array, num_queries: int) -> View:
    """Describe the candidates of all queries by one ranker's scores.

    score: (N,) float, -infinity where it has none. owner: (N,) the query of each, sorted.
    """
    order = np.lexsort((-score, owner))
    starts = np.searchsorted(owner[order], np.arange(num_queries + 1))
    listed = np.diff(starts)
    # (Q,) the two best scores of each query; NaN where there is none.
    first, second = np.full(num_queries, np.nan), np.full(num_queries, np.nan)
    first[listed > 0] = score[order[starts[:-1][listed > 0]]]
    second[listed > 1] = score[order[starts[:-1][listed > 1] + 1]]
    first[np.isinf(first)] = np.nan
    second[np.isinf(second)] = np.nan
    rank = np.empty(len(owner), np.int64)
    rank[order] = rank_in_group(owner[order])
    # The softmax over the query's candidates, with its best score subtracted first.
    weight = np.exp(np.nan_to_num(score - first[owner], nan=-np.inf))
    total = np.bincount(owner, weight, num_queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.log(weight / total[owner])
    best_other = np.where(rank == 0, second[owner], first[owner])
    missing = np.isinf(score)

    def present(values: Array) -> Array:
        return np.where(missing | np.isinf(values), np.nan, values)

    return View(
        score=present(score),
        rank=np.where(missing, -1, rank),
        margin=present(score - best_other),
        share=present(share),
        lead=(first - second)[owner],
    )


@dataclass(frozen=True)
class Candidates:
    """The objects that the rankers list for some queries, and what is known about them."""

    owner: Array  # (N,) the query, sorted
    entity: Array  # (N,) sorted within a query
    context: dict[str, Array]  # (N,) each, named as in CONTEXT; counts are integers
    views: list[View]  # one per ranker

    def matrix(self) -> Array:
        """Return the features as floats, (N, F): the context, then one view after another."""
        # The only place where counts become logarithms; everywhere else they are integers.
        columns = [
            self.context[name] if name in _LANGUAGES else np.log1p(self.context[name])
            for name in CONTEXT
        ]
        context = np.stack(columns, axis=1).astype(float)
        return np.concatenate([context, *(view.matrix() for view in self.views)], axis=1)


class CandidateFinder:
    """Asks the rankers for candidates and describes them."""

    def __init__(
        self, kb: KB, rankers: Sequence[Ranker], depth: int, context: "Context | None" = None
    ) -> None:
        """Take the rankers in the order of their features; the context is counted if not given."""
        self.rankers, self.depth = list(rankers), depth
        self.context = context or Context(kb)

    def find(self, queries: Queries) -> Candidates:
        """Return all objects that any ranker lists among its best `depth`."""
        # The union of all lists, sorted by query and entity: a packed key per candidate.
        answered: dict[int, Answered] = {}  # by the ranker's place in the order of the features
        keys = np.zeros(0, np.int64)
        for place in self._turns():
            answered[place] = self.rankers[place].ask(queries, self.depth, split_keys(keys))
            ranked = answered[place].ranked
            keys = np.union1d(keys, pair_keys(ranked.owners(), ranked.entity))
        owner, entity = split_keys(keys)
        views = []
        for _, answer in sorted(answered.items()):  # each also scores what only the others list
            score = answer.scores(owner, entity).astype(float)
            views.append(view_of(score, owner, len(queries)))
        return Candidates(owner, entity, self.context.describe(queries, owner, entity), views)

    def _turns(self) -> list[int]:
        """Return the places of the rankers in the order of asking, which is not their own.

        Models, which are costly, come last, wherever their features stand: they know what all
        others list, and score it on the way.
        """
        places = range(len(self.rankers))
        return sorted(places, key=lambda place: (self.rankers[place].turn, -place))


class Context:
    """Counts in the train triples of a KB: of all languages merged, and of each language."""

    def __init__(self, kb: KB) -> None:
        self.kb, self.concept = kb, kb.concepts().astype(np.int64)
        self._merged = _Counts(*read_merged_triples(kb))
        subject, relation, object_ = read_triples(kb)
        self._own = _Counts(subject, self._in_language(relation, subject), object_)
        # (concepts, languages) sparse: whether a language has an entity for a concept.
        num_languages = len(kb.languages)
        lang = kb.language_of(np.arange(kb.num_entities))
        concept, lang = split_keys(np.unique(pair_keys(self.concept, lang)))
        shape = (int(self.concept.max(initial=-1)) + 1, num_languages)
        self._has = csr_array((np.ones(len(concept), np.int8), (concept, lang)), shape=shape)
        self._num_languages = np.diff(self._has.indptr)  # (concepts,)

    def describe(self, queries: Queries, owner: Array, entity: Array) -> dict[str, Array]:
        """Return the features of CONTEXT for the candidates entity[i] of query owner[i]."""
        subject, candidate = self.concept[queries.subject], self.concept[entity]
        relation = queries.relation.astype(np.int64)
        shared: Any = self._has[subject[owner]].multiply(self._has[candidate]).sum(axis=1)
        context = {
            "is_subject": subject[owner] == candidate,
            "subject_languages": self._num_languages[subject][owner],
            "candidate_languages": self._num_languages[candidate],
            "shared_languages": np.asarray(shared).reshape(-1),  # which could state the fact
        }
        merged = self._merged.describe(subject, relation, owner, candidate)
        in_language = self._in_language(relation, queries.subject)
        own = self._own.describe(queries.subject.astype(np.int64), in_language, owner, entity)
        context |= {f"merged_{name}": column for name, column in merged.items()}
        return context | {f"own_{name}": column for name, column in own.items()}

    def _in_language(self, relation: Array, subject: Array) -> Array:
        """Number relations apart by the language of their subject."""
        return np.asarray(self.kb.language_of(subject) * self.kb.num_relations + relation)


class _Counts:
    """How often nodes, relations and their pairs occur in triples."""

    def __init__(self, subject: Array, relation: Array, object_: Array) -> None:
        # One entry more than there are ids: the last has the count 0, for ids without a triple.
        num_nodes = int(max(subject.max(initial=-1), object_.max(initial=-1))) + 2
        num_relations = int(relation.max(initial=-1)) + 2
        self.degree = np.bincount(np.concatenate([subject, object_]), minlength=num_nodes)
        self.triples = np.bincount(relation, minlength=num_relations)
        # Sorted distinct (relation, subject) and (relation, object) keys, and their counts.
        self.of_subject = np.unique(pair_keys(relation, subject), return_counts=True)
        self.of_object = np.unique(pair_keys(relation, object_), return_counts=True)
        self.subjects = np.bincount(split_keys(self.of_subject[0])[0], minlength=num_relations)

    def describe(
        self, subject: Array, relation: Array, owner: Array, candidate: Array
    ) -> dict[str, Array]:
        """Return the features of _COUNTS: (N,) each.

        subject, relation: (Q,) of the queries. owner, candidate: (N,).
        """
        # A relation or node without triples may be beyond the arrays: it takes the last entry, 0.
        relation_row = np.minimum(relation, len(self.triples) - 1)
        triples, subjects = self.triples[relation_row], self.subjects[relation_row]
        facts = _look_up(self.of_subject, pair_keys(relation, subject))
        return {
            "subject_degree": self._degree(subject)[owner],
            "relation_triples": triples[owner],
            "objects_per_subject": (triples / np.maximum(1, subjects))[owner],
            "subject_facts": facts[owner],
            "candidate_degree": self._degree(candidate),
            "candidate_facts": _look_up(self.of_object, pair_keys(relation[owner], candidate)),
        }

    def _degree(self, nodes: Array) -> Array:
        return np.asarray(self.degree[np.minimum(nodes, len(self.degree) - 1)])


def _look_up(counted: tuple[Array, Array], wanted: Array) -> Array:
    """Return the count of each wanted key among sorted keys; 0 if it is not there."""
    keys, counts = counted
    if not len(keys):
        return np.zeros(len(wanted), np.int64)
    row = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[row] == wanted, counts[row], 0)
