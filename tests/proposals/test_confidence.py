"""What the marks do to the confidence."""

from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from prixlm.proposals.confidence import (
    Correction,
    correct_confidence,
    corrected_confidence,
    fit_correction,
    log_odds,
)
from prixlm.proposals.marks import ACCEPTED, REJECTED, Marks, NewMark, Replacement, Verdicts
from prixlm.types import Array
from tests.helpers import fact_row, make_proposals


def correct(confidence: Array, marks: dict[int, bool]) -> Array:
    rows = np.array(sorted(marks), np.int64)
    state = np.array([ACCEPTED if marks[row] else REJECTED for row in rows.tolist()], np.int8)
    return correct_confidence(confidence, Verdicts(rows, state, {}, np.ones(len(rows), bool)))


def test_marks_correct_the_confidence_of_all_rows() -> None:
    confidence = np.linspace(0.5, 1, 200)
    marks = {number: number % 10 < 3 for number in range(200)}  # 30 % hold at every level
    corrected = correct(confidence, marks)
    assert corrected.mean() == pytest.approx(0.33, abs=0.06)
    assert (np.diff(corrected) >= 0).all()
    np.testing.assert_array_equal(correct(confidence, {}), confidence)
    assert correct(confidence, {0: False}).mean() > 0.6, "one mark changes little"
    assert correct(confidence, {180: False})[180] > 0.85


@pytest.mark.parametrize(("too_high", "number"), [(0.0, 20), (0.25, 200)])
def test_marks_make_the_confidence_better(too_high: float, number: int) -> None:
    """Marks change a calibrated confidence little, and many repair one that is too high."""
    errors = []
    for seed in range(20):
        generator = np.random.default_rng(seed)
        confidence = np.sort(generator.uniform(0.5, 1, 500))
        probability = np.clip(confidence - too_high, 0, 1)
        marked = generator.permutation(500)[:number]
        marks = {int(n): bool(generator.random() < probability[n]) for n in marked}
        errors.append(np.abs(correct(confidence, marks) - probability).mean())
    assert np.mean(errors) < 0.07


def test_one_rejection_of_a_near_certain_one_does_not_pull_all_others_down() -> None:
    confidence = np.linspace(0.5, 0.999, 1000)
    few = correct(confidence, {999: False, 998: True})
    assert np.abs(few - confidence).max() < 0.06
    many = correct(confidence, dict.fromkeys(range(980, 1000), False))
    assert many[990] < 0.75, "twenty of them are no slips"


def test_accepting_the_obvious_ones_does_not_raise_the_doubtful_ones() -> None:
    confidence = np.array([0.99, 0.95, 0.6])
    assert correct(confidence, {0: True, 1: True}).tolist() == confidence.tolist()
    assert correct(confidence, {0: True, 1: False})[2] < 0.6


@pytest.mark.parametrize("seed", range(8))
def test_the_fit_agrees_with_a_general_minimiser(seed: int) -> None:
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.3, 1, int(generator.integers(1, 400)))
    right = generator.random(len(confidence)) < generator.random()
    right[0] = False
    odds, sign = log_odds(confidence), np.where(right, 1.0, -1.0)

    def loss(parameters: Array) -> float:
        scaled = np.exp(parameters[0]) * odds + parameters[1]
        likelihood = 0.02 + 0.96 / (1 + np.exp(-sign * scaled))  # one mark in 50 is a slip
        return float(-np.log(likelihood).sum() + (parameters**2).sum() / (2 * 0.35**2))

    best = minimize(loss, np.zeros(2), method="BFGS", options={"gtol": 1e-7})
    fitted = fit_correction(confidence, right)
    assert (np.log(fitted.scale), fitted.shift) == pytest.approx(tuple(best.x), abs=1e-4)
    assert loss(np.array([np.log(fitted.scale), fitted.shift])) <= best.fun + 1e-9


def test_extreme_confidences_do_not_break_the_fit() -> None:
    for confidence in (np.ones(5), np.zeros(5), np.array([0.0, 1.0, 1.0, 0.0, 0.5])):
        fitted = fit_correction(confidence, np.array([False, False, True, False, False]))
        assert np.isfinite(fitted.apply(confidence)).all() and fitted.scale > 0
    assert fit_correction(np.zeros(0), np.zeros(0, bool)) == Correction()


def test_accepting_another_value_rejects_the_proposed_one(tmp_path: Path) -> None:
    """And accepting in bulk says nothing about single rows."""
    rows = [fact_row(number, confidence=0.9) for number in range(60)]
    folders = [make_proposals(tmp_path / name, rows) for name in ("replaced", "rejected", "bulk")]
    instead = Replacement(7, "Q1770", "Tallinn")
    for folder, verdict, new in zip(
        folders, ("accept", "reject", "accept"), (instead, None, None), strict=True
    ):
        marks = Marks.open(folder)
        changed = [NewMark("facts", number, verdict, new) for number in range(40)]
        marks.add("Anna", changed, bulk=folder.name == "bulk")
        marks.add("Anna", [NewMark("facts", 40, "reject")])
        marks.close()
    replaced, rejected, bulk = (corrected_confidence(folder, "facts") for folder in folders)
    np.testing.assert_array_equal(replaced, rejected)
    assert replaced[-1] < 0.35
    np.testing.assert_allclose(bulk, correct(np.full(60, 0.9), {40: False}))
