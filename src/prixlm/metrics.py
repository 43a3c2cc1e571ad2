"""Figures of a ranking (Hits@k, MRR) and of a confidence (calibration, AUROC), with intervals.

The rank of the true answer is 1, plus the number of candidates that score higher, plus half of
those that score the same ("realistic" rank): a ranker that cannot tell candidates apart gains
nothing. A rank that is only known to be above some N is infinite and counts as 0 in the mean
reciprocal rank (MRR), which can then be too low by at most `unknown / (N + 1)`.

An interval says how far a figure would move with other questions of the same kind: questions are
drawn with replacement 1,000 times (the bootstrap), and the middle 95 % of the figures are kept. The
draws depend on the number of questions and the seed alone, so all rows of a column are compared on
the same draws.

Dimension letters: N questions, B resamples, M figures of a question.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from prixlm.types import Array

BEYOND = 1000
"""Ranks above this are not distinguished."""
RESAMPLES = 1000
"""Draws of a bootstrap."""
_ENDS = (2.5, 97.5)
"""Percentiles that an interval lies between: 95 % of the resamples."""
_CACHED = 1 << 24
"""Most draws that are kept for the next figure of as many questions."""
_BLOCK = 1 << 22
"""Most draws that are in memory as floats."""


class Interval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half of the distance between the ends: what is shown after ±."""
        return (self.high - self.low) / 2


Statistic = Callable[[Array], Array]
"""Returns (b,) figures from (b, N) weights: how often each resample has drawn each question."""


def draws(number: int, seed: int = 0) -> Iterator[Array]:
    """Yield (b, N) float weights of some resamples at a time, `RESAMPLES` rows in all."""
    if number * RESAMPLES > _CACHED:
        for weights in _all_draws(number, seed):
            yield weights.astype(float)
        return
    kept, rows = _kept_draws(number, seed), _rows_of_block(number)
    for start in range(0, RESAMPLES, rows):
        yield kept[start : start + rows].astype(float)


@lru_cache(maxsize=4)
def _kept_draws(number: int, seed: int) -> Array:
    """Return the weights of all resamples, (B, N): all rows of a column need the same ones."""
    return np.concatenate([part.astype(np.uint16) for part in _all_draws(number, seed)])


def _all_draws(number: int, seed: int) -> Iterator[Array]:
    generator, rows = np.random.default_rng(seed), _rows_of_block(number)
    for start in range(0, RESAMPLES, rows):
        yield _draw(generator, min(rows, RESAMPLES - start), number)


def _rows_of_block(number: int) -> int:
    return max(1, _BLOCK // max(1, number))


def _draw(generator: np.random.Generator, rows: int, number: int) -> Array:
    """Return how often each question is drawn when as many as there are are drawn: (rows, N)."""
    drawn = generator.integers(0, number, (rows, number))
    # One count for all rows: the questions of row r have the numbers r * N to r * N + N - 1.
    drawn += number * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * number).reshape(rows, number)


def bootstrap(number: int, statistic: Statistic, seed: int = 0) -> Interval:
    """Return the interval of any figure of N questions; both ends are NaN without questions."""
    if not number:
        return Interval(float("nan"), float("nan"))
    return _between(np.concatenate([statistic(weights) for weights in draws(number, seed)]))


def bootstrap_means(values: Array, seed: int = 0) -> list[Interval]:
    """Return the interval of the mean of each column of (N, M) values."""
    values = np.asarray(values, float)
    if not len(values):
        return [Interval(float("nan"), float("nan"))] * values.shape[1]
    means = np.concatenate([weights @ values for weights in draws(len(values), seed)]) / len(values)
    return [_between(column) for column in means.T]


def bootstrap_mean(values: Array, seed: int = 0) -> Interval:
    """Return the interval of the mean of (N,) values."""
    return bootstrap_means(np.asarray(values, float)[:, None], seed)[0]


def bootstrap_ratio(above: Array, below: Array, seed: int = 0) -> Interval:
    """Return the interval of sum(above) / sum(below), (N,) each, such as a precision."""
    return bootstrap(len(above), lambda weights: _ratio(weights @ above, weights @ below), seed)


def bootstrap_ratios(above: Array, below: Array, seed: int = 0) -> list[Interval]:
    """Return the intervals of several ratios of the same questions, (N, M) each, by column."""
    if not len(above):
        return [Interval(float("nan"), float("nan"))] * above.shape[1]
    parts = [_ratio(weights @ above, weights @ below) for weights in draws(len(above), seed)]
    return [_between(column) for column in np.concatenate(parts).T]


def _ratio(above: Array, below: Array) -> Array:
    """Divide; NaN where nothing is below."""
    shares: Array = np.full(above.shape, np.nan)
    np.divide(above, below, out=shares, where=below > 0)
    return shares


def _between(figures: Array) -> Interval:
    """Return the ends of the middle 95 %; a resample without a figure does not count."""
    known = figures[~np.isnan(figures)]
    if not len(known):
        return Interval(float("nan"), float("nan"))
    low, high = np.percentile(known, _ENDS)
    return Interval(float(low), float(high))


class Difference(NamedTuple):
    """How much more one row has than another on the same questions."""

    value: float
    interval: Interval

    @property
    def is_one(self) -> bool:
        """Whether the interval leaves out 0: only then is it called a difference."""
        return self.interval.low > 0 or self.interval.high < 0


def paired_difference(first: Array, second: Array, seed: int = 0) -> Difference:
    """Compare the (N,) values of two rows, question by question (a paired bootstrap)."""
    gaps = np.asarray(first, float) - np.asarray(second, float)
    value = float(gaps.mean()) if len(gaps) else float("nan")
    return Difference(value, bootstrap_mean(gaps, seed))


@dataclass(frozen=True)
class Figures:
    """Shares of the facts, from 0 to 1; `slack` bounds how much too low the MRR may be."""

    number: int  # of facts
    hits_1: float
    hits_3: float
    hits_10: float
    mrr: float
    slack: float
    intervals: dict[str, Interval] = field(default_factory=dict)  # by name of the figure


def figures(ranks: Array, beyond: int = BEYOND) -> Figures:
    """Return the figures of ranks; those above `beyond`, or infinite, count as unknown."""
    ranks = np.asarray(ranks, float)
    if not len(ranks):
        nothing = float("nan")
        return Figures(0, nothing, nothing, nothing, nothing, 0.0)
    # Rankers differ in how deep they look: beyond the limit, all of them know nothing.
    ranks = np.where(ranks > beyond, np.inf, ranks)
    values = rank_values(ranks)
    unknown = float(np.isinf(ranks).mean())
    one, three, ten, mrr = (float(column.mean()) for column in values.values())
    intervals = bootstrap_means(np.stack(list(values.values()), axis=1))
    by_name = dict(zip(values, intervals, strict=True))
    return Figures(len(ranks), one, three, ten, mrr, unknown / (beyond + 1), by_name)


def rank_values(ranks: Array) -> dict[str, Array]:
    """Return what each (N,) rank counts for each figure, by the names of `Figures`."""
    hits = {f"hits_{k}": (ranks <= k).astype(float) for k in (1, 3, 10)}
    return hits | {"mrr": 1 / ranks}


@dataclass(frozen=True)
class Reliability:
    """How well confidences match the share of right answers."""

    number: int  # of answers
    ece: float  # expected calibration error: the mean gap between confidence and share right
    brier: float  # the mean squared error
    auroc: float  # how well it separates right from wrong answers; 0.5 is chance
    bins: list[tuple[float, float, int]]  # mean confidence, share right, number of answers

    @property
    def noise(self) -> float:
        """The calibration error that a perfect confidence is expected to show here.

        With confidence p, the share right of n answers is off by √(2p(1 - p) / πn) on average.
        """
        strays = (size * np.sqrt(2 * p * (1 - p) / (np.pi * size)) for p, _, size in self.bins)
        return float(sum(strays) / self.number) if not np.isnan(self.ece) else float("nan")


def reliability(
    confidence: Array, right: Array, least: int = 50, max_bins: int = 10
) -> Reliability:
    """Compare confidences, (N,), with whether the answers are right, (N,) bool.

    Bins have about equal size and at least `least` answers; equal confidences share a bin. With
    fewer than `least` answers the calibration error is NaN.
    """
    confidence, right = np.asarray(confidence, float), np.asarray(right, bool)
    number, unknown = len(right), float("nan")
    if not number:
        return Reliability(0, unknown, unknown, unknown, [])
    brier = float(((confidence - right) ** 2).mean())
    bins = _bins(confidence, right, max(least, -(-number // max_bins)))
    ece = sum(abs(mean - share) * size for mean, share, size in bins) / number
    ece = ece if number >= least else unknown
    return Reliability(number, ece, brier, _auroc(confidence, right), bins)


def calibration_interval(confidence: Array, right: Array, found: Reliability) -> Interval:
    """Return the interval of a calibration error, with the bins of `found`; NaN if it has none.

    A resample is a smaller sample, and so looks worse calibrated than the whole. The ends are
    therefore mirrored at the figure (the basic bootstrap), and are never below 0.
    """
    if np.isnan(found.ece):
        return Interval(float("nan"), float("nan"))
    order = np.argsort(confidence, kind="stable")
    gaps = (np.asarray(confidence, float) - np.asarray(right, float))[order]
    # (bins,) the first answer of each bin, as answers are ordered by confidence.
    starts = np.cumsum([0, *(size for *_, size in found.bins[:-1])])

    def error(weights: Array) -> Array:
        # The weights belong to answers in their own order, whichever that is.
        sums = np.add.reduceat(weights * gaps, starts, axis=1)
        return np.asarray(np.abs(sums).sum(axis=1) / len(gaps))

    low, high = bootstrap(len(gaps), error)
    return Interval(max(0.0, 2 * found.ece - high), max(0.0, 2 * found.ece - low))


def _bins(confidence: Array, right: Array, size: int) -> list[tuple[float, float, int]]:
    """Cut answers, ordered by confidence, into bins of at least `size` where the value changes."""
    # (V,) each: the distinct confidences, how many answers have each, and how many are right.
    values, index, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    num_right = np.bincount(index, right, len(values))
    bins: list[tuple[float, float, int]] = []
    start, left = 0, int(counts.sum())  # first value of the open bin; answers not in a closed bin
    held = 0  # answers in the open bin
    for end, count in enumerate(counts.tolist(), start=1):
        held += count
        # A bin stays open if what is left after it would be too small for a bin of its own.
        is_full = held >= size and left - held >= size
        if is_full or end == len(counts):
            rows = slice(start, end)
            weight = counts[rows].sum()
            mean = float((values[rows] * counts[rows]).sum() / weight)
            bins.append((mean, float(num_right[rows].sum() / weight), int(weight)))
            start, left, held = end, left - held, 0
    return bins


def _auroc(confidence: Array, right: Array) -> float:
    """Return the probability that a right answer outranks a wrong one; ties count half."""
    positives = int(right.sum())
    negatives = len(right) - positives
    if not positives or not negatives:
        return float("nan")
    # (N,) rank of each answer from the lowest confidence; equal confidences share the mean rank.
    _, index, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]
    # Mann-Whitney: the sum of the right answers' ranks, minus its smallest possible value.
    return float((ranks[right].sum() - positives * (positives + 1) / 2) / (positives * negatives))


def auroc_interval(confidence: Array, right: Array) -> Interval:
    """Return the interval of how well a confidence separates right from wrong answers."""
    right = np.asarray(right, bool)
    if right.all() or not right.any():
        return Interval(float("nan"), float("nan"))
    order = np.argsort(confidence, kind="stable")
    is_right = right[order]
    # (V,) the first answer of each distinct confidence, in increasing order.
    starts = np.unique(np.asarray(confidence)[order], return_index=True)[1]

    def separated(weights: Array) -> Array:
        # The weights belong to answers in their own order, whichever that is.
        # (b, V) right and wrong answers at each confidence; wrong ones at lower ones, half at ties.
        positive = np.add.reduceat(weights * is_right, starts, axis=1)
        negative = np.add.reduceat(weights * ~is_right, starts, axis=1)
        below = np.cumsum(negative, axis=1) - negative / 2
        pairs = positive.sum(axis=1) * negative.sum(axis=1)
        return _ratio((positive * below).sum(axis=1), pairs)

    return bootstrap(len(right), separated)


@dataclass(frozen=True)
class AtLevel:
    """Precision and recall of the answers with a confidence of `level` or more."""

    level: float
    proposed: int
    precision: float  # NaN if nothing is proposed
    recall: float  # of all held-out answers


def at_levels(
    confidence: Array, right: Array, num_held_out: int, levels: tuple[float, ...] = (0.5, 0.8, 0.95)
) -> list[AtLevel]:
    """Return precision and recall of the answers proposed at each level.

    num_held_out: number of held-out answers that could be found.
    """
    figures_by_level = []
    for level in levels:
        chosen = np.asarray(confidence) >= level
        proposed, num_right = int(chosen.sum()), int(np.asarray(right)[chosen].sum())
        precision = num_right / proposed if proposed else float("nan")
        recall = num_right / num_held_out if num_held_out else float("nan")
        figures_by_level.append(AtLevel(level, proposed, precision, recall))
    return figures_by_level


def average_precision(confidence: Array, right: Array, num_held_out: int) -> float:
    """Return the area below the curve of precision over recall, which depends on the order alone.

    Answers of equal confidence enter together. Recall is of all held-out answers, so that finding
    more of them counts.
    """
    # (V,) each, from the highest confidence down: answers, and right answers, at each value.
    values, index, counts = np.unique(
        -np.asarray(confidence), return_inverse=True, return_counts=True
    )
    num_right = np.bincount(index, np.asarray(right, float), len(values))
    precision = np.cumsum(num_right) / np.cumsum(counts)
    return float((precision * num_right).sum() / num_held_out) if num_held_out else float("nan")
