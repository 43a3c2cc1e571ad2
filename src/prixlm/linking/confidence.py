"""From features of candidate pairs to a calibrated confidence, with "none of them" as an answer.

    confidence = Confidence.grow(features, right, fold)      # trees, one set without each fold
    share = compete(confidence.score(features), left, right)
    confidence.calibrate(share_of_cases, is_right, is_first)
    confidence.probability(share, left)

Gradient-boosted trees give each pair log-odds. Pairs that exclude each other compete: the odds of
a pair are divided by those of all its rivals and of "none of them", which has odds of 1. Isotonic
regression turns the share into a probability. First candidates and others are calibrated apart:
that no rival is better says something that the share alone does not.

Dimension letters: P candidate pairs, K features.
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.linking.evidence import gap_to_others
from prixlm.rankers.calibrated import (
    CalibratedTrees,
    TreeConfig,
    check_rising,
    check_trees,
    fit_probability,
    read_fitted,
    write_fitted,
)
from prixlm.types import Array

logger = logging.getLogger(__name__)
TREES = TreeConfig(iterations=150, leaves=16, l2=1.0)
"""Nearly all pairs are certainly wrong, so leaves have hardly any curvature. Without `l2`, one odd
pair among them makes a step of thousands, and the trees of a fold say nothing any more."""


@dataclass
class Confidence:
    """Trees without each fold of the cases, and the calibration of their shares."""

    models: list[CalibratedTrees]
    calibrations: tuple[Any, Any] | None = field(default=None)  # of first candidates, of others

    @classmethod
    def grow(
        cls, features: Array, right: Array, fold: Array, config: TreeConfig = TREES
    ) -> "Confidence":
        """Grow trees. features: (P, K). right: (P,) bool. fold: (P,) of each case, from 0."""
        folds = range(int(fold.max()) + 1)
        return cls(
            [
                CalibratedTrees.fit(
                    features, right, grow=fold != f, calibrate=fold == f, config=config
                )
                for f in folds
            ]
        )

    def save(self, path: Path, key: str) -> None:
        """Write what is needed to ask, as one skops file. key: what it was fitted on."""
        trees = [model.trees for model in self.models]
        fitted = {"trees": trees, "calibrations": list(self.calibrations or ()), "key": key}
        write_fitted(path, fitted)

    @classmethod
    def load(cls, path: Path, key: str) -> "Confidence | None":
        """Read what `save` wrote; None if there is none of this key, or it cannot be read."""
        try:
            saved = read_fitted(path)
            if saved["key"] != key:
                return None
            first, others = saved["calibrations"]
            for trees in saved["trees"]:
                check_trees(trees)
            for calibration in (first, others):
                check_rising(calibration)
            # Shares are calibrated, not the scores of single pairs: trees are asked for scores.
            return cls([CalibratedTrees(trees, None) for trees in saved["trees"]], (first, others))
        except Exception as error:  # a damaged file fails in skops in many ways: fit again
            if path.exists():
                logger.info("%s cannot be read (%s): fitted again", path, type(error).__name__)
            return None

    def score(self, features: Array, fold: int | None = None) -> Array:
        """Return the log-odds of pairs, (P,): by the trees without a fold, or the mean of all."""
        models = self.models if fold is None else [self.models[fold]]
        return np.asarray(np.mean([model.score(features) for model in models], axis=0))

    def calibrate(self, share: Array, right: Array, is_first: Array) -> None:
        """Fit the probability on shares of pairs that the trees behind them have not seen."""
        others = ~is_first
        if not right[others].any():  # nothing to learn from them alone
            others = np.ones(len(right), bool)
        self.calibrations = (
            fit_probability(share[is_first], right[is_first]),
            fit_probability(share[others], right[others]),
        )

    def probability(self, share: Array, left: Array) -> Array:
        """Return the probability that each pair is right: (P,)."""
        assert self.calibrations is not None, "calibrate first"
        if not len(share):
            return np.zeros(0)
        first, others = (np.asarray(fitted.predict(share)) for fitted in self.calibrations)
        is_first = best_of_each(share, left)
        first, others = np.where(is_first, first, 0.0), np.where(is_first, 0.0, others)
        # A further candidate is never more certain than the first one.
        most = np.zeros(int(left.max()) + 1)
        np.maximum.at(most, left, first)
        others = np.minimum(others, most[left])
        # The two calibrations do not know of each other. One answer at most is right, so together
        # the candidates have a probability of 1 at most: the first keeps its own.
        total, rest = np.bincount(left, first), np.bincount(left, others)
        room = np.maximum(0.0, 1 - total)
        shrink = np.minimum(1.0, room / np.where(rest > 0, rest, 1.0))
        return np.asarray(first / np.maximum(1.0, total)[left] + others * shrink[left])


def compete(score: Array, left: Array, right: Array | None) -> Array:
    """Return the share of each pair in the odds of all pairs it competes with: (P,).

    score: log-odds. right: None if a candidate may be the counterpart of several entities. "None
    of them" has odds of 1.
    """
    odds = np.exp(np.clip(score, -30, 30))
    rivals = np.bincount(left, odds)[left]
    if right is not None:
        rivals = rivals + np.bincount(right, odds)[right] - odds
    return np.asarray(odds / (1 + rivals))


def best_of_each(share: Array, left: Array) -> Array:
    """Return (P,) whether a pair is the best of its entity; all of several equal ones are."""
    return np.asarray(~(gap_to_others(share, left) < 0))
