"""Link prediction (Sec. 3.2): the missing object of held-out facts, ranked among all entities.

    facts = read_facts(kb, "el", "test")
    figures(ranker.ranks(facts.queries, facts.objects))

Filtered: the other objects that the KB knows for a query, in whatever split, do not count. Two
subsets are told apart, because much of a multilingual KB can be answered without learning: facts
that stand in no other language's train, and facts that are no inverses of train facts.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prixlm.errors import PrixError
from prixlm.kb.splits import known_objects
from prixlm.kb.store import KB
from prixlm.metrics import BEYOND, Figures, figures
from prixlm.ranking import Queries, Ranker

Array = np.ndarray[Any, Any]
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
        WHERE t.split = 'train' AND t.lang <> $lang
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
class TestFacts:
    """Held-out facts of one language: a query each, with what it hides, and the truth."""

    __test__ = False  # not a test of pytest's

    queries: Queries
    objects: Array
    subsets: dict[str, Array]  # by name: which facts are in it

    def __len__(self) -> int:
        return len(self.objects)

    def select(self, rows: Array) -> "TestFacts":
        subsets = {name: part[rows] for name, part in self.subsets.items()}
        return TestFacts(self.queries.select(rows), self.objects[rows], subsets)


def read_facts(
    kb: KB, lang: str, split: str = "test", *, most: int | None = None, seed: int = 0
) -> TestFacts:
    """The facts of a split, or a sample of them, with the filter of Sec. 3.2."""
    table = kb.query(_FACTS, {"lang": lang, "split": split}).to_arrow_table()
    subject, relation, object_, no_transfer, no_inverse = (
        table.column(place).to_numpy() for place in range(5)
    )
    if not len(subject):
        raise PrixError(
            f"{kb.folder} has no {split} triples in {lang}: make some with `prixlm split`."
        )
    offset, known = known_objects(kb, subject, relation)
    owner = np.repeat(np.arange(len(subject)), np.diff(offset))
    hidden = known != object_[owner]
    counts = np.bincount(owner[hidden], minlength=len(subject))
    queries = Queries(lang, subject, relation, np.append(0, np.cumsum(counts)), known[hidden])
    everything = np.ones(len(subject), bool)
    parts = (everything, no_transfer, no_inverse)
    facts = TestFacts(queries, object_, dict(zip(SUBSETS, parts, strict=True)))
    if most is not None and most < len(facts):
        generator = np.random.default_rng(seed)
        facts = facts.select(np.sort(generator.permutation(len(facts))[:most]))
    return facts


@dataclass(frozen=True)
class Row:
    """One ranker's figures: by language and subset."""

    name: str
    figures: dict[str, dict[str, Figures]]


def evaluate(
    ranker: Ranker, facts: Sequence[TestFacts], beyond: int = BEYOND
) -> tuple[Row, dict[str, Array]]:
    """The figures of a ranker, and the rank of every fact by language."""
    found: dict[str, dict[str, Figures]] = {}
    ranks: dict[str, Array] = {}
    for part in facts:
        lang = part.queries.lang
        ranks[lang] = ranker.ranks(part.queries, part.objects, beyond)
        found[lang] = {
            name: figures(ranks[lang][rows], beyond) for name, rows in part.subsets.items()
        }
    return Row(ranker.name, found), ranks
