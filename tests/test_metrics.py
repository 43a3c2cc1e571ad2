"""Figures of ranks, worked by hand."""

import math

import numpy as np
import pytest

from prixlm import metrics
from prixlm.metrics import (
    Interval,
    at_levels,
    auroc_interval,
    average_precision,
    bootstrap,
    bootstrap_mean,
    bootstrap_means,
    bootstrap_ratio,
    bootstrap_ratios,
    calibration_interval,
    draws,
    figures,
    paired_difference,
    reliability,
)


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


def slow_bootstrap(values: list[float], seed: int = 0) -> tuple[float, float]:
    """Draw as many questions as there are, one resample after another, and sort the means."""
    generator = np.random.default_rng(seed)
    means = []
    for _ in range(1000):
        drawn = [values[i] for i in generator.integers(0, len(values), len(values))]
        means.append(math.fsum(drawn) / len(drawn))
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@pytest.mark.parametrize("number", [1, 7, 300])
def test_a_bootstrap_equals_a_loop_over_the_resamples(number: int) -> None:
    values = np.random.default_rng(number).random(number)
    assert bootstrap_mean(values, seed=5) == pytest.approx(slow_bootstrap(values.tolist(), 5))
    both = bootstrap_means(np.stack([values, values**2], axis=1), seed=5)
    assert both[1] == pytest.approx(slow_bootstrap((values**2).tolist(), 5))


def test_draws_do_not_depend_on_blocks_or_on_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(draws(41, seed=3)))
    assert whole.shape == (1000, 41) and (whole.sum(axis=1) == 41).all()
    monkeypatch.setattr(metrics, "_CACHED", 0)
    monkeypatch.setattr(metrics, "_BLOCK", 41 * 7)
    parts = list(draws(41, seed=3))
    assert len(parts) == 143 and (np.concatenate(parts) == whole).all()


def test_an_interval_of_a_mean_covers_the_truth_as_often_as_it_says() -> None:
    generator = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        low, high = bootstrap_mean(generator.random(200) < 0.3)
        covered += low <= 0.3 <= high
    assert 0.92 <= covered / 400 <= 0.98


def test_the_interval_of_a_ratio_counts_both_sums() -> None:
    generator = np.random.default_rng(1)
    below = (generator.random(100) < 0.4).astype(float)
    above = below * (generator.random(100) < 0.8)
    found = bootstrap_ratio(above, below)
    drawn = np.concatenate(list(draws(100)))
    shares = [row @ above / (row @ below) for row in drawn]
    assert found == pytest.approx(tuple(np.percentile(shares, [2.5, 97.5])))
    assert np.isnan(bootstrap_ratio(np.zeros(3), np.zeros(3))).all()
    assert np.isnan(bootstrap(0, lambda weights: weights[:, 0])).all()


def test_figures_have_intervals_that_hold_them() -> None:
    ranks = np.random.default_rng(0).integers(1, 40, 500).astype(float)
    found = figures(ranks)
    assert list(found.intervals) == ["hits_1", "hits_3", "hits_10", "mrr"]
    for name, (low, high) in found.intervals.items():
        assert low < getattr(found, name) < high
    assert found.intervals["mrr"] == pytest.approx(slow_bootstrap((1 / ranks).tolist()))
    assert Interval(0.25, 0.75).half_width == 0.25


def test_rows_of_the_same_questions_differ_although_their_intervals_overlap() -> None:
    generator = np.random.default_rng(0)
    hard = generator.random(300)
    ours, theirs = hard + 0.02 + 0.01 * generator.normal(size=300), hard
    low, high = bootstrap_mean(ours), bootstrap_mean(theirs)
    assert low.low < high.high, "they overlap"
    gap = paired_difference(ours, theirs)
    assert gap.is_one and gap.interval.low < gap.value < gap.interval.high
    assert gap.value == pytest.approx(float((ours - theirs).mean()))
    assert not paired_difference(theirs, generator.permutation(theirs)).is_one


def test_the_interval_of_a_calibration_error_holds_a_real_error() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.random(2000)
    right = generator.random(2000) < np.clip(confidence - 0.1, 0, 1)
    found = reliability(confidence, right)
    low, high = calibration_interval(confidence, right, found)
    assert 0.05 < low < found.ece < high < 0.15
    perfect = generator.random(2000) < confidence
    low, _ = calibration_interval(confidence, perfect, reliability(confidence, perfect))
    assert low < 0.01
    assert np.isnan(
        calibration_interval(confidence[:3], right[:3], reliability([0.5] * 3, [1] * 3))[0]
    )


def test_ratios_of_several_columns_are_those_of_one_at_a_time() -> None:
    generator = np.random.default_rng(0)
    below = generator.integers(0, 4, (200, 2))
    above = np.minimum(below, generator.integers(0, 4, (200, 2)))
    found = bootstrap_ratios(above, below)
    assert found == [bootstrap_ratio(above[:, one], below[:, one]) for one in (0, 1)]
    nothing = bootstrap_ratios(np.zeros((5, 1)), np.zeros((5, 1)))
    assert math.isnan(nothing[0].low)
    assert math.isnan(bootstrap_ratios(np.zeros((0, 1)), np.zeros((0, 1)))[0].low)


def test_the_interval_of_a_separation_is_that_of_resamples_drawn_by_hand() -> None:
    generator = np.random.default_rng(0)
    # With ties; in order, as a draw counts for the answers by their confidence.
    confidence = np.sort(generator.integers(0, 8, 60)) / 8
    right = generator.random(60) < confidence
    drawn = [np.repeat(np.arange(60), row.astype(int)) for weights in draws(60) for row in weights]
    values = [reliability(confidence[rows], right[rows]).auroc for rows in drawn]
    low, high = np.nanpercentile(values, [2.5, 97.5])
    assert auroc_interval(confidence, right) == pytest.approx((low, high))
    assert math.isnan(auroc_interval(confidence, np.ones(60, bool)).low)
