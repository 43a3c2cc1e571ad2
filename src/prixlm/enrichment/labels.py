"""What a thing may be called in a language that has no name for it: a name of another language.

    found = propose_labels(kb, "et", LabelConfig())

Many names are the same in languages of one script, of people and companies above all. How likely
the language takes over a name is learnt from the things that it does name: how often it agrees with
each other language, and how far the others agree among themselves. Gradient-boosted trees weigh
that, and isotonic regression, on things that they have not seen, makes a probability of it. Names
in another script are not proposed: that would need transliteration.

A name is text that some language uses; nothing is made up.

Dimension letters: N candidate names of all things.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.languages import script_of_language, script_of_text
from prixlm.metrics import Reliability, reliability
from prixlm.rankers.calibrated import fit_probability
from prixlm.types import Array

SCHEMA = pa.schema(
    [
        ("lang", pa.string()),
        ("concept", pa.int32()),
        ("key", pa.string()),  # of the thing in one of the languages that name it
        ("name", pa.string()),
        ("confidence", pa.float64()),
        ("origin", pa.list_(pa.string())),  # languages that call it so
    ]
)
_ROWS = 1 << 16
_WRITTEN = {"Jpan": ("Hani", "Hira", "Kana")}
"""Languages that are written in several scripts."""
# The names of things by concept: of those that the language names too, or of the others.
_NAMES = """
    WITH own AS (
        SELECT concept, min(name) AS name FROM entities WHERE lang = $lang GROUP BY concept
    )
    SELECT e.concept, e.name, list(DISTINCT e.lang ORDER BY e.lang), min(e.key), any_value(o.name)
    FROM entities e LEFT JOIN own o USING (concept)
    WHERE e.lang <> $lang AND (o.name IS NOT NULL) = $named
        AND ($named = FALSE OR (e.concept * 2654435761) % 4294967296 % $every = 0)
    GROUP BY e.concept, e.name ORDER BY e.concept, e.name
"""
_AGREE = """
    SELECT y.lang, count(*), count(*) FILTER (x.name = y.name)
    FROM entities x JOIN entities y ON x.concept = y.concept
    WHERE x.lang = $lang AND y.lang <> $lang GROUP BY y.lang
"""


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which names are proposed."""

    min_confidence: float = 0.5
    fitted: int = 20_000  # things that the confidence is learnt from
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.fitted < 100:
            raise PrixError("fitted has to be 100 or more: a confidence needs cases.")


@dataclass(frozen=True)
class _Names:
    """Candidate names, thing by thing."""

    concept: Array  # (N,) ascending
    name: list[str]
    langs: list[list[str]]
    key: list[str]
    right: Array  # (N,) whether the language calls it so, where it names it


class LabelRule:
    """How a language takes over names."""

    def __init__(self, kb: KB, lang: str, config: LabelConfig | None = None) -> None:
        kb.entity_range(lang)  # refuses a language that is not there
        self.kb, self.lang, self.config = kb, lang, config or LabelConfig()
        rows = kb.query(_AGREE, {"lang": lang}).fetchall()
        # A language that is rarely seen beside this one says little: two cases against it.
        self.rate = {other: same / (both + 2) for other, both, same in rows}
        self.script = script_of_language(lang)
        self.reliability: Reliability | None = None
        self._fit()

    def _fit(self) -> None:
        from sklearn.ensemble import HistGradientBoostingClassifier

        named = len(self.kb.entity_range(self.lang))
        every = max(1, named // self.config.fitted)
        parts = list(self._candidates(named=True, every=every))
        concept = np.concatenate([part.concept for part in parts] or [np.zeros(0, np.int64)])
        right = np.concatenate([part.right for part in parts] or [np.zeros(0, bool)])
        things = np.random.default_rng(self.config.seed).permutation(np.unique(concept))
        if len(things) < 100 or not right.any() or right.all():
            raise PrixError(
                f"{len(things)} things have a name in {self.lang} and another language: too few to "
                "learn from which names it takes over."
            )
        features = np.concatenate([self._features(part) for part in parts])
        # Half to learn from, a quarter for the probability, a quarter to say how good it is.
        turn = np.searchsorted(np.sort(things), concept)
        order = np.empty(len(things), np.int64)
        order[np.searchsorted(np.sort(things), things)] = np.arange(len(things))
        place = order[turn] / len(things)
        first, second, last = place < 0.5, (place >= 0.5) & (place < 0.75), place >= 0.75
        self.trees = HistGradientBoostingClassifier(
            max_iter=100, min_samples_leaf=20, max_leaf_nodes=8, early_stopping=False
        ).fit(features[first], right[first])
        self.isotonic = fit_probability(
            self.trees.decision_function(features[second]), right[second]
        )
        best = _best(concept[last], self._confidence(features[last]))
        sure = self._confidence(features[last])[best]
        self.reliability = reliability(sure, right[last][best])

    def _confidence(self, features: Array) -> Array:
        if not len(features):
            return np.zeros(0)
        return np.asarray(self.isotonic.predict(self.trees.decision_function(features)))

    def proposals(self) -> Iterator[pa.Table]:
        """The best name of every thing that the language has none for."""
        for part in self._candidates(named=False):
            confidence = self._confidence(self._features(part))
            best = _best(part.concept, confidence)
            best = best[confidence[best] >= self.config.min_confidence]
            yield pa.Table.from_arrays(
                [
                    pa.array([self.lang] * len(best), pa.string()),
                    pa.array(part.concept[best], pa.int32()),
                    pa.array([part.key[row] for row in best], pa.string()),
                    pa.array([part.name[row] for row in best], pa.string()),
                    pa.array(np.round(confidence[best], 6)),
                    pa.array([part.langs[row] for row in best], pa.list_(pa.string())),
                ],
                schema=SCHEMA,
            )

    def _candidates(self, *, named: bool, every: int = 1) -> Iterator[_Names]:
        """Names in the language's script, some things at a time; a thing is never cut in two."""
        asked = {"lang": self.lang, "named": named, "every": every}
        rest: list[tuple[Any, ...]] = []
        for batch in self.kb.stream(_NAMES, _ROWS, asked):
            rows = rest + list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
            cut = len(rows)
            while cut and rows[cut - 1][0] == rows[-1][0]:
                cut -= 1
            rest = rows[cut:]
            if cut:
                yield self._make(rows[:cut])
        if rest:
            yield self._make(rest)

    def _make(self, rows: list[tuple[Any, ...]]) -> _Names:
        kept = [row for row in rows if self._can_read(row[1])]
        return _Names(
            np.array([row[0] for row in kept], np.int64),
            [row[1] for row in kept],
            [row[2] for row in kept],
            [row[3] for row in kept],
            np.array([row[1] == row[4] for row in kept], bool),
        )

    def _can_read(self, name: str) -> bool:
        """Whether a name is in the script of the language, or has no letters at all."""
        script = script_of_text(name)
        if not script:
            return not any(letter.isalpha() for letter in name)
        return script in _WRITTEN.get(self.script, (self.script,))

    def _features(self, names: _Names) -> Array:
        """(N, 6): who calls it so, how far they are agreed with, and how far they agree."""
        if not len(names.concept):
            return np.zeros((0, 6))
        rates = [[self.rate.get(lang, 0.0) for lang in langs] for langs in names.langs]
        best = np.array([max(part) for part in rates])
        total = np.array([sum(part) for part in rates])
        number = np.array([len(part) for part in rates])
        _, place = np.unique(names.concept, return_inverse=True)
        whole, everyone = np.bincount(place, total), np.bincount(place, number)
        choices = np.bincount(place)
        length = np.array([len(name) for name in names.name])
        return np.stack(
            [
                best,
                total / np.maximum(whole[place], 1e-9),
                number / everyone[place],
                np.log1p(number),
                choices[place],
                length,
            ],
            axis=1,
        )


def _best(concept: Array, confidence: Array) -> Array:
    """The row of the most confident name of each thing."""
    order = np.lexsort((-confidence, concept))
    first = np.flatnonzero(np.diff(concept[order], prepend=-1))
    return np.asarray(order[first])


def propose_labels(kb: KB, lang: str, config: LabelConfig | None = None) -> pa.Table:
    """All proposals of a language as one table, the most confident first."""
    rule = LabelRule(kb, lang, config)
    table = pa.concat_tables([SCHEMA.empty_table(), *rule.proposals()])
    return table.sort_by([("confidence", "descending"), ("concept", "ascending")])
