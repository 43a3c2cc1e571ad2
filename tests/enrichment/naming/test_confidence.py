"""How probable each candidate name is."""

from dataclasses import replace

import numpy as np
import pytest

from prixlm import PrixError
from prixlm.enrichment.naming.candidates import FEATURES, Candidates
from prixlm.enrichment.naming.confidence import NUM_FOLDS, NameConfidence
from prixlm.types import Array

SHARE = FEATURES.index("rate_share")


def make(concept: Array, clue: Array, is_right: Array) -> Candidates:
    """Candidates whose only evidence is a clue."""
    features = np.zeros((len(concept), len(FEATURES)))
    features[:, 0] = clue
    number = len(concept)
    return Candidates(
        concept,
        [f"name {n}" for n in range(number)],
        [["de"]] * number,
        [""] * number,
        np.ones(number, bool),
        features,
        is_right,
    )


def fit(candidates: Candidates) -> NameConfidence:
    return NameConfidence.fit(
        candidates.concept,
        candidates.features,
        candidates.is_right,
        candidates.concept % NUM_FOLDS,
    )


class Constant:
    """A calibration with one step."""

    def __init__(self, value: float) -> None:
        self.value = value

    def predict(self, score: Array) -> Array:
        return np.full(len(score), self.value)


def pairs(number: int = 400) -> Candidates:
    """Two candidates of each thing: the second one has the better clue and is right half the time.

    Where it is wrong, the first one is right in one of two.
    """
    generator = np.random.default_rng(0)
    concept = np.repeat(np.arange(number), 2)
    clue = np.tile([0.0, 1.0], number) + generator.normal(0, 0.1, 2 * number)
    second = generator.random(number) < 0.5
    first = ~second & (generator.random(number) < 0.5)
    return make(concept, clue, np.column_stack([first, second]).ravel())


@pytest.mark.parametrize("sure", [0.0, 1e-9, 0.3, 0.5, 1.0])
def test_the_first_name_is_the_best_one_whatever_its_confidence(sure: float) -> None:
    candidates = pairs()
    judged = replace(fit(candidates), first_probability=Constant(sure)).judge(candidates)
    second = np.arange(1, len(candidates.text), 2)
    assert judged.best(1).tolist() == second.tolist(), "the one with the better clue"
    assert judged.best(2).tolist() == np.column_stack([second, second - 1]).ravel().tolist()
    assert (judged.confidence[second] == sure).all()


@pytest.mark.parametrize("sure", [0.3, 0.5])
def test_no_other_name_is_as_sure_as_the_first_in_a_table(sure: float) -> None:
    candidates = pairs()
    judged = replace(fit(candidates), first_probability=Constant(sure)).judge(candidates)
    first, other = np.round(judged.confidence.reshape(-1, 2)[:, ::-1], 6).T
    assert (other < first).all() and (other >= 0).all()
    assert (first + other <= 1).all(), "a thing has one name"


@pytest.mark.parametrize("num_wrong", [0, 1])
def test_where_every_name_is_right_the_confidence_is_their_number(num_wrong: int) -> None:
    candidates = make(np.arange(300), np.zeros(300), np.arange(300) >= num_wrong)
    candidates.features[:, SHARE] = 1.0
    confidence = fit(candidates)
    judged = confidence.judge(candidates)
    assert judged.confidence == pytest.approx((300 - num_wrong + 0.5) / 301)
    assert confidence.reliability.number == 75 and confidence.reliability.ece < 0.02


def test_two_names_of_one_thing_share_what_every_single_name_had() -> None:
    known = make(np.arange(300), np.zeros(300), np.ones(300, bool))
    known.features[:, SHARE] = 1.0
    asked = make(np.array([0, 1, 1]), np.zeros(3), np.zeros(3, bool))
    asked.features[:, SHARE] = [1.0, 0.3, 0.7]
    judged = fit(known).judge(asked)
    assert judged.best(1).tolist() == [0, 2]
    sure = judged.confidence
    assert sure[0] > 0.99 and sure[2] == pytest.approx(0.7, abs=0.01)
    assert sure[1] == pytest.approx(0.3, abs=0.01)
    nothing = make(np.zeros(0, np.int64), np.zeros(0), np.zeros(0, bool))
    assert len(fit(known).judge(nothing).confidence) == 0


@pytest.mark.parametrize("num_right", [0, 1])
def test_names_that_nothing_tells_are_refused(num_right: int) -> None:
    candidates = make(np.arange(300), np.zeros(300), np.arange(300) < num_right)
    with pytest.raises(PrixError, match=rf"almost none .*\({num_right} of 300\)"):
        fit(candidates)
