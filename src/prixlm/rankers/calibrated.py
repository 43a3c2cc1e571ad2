"""Scores to probabilities: isotonic regression that is never quite sure.

probability = fit_probability(score, right)
probability.predict(score)
"""

from typing import Any

import numpy as np

from prixlm.types import Array


def fit_probability(score: Array, right: Array) -> Any:
    """A rising function (scikit-learn's IsotonicRegression) from scores to the share that is right.

    It is made of steps. A step of n cases counts as n + 1, the further one half right, so that no
    probability is 0 or 1: a hundred cases without an error are no proof.
    """
    from sklearn.isotonic import IsotonicRegression

    def fit(target: Array) -> Any:
        return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(score, target)

    steps, place, number = np.unique(
        fit(np.asarray(right, float)).predict(score), return_inverse=True, return_counts=True
    )
    return fit(((steps * number + 0.5) / (number + 1))[place])
