"""Figures of ranks, worked by hand."""

import math

import numpy as np
import pytest

from prixlm.metrics import at_levels, average_precision, figures, reliability


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


def test_reliability_equals_a_hand_worked_example() -> None:
    confidence = np.array([0.9, 0.9, 0.8, 0.2, 0.1, 0.1])
    right = np.array([True, True, False, False, True, False])
    found = reliability(confidence, right, least=3)
    assert [size for *_, size in found.bins] == [3, 3]
    assert found.bins[0][:2] == pytest.approx((0.4 / 3, 1 / 3))
    assert found.bins[1][:2] == pytest.approx((2.6 / 3, 2 / 3))
    assert found.ece == pytest.approx((abs(0.4 / 3 - 1 / 3) + abs(2.6 / 3 - 2 / 3)) / 2)
    assert found.brier == pytest.approx((0.01 + 0.01 + 0.64 + 0.04 + 0.81 + 0.01) / 6)
    # Of nine pairs of a right and a wrong one: 0.9 beats all three, twice; 0.1 ties once.
    assert found.auroc == pytest.approx(6.5 / 9)
    assert reliability(confidence[:0], right[:0]).number == 0


def test_equal_confidences_are_never_cut() -> None:
    found = reliability(np.full(1000, 0.5), np.arange(1000) < 500)
    assert found.ece == 0 and found.bins == [(0.5, 0.5, 1000)]
    steps = np.repeat([0.1, 0.2, 0.9], [400, 30, 570])
    found = reliability(steps, np.zeros(1000, bool))
    assert [size for *_, size in found.bins] == [400, 600], "30 are too few for a bin of their own"
    assert np.isnan(reliability(np.full(3, 0.5), np.ones(3, bool)).ece), "three are too few"


def test_a_calibrated_confidence_has_no_error() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random(20_000)
    found = reliability(confidence, generator.random(20_000) < confidence)
    assert found.ece < 0.015 and len(found.bins) == 10


def test_a_perfect_confidence_is_off_by_as_much_as_chance_says() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random(900)
    drawn = [reliability(confidence, generator.random(900) < confidence) for _ in range(200)]
    assert np.mean([one.ece for one in drawn]) == pytest.approx(drawn[0].noise, rel=0.05)
    assert 0.02 < drawn[0].noise < 0.04
    assert np.isnan(reliability(np.full(3, 0.5), np.ones(3, bool)).noise)


def test_precision_and_recall_at_levels() -> None:
    found = at_levels(np.array([0.96, 0.9, 0.6, 0.3]), np.array([1, 0, 1, 1]), num_held_out=5)
    assert [(one.proposed, one.precision, one.recall) for one in found[:2]] == [
        (3, 2 / 3, 2 / 5),
        (2, 1 / 2, 1 / 5),
    ]
    assert found[2].precision == 1.0
    assert np.isnan(at_levels(np.zeros(2), np.zeros(2), 2)[0].precision)


def test_average_precision_equals_a_hand_worked_example_and_a_librarys() -> None:
    sure, right = np.array([0.9, 0.7, 0.7, 0.2]), np.array([1, 0, 1, 1])
    # One of one, then two of three, then three of four, each with a new one of the five held out.
    assert average_precision(sure, right, 5) == pytest.approx((1 + 2 / 3 + 3 / 4) / 5)
    assert np.isnan(average_precision(sure, right, 0))
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is of the extra `model`")
    generator = np.random.default_rng(0)
    sure, right = generator.integers(0, 20, 300) / 20, generator.random(300) < 0.3
    expected = metrics.average_precision_score(right, sure) * right.sum() / 200
    assert average_precision(sure, right, 200) == pytest.approx(expected)
