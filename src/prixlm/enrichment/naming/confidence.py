"""How probable each candidate name is.

    confidence = NameConfidence.fit(concept, features, is_right, folds)
    judged = confidence.judge(candidates)
    judged.best(3)          # rows of the three best names of each thing

Trees learn from named things which candidate is the thing's own name. Whether the first candidate
of a thing is right also depends on those behind it, so a second model judges first names alone.
Isotonic regression makes a probability of its score. Where every name is right, as in a language
that takes all names over, there is nothing to tell apart, and the number of names is the evidence.

Dimension letters: N candidates, a few of each thing; T things; F features.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from prixlm.arrays import rank_in_group
from prixlm.enrichment.naming.candidates import FEATURES, Candidates
from prixlm.errors import PrixError
from prixlm.metrics import Reliability, reliability
from prixlm.rankers.calibrated import (
    CalibratedTrees,
    TreeConfig,
    cross_scores,
    fit_probability,
)
from prixlm.types import Array

NUM_FOLDS = 4
"""Folds of the named things: each is judged by what was learnt from the others."""
_TREES = TreeConfig(smooth=True)
"""A language may have few hundred linked names: trees alone order the surest ones badly."""
_FIRST = TreeConfig(forest=True, smallest=5, smooth=True, inverse_penalty=0.03)
"""Of the first name of each thing: one row for each, few for boosted trees."""
_SHARE = FEATURES.index("rate_share")
_STEP = 1e-6
"""Least difference of two confidences in a table."""
_NO_OTHER = -10.0
"""Score of a second name where there is none."""


@dataclass(frozen=True)
class Judged:
    """Candidates of some things with their confidence."""

    candidates: Candidates
    confidence: Array  # (N,)
    score: Array  # (N,) without steps; comparable among first names, and among the others
    first: Array  # (T,) the row of each thing's first name

    def best(self, number: int) -> Array:
        """Return the rows of the most confident candidates of each thing, the first name first."""
        # Others may share a step of the confidence, or be 0 as the first one is.
        order = np.where(np.isin(np.arange(len(self.score)), self.first), np.inf, self.confidence)
        return _best_rows(self.candidates.concept, order, number, self.score)


@dataclass(frozen=True)
class NameConfidence:
    """What was learnt about which candidates are right."""

    model: "CalibratedTrees | _Shares"  # of all candidates
    first: CalibratedTrees | None  # of first names; None: there was nothing to tell them by
    first_probability: Any  # `predict` turns the score of first names into a probability
    reliability: Reliability  # of first names of one fold, by a fit without it

    @classmethod
    def fit(
        cls, concept: Array, features: Array, is_right: Array, folds: Array
    ) -> "NameConfidence":
        """Learn from candidates whose thing has a name.

        concept: (N,). features: (N, F). is_right: (N,) bool. folds: (N,) that of the thing; the
        features of a fold were made by what has not read its names.
        """
        if not _has_both(is_right, folds):
            return cls._by_shares(concept, features, is_right, folds)
        score = cross_scores(lambda _: features, is_right, folds, _TREES)
        model = CalibratedTrees.cross_fit(lambda _: features, is_right, folds, _TREES, score)
        rows = _best_rows(concept, score, 1)
        beside = _beside(features, concept, score, rows)
        is_right, folds, score = is_right[rows], folds[rows], score[rows]
        first: CalibratedTrees | None = None
        if _has_both(is_right, folds):
            score = cross_scores(lambda _: beside, is_right, folds, _FIRST)
            first = CalibratedTrees.cross_fit(lambda _: beside, is_right, folds, _FIRST, score)
        held = folds == NUM_FOLDS - 1
        tried = fit_probability(score[~held], is_right[~held])
        return cls(
            model,
            first,
            fit_probability(score, is_right),
            reliability(tried.predict(score[held]), is_right[held]),
        )

    @classmethod
    def _by_shares(
        cls, concept: Array, features: Array, is_right: Array, folds: Array
    ) -> "NameConfidence":
        """Learn how many names are right where nothing tells right from wrong: all are right."""
        if not len(is_right) or is_right.mean() <= 0.5:
            raise PrixError(
                f"almost none of its linked names ({is_right.sum():,} of "
                f"{len(np.unique(concept)):,}) can be told from the names in other languages, so "
                "there is nothing to learn from about how it names things."
            )
        score = features[:, _SHARE]
        rows = _best_rows(concept, score, 1)
        is_right, folds, score = is_right[rows], folds[rows], score[rows]
        held = folds == NUM_FOLDS - 1
        tried = _Shares.fit(is_right[~held]).predict(score[held])
        shares = _Shares.fit(is_right)
        return cls(shares, None, shares, reliability(tried, is_right[held]))

    def judge(self, candidates: Candidates) -> Judged:
        """Return candidates with the confidence of each."""
        score = self.model.score(candidates.features)
        confidence = self.model.calibrate(score)
        first = _best_rows(candidates.concept, score, 1)
        if len(first):
            beside = _beside(candidates.features, candidates.concept, score, first)
            score_of_first = score[first] if self.first is None else self.first.score(beside)
            confidence[first] = self.first_probability.predict(score_of_first)
            # A concept has one name: what the first one has is not left for the others.
            _, group = np.unique(candidates.concept, return_inverse=True)
            of_first = confidence[first][group]  # `first` has one row for each concept, in order
            is_other = np.ones(len(score), bool)
            is_other[first] = False
            # Less than the first one, also in tables: with equal ones, the order would be lost.
            most = np.maximum(0, np.minimum(of_first, 1 - of_first) - _STEP)
            confidence[is_other] = np.minimum(confidence, most)[is_other]
            score[first] = score_of_first
        return Judged(candidates, confidence, score, first)


@dataclass(frozen=True)
class _Shares:
    """One confidence for every thing, which its names share by how often the language uses them."""

    confidence: float

    @classmethod
    def fit(cls, is_right: Array) -> "_Shares":
        # One more name that is half right: many names without an error are not a proof.
        return cls(float((is_right.sum() + 0.5) / (len(is_right) + 1)))

    def score(self, features: Array) -> Array:
        """Return the share of each candidate: (N,)."""
        return features[:, _SHARE].copy()

    def calibrate(self, score: Array) -> Array:
        """Return the confidence of each share: (N,)."""
        return self.confidence * score

    predict = calibrate


def _has_both(is_right: Array, folds: Array) -> bool:
    """Return whether right and wrong rows are left without each fold."""
    return bool(len(is_right)) and all(
        is_right[folds != number].any() and not is_right[folds != number].all()
        for number in range(NUM_FOLDS)
    )


def _beside(features: Array, concept: Array, score: Array, first: Array) -> Array:
    """Return what tells whether first names are right: (T, 4 + F).

    That is their score, by how much it leads the second and the third name and all names of the
    thing together, and their own features. first: (T,) the row of the first name of each thing.
    """
    order = np.lexsort((-score, concept))
    rank = rank_in_group(concept[order])
    _, group = np.unique(concept, return_inverse=True)
    columns = [score[first]]
    for place in (1, 2):
        other = np.full(len(first), _NO_OTHER)
        rows = order[rank == place]
        other[group[rows]] = score[rows]
        columns.append(score[first] - other)
    total = np.bincount(group, np.exp(np.clip(score, -20, 20)))
    columns.append(score[first] - np.log(total))
    return np.column_stack([*columns, features[first]])


def _best_rows(concept: Array, confidence: Array, number: int, score: Array | None = None) -> Array:
    """Return the rows of the most confident candidates of each thing.

    score: (N,) orders those of one confidence; by default the first row comes first.
    """
    order = np.lexsort((-confidence if score is None else -score, -confidence, concept))
    return np.asarray(order[rank_in_group(concept[order]) < number])
