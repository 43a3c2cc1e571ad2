"""The probability that a question has an answer at all.

    answerable = Answerability.fit(kb, ["et"])
    answerable.predict(gaps)                     # (Q,) between 0 and 1

A question that another language answers has an answer. A guess (`usual` in `gaps`) may have none:
an island has no neighbours, although similar entities do. The probability is learnt where the truth
is known: ask the questions that would be asked if only train were known, and count those that the
valid facts answer. A logistic regression weighs the share of similar entities that have the
relation, how often guesses of that relation were answered, and whether similar means named alike.
A larger share never makes an answer less likely: a question outside the range of shares that were
learnt from would else be judged the wrong way round.

So it is the probability for a KB that lacks as large a share of its facts as was held out for
validation. The share that a KB lacks in fact cannot be read off the KB.

That a question has an answer does not mean that this language's KB would state it: a language of
DBpedia has a few of the facts that all others have. `StatedHere` learns how often, from the same
valid facts.

Dimension letters: Q questions, N cases to learn from, R relations.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from prixlm.arrays import hash_share, pair_keys
from prixlm.config import checked
from prixlm.enrichment.gaps import USUAL, GapConfig, GapFinder, Gaps
from prixlm.files import read_json, write_atomically
from prixlm.kb.store import KB
from prixlm.types import Array

_PRIOR_QUESTIONS = 10.0
"""Pseudo-count: questions with the mean rate that are added to those of every relation."""
_MAX_ENTITIES = 200_000
"""Maximum number of entities sampled per language, approximately."""
# Samples of concepts that must differ drop different bits of their hash.
_SAMPLE_SHIFT, _HALF_SHIFT = 8, 16


@dataclass(frozen=True)
class _Cases:
    """Guessed questions whose answer is known: (N,) each.

    `answered` and `unanswered` are weights between 0 and 1: how much a question counts as one with
    an answer, and as one without. Both are 0 for a question that must not count at all.
    """

    concept: Array  # of the subject
    relation: Array
    share: Array  # of similar entities that have the relation
    by_name: Array  # whether entities are similar by their names
    answered: Array
    unanswered: Array

    def select(self, rows: Array) -> "_Cases":
        """Return the cases under a mask."""
        return _Cases(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def concatenate(cls, parts: Sequence["_Cases"]) -> "_Cases":
        """Join cases; without any, the columns are empty."""
        ids, weights = np.zeros(0, np.int64), np.zeros(0)
        parts = [cls(ids, ids, weights, ids.astype(bool), weights, weights), *parts]
        columns = ([getattr(part, field.name) for part in parts] for field in fields(cls))
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True)
class Answerability:
    """A logistic regression from a guessed question to the probability of an answer."""

    rate: Array  # (R,) share of the questions of a relation that have an answer
    share_weight: float  # of the log-odds of the share of similar entities
    rate_weight: float  # of the log-odds of the rate
    intercept: float
    name_weight: float = 0.0  # of a subject that is compared by its names

    @classmethod
    def fit(cls, kb: KB, langs: Sequence[str], config: GapConfig | None = None) -> "Answerability":
        """Learn from the held-out facts of the known splits.

        Without any such fact, no guess has an answer.
        """
        config = config or GapConfig()
        finder = GapFinder(kb, replace(config, known=("train",), relations=None))
        # Facts of other splits (test) are known to the run but must not be learnt from: weight 0.
        weights = {"valid": 1.0, "known": _share_drawn_for_valid(kb)}
        answers = {split: weights.get(split, 0.0) for split in config.known if split != "train"}
        cases = [_read_cases(finder, lang, answers) for lang in langs]
        return cls._learn(_Cases.concatenate(cases), kb.num_relations)

    @classmethod
    def _learn(cls, cases: _Cases, num_relations: int) -> "Answerability":
        from sklearn.linear_model import LogisticRegression

        if not cases.answered.any():
            return cls(np.zeros(num_relations), 0.0, 1.0, 0.0)
        rate = _rates(cases, num_relations)
        if not cases.unanswered.any():
            return cls(rate, 0.0, 1.0, 0.0)
        # A rate that counts the question itself would give its answer away. So concepts are cut
        # into halves, and the rate of a question is counted in the half that it is not in.
        is_first = hash_share(cases.concept, 2, _HALF_SHIFT)
        first = _rates(cases.select(is_first), num_relations)
        second = _rates(cases.select(~is_first), num_relations)
        other_rate = np.where(is_first, second[cases.relation], first[cases.relation])
        features = _features(cases.share, other_rate, cases.by_name)
        for used in ([0, 1, 2], [1, 2]):  # the share is left out if its weight would be negative
            # Every case twice, as answered and as unanswered, with the weight of each.
            fitted = LogisticRegression().fit(
                np.concatenate([features, features])[:, used],
                np.repeat([True, False], len(features)),
                sample_weight=np.concatenate([cases.answered, cases.unanswered]),
            )
            weights = np.zeros(3)
            weights[used] = fitted.coef_[0]
            if weights[0] >= 0:
                break
        return cls(rate, weights[0], weights[1], float(fitted.intercept_[0]), weights[2])

    def predict(self, gaps: Gaps) -> Array:
        """Return the probability that each question has an answer: (Q,).

        It is 1 where another language states one, and 0 where no guess was ever answered.
        """
        probability = np.ones(len(gaps.kind))
        is_guess = gaps.kind == USUAL
        rate = self.rate[gaps.queries.relation[is_guess]]
        weights = np.array([self.share_weight, self.rate_weight, self.name_weight])
        features = _features(gaps.expected[is_guess], rate, gaps.by_name[is_guess])
        log_odds = features @ weights + self.intercept
        probability[is_guess] = np.where(rate > 0, 1 / (1 + np.exp(-log_odds)), 0.0)
        return probability

    def save(self, path: Path) -> None:
        """Write the regression as JSON."""
        weights = [self.share_weight, self.rate_weight, self.intercept, self.name_weight]
        write_atomically(path, json.dumps({"rate": self.rate.tolist(), "weights": weights}) + "\n")

    @classmethod
    def load(cls, path: Path) -> "Answerability":
        """Read what `save` wrote; ValueError if it is something else."""
        values = checked(read_json(path), {"rate": list[float], "weights": list[float]})
        rate, weights = np.array(values["rate"], float), np.array(values["weights"], float)
        if len(weights) not in (3, 4):  # older versions write 3
            raise ValueError(f"it has {len(weights)} weights")
        if not ((rate >= 0) & (rate <= 1)).all() or not np.isfinite(weights).all():
            raise ValueError("a rate or a weight is out of range")
        return cls(rate, *weights.tolist())


@dataclass(frozen=True)
class StatedHere:
    """How often a language states what another one answers, by its relation.

    A confidence times this share is the probability that the language's own KB states the fact, and
    not only that the fact is true.
    """

    share: dict[str, Array]  # by language: (R,)

    @classmethod
    def fit(cls, kb: KB, langs: Sequence[str]) -> "StatedHere":
        """Ask what would be asked if train alone were known, and count what valid facts answer.

        Shares of relations with few questions are shrunk to that of the language.
        """
        finder = GapFinder(kb, GapConfig(known=("train",)))
        share = {}
        for lang in langs:
            answered = _fact_pairs(kb, lang, "valid")
            # (R,) questions of each relation that another language answers; those answered here.
            asked, here = np.zeros((2, kb.num_relations))
            for gaps in finder.find(lang):
                queries = gaps.queries.select(np.flatnonzero(gaps.kind != USUAL))
                is_here = np.isin(pair_keys(queries.subject, queries.relation), answered)
                asked += np.bincount(queries.relation, minlength=kb.num_relations)
                here += np.bincount(queries.relation, is_here, kb.num_relations)
            mean = (here.sum() + 0.5) / (asked.sum() + 1)
            share[lang] = (here + _PRIOR_QUESTIONS * mean) / (asked + _PRIOR_QUESTIONS)
        return cls(share)


def _share_drawn_for_valid(kb: KB) -> float:
    """Return the share of held-out facts that were drawn for valid, not for test.

    A split moves held-out facts that are too easy to test, such as inverses of train facts, to
    `known`. Each counts as an answer to this extent, as if it were still where it was drawn for.
    """
    split = kb.manifest.split or {}
    valid, test = float(split.get("valid") or 0.0), float(split.get("test") or 0.0)
    return valid / (valid + test) if valid + test else 1.0


def _read_cases(finder: GapFinder, lang: str, answers: dict[str, float]) -> _Cases:
    """Return the guesses of a language and how much each counts as answered or not.

    answers: splits whose facts answer a question, and the weight of such an answer. A question that
    a split answers never counts as unanswered, even if the weight is 0: it would not be asked.
    """
    kb = finder.kb
    every = max(1, len(kb.entity_range(lang)) // _MAX_ENTITIES)
    keys = {split: _fact_pairs(kb, lang, split) for split in answers}
    parts = []
    for gaps in finder.find(lang):
        concept = finder.concept[gaps.queries.subject]
        rows = np.flatnonzero((gaps.kind == USUAL) & hash_share(concept, every, _SAMPLE_SHIFT))
        subject, relation = gaps.queries.subject[rows], gaps.queries.relation[rows]
        answered, unanswered = np.zeros(len(rows)), np.ones(len(rows))
        for split, weight in answers.items():
            is_answered = np.isin(pair_keys(subject, relation), keys[split])
            answered = np.maximum(answered, weight * is_answered)
            unanswered[is_answered] = 0.0
        share, by_name = gaps.expected[rows], gaps.by_name[rows]
        parts.append(_Cases(concept[rows], relation, share, by_name, answered, unanswered))
    return _Cases.concatenate(parts)


def _fact_pairs(kb: KB, lang: str, split: str) -> Array:
    """Return packed (subject, relation) keys of the facts of a split in one language."""
    rows = kb.query(
        "SELECT DISTINCT subject, relation FROM triples WHERE lang = $lang AND split = $split",
        {"lang": lang, "split": split},
    ).to_arrow_table()
    return pair_keys(rows["subject"].to_numpy(), rows["relation"].to_numpy())


def _rates(cases: _Cases, num_relations: int) -> Array:
    """Return the share of each relation's cases that are answered, shrunk to the mean: (R,)."""
    weight = cases.answered + cases.unanswered
    mean = (cases.answered.sum() + 0.5) / (weight.sum() + 1)
    answered = np.bincount(cases.relation, cases.answered, minlength=num_relations)
    total = np.bincount(cases.relation, weight, minlength=num_relations)
    return np.asarray((answered + _PRIOR_QUESTIONS * mean) / (total + _PRIOR_QUESTIONS))


def _features(share: Array, rate: Array, by_name: Array) -> Array:
    """Return the log-odds of share and rate, and whether names were compared: (Q, 3)."""
    both = np.clip(np.stack([share, rate], axis=1), 1e-3, 1 - 1e-3)
    return np.column_stack([np.log(both / (1 - both)), by_name])
