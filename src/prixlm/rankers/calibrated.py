"""Gradient-boosted trees whose score is turned into a calibrated probability.

    model = CalibratedTrees.fit(features, labels, grow=train_rows, calibrate=other_rows)
    model.probability(features)                        # (N,) between 0 and 1

The one recipe behind every confidence of the project: trees (scikit-learn's histogram gradient
boosting) learn which rows are right, and isotonic regression maps their score to the share of rows
that are right. The scores that it is fitted on come from trees that have not seen these rows, or
the probability would be far too high. There are two ways to have such scores: `fit` sets rows
aside, `cross_fit` scores every row by trees grown on the other folds and then grows the final trees
on all rows.

Saved with skops, which unlike pickle cannot run code when it is loaded. Equal models have equal
bytes.

Dimension letters: N rows (candidates), F features.
"""

import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from prixlm.errors import PrixError
from prixlm.files import replacing
from prixlm.types import Array

_TRUSTED = ["sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"]
"""The type in a saved file that skops does not trust by default."""
_FLAT_BLOCK = 256
"""Rows that are compared with all nodes of all trees at once."""
_MAX_BYTES = 256 << 20
"""Of a saved file when it is unpacked; ours have some 100 kB."""
_MOST_LEAVES = 64
"""Of a tree: `FlatTrees` has a bit for each."""
_KINDS = (np.uint8, np.uint16, np.uint32, np.uint64)
_BLOCK = 4000
"""Rows that go through all trees together."""
_FEW = 2000
"""Rows up to which scikit-learn's cost for every tree is more than that of the rows."""
_LEAST = 1e-4
"""Least share of a forest's trees: log-odds are finite."""
_MISSING = -999.0
"""What a forest reads for a missing value."""


@dataclass(frozen=True, kw_only=True)
class TreeConfig:
    """How trees are grown."""

    iterations: int = 100  # number of trees
    rate: float = 0.1  # learning rate
    leaves: int = 8  # most leaves of a tree
    smallest: int = 20  # fewest rows in a leaf
    l2: float = 1.0  # regularises the leaves: at 0, sure leaves may take steps without bound
    seed: int = 0  # of the trees
    forest: bool = False  # random trees side by side instead of one after another: few examples
    smooth: bool = False  # add the log-odds of a logistic regression: steadier with few examples
    inverse_penalty: float = 0.3  # of the logistic regression; lower is smoother


@dataclass(frozen=True)
class CalibratedTrees:
    """Fitted trees, and the rising function from their score to a probability."""

    trees: Any  # scikit-learn's HistGradientBoostingClassifier, or its ExtraTreesClassifier
    isotonic: Any  # scikit-learn's IsotonicRegression
    linear: Any = None  # scikit-learn's logistic regression behind a scaler; None: trees alone

    @classmethod
    def fit(
        cls,
        features: Array,
        labels: Array,
        *,
        grow: Array,
        calibrate: Array,
        config: TreeConfig | None = None,
    ) -> "CalibratedTrees":
        """Grow trees on the rows `grow` and fit the probability on the rows `calibrate`.

        features: (N, F) float, NaN where a feature is missing. labels: (N,) bool.
        grow, calibrate: (N,) bool each, without a common row.
        """
        config = config or TreeConfig()
        fitted = _fit_score(features[grow], labels[grow], config)
        score = _score(*fitted, features[calibrate])
        return cls(fitted[0], fit_probability(score, labels[calibrate]), fitted[1])

    @classmethod
    def cross_fit(
        cls,
        features_without: Callable[[int | None], Array],
        labels: Array,
        fold: Array,
        config: TreeConfig | None = None,
        score: Array | None = None,
    ) -> "CalibratedTrees":
        """Grow trees on all rows; fit the probability on scores of trees grown on other folds.

        features_without: returns the features of all rows, (N, F), as they are counted without the
        labels of a fold, or with those of all rows for None.
        labels: (N,) bool. fold: (N,) the fold of each row, from 0.
        score: (N,) what `cross_scores` returns for them, if that is known already.
        """
        config = config or TreeConfig()
        if score is None:
            score = cross_scores(features_without, labels, fold, config)
        isotonic = fit_probability(score, labels)
        trees, linear = _fit_score(features_without(None), labels, config)
        return cls(trees, isotonic, linear)

    def score(self, features: Array) -> Array:
        """Return the trees' score of each row, (N,), as log-odds: not calibrated yet."""
        if not len(features):  # scikit-learn refuses a matrix without rows
            return np.zeros(0)
        is_boosted = hasattr(self.trees, "decision_function")
        if is_boosted and self.linear is None and len(features) <= _FEW:
            return self._flat.score(features)
        return _score(self.trees, self.linear, features)

    @cached_property
    def _flat(self) -> "FlatTrees":
        return FlatTrees(self.trees)

    def calibrate(self, scores: Array) -> Array:
        """Turn scores into probabilities: (N,)."""
        return np.asarray(self.isotonic.predict(scores)) if len(scores) else np.zeros(0)

    def probability(self, features: Array) -> Array:
        """Return the probability that each row is right: (N,)."""
        return self.calibrate(self.score(features))

    def save(self, path: Path) -> None:
        """Write trees and probability as one skops file."""
        assert self.linear is None and hasattr(self.trees, "decision_function"), (
            "no file holds a smoothed score or a forest yet"
        )
        write_fitted(path, {"trees": self.trees, "isotonic": self.isotonic})

    @classmethod
    def load(cls, path: Path) -> "CalibratedTrees":
        """Read what `save` wrote; refuse what could crash or hang when it is asked."""
        try:
            saved = read_fitted(path)
            check_trees(saved["trees"])
            check_rising(saved["isotonic"])
        except Exception as error:  # a damaged or hostile file can be wrong in any way
            reason = (str(error).splitlines() or [""])[0] or type(error).__name__
            raise PrixError(
                f"the trees in {path} cannot be read ({reason}). Fit them again."
            ) from None
        return cls(saved["trees"], saved["isotonic"])


def write_fitted(path: Path, fitted: Any) -> None:
    """Write fitted trees and functions, in dicts and lists, as one skops file."""
    import skops.io

    with replacing(path) as temporary:
        temporary.write_bytes(_without_addresses(skops.io.dumps(fitted)))


def read_fitted(path: Path) -> Any:
    """Read what `write_fitted` wrote. Unlike a pickle, the file cannot run code.

    Numbers in it are as they were written: `check_trees` and `check_rising` look at them.
    """
    import skops.io

    with zipfile.ZipFile(path) as archive:
        if sum(file.file_size for file in archive.infolist()) > _MAX_BYTES:
            raise ValueError(f"it has more than {_MAX_BYTES >> 20} MiB")
    return skops.io.load(path, trusted=_TRUSTED)


def check_trees(trees: Any) -> None:
    """Raise an exception unless this is a classifier as `fit` makes it.

    scikit-learn follows the numbers in a node without a look at them: one that leads out of the
    arrays ends the process, one that leads back never ends.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    if type(trees) is not HistGradientBoostingClassifier:
        raise ValueError("they are of another kind")
    # Features that are not numbers have sets of bits beside the nodes, which are read unchecked.
    if trees._preprocessor is not None or np.any(trees._bin_mapper.is_categorical_):
        raise ValueError("they have categories")
    if trees.n_trees_per_iteration_ != 1 or np.shape(trees._baseline_prediction) != (1, 1):
        raise ValueError("they have more than two classes")
    if not np.isfinite(trees._baseline_prediction).all():
        raise ValueError("their baseline is not a number")
    for [predictor] in trees._predictors:
        _check_nodes(predictor.nodes, trees.n_features_in_)


def check_rising(isotonic: Any) -> None:
    """Raise an exception unless this is a rising function to probabilities, as `fit` makes it."""
    from sklearn.isotonic import IsotonicRegression

    if type(isotonic) is not IsotonicRegression:
        raise ValueError("they are of another kind")
    steps, shares = isotonic.X_thresholds_, isotonic.y_thresholds_
    ends = [isotonic.X_min_, isotonic.X_max_]
    if not np.isfinite([*ends, *steps]).all() or (np.diff(steps) < 0).any():
        raise ValueError("their scores do not rise")
    if len(shares) != len(steps) or not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError("their probabilities are not between 0 and 1")


def _check_nodes(nodes: Array, num_features: int) -> None:
    """Raise an exception unless the nodes are a tree of numeric features, the root first."""
    from sklearn.ensemble._hist_gradient_boosting.common import PREDICTOR_RECORD_DTYPE

    if nodes.ndim != 1 or nodes.dtype != PREDICTOR_RECORD_DTYPE:
        raise ValueError("their nodes are of another kind")
    numbers = np.flatnonzero(nodes["is_leaf"] == 0)
    inner = nodes[numbers]
    # (I, 2) the nodes below each inner node. Every node but the root is below one that comes
    # before it, and below no other: so all paths end, and there are no more of them than leaves.
    below = np.stack([inner["left"], inner["right"]], axis=1).astype(np.int64)
    is_tree = np.array_equal(np.sort(below, axis=None), np.arange(1, len(nodes)))
    if not len(nodes) or not is_tree or (below <= numbers[:, None]).any():
        raise ValueError("their nodes are not a tree")
    if len(nodes) - len(inner) > _MOST_LEAVES:
        raise ValueError(f"they have more than {_MOST_LEAVES} leaves")
    feature = inner["feature_idx"]
    if nodes["is_categorical"].any() or (feature < 0).any() or (feature >= num_features).any():
        raise ValueError("their nodes read a feature that is not there")
    # A threshold may be infinite: all values go to one side, and what is missing to the other.
    if not np.isfinite(nodes["value"]).all() or np.isnan(nodes["num_threshold"]).any():
        raise ValueError("their nodes hold values that are not numbers")


def _without_addresses(saved: bytes) -> bytes:
    """Return a skops file that does not depend on the process and the time that wrote it.

    skops numbers objects, and names the files of arrays, by their addresses in memory: here, by
    the order in which the schema mentions them. The files are compressed, to a third.
    """
    source = zipfile.ZipFile(io.BytesIO(saved))
    schema = json.loads(source.read("schema.json"))
    numbers: dict[int, int] = {}
    files: dict[str, str] = {}  # new names by old ones

    def renumber(node: Any) -> None:
        if isinstance(node, dict):
            if "__id__" in node:
                node["__id__"] = numbers.setdefault(node["__id__"], len(numbers))
            if re.fullmatch(r"\d+\.npy", str(node.get("file"))):
                node["file"] = files.setdefault(node["file"], f"{len(files)}.npy")
        for child in node.values() if isinstance(node, dict) else node:
            if isinstance(child, dict | list):
                renumber(child)

    renumber(schema)
    contents = {new: source.read(old) for old, new in files.items()}
    assert len(contents) == len(source.namelist()) - 1, "every file is an array of the schema"
    contents["schema.json"] = json.dumps(schema).encode()
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as out:
        for name, content in contents.items():
            out.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # dated 1980
    return buffer.getvalue()


def cross_scores(
    features_without: Callable[[int | None], Array],
    labels: Array,
    fold: Array,
    config: TreeConfig | None = None,
) -> Array:
    """Return the score of every row by trees grown on the other folds, (N,): see `cross_fit`."""
    score = np.zeros(len(labels))
    for number in range(int(fold.max()) + 1):
        rows = fold == number
        # Features may be counted from labels, so they are made again without those of the fold.
        features = features_without(number)
        fitted = _fit_score(features[~rows], labels[~rows], config or TreeConfig())
        if rows.any():
            score[rows] = _score(*fitted, features[rows])
    return score


def _fit_score(features: Array, labels: Array, config: TreeConfig) -> tuple[Any, Any]:
    """Return trees and, if wanted, a logistic regression of the same rows."""
    grow = _grow_forest if config.forest else _grow_trees
    trees = grow(features, labels, config)
    if not config.smooth:
        return trees, None
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler, StandardScaler

    # A value outside the range that was learnt from counts as the nearest one inside.
    linear = make_pipeline(
        MinMaxScaler(clip=True),
        StandardScaler(),
        LogisticRegression(C=config.inverse_penalty, max_iter=300),
    )
    return trees, linear.fit(_without_nan(features), labels)


def _score(trees: Any, linear: Any, features: Array) -> Array:
    """Return the log-odds of each row: (N,), the sum of both models if there are two."""
    if hasattr(trees, "decision_function"):
        # scikit-learn sends all rows through one tree after another. Rows that fit into the cache
        # are read from there by the next tree: the same scores in about half the time.
        blocks = [features[start : start + _BLOCK] for start in range(0, len(features), _BLOCK)]
        score = np.concatenate([trees.decision_function(block) for block in blocks])
    else:  # a forest has shares of its trees
        share = np.clip(trees.predict_proba(_filled(features))[:, 1], _LEAST, 1 - _LEAST)
        score = np.log(share / (1 - share))
    return score if linear is None else score + linear.decision_function(_without_nan(features))


def _filled(features: Array) -> Array:
    """Return features with a value below all others where one is missing."""
    return np.nan_to_num(features, nan=_MISSING)


def _grow_forest(features: Array, labels: Array, config: TreeConfig) -> Any:
    """Fit scikit-learn's extremely randomised trees to rows of features."""
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(
        config.iterations,
        min_samples_leaf=config.smallest,
        max_features=0.3,
        random_state=config.seed,
    ).fit(_filled(features), labels)


def _without_nan(features: Array) -> Array:
    """Return (N, 2F): missing values as 0, and which values are missing."""
    return np.hstack([np.nan_to_num(features), np.isnan(features)])


def _grow_trees(features: Array, labels: Array, config: TreeConfig) -> Any:
    """Fit scikit-learn's gradient boosting to rows of features."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    # scikit-learn cannot bin a column that is missing everywhere: it becomes a constant.
    # Such a feature belongs to a ranker that lists nothing; constant, it is never split on.
    is_missing = np.isnan(features).all(axis=0)
    return HistGradientBoostingClassifier(
        max_iter=config.iterations,
        learning_rate=config.rate,
        max_leaf_nodes=config.leaves,
        min_samples_leaf=config.smallest,
        l2_regularization=config.l2,
        early_stopping=False,
        random_state=config.seed,
    ).fit(np.where(is_missing, 0.0, features), labels)


def fit_probability(score: Array, right: Array) -> Any:
    """Fit a rising step function (IsotonicRegression) from scores to the share that is right.

    A step of n rows counts as n + 1 rows, the additional one half right, so that no probability is
    exactly 0 or 1: a hundred rows without an error are not a proof.
    """
    from sklearn.isotonic import IsotonicRegression

    def fit(target: Array) -> Any:
        return IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(score, target)

    # The first fit finds the steps, the second one fits the smoothed share of each step.
    share, step, size = np.unique(
        fit(np.asarray(right, float)).predict(score), return_inverse=True, return_counts=True
    )
    return fit(((share * size + 0.5) / (size + 1))[step])


class FlatTrees:
    """All nodes of all trees as arrays: the scores of few rows, in a fortieth of the time.

    scikit-learn calls 300 trees one by one: 40 ms for a question with 70 candidates, 1 ms here.
    All nodes of all trees are compared at once (QuickScorer, Lucchese et al., SIGIR 2015). The
    leaves of a tree are numbered from left to right, one bit each. A node that sends a row to the
    right rules out the leaves on its left. Of the bits that remain, the lowest is the row's leaf.

    Scores have the same bits as those of scikit-learn. Dimension letters: T trees, M nodes of all
    trees, L leaves of the largest tree.
    """

    def __init__(self, trees: Any) -> None:
        """Read the nodes of a classifier of two classes, fitted without categorical features."""
        predictors = [predictor for [predictor] in trees._predictors]
        num_leaves = max(int(one.nodes["is_leaf"].sum()) for one in predictors)
        assert num_leaves <= _MOST_LEAVES, "a bit for each leaf"
        self._kind: Any = next(kind for kind in _KINDS if np.dtype(kind).itemsize * 8 >= num_leaves)
        self._baseline = float(np.ravel(trees._baseline_prediction)[0])
        self._value = np.zeros((len(predictors), num_leaves))  # (T, L)
        self._starts = np.zeros(len(predictors), np.int64)  # (T,) first node of each tree
        rows: list[tuple[int, float, bool, int]] = []
        for tree, predictor in enumerate(predictors):
            self._starts[tree] = len(rows)
            # A tree may be one leaf. A node that rules nothing out makes no group empty.
            rows.append((0, np.inf, True, 0))
            self._add_node(predictor.nodes, 0, tree, 0, rows)
        feature, threshold, missing_left, left_leaves = zip(*rows, strict=True)
        self._feature = np.array(feature, np.int64)  # (M,)
        self._threshold = np.array(threshold)[:, None]  # (M, 1)
        self._missing_left = np.array(missing_left)[:, None]
        # (M, 1) the leaves that are left after a row went to the right.
        self._mask = np.invert(np.array(left_leaves, self._kind))[:, None]

    def _add_node(
        self,
        nodes: Array,
        node: int,
        tree: int,
        first: int,
        rows: list[tuple[int, float, bool, int]],
    ) -> int:
        """Add a node and all below it, whose leaves are numbered from `first`; count its leaves."""
        here = nodes[node]
        if here["is_leaf"]:
            self._value[tree, first] = here["value"]
            return 1
        assert not here["is_categorical"]
        num_left = self._add_node(nodes, int(here["left"]), tree, first, rows)
        left_leaves = ((1 << num_left) - 1) << first
        rows.append(
            (
                int(here["feature_idx"]),
                float(here["num_threshold"]),
                bool(here["missing_go_to_left"]),
                left_leaves,
            )
        )
        return num_left + self._add_node(nodes, int(here["right"]), tree, first + num_left, rows)

    def score(self, features: Array) -> Array:
        """Return the log-odds of each row: (N,). features: (N, F) float, NaN where missing."""
        blocks = range(0, len(features), _FLAT_BLOCK)
        scores = [self._score(features[start : start + _FLAT_BLOCK]) for start in blocks]
        return np.concatenate([np.zeros(0), *scores])

    def _score(self, features: Array) -> Array:
        compared = np.ascontiguousarray(features.T)[self._feature]  # (M, N)
        goes_right = compared > self._threshold
        goes_right |= np.isnan(compared) & ~self._missing_left
        left = np.where(goes_right, self._mask, ~self._kind(0))
        left = np.bitwise_and.reduceat(left, self._starts, axis=0)  # (T, N)
        lowest = left & (~left + self._kind(1))
        leaf = np.log2(lowest.astype(float)).astype(np.int64)
        value = self._value[np.arange(len(leaf))[:, None], leaf]  # (T, N)
        # Added one tree after another, as scikit-learn does: another order rounds differently.
        score = np.full(len(features), self._baseline)
        for tree in value:
            score += tree
        return score
