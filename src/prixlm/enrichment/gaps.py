"""What a KB lacks in a language: questions that are worth asking.

    for part in MissingFacts(kb).questions("et"):
        ranker.best(part.queries, 5)

A question is a subject and a relation. Two kinds are worth it:

- `elsewhere`: another language states an object of the relation for the same thing, and the
  language has a name for that object, but does not state the fact;
- `usual`: things like the subject have the relation: of things with one of its relations, or to
  which one of its relations points, a large share has this one too, in all languages together.

A relation that nearly always has one object (learnt from the train triples) is never asked for a
second. What is known is evidence for the other languages, and no answer in its own; what the
language knows of a thing under one name it knows under the others.

Dimension letters: S subjects, R relations, C concepts, Q questions. Relation R + r is r turned
around: what has it is an object of r.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from scipy.sparse import csr_array

from prixlm.arrays import group_starts, ragged_ranges
from prixlm.errors import PrixError
from prixlm.kb.merged_graph import read_merged
from prixlm.kb.store import KB, SPLITS
from prixlm.rankers.base import Queries
from prixlm.types import Array

KINDS = ("elsewhere", "usual")
_PAIRS = 1 << 14
"""Pairs of a subject and one of its relations whose neighbours are looked at together,"""
_SUBJECTS = 1 << 12
"""and subjects."""


@dataclass(frozen=True, kw_only=True)
class MissingConfig:
    """Which questions are asked."""

    usual: float = 0.5  # least share of things like the subject that have the relation
    shrink: float = 5.0  # things without it that every share is drawn towards nothing with
    one_object: float = 0.95  # share of subjects with one object, in a relation of one object
    relations: tuple[int, ...] | None = None  # only these
    known: tuple[str, ...] = SPLITS  # splits whose facts are known

    def __post_init__(self) -> None:
        if not 0 < self.usual <= 1 or not 0 < self.one_object <= 1 or self.shrink < 0:
            raise PrixError("usual and one_object are shares above 0, and shrink is 0 or more.")


@dataclass(frozen=True)
class Missing:
    """Some questions of one language, in the order of subject and relation."""

    queries: Queries  # with what is known as hidden
    expected: Array  # (Q,) the share of things like it that have one; 1 where another states one
    kind: Array  # (Q,) its place in KINDS


def relations_of_one_object(kb: KB, share: float = 0.95) -> Array:
    """Which relations have one object: (R,).

    Nearly all of the things that have it have one, in each single language; of few things, all.
    """
    rows = kb.query(
        "SELECT relation, count(*), count(*) FILTER (objects = 1) FROM "
        "(SELECT relation, concept, max(objects) AS objects FROM "
        "(SELECT t.relation, s.concept, t.lang, count(DISTINCT o.concept) AS objects "
        "FROM triples t JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object "
        "WHERE t.split = 'train' GROUP BY ALL) GROUP BY ALL) GROUP BY relation"
    ).fetchall()
    found = np.zeros(kb.num_relations, bool)
    for relation, things, single in rows:
        found[relation] = single >= share * things
    return found


class MissingFacts:
    """The questions of a KB; what they need to know of it is read once."""

    def __init__(self, kb: KB, config: MissingConfig | None = None) -> None:
        self.kb, self.config = kb, config or MissingConfig()
        self.concept = kb.concepts().astype(np.int64)
        merged = read_merged(kb, self.config.known)
        rows = np.flatnonzero(merged.relation < kb.num_relations)
        self.merged, self.rows = merged, rows  # forward facts, in the order of their sources
        num_concepts = int(self.concept.max(initial=-1)) + 1
        self.starts = np.searchsorted(merged.source[rows], np.arange(num_concepts + 1))
        self.single = relations_of_one_object(kb, self.config.one_object)
        self.stated = _stated(kb, self.config.known)
        self.has = self._relations(num_concepts)
        self.share = self._shares()
        self._pairs: dict[str, Array] = {}
        self.wanted = np.ones(kb.num_relations, bool)
        if self.config.relations is not None:
            self.wanted[:] = False
            self.wanted[list(self.config.relations)] = True

    def _relations(self, num_concepts: int) -> csr_array:
        """Which things have a relation, or are its object: (C, 2R), sparse."""
        size = 2 * self.kb.num_relations
        pairs = np.unique(self.merged.source.astype(np.int64) * size + self.merged.relation)
        ones = np.ones(len(pairs), np.int64)
        return csr_array((ones, np.divmod(pairs, size)), shape=(num_concepts, size))

    def _shares(self) -> csr_array:
        """Of things that have relation q, the share that has r: (2R, R), sparse.

        Only other relations, and shares that are large enough to ask.
        """
        size = self.kb.num_relations
        together = (self.has.T @ self.has[:, :size]).tocoo()
        number = np.bincount(self.has.indices, minlength=2 * size) + self.config.shrink
        share = together.data / number[together.row]
        kept = (share >= self.config.usual) & (together.row != together.col)
        places = (together.row[kept], together.col[kept])
        return csr_array((share[kept], places), shape=(2 * size, size))

    def questions(self, lang: str) -> Iterator[Missing]:
        """All questions of a language, some subjects at a time."""
        own = self.kb.entity_range(lang)
        place = self.kb.languages.index(lang)
        named = np.zeros(len(self.starts) - 1, bool)
        named[self.concept[own.start : own.stop]] = True
        count = np.diff(self.starts) + np.diff(self.has.indptr)
        ends = np.cumsum(count[self.concept[own.start : own.stop]])
        start = 0
        while start < len(own):
            before = ends[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(ends, before + _PAIRS, side="right")))
            stop = min(stop, start + _SUBJECTS)
            subject = np.arange(own.start + start, own.start + stop)
            found = self._some(lang, place, subject, named)
            if len(found.queries):
                yield found
            start = stop

    def _some(self, lang: str, place: int, subject: Array, named: Array) -> Missing:
        size = self.kb.num_relations
        known = self._known(lang, subject)
        stated, owner = ragged_ranges(
            self.starts[self.concept[subject]], self.starts[self.concept[subject] + 1]
        )
        rows = self.rows[stated]
        relation, target = self.merged.relation[rows], self.merged.target[rows]
        elsewhere = self._elsewhere(rows, place) & named[target]
        keys = np.stack([subject[owner], relation, target])[:, elsewhere]
        old = np.stack([known[0], known[1], self.concept[known[2]]])
        keys = keys[:, ~_is_in(keys, old)]
        first = np.unique(keys[0] * size + keys[1])
        likely, share = self._likely(subject)
        kept = ~np.isin(likely, first)
        usual, share = likely[kept], share[kept]
        asked = np.concatenate([first, usual])
        kind = np.repeat([0, 1], [len(first), len(usual)])
        expected = np.concatenate([np.ones(len(first)), share])
        # What has one object is not asked for a second; usual relations that are there, never.
        has = np.isin(asked, known[0] * size + known[1])
        kept = self.wanted[asked % size] & ~(has & (self.single[asked % size] | (kind == 1)))
        order = np.flatnonzero(kept)[np.argsort(asked[kept])]
        asked, kind, expected = asked[order], kind[order], expected[order]
        low = np.searchsorted(known[0] * size + known[1], asked)
        high = np.searchsorted(known[0] * size + known[1], asked, side="right")
        hidden, _ = ragged_ranges(low, high)
        offset = np.append(0, np.cumsum(high - low))
        queries = Queries(lang, asked // size, asked % size, offset, known[2][hidden])
        return Missing(queries, expected, kind)

    def _known(self, lang: str, subject: Array) -> Array:
        """What the language knows of some subjects (a range of them): (3, N), in order.

        Where a thing has several names in the language, a fact is known of all of them.
        """
        known = _facts(self.kb, f"BETWEEN {subject[0]} AND {subject[-1]}", self.config.known)
        name, other = self._twins(lang)
        if not len(name):
            return known
        low, high = np.searchsorted(name, [subject[0], subject[-1] + 1])
        if low < high:
            ids = ", ".join(map(str, np.unique(other[low:high]).tolist()))
            theirs = _facts(self.kb, f"IN ({ids})", self.config.known)
            known = np.concatenate([known, _renamed(theirs, 0, other, name, subject)], axis=1)
        known = np.concatenate([known, _renamed(known, 2, name, other)], axis=1)
        return np.unique(known, axis=1)

    def _twins(self, lang: str) -> tuple[Array, Array]:
        """Entities of a language that are one thing under several names, and the others of each."""
        if lang not in self._pairs:
            own = self.kb.entity_range(lang)
            concept = self.concept[own.start : own.stop]
            several = np.flatnonzero(np.bincount(concept)[concept] > 1)
            several = several[np.argsort(concept[several], kind="stable")]
            sorted_ = concept[several]
            low, high = (np.searchsorted(sorted_, sorted_, side=side) for side in ("left", "right"))
            place, owner = ragged_ranges(low, high)
            pairs = np.stack([several[owner], several[place]]) + own.start
            pairs = pairs[:, pairs[0] != pairs[1]]
            self._pairs[lang] = np.unique(pairs, axis=1)
        name, other = self._pairs[lang]
        return name, other

    def _likely(self, subject: Array) -> tuple[Array, Array]:
        """Relations that subjects may have, by those that they have: keys, and how likely.

        Those that a subject is known to have, in whatever language, are no guess.
        """
        size, concept = self.kb.num_relations, self.concept[subject]
        place, owner = ragged_ranges(self.has.indptr[concept], self.has.indptr[concept + 1])
        relation = self.has.indices[place].astype(np.int64)
        place, row = ragged_ranges(self.share.indptr[relation], self.share.indptr[relation + 1])
        key = subject[owner[row]] * size + self.share.indices[place]
        share = self.share.data[place]
        found = concept[owner[row]] * size + self.share.indices[place]
        at = np.minimum(np.searchsorted(self.stated, found), len(self.stated) - 1)
        kept = self.stated[at] != found
        key, share = key[kept], share[kept]
        order = np.lexsort((-share, key))
        best = order[group_starts(key[order])]
        return key[best], share[best]

    def _elsewhere(self, rows: Array, place: int) -> Array:
        """Whether a language other than this one states a fact."""
        number = self.merged.offset[rows + 1] - self.merged.offset[rows]
        stated, owner = ragged_ranges(self.merged.offset[rows], self.merged.offset[rows + 1])
        here = np.zeros(len(rows), bool)
        here[owner[self.merged.lang[stated] == place]] = True
        return np.asarray(number > here)


def _stated(kb: KB, splits: Sequence[str]) -> Array:
    """The things and relations that any language states something of: concept * R + relation."""
    rows = kb.join_table(
        pa.table({"split": pa.array(list(splits), pa.string())}),
        f"SELECT DISTINCT s.concept::BIGINT * {kb.num_relations} + t.relation AS key "
        "FROM triples t JOIN asked USING (split) JOIN entities s ON s.id = t.subject ORDER BY key",
    )
    return np.append(rows["key"].to_numpy(), np.iinfo(np.int64).max)


def _facts(kb: KB, subjects: str, splits: Sequence[str]) -> Array:
    """The facts of some subjects, which SQL picks out: (3, N), in order."""
    rows = kb.join_table(
        pa.table({"split": pa.array(list(splits), pa.string())}),
        "SELECT t.subject, t.relation, t.object FROM triples t JOIN asked USING (split) "
        f"WHERE t.subject {subjects} ORDER BY t.subject, t.relation, t.object",
    )
    return np.stack([rows.column(place).to_numpy().astype(np.int64) for place in range(3)])


def _renamed(
    facts: Array, end: int, name: Array, other: Array, within: Array | None = None
) -> Array:
    """Facts with one end (0 or 2) under its other names: pairs of a name and another, sorted."""
    order = np.argsort(name, kind="stable")
    low = np.searchsorted(name, facts[end], sorter=order)
    high = np.searchsorted(name, facts[end], side="right", sorter=order)
    place, row = ragged_ranges(low, high)
    found = facts[:, row]
    found[end] = other[order[place]]
    return found if within is None else found[:, np.isin(found[end], within)]


def _is_in(keys: Array, others: Array) -> Array:
    """Which columns of `keys` are columns of `others` too."""
    kind = [("", np.int64)] * 3
    a, b = (
        np.ascontiguousarray(x.T.astype(np.int64)).view(kind).reshape(-1) for x in (keys, others)
    )
    return np.isin(a, b)
