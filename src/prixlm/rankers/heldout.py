"""Held-out facts as questions: the missing object, the known ones that are no answer, the truth.

    facts = read_facts(kb, "el", "test")
    ranker.ranks(facts.queries, facts.objects)

Filtered (Sec. 3.2): the other objects that the KB knows for a query, in whatever split, do not
count. Two subsets are told apart, because much of a multilingual KB can be answered without
learning: facts that stand in no other language's train, and facts that are no inverses of train
facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from prixlm.errors import PrixError
from prixlm.kb.split import known_objects
from prixlm.kb.store import KB, SPLITS
from prixlm.rankers.base import Queries
from prixlm.types import Array

SUBSETS = ("all", "no transfer", "no inverse")
_FACTS = """
    WITH test AS (SELECT * FROM triples WHERE lang = $lang AND split = $split),
    merged AS (
        SELECT t.subject, t.relation, t.object, s.concept AS a, o.concept AS b
        FROM test t JOIN entities s ON s.id = t.subject JOIN entities o ON o.id = t.object
    ),
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
    """Queries, each with one or more right objects: object i is one of query owner[i]."""

    queries: Queries
    owner: Array
    objects: Array

    def is_right(self, owner: Array, entity: Array) -> Array:
        """Whether given answers, entity[i] to query owner[i], are right."""
        keys = (self.owner.astype(np.int64) << 32) | self.objects.astype(np.int64)
        return np.isin((owner.astype(np.int64) << 32) | entity.astype(np.int64), keys)


@dataclass(frozen=True)
class HeldOut:
    """Held-out facts of one language: a query each, with what it hides, and the truth."""

    queries: Queries
    objects: Array
    subsets: dict[str, Array]  # by name: which facts are in it

    def __len__(self) -> int:
        return len(self.objects)

    def singly(self) -> Questions:
        """Every fact a query of its own."""
        return Questions(self.queries, np.arange(len(self)), self.objects)

    def questions(self) -> Questions:
        """Every subject and relation once, with all of its facts here as right answers.

        For facts that were read with what is known hidden, and nothing that is asked for.
        """
        pairs = np.stack([self.queries.subject, self.queries.relation])
        _, first, owner = np.unique(pairs, axis=1, return_index=True, return_inverse=True)
        return Questions(self.queries.select(first), owner.reshape(-1), self.objects)

    def select(self, rows: Array) -> "HeldOut":
        subsets = {name: part[rows] for name, part in self.subsets.items()}
        return HeldOut(self.queries.select(rows), self.objects[rows], subsets)


def read_facts(
    kb: KB,
    lang: str,
    split: str = "test",
    *,
    most: int | None = None,
    seed: int = 0,
    hide: Sequence[str] = SPLITS,
    by_question: bool = False,
) -> HeldOut:
    """The facts of a split, or a sample of them; known objects of the splits `hide` are hidden.

    by_question: the sample is of so many questions (a subject and a relation) with all of their
    facts.
    """
    table = kb.query(_FACTS, {"lang": lang, "split": split}).to_arrow_table()
    subject, relation, object_, no_transfer, no_inverse = (
        table.column(place).to_numpy() for place in range(5)
    )
    if not len(subject):
        raise PrixError(
            f"{kb.folder} has no {split} triples in {lang}: make some with `prixlm split`."
        )
    offset, known = known_objects(kb, subject, relation, splits=hide)
    owner = np.repeat(np.arange(len(subject)), np.diff(offset))
    hidden = known != object_[owner]
    counts = np.bincount(owner[hidden], minlength=len(subject))
    queries = Queries(lang, subject, relation, np.append(0, np.cumsum(counts)), known[hidden])
    everything = np.ones(len(subject), bool)
    parts = (everything, no_transfer, no_inverse)
    facts = HeldOut(queries, object_, dict(zip(SUBSETS, parts, strict=True)))
    if most is not None and most < len(facts):
        generator = np.random.default_rng(seed)
        unit = facts.questions().owner if by_question else np.arange(len(facts))
        chosen = generator.permutation(int(unit.max()) + 1)[:most]
        facts = facts.select(np.flatnonzero(np.isin(unit, chosen)))
    return facts
