"""Figures of ranks, worked by hand."""

import math

import numpy as np
import pytest

from prixlm.metrics import figures, mean_figures


def test_figures_are_those_worked_by_hand() -> None:
    found = figures(np.array([1, 2, 3.5, 10, 20, np.inf]))
    assert found.number == 6
    assert (found.hits_1, found.hits_3, found.hits_10) == pytest.approx((1 / 6, 2 / 6, 4 / 6))
    assert found.mrr == pytest.approx((1 + 1 / 2 + 1 / 3.5 + 1 / 10 + 1 / 20) / 6)
    assert found.slack == pytest.approx(1 / 6 / 1001)


def test_a_rank_beyond_the_limit_counts_as_nothing() -> None:
    assert figures(np.array([1000.0, 1001.0])) == figures(np.array([1000.0, np.inf]))
    assert figures(np.array([11.0]), beyond=10).mrr == 0


def test_no_facts_have_no_figures() -> None:
    assert figures(np.zeros(0)).number == 0 and math.isnan(figures(np.zeros(0)).mrr)


def test_the_mean_is_over_languages_not_over_facts() -> None:
    mean = mean_figures([figures(np.array([1.0])), figures(np.array([2.0, 2.0, 2.0]))])
    assert mean.number == 4 and mean.mrr == pytest.approx(0.75)
    assert mean.hits_1 == pytest.approx(0.5)
