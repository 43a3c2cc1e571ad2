"""Calibrated trees: probabilities that hold on new rows, folds that are not seen, saved files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from prixlm.metrics import reliability
from prixlm.rankers import calibrated
from prixlm.rankers.calibrated import CalibratedTrees, FlatTrees, TreeConfig, fit_probability
from prixlm.types import Array

SMALL = TreeConfig(iterations=30)


def make_rows(number: int, seed: int = 0) -> tuple[Array, Array]:
    """Return two features, the first of which says how likely a row is right, and labels."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(number, 2))
    return features, generator.random(number) < 1 / (1 + np.exp(-3 * features[:, 0]))


def test_the_probability_is_the_share_that_is_right() -> None:
    features, labels = make_rows(20_000)
    score = features[:, 0]
    fitted = fit_probability(score[:10_000], labels[:10_000])
    assert reliability(fitted.predict(score[10_000:]), labels[10_000:]).ece < 0.02


def test_the_probability_rises_and_is_never_0_or_1() -> None:
    score = np.arange(200.0)
    fitted = fit_probability(score, score >= 100)
    grid = fitted.predict(np.linspace(-50, 250, 500))
    assert (np.diff(grid) >= 0).all()
    np.testing.assert_allclose([grid[0], grid[-1]], [0.5 / 101, 100.5 / 101])


def test_rows_set_aside_calibrate_what_the_others_taught() -> None:
    features, labels = make_rows(6000)
    grow = np.arange(6000) < 3000
    model = CalibratedTrees.fit(features, labels, grow=grow, calibrate=~grow, config=SMALL)
    new_features, new_labels = make_rows(6000, seed=1)
    assert reliability(model.probability(new_features), new_labels).ece < 0.04


def test_every_fold_is_scored_by_trees_that_have_not_seen_it() -> None:
    features, _ = make_rows(2000)
    labels = np.random.default_rng(5).random(2000) < 0.5  # nothing can be learnt
    fold = np.arange(2000) % 4
    asked: list[int | None] = []

    def features_without(number: int | None) -> Array:
        asked.append(number)
        return features

    config = TreeConfig(iterations=50, smallest=2, leaves=31, l2=0.0)
    model = CalibratedTrees.cross_fit(features_without, labels, fold, config)
    assert asked == [0, 1, 2, 3, None]
    # Trees memorise rows that they were grown on; the probability knows that this means nothing.
    uncalibrated = 1 / (1 + np.exp(-model.score(features)))
    assert np.abs(uncalibrated - 0.5).mean() > 0.1
    assert np.abs(model.probability(features) - 0.5).mean() < 0.03


def test_scores_in_blocks_are_those_of_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = make_rows(1000)
    model = CalibratedTrees.fit(
        features, labels, grow=np.arange(1000) < 600, calibrate=np.arange(1000) >= 600
    )
    monkeypatch.setattr(calibrated, "_BLOCK", 7)
    assert np.array_equal(model.score(features), model.trees.decision_function(features))


def test_leaves_that_are_sure_take_bounded_steps_with_l2() -> None:
    generator = np.random.default_rng(0)
    features = np.round(generator.standard_normal((3000, 4)), 1).astype(np.float32)
    is_high = features[:, 0] > 1.5
    labels = is_high.copy()
    wrong = generator.permutation(3000)[:12]
    labels[wrong] = ~labels[wrong]  # a few rows among thousands that are certain
    grow = np.arange(3000) % 5 > 0
    free, bounded = (
        CalibratedTrees.fit(
            features,
            labels,
            grow=grow,
            calibrate=~grow,
            config=TreeConfig(iterations=150, leaves=16, rate=0.3, l2=l2),
        ).score(features[~grow])
        for l2 in (0.0, 1.0)
    )
    assert np.abs(free).max() > 20 > 16 > np.abs(bounded).max()
    assert ((bounded > 0) == is_high[~grow]).mean() > 0.99


def test_missing_features_and_no_rows_are_fine() -> None:
    features, labels = make_rows(400)
    features[:, 1] = np.nan
    grow = np.arange(400) < 200
    model = CalibratedTrees.fit(features, labels, grow=grow, calibrate=~grow)
    assert np.isfinite(model.probability(features)).all()
    assert len(model.probability(features[:0])) == len(model.calibrate(np.zeros(0))) == 0


def test_a_forest_and_a_regression_are_calibrated_and_read_missing_values() -> None:
    features, labels = make_rows(3000)
    features[::7, 1] = np.nan
    config = TreeConfig(forest=True, smallest=5, smooth=True)
    fold = np.arange(3000) % 4
    models = [CalibratedTrees.cross_fit(lambda _: features, labels, fold, config) for _ in range(2)]
    new_features, new_labels = make_rows(3000, seed=1)
    first, again = (model.probability(new_features) for model in models)
    np.testing.assert_array_equal(first, again)
    assert reliability(first, new_labels).ece < 0.05
    assert first[new_labels].mean() > first[~new_labels].mean() + 0.1
    assert len(models[0].probability(features[:0])) == 0


def test_a_regression_does_not_extrapolate() -> None:
    features, labels = make_rows(1000)
    config = TreeConfig(iterations=5, smooth=True)
    model = CalibratedTrees.cross_fit(lambda _: features, labels, np.arange(1000) % 4, config)
    far = features.max(axis=0, keepdims=True)
    np.testing.assert_allclose(model.score(far), model.score(far * 1000 + 1000))


SAVE = """
import sys, time
from pathlib import Path
import numpy as np
from prixlm.rankers import calibrated
from prixlm.rankers.calibrated import CalibratedTrees
number = int(sys.argv[2])
time.time = lambda: 1e9 * number  # a zip file notes the time
held = [object() for _ in range(1000 * number)]  # moves the addresses of all later objects
features = np.random.default_rng(0).normal(size=(300, 4))
even = np.arange(300) % 2 == 0
model = CalibratedTrees.fit(features, features[:, 0] > 0, grow=even, calibrate=~even)
model.save(Path(sys.argv[1]))
"""


def test_two_processes_save_the_same_bytes_at_different_times(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.skops" for number in (1, 2)]
    for number, path in enumerate(paths, start=1):
        subprocess.run([sys.executable, "-c", SAVE, str(path), str(number)], check=True)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_saved_model_gives_the_same_probabilities(tmp_path: Path) -> None:
    features, labels = make_rows(400)
    grow = np.arange(400) < 200
    model = CalibratedTrees.fit(features, labels, grow=grow, calibrate=~grow)
    model.save(tmp_path / "trees.skops")
    assert [path.name for path in tmp_path.iterdir()] == ["trees.skops"]
    again = CalibratedTrees.load(tmp_path / "trees.skops")
    assert np.array_equal(again.probability(features), model.probability(features))
    (tmp_path / "bad.skops").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(Exception, match="zip"):  # a pickle is not even opened
        CalibratedTrees.load(tmp_path / "bad.skops")


def make_gappy_rows(number: int, seed: int) -> tuple[Array, Array]:
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
    features, labels = make_gappy_rows(1500, seed=num_leaves)
    trees = HistGradientBoostingClassifier(
        max_iter=40, max_leaf_nodes=num_leaves, min_samples_leaf=5, random_state=0
    ).fit(features, labels)
    unseen, _ = make_gappy_rows(700, seed=100)
    flat = FlatTrees(trees)
    assert np.array_equal(flat.score(unseen), trees.decision_function(unseen))
    assert np.array_equal(flat.score(unseen[:1]), trees.decision_function(unseen[:1]))


def test_trees_of_a_single_leaf_and_no_rows_are_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    features, labels = make_gappy_rows(60, seed=1)
    trees = HistGradientBoostingClassifier(max_iter=3, min_samples_leaf=50).fit(features, labels)
    monkeypatch.setattr(calibrated, "_FLAT_BLOCK", 7)
    assert np.array_equal(FlatTrees(trees).score(features), trees.decision_function(features))
    assert FlatTrees(trees).score(features[:0]).shape == (0,)
