"""Flat trees: the bits of scikit-learn's own scores, whatever the trees and the rows."""

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from prixlm.rankers import flat_trees
from prixlm.rankers.flat_trees import FlatTrees
from prixlm.types import Array


def make_rows(number: int, seed: int) -> tuple[Array, Array]:
    """Return features with ties, infinities and missing values, and labels."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(number, 6)).round(1)
    features[rng.random(features.shape) < 0.2] = np.nan
    features[rng.random(features.shape) < 0.02] = np.inf
    features[rng.random(features.shape) < 0.02] = -np.inf
    return features, rng.random(number) < 1 / (
        1 + np.exp(-np.nan_to_num(features[:, 0], posinf=3, neginf=-3))
    )


@pytest.mark.parametrize("num_leaves", [2, 8, 12, 31, 64])
def test_scores_are_the_bits_of_scikit_learn(num_leaves: int) -> None:
    features, labels = make_rows(1500, seed=num_leaves)
    trees = HistGradientBoostingClassifier(
        max_iter=40, max_leaf_nodes=num_leaves, min_samples_leaf=5, random_state=0
    ).fit(features, labels)
    unseen, _ = make_rows(700, seed=100)
    flat = FlatTrees(trees)
    assert np.array_equal(flat.score(unseen), trees.decision_function(unseen))
    assert np.array_equal(flat.score(unseen[:1]), trees.decision_function(unseen[:1]))


def test_trees_of_a_single_leaf_and_no_rows_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = make_rows(60, seed=1)
    trees = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=50).fit(features, labels)
    monkeypatch.setattr(flat_trees, "_BLOCK", 7)
    assert np.array_equal(FlatTrees(trees).score(features), trees.decision_function(features))
    assert FlatTrees(trees).score(features[:0]).shape == (0,)
