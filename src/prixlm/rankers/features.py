"""What train knows of a query and its candidates: how far things are known, how often they occur.

    Context(kb).features(queries, owner, entity)

Dimension letters: N candidates of all queries.
"""

from typing import Any

import numpy as np
from scipy.sparse import csr_array

from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB
from prixlm.rankers.base import Queries
from prixlm.types import Array

NUM_FEATURES = 16


class Context:
    """What train knows of a query and its candidates: in all languages together, and in its own."""

    def __init__(self, kb: KB) -> None:
        self.kb, self.concept = kb, kb.concepts().astype(np.int64)
        merged = read_merged(kb)
        forward = merged.relation < kb.num_relations
        self.together = _Counts(
            merged.source[forward], merged.relation[forward], merged.target[forward]
        )
        lang = np.repeat(
            np.arange(len(kb.languages)), [len(kb.entity_range(code)) for code in kb.languages]
        )
        parts = [np.zeros((3, 0), np.int64)]
        for batch in kb.batches("triples", ["subject", "relation", "object"], split="train"):
            parts.append(np.stack([np.asarray(column, np.int64) for column in batch.columns]))
        subject, relation, object_ = np.concatenate(parts, axis=1)
        self.own = _Counts(subject, lang[subject] * kb.num_relations + relation, object_)
        pairs = np.unique(self.concept * len(kb.languages) + lang)
        self.has = csr_array(
            (np.ones(len(pairs), np.int8), np.divmod(pairs, len(kb.languages))),
            shape=(int(self.concept.max(initial=-1)) + 1, len(kb.languages)),
        )
        self.num_languages = np.diff(self.has.indptr)

    def features(self, queries: Queries, owner: Array, entity: Array) -> Array:
        """(N, 16): how far things are known, and how often they occur."""
        subject, candidate = self.concept[queries.subject], self.concept[entity]
        relation = queries.relation.astype(np.int64)
        lang = self.kb.languages.index(queries.lang)
        both: Any = self.has[subject[owner]].multiply(self.has[candidate]).sum(axis=1)
        columns = [
            subject[owner] == candidate,
            self.num_languages[subject][owner],
            self.num_languages[candidate],
            np.asarray(both).reshape(-1),  # languages that could state the fact
            *self.together.features(subject, relation, owner, candidate),
            *self.own.features(
                queries.subject.astype(np.int64),
                lang * self.kb.num_relations + relation,
                owner,
                entity,
            ),
        ]
        return np.stack(columns, axis=1).astype(float)


class _Counts:
    """How often nodes, relations and their pairs occur in some triples."""

    def __init__(self, subject: Array, relation: Array, object_: Array) -> None:
        size = int(max(subject.max(initial=-1), object_.max(initial=-1))) + 2
        self.degree = np.bincount(np.concatenate([subject, object_]), minlength=size)
        self.of_subject = np.unique((relation << 32) | subject, return_counts=True)
        self.of_object = np.unique((relation << 32) | object_, return_counts=True)
        size = int(relation.max(initial=-1)) + 2
        self.triples = np.bincount(relation, minlength=size)
        self.subjects = np.bincount(self.of_subject[0] >> 32, minlength=size)

    def features(
        self, subject: Array, relation: Array, owner: Array, candidate: Array
    ) -> list[Array]:
        relation_ = np.minimum(relation, len(self.triples) - 1)  # the last one has no triples
        triples, subjects = self.triples[relation_], self.subjects[relation_]
        of_query = [
            self._degree(subject),
            triples,
            triples / np.maximum(1, subjects),
            _count(self.of_subject, (relation << 32) | subject),
        ]
        of_candidate = [
            self._degree(candidate),
            _count(self.of_object, (relation[owner] << 32) | candidate),
        ]
        return [*(np.log1p(x)[owner] for x in of_query), *(np.log1p(x) for x in of_candidate)]

    def _degree(self, nodes: Array) -> Array:
        return np.asarray(self.degree[np.minimum(nodes, len(self.degree) - 1)])


def _count(counted: tuple[Array, Array], asked: Array) -> Array:
    """The count of each asked key among sorted keys and their counts, 0 where there is none."""
    keys, counts = counted
    if not len(keys):
        return np.zeros(len(asked))
    place = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
    return np.where(keys[place] == asked, counts[place], 0)
