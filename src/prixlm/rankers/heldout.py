"""Held-out facts as questions: the query, the known objects that are filtered, and the truth.

    facts = read_facts(kb, "el", "test")
    ranker.ranks(facts.queries, facts.objects)

Filtered setting (Sec. 3.2): other objects that the KB knows for a query, in any split, do not count
as answers. Two subsets are kept apart, because much of a multilingual KB can be answered without
learning: `no transfer` has the facts that no other language states in train, `no inverse` those
whose ends no train triple of the language joins backwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from prixlm.arrays import pair_keys, ragged_offsets
from prixlm.errors import PrixError
from prixlm.kb.split import known_objects, unseen_triples
from prixlm.kb.store import KB, SPLITS
from prixlm.rankers.base import Queries, read_triples
from prixlm.types import Array

SUBSETS = ("all", "no transfer", "no inverse")
UNSEEN_SUBSETS = ("all", "only the subject unseen", "the object unseen")
"""Of facts with an unseen entity: a guess by frequency can only be right if the object is known."""
CHOICES = ("no-transfer", "no-inverse", "seen", "subject-unseen", "object-unseen")
"""Facts that may be asked alone: of `SUBSETS`; whose ends train both has; and `UNSEEN_SUBSETS`."""
_FACTS = """
    WITH test AS (SELECT * FROM triples WHERE lang = $lang AND split = $split),
    merged AS (
        SELECT t.subject, t.relation, t.object, s.concept AS a, o.concept AS b
        FROM test t JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
    ),
    -- The same facts, as concepts, in the train triples of other languages.
    others AS (
        SELECT DISTINCT s.concept AS a, t.relation, o.concept AS b
        FROM triples t JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
        WHERE t.split = 'train' AND t.lang <> $lang AND s.concept IN (SELECT a FROM merged)
    ),
    backwards AS (
        SELECT DISTINCT object AS subject, subject AS object
        FROM triples WHERE split = 'train' AND lang = $lang
    )
    SELECT m.subject, m.relation, m.object, n.a IS NULL, i.subject IS NULL
    FROM merged m
    LEFT JOIN others n ON n.a = m.a AND n.relation = m.relation AND n.b = m.b
    LEFT JOIN backwards i ON i.subject = m.subject AND i.object = m.object
    ORDER BY m.subject, m.relation, m.object
"""


@dataclass(frozen=True)
class Questions:
    """Queries with one or more true objects each: objects[i] is one of query owner[i]."""

    queries: Queries
    owner: Array  # (facts,) rows of queries
    objects: Array  # (facts,)

    def is_right(self, owner: Array, entity: Array) -> Array:
        """Return whether entity[i] is a true object of query owner[i]: (N,) bool."""
        return np.isin(pair_keys(owner, entity), pair_keys(self.owner, self.objects))


@dataclass(frozen=True)
class HeldOut:
    """Held-out facts of one language: a query for each, and its true object."""

    queries: Queries
    objects: Array  # (Q,)
    subsets: dict[str, Array]  # by name: (Q,) bool, the facts in the subset

    def __len__(self) -> int:
        return len(self.objects)

    def singly(self) -> Questions:
        """Return every fact as a question of its own."""
        return Questions(self.queries, np.arange(len(self)), self.objects)

    def questions(self) -> Questions:
        """Return every pair of subject and relation once, with all of its facts as true objects.

        For facts whose queries filter the same known objects, none of which is asked for.
        """
        # The first fact of each pair stands for it: its query filters the same objects.
        keys = pair_keys(self.queries.subject, self.queries.relation)
        _, first, owner = np.unique(keys, return_index=True, return_inverse=True)
        return Questions(self.queries.select(first), owner, self.objects)

    def select(self, rows: Array) -> "HeldOut":
        """Return the facts of the given rows, in that order."""
        subsets = {name: mask[rows] for name, mask in self.subsets.items()}
        return HeldOut(self.queries.select(rows), self.objects[rows], subsets)


def read_facts(
    kb: KB,
    lang: str,
    split: str = "test",
    *,
    most: int | None = None,
    seed: int = 0,
    filtered: Sequence[str] = SPLITS,
    by_question: bool = False,
    within: Sequence[str] = (),
) -> HeldOut:
    """Read the facts of a split, or a sample of `most` of them.

    filtered: the splits whose known objects are filtered from the candidates of a query.
    within: keys of `CHOICES`: only facts that are in all of these, perhaps none.
    by_question: sample `most` questions (subject and relation), each with all of its facts.
    """
    table = kb.query(_FACTS, {"lang": lang, "split": split}).to_arrow_table()
    columns = [table.column(number).to_numpy() for number in range(5)]
    subject, relation, object_, no_transfer, no_inverse = columns
    if not len(subject):
        raise PrixError(
            f"{kb.folder} has no {split} triples in {lang}: make some with `prixlm split`."
        )
    # Known objects of all queries, one query after another, without the truth of each.
    offset, known = known_objects(kb, subject, relation, splits=filtered)
    owner = np.repeat(np.arange(len(subject)), np.diff(offset))
    is_other = known != object_[owner]
    counts = np.bincount(owner[is_other], minlength=len(subject))
    queries = Queries(lang, subject, relation, ragged_offsets(counts), known[is_other])
    masks = (np.ones(len(subject), bool), no_transfer, no_inverse)
    facts = HeldOut(queries, object_, dict(zip(SUBSETS, masks, strict=True)))
    if within:  # before the draw: a sample of 500 has 500 facts of these
        facts = facts.select(np.flatnonzero(_is_within(kb, facts, within)))
    if most is not None and most < len(facts):
        # Draw whole questions or single facts; the facts stay in their order.
        unit = facts.questions().owner if by_question else np.arange(len(facts))
        drawn = np.random.default_rng(seed).permutation(int(unit.max()) + 1)[:most]
        facts = facts.select(np.flatnonzero(np.isin(unit, drawn)))
    return facts


def _is_within(kb: KB, facts: HeldOut, within: Sequence[str]) -> Array:
    """Return which facts are in all of some `CHOICES`: (Q,) bool."""
    known = np.zeros(kb.num_entities, bool)  # entities of train triples, in any language
    for ends in read_triples(kb)[[0, 2]]:
        known[ends] = True
    subject, object_ = known[facts.queries.subject], known[facts.objects]
    masks = {
        "no-transfer": facts.subsets["no transfer"],
        "no-inverse": facts.subsets["no inverse"],
        "seen": subject & object_,
        "subject-unseen": ~subject & object_,
        "object-unseen": ~object_,
    }
    assert tuple(masks) == CHOICES
    return np.asarray(np.logical_and.reduce([masks[key] for key in within]))


def unseen_facts(
    kb: KB,
    langs: Sequence[str],
    split: str = "test",
    *,
    most: int | None = None,
    keep_subsets: bool = False,
    within: Sequence[str] = (),
) -> list[HeldOut]:
    """Return the facts of a split whose subject or object is in no train triple, by language.

    Their subsets are `UNSEEN_SUBSETS`. A language without any is left out.
    most: facts sampled per language. keep_subsets: those of `read_facts`, too. within: only facts
    that are in all of these `CHOICES`.
    """
    table = unseen_triples(kb, split=split, links=False)
    names = ("subject", "relation", "object", "object_unseen")
    columns = [table[name].to_pylist() for name in names]
    object_unseen = {tuple(triple): unseen for *triple, unseen in zip(*columns, strict=True)}
    unseen_by_language = []
    for lang in langs:
        if not kb.num_triples(lang, split):
            continue
        facts = read_facts(kb, lang, split, within=within)
        arrays = (facts.queries.subject, facts.queries.relation, facts.objects)
        triples = list(zip(*(array.tolist() for array in arrays), strict=True))
        rows = np.array([row for row, triple in enumerate(triples) if triple in object_unseen], int)
        if most is not None and most < len(rows):
            rows = np.sort(np.random.default_rng(0).permutation(rows)[:most])
        if len(rows):
            chosen = facts.select(rows)
            unseen = np.array([object_unseen[triples[row]] for row in rows], bool)
            # (rows,) for each of UNSEEN_SUBSETS.
            masks = (np.ones(len(rows), bool), ~unseen, unseen)
            subsets = dict(zip(UNSEEN_SUBSETS, masks, strict=True))
            subsets = chosen.subsets | subsets if keep_subsets else subsets
            unseen_by_language.append(replace(chosen, subsets=subsets))
    return unseen_by_language
