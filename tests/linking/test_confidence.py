"""Shares of competing pairs, and their calibration."""

import numpy as np
import pytest

from prixlm.linking.confidence import Confidence, best_of_each, compete
from prixlm.metrics import reliability
from prixlm.rankers.calibrated import TreeConfig


def test_pairs_share_the_odds_with_their_rivals_and_with_none() -> None:
    score = np.log([3.0, 1.0, 2.0])
    left, right = np.array([0, 0, 1]), np.array([0, 1, 1])
    assert compete(score, left, None) == pytest.approx([3 / 5, 1 / 5, 2 / 3])
    # The second pair competes for its candidate with the third, too.
    assert compete(score, left, right) == pytest.approx([3 / 5, 1 / 7, 2 / 4])


def test_all_of_several_equal_best_ones_are_first() -> None:
    share, left = np.array([0.4, 0.4, 0.1, 0.2]), np.array([0, 0, 0, 1])
    assert best_of_each(share, left).tolist() == [True, True, False, True]


def test_confidence_is_calibrated_and_never_higher_for_a_further_candidate() -> None:
    generator = np.random.default_rng(0)
    num, k = 600, 4
    left = np.repeat(np.arange(num), k)
    right = np.zeros((num, k), bool)
    has = generator.random(num) < 0.7  # the others have no counterpart
    right[has, generator.integers(0, k, num)[has]] = True
    right = right.ravel()
    features = (right + generator.normal(0, 0.6, num * k))[:, None]
    fold = np.repeat(generator.integers(0, 3, num), k)
    confidence = Confidence.grow(features, right, fold, TreeConfig(iterations=30))
    score = np.zeros(len(left))
    for number in range(3):
        score[fold == number] = confidence.score(features[fold == number], number)
    share = compete(score, left, None)
    confidence.calibrate(share, right, best_of_each(share, left))
    probability = confidence.probability(share, left)
    first = best_of_each(share, left)
    assert reliability(probability[first], right[first]).ece < 0.05
    table = probability.reshape(num, k)
    best = share.reshape(num, k).argmax(axis=1)
    assert (table <= table[np.arange(num), best][:, None] + 1e-12).all()
    assert not len(confidence.probability(np.zeros(0), np.zeros(0, int)))


class Fixed:
    """A calibration that knows each share already."""

    def __init__(self, add: float) -> None:
        self.add = add

    def predict(self, share: np.ndarray) -> np.ndarray:
        return np.minimum(1.0, share + self.add)


def test_candidates_have_a_probability_of_one_at_most_together() -> None:
    confidence = Confidence([], (Fixed(0.2), Fixed(0.1)))
    share = np.array([0.5, 0.3, 0.1, 0.2, 0.1, 0.5, 0.5, 0.2])
    left = np.array([0, 0, 0, 1, 1, 2, 2, 2])
    probability = confidence.probability(share, left)
    assert probability[0] == 0.7, "the first keeps its own"
    assert probability[1:3] == pytest.approx([0.2, 0.1]), "the others share what is left"
    assert probability[3:5] == pytest.approx([0.4, 0.2]), "nothing is taken where there is room"
    assert probability[5:] == pytest.approx([0.5, 0.5, 0]), "two first ones"
