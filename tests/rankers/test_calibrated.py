"""Scores to probabilities."""

import numpy as np

from prixlm.metrics import reliability
from prixlm.rankers.calibrated import fit_probability


def test_the_probability_is_the_share_that_is_right() -> None:
    generator = np.random.default_rng(0)
    score = generator.normal(size=20_000)
    right = generator.random(20_000) < 1 / (1 + np.exp(-3 * score))
    fitted = fit_probability(score[:10_000], right[:10_000])
    found = reliability(fitted.predict(score[10_000:]), right[10_000:])
    assert found.ece < 0.02


def test_it_rises_and_is_never_quite_sure() -> None:
    score = np.arange(200.0)
    fitted = fit_probability(score, score >= 100)
    grid = fitted.predict(np.linspace(-50, 250, 500))
    assert (np.diff(grid) >= 0).all()
    np.testing.assert_allclose([grid[0], grid[-1]], [0.5 / 101, 100.5 / 101])
