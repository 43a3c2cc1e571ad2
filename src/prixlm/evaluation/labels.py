"""Labels that a language would lack: withhold a fifth of its names and propose them.

    result = evaluate_labels(kb, ["el", "ja"])
    result.tables()         # exact match, character error, coverage, calibration

The names of a fifth of the concepts that a language shares with others are hidden from everything
that is fitted: rates, writers, words, trees. They are then proposed as `prixlm enrich` does. The
fifth is chosen by a hash of the concept, so that it is the same in every run; `valid` asks for
another fifth, with both hidden, to choose settings by.

Rows:

- the English name taken over as it is;
- romanisation turned round: each letter of the language stands for what it is romanised to, the
  longest match first, which is what a table of rules can do;
- English alone: known words, and letters learnt from linked names, without a fitted confidence;
- all sources with the fitted confidence: what `enrich` proposes.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from prixlm.enrichment.labels import NUM_HIDDEN, LabelConfig, LabelProposer
from prixlm.enrichment.naming.candidates import Thing
from prixlm.errors import PrixError
from prixlm.kb.store import KB
from prixlm.metrics import (
    Interval,
    Reliability,
    bootstrap,
    bootstrap_ratio,
    calibration_interval,
    reliability,
)
from prixlm.reports.tables import ResultTable
from prixlm.romanise import romanise
from prixlm.types import Array, Progress

PRECISION = 0.9
TAKEN, RULES, ENGLISH, FUSED = (
    "English name taken over",
    "romanisation turned round, from English",
    "words and letters from English alone",
    "all sources, fitted confidence",
)
_HIDDEN = {"test": ((0,), 0), "valid": ((0, 1), 1)}
"""Parts that are hidden, and the part that is asked for."""
_OWN = f"""
    SELECT concept, min(name) FROM entities
    WHERE lang = $lang AND (concept * 2654435761) % 4294967296 % {NUM_HIDDEN} = $part
    GROUP BY concept
"""


@dataclass(frozen=True)
class Answer:
    """The best name of a row for one concept."""

    english: str  # or the name in another language if there is no English one
    own: str  # the withheld name
    text: str  # "" without an answer
    score: float  # confidence, or what the row has instead
    order: float  # higher is surer; finer than the confidence, which has steps

    @property
    def is_right(self) -> bool:
        """Whether the answer is the withheld name, letter by letter."""
        return self.text == self.own


@dataclass(frozen=True)
class LabelTrial:
    """The answers of all rows in one language."""

    lang: str
    answers: dict[str, list[Answer]]  # by row
    reliability: Reliability  # of the fitted confidence
    sources: list[str]  # languages that names were written from

    def right(self, row: str) -> Array:
        """Return (names,) which withheld names are written exactly."""
        return np.array([answer.is_right for answer in self.answers[row]], bool)

    def exact(self, row: str) -> float:
        """Return the share of withheld names that are written exactly."""
        return float(self.right(row).mean())

    def character_error(self, row: str) -> float:
        """Return the edit distance to the withheld names, over their letters; at most 1 each."""
        errors, letters = self._errors(row)
        return float(errors.sum() / max(1.0, letters.sum()))

    def _errors(self, row: str) -> tuple[Array, Array]:
        """Return (names,) the edit distance to each name, and its letters."""
        from rapidfuzz.distance import Levenshtein

        letters = np.array([len(answer.own) for answer in self.answers[row]], float)
        distance = [Levenshtein.distance(a.own, a.text) for a in self.answers[row]]
        return np.minimum(letters, distance), letters

    def coverage(self, row: str, precision: float = PRECISION) -> float:
        """Return the largest share of names, surest first, of which this share is right."""
        return coverage_at(*self._ordered(row), precision)

    def _ordered(self, row: str) -> tuple[Array, Array]:
        """Return (names,) how sure each answer is, and whether it is right."""
        answers = self.answers[row]
        order = np.array([answer.order for answer in answers])
        right = np.array([answer.is_right and bool(answer.text) for answer in answers])
        return order, right

    def character_interval(self, row: str) -> Interval:
        """Return the interval of the character error."""
        return bootstrap_ratio(*self._errors(row))

    def coverage_interval(self, row: str, precision: float = PRECISION) -> Interval:
        """Return the interval of the coverage."""
        order, right = self._ordered(row)

        def coverage(weights: Array) -> Array:
            return coverages_at(order, right, precision, weights)

        return bootstrap(len(order), coverage)

    def calibration(self) -> Interval:
        """Return the interval of the calibration error of the fitted confidence."""
        given = [answer for answer in self.answers[FUSED] if answer.text]
        confidence = np.array([answer.score for answer in given])
        right = np.array([answer.is_right for answer in given], bool)
        return calibration_interval(confidence, right, self.reliability)

    def examples(self, number: int = 10) -> tuple[list[Answer], list[Answer]]:
        """Return right and wrong answers at even distances, from the surest to the least sure."""
        ordered = sorted(self.answers[FUSED], key=lambda a: (-a.order, a.english))
        chosen = []
        for is_right in (True, False):
            some = [a for a in ordered if a.text and a.is_right == is_right]
            step = max(1.0, len(some) / number)
            chosen.append([some[int(i * step)] for i in range(min(number, len(some)))])
        return chosen[0], chosen[1]


def coverage_at(score: Array, right: Array, precision: float) -> float:
    """Return the largest share of answers at or above a score of which `precision` are right.

    score: (N,), right: (N,) bool. Answers of one score are taken together or not at all.
    """
    if not len(score):
        return 0.0
    return float(coverages_at(score, right, precision, np.ones((1, len(score))))[0])


def coverages_at(score: Array, right: Array, precision: float, weights: Array) -> Array:
    """Return (b,) the same where answer i occurs weights[:, i] times. weights: (b, N)."""
    order = np.argsort(-score, kind="stable")
    number = np.cumsum(weights[:, order], axis=1)  # answers so far, the surest first
    num_right = np.cumsum(weights[:, order] * right[order], axis=1)
    score = score[order]
    is_last = np.append(score[1:] != score[:-1], True)  # -inf, of no answer, equals itself
    enough = is_last & (num_right >= precision * number)
    return np.asarray(np.where(enough, number, 0).max(axis=1) / number[:, -1])


@dataclass(frozen=True)
class LabelResult:
    """Trials of several languages."""

    trials: list[LabelTrial]
    failed: dict[str, str] = field(default_factory=dict)  # why a language could not be tried

    def tables(self) -> list[ResultTable]:
        """Return the figures as tables, a column for each language."""
        exact = ResultTable("exact match")
        error = ResultTable("character error rate")
        coverage = ResultTable(f"coverage at {PRECISION:.0%} precision")
        calibration = ResultTable("calibration error")
        for trial in self.trials:
            for row, answers in trial.answers.items():
                exact.add_questions(row, trial.lang, trial.right(row))
                number, lang = len(answers), trial.lang
                value, interval = trial.character_error(row), trial.character_interval(row)
                error.add(row, lang, value, number, interval)
                value, interval = trial.coverage(row), trial.coverage_interval(row)
                coverage.add(row, lang, value, number, interval)
            ece, number = trial.reliability.ece, trial.reliability.number
            calibration.add(FUSED, trial.lang, ece, number, trial.calibration())
        exact.notes.extend(f"{lang}: {why}" for lang, why in self.failed.items())
        return [exact, error, coverage, calibration]


def evaluate_labels(
    kb: KB,
    langs: Sequence[str],
    config: LabelConfig | None = None,
    *,
    split: str = "test",
    pivot: str = "en",
    progress: Progress | None = None,
) -> LabelResult:
    """Withhold a fifth of the names of each language and propose them.

    pivot: the language of the baselines' source names.
    """
    if split not in _HIDDEN:
        raise PrixError(f"--split {split}: expected test or valid.")
    unknown = sorted({*langs, pivot} - set(kb.languages))
    if unknown:
        raise PrixError(
            f"{kb.folder} has no {', '.join(unknown)}; it has {', '.join(kb.languages)}."
        )
    trials: list[LabelTrial] = []
    failed = {}
    for done, lang in enumerate(langs, start=1):
        try:
            trials.append(_try_language(kb, lang, config or LabelConfig(), split, pivot))
        except PrixError as error:
            failed[lang] = str(error)
        if progress is not None:
            progress("labels", done, len(langs))
    return LabelResult(trials, failed)


def _try_language(kb: KB, lang: str, config: LabelConfig, split: str, pivot: str) -> LabelTrial:
    hidden, part = _HIDDEN[split]
    proposer = LabelProposer(kb, lang, config, hidden)
    rules = Rules(proposer.lexicon_names())
    own = dict(kb.query(_OWN, {"lang": lang, "part": part}).fetchall())
    answers: dict[str, list[Answer]] = {row: [] for row in (TAKEN, RULES, ENGLISH, FUSED)}
    for batch in proposer.unnamed():
        things = [thing._replace(own=own[thing.concept]) for thing in batch if thing.concept in own]
        if things:
            for row, some in _answers(proposer, things, rules, pivot).items():
                answers[row] += some
    fused = answers[FUSED]
    if not fused:
        raise PrixError("none of its names could be withheld.")
    confidence = np.array([answer.score for answer in fused if answer.text])
    right = np.array([answer.is_right for answer in fused if answer.text], bool)
    return LabelTrial(lang, answers, reliability(confidence, right), proposer.sources)


def _answers(
    proposer: LabelProposer, things: Sequence[Thing], rules: "Rules", pivot: str
) -> dict[str, list[Answer]]:
    """Return the answers of every row for some things."""
    best = proposer.best(things)
    rows: dict[str, list[Answer]] = {row: [] for row in (TAKEN, RULES, ENGLISH, FUSED)}
    for thing, (text, confidence, order) in zip(things, best, strict=True):
        english = next((name for name, langs, _ in thing.names if pivot in langs), "")
        shown, own = english or thing.names[0][0], thing.own or ""
        rows[TAKEN].append(Answer(shown, own, english, 1.0, 1.0))
        rows[RULES].append(Answer(shown, own, rules.write(english), 1.0, 1.0))
        written, probability = proposer.write_one(english, pivot)
        rows[ENGLISH].append(Answer(shown, own, written, probability, probability))
        rows[FUSED].append(Answer(shown, own, text, confidence, order))
    return rows


class Rules:
    """A romanisation turned round: the letter that stands for each run of Latin letters."""

    def __init__(self, names: Iterable[str]) -> None:
        """Read the letters of a language's names; the most frequent one of a reading counts."""
        counts = Counter(letter for name in names for letter in name.lower())
        letters = sorted(counts, key=lambda letter: (-counts[letter], letter))
        self._letter: dict[str, str] = {}
        for letter, reading in zip(letters, romanise(letters), strict=True):
            if reading and not letter.isascii():
                self._letter.setdefault(reading, letter)
        self._longest = max(map(len, self._letter), default=0)

    def write(self, name: str) -> str:
        """Write a name, the longest match first; letters without a match are kept."""
        reading = romanise([name])[0] if name else ""
        text, place = "", 0
        while place < len(reading):
            for size in range(min(self._longest, len(reading) - place), 0, -1):
                letter = self._letter.get(reading[place : place + size])
                if letter is not None:
                    break
            else:
                letter, size = reading[place], 1
            is_start = place == 0 or not reading[place - 1].isalnum()
            text += letter.upper() if is_start and len(letter.upper()) == len(letter) else letter
            place += size
        return text
