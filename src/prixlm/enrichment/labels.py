"""Label proposals: names of other languages for concepts that a language has no name for.

    table, summary = propose_labels(kb, ["et"], LabelConfig())

Languages of one script share many names, above all those of people and companies. How likely a
language is to use another language's name is learnt from the concepts that it does name: how often
it agrees with each other language, and how many of the others use the same name. A name in another
script is never proposed (that would need transliteration), and no name is made up.

Dimension letters: N candidate names, a few of each concept.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from prixlm.arrays import group_starts, random_positions
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.languages import script_of_language, script_of_text
from prixlm.metrics import Reliability, reliability
from prixlm.proposals.tables import LABEL_SCHEMA
from prixlm.rankers.calibrated import CalibratedTrees
from prixlm.types import Array

logger = logging.getLogger(__name__)
_BATCH_ROWS = 1 << 16
_MIN_CONCEPTS = 100
_SCRIPTS = {"Jpan": ("Hani", "Hira", "Kana")}
"""Languages that are written in several scripts."""

# Names in other languages, grouped by concept: either of concepts that the language names too (a
# sample of one in $every, by a hash of their id), or of concepts that it does not name.
_CANDIDATES = """
    WITH own AS (
        SELECT concept, min(name) AS name FROM entities WHERE lang = $lang GROUP BY concept
    )
    SELECT e.concept, e.name, list(DISTINCT e.lang ORDER BY e.lang), min(e.key), any_value(o.name)
    FROM entities e LEFT JOIN own o USING (concept)
    WHERE e.lang <> $lang AND (o.name IS NOT NULL) = $named
        AND ($named = FALSE OR (e.concept * 2654435761) % 4294967296 % $every = 0)
    GROUP BY e.concept, e.name ORDER BY e.concept, e.name
"""
_AGREEMENT = """
    SELECT y.lang, count(*), count(*) FILTER (x.name = y.name)
    FROM entities x JOIN entities y ON x.concept = y.concept
    WHERE x.lang = $lang AND y.lang <> $lang GROUP BY y.lang
"""


@dataclass(frozen=True, kw_only=True)
class LabelConfig:
    """Which labels are proposed."""

    min_confidence: float = 0.5  # leave out names below it
    fitted: int = 20_000  # concepts that the confidence is learnt from, approximately at most
    seed: int = 0  # of the drawn concepts

    def __post_init__(self) -> None:
        if not 0 <= self.min_confidence <= 1:
            raise PrixError(f"--min-confidence {self.min_confidence}: expected 0 to 1.")
        if self.fitted < _MIN_CONCEPTS:
            raise PrixError(f"fitted {self.fitted}: expected {_MIN_CONCEPTS} concepts or more.")


class _Row(NamedTuple):
    """A row of `_CANDIDATES`."""

    concept: int
    name: str
    langs: list[str]  # that use this name
    key: str
    own_name: str | None  # of the language itself


@dataclass(frozen=True)
class _Candidates:
    """Candidate names, concept by concept."""

    concept: Array  # (N,) ascending
    name: list[str]
    langs: list[list[str]]  # that use this name
    key: list[str]
    is_right: Array  # (N,) whether it is the language's own name; False where that is unknown

    @classmethod
    def from_rows(cls, rows: Sequence[_Row]) -> "_Candidates":
        """Turn rows into columns."""
        return cls(
            np.array([row.concept for row in rows], np.int64),
            [row.name for row in rows],
            [row.langs for row in rows],
            [row.key for row in rows],
            np.array([row.name == row.own_name for row in rows], bool),
        )


class LabelProposer:
    """Proposes names for the concepts that one language does not name."""

    def __init__(self, kb: KB, lang: str, config: LabelConfig | None = None) -> None:
        self.kb, self.lang, self.config = kb, lang, config or LabelConfig()
        self._num_named = len(kb.entity_range(lang))  # refuses a language that the KB lacks
        script = script_of_language(lang)
        self._scripts = _SCRIPTS.get(script, (script,))
        # How often the language uses the name of each other language. Two pseudo-counts lower the
        # rate of languages that share few concepts with it.
        rows = kb.query(_AGREEMENT, {"lang": lang}).fetchall()
        self._rate = {other: same / (both + 2) for other, both, same in rows}
        self.reliability: Reliability
        self._fit()

    def _fit(self) -> None:
        """Learn the confidence from concepts that the language names, and measure it on others."""
        every = max(1, self._num_named // self.config.fitted)
        candidates = _Candidates.from_rows(
            [row for rows in self._read(named=True, every=every) for row in rows]
        )
        is_right = candidates.is_right
        concepts, row = np.unique(candidates.concept, return_inverse=True)
        # The manifest of a run quotes these sentences.
        if len(concepts) < _MIN_CONCEPTS:
            raise PrixError(
                f"{len(concepts)} of its named entities have a name of the same script in another "
                f"language: too few to learn from (expected {_MIN_CONCEPTS}). Names are taken "
                "over from languages of the same script."
            )
        if not is_right.any() or is_right.all():
            share = "all" if is_right.all() else "none"
            raise PrixError(
                f"{share} of its names are also used in another language, so there is nothing to "
                "learn from about which ones it takes over."
            )
        # A random half of the concepts grows the trees, a quarter fits the probability, and a
        # quarter measures it.
        position = random_positions(len(concepts), self.config.seed)[row]
        features = self._features(candidates)
        self._model = CalibratedTrees.fit(
            features,
            is_right,
            grow=position < 0.5,
            calibrate=(position >= 0.5) & (position < 0.75),
        )
        measured = position >= 0.75
        confidence = self._model.probability(features[measured])
        best = _best_rows(candidates.concept[measured], confidence)
        self.reliability = reliability(confidence[best], is_right[measured][best])

    def propose(self) -> pa.Table:
        """Return the best name of every concept without one, the most confident first."""
        tables = [self._propose_some(rows) for rows in self._read(named=False)]
        order = [("confidence", "descending"), ("concept", "ascending")]
        return pa.concat_tables([LABEL_SCHEMA.empty_table(), *tables]).sort_by(order)

    def _propose_some(self, rows: Sequence[_Row]) -> pa.Table:
        candidates = _Candidates.from_rows(rows)
        confidence = self._model.probability(self._features(candidates))
        best = _best_rows(candidates.concept, confidence)
        best = best[confidence[best] >= self.config.min_confidence]
        columns = {
            "lang": [self.lang] * len(best),
            "concept": candidates.concept[best],
            "key": [candidates.key[row] for row in best],
            "name": [candidates.name[row] for row in best],
            "confidence": np.round(confidence[best], 6),
            "origin": [candidates.langs[row] for row in best],
        }
        arrays = [pa.array(columns[field.name], field.type) for field in LABEL_SCHEMA]
        return pa.Table.from_arrays(arrays, schema=LABEL_SCHEMA)

    def _read(self, *, named: bool, every: int = 1) -> Iterator[list[_Row]]:
        """Yield candidates in the language's script, batch by batch, whole concepts in each."""
        parameters = {"lang": self.lang, "named": named, "every": every}
        pending: list[_Row] = []
        for batch in self.kb.stream(_CANDIDATES, _BATCH_ROWS, parameters):
            columns = (column.to_pylist() for column in batch.columns)
            pending += (_Row(*values) for values in zip(*columns, strict=True))
            # The next batch may have more names of the last concept: it waits.
            last = pending[-1].concept
            end = len(pending)
            while end and pending[end - 1].concept == last:
                end -= 1
            if end:
                yield [row for row in pending[:end] if self._can_read(row.name)]
                pending = pending[end:]
        if pending:
            yield [row for row in pending if self._can_read(row.name)]

    def _can_read(self, name: str) -> bool:
        """Return whether a name is in a script of the language, or has no letters at all."""
        script = script_of_text(name)
        return script in self._scripts if script else not any(map(str.isalpha, name))

    def _features(self, candidates: _Candidates) -> Array:
        """Return what tells whether the language uses a name: (N, 6)."""
        if not len(candidates.concept):
            return np.zeros((0, 6))
        rates = [[self._rate.get(lang, 0.0) for lang in langs] for langs in candidates.langs]
        best_rate = np.array([max(row) for row in rates])
        total_rate = np.array([sum(row) for row in rates])
        num_langs = np.array([len(row) for row in rates])
        # Sums over all candidates of a concept; `group` is the concept's number for each row.
        _, group = np.unique(candidates.concept, return_inverse=True)
        rate_of_all = np.bincount(group, total_rate)[group]
        langs_of_all = np.bincount(group, num_langs)[group]
        columns = [
            best_rate,
            total_rate / np.maximum(rate_of_all, 1e-9),
            num_langs / langs_of_all,
            np.log1p(num_langs),
            np.bincount(group)[group],  # names to choose from
            np.array([len(name) for name in candidates.name]),
        ]
        return np.stack(columns, axis=1)


def propose_labels(
    kb: KB, langs: Sequence[str], config: LabelConfig | None = None
) -> tuple[pa.Table, dict[str, Any]]:
    """Return label proposals for several languages, and a summary by language.

    The summary has the number of names and the calibration error, or the reason why a language has
    none, such as a script of its own.
    """
    tables, summary = [LABEL_SCHEMA.empty_table()], {}
    for lang in langs:
        try:
            proposer = LabelProposer(kb, lang, config)
        except PrixError as error:
            logger.info("no labels for %s: %s", lang, error)
            summary[lang] = {"names": 0, "why": str(error)}
            continue
        tables.append(proposer.propose())
        ece = round(proposer.reliability.ece, 4)
        summary[lang] = {"names": tables[-1].num_rows, "ece": ece}
    order = [("lang", "ascending"), ("confidence", "descending"), ("concept", "ascending")]
    return pa.concat_tables(tables).sort_by(order), summary


def _best_rows(concept: Array, confidence: Array) -> Array:
    """Return the row of the most confident candidate of each concept."""
    order = np.lexsort((-confidence, concept))
    return np.asarray(order[group_starts(concept[order])])
