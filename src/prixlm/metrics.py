"""Figures of a ranking (Hits@k, mean reciprocal rank) and of a confidence (calibration, AUROC).

The rank of the true answer is 1, plus the number of candidates that score higher, plus half of
those that score the same ("realistic" rank): a ranker that cannot tell candidates apart gains
nothing. A rank that is only known to be above some N is infinite and counts as 0 in the mean
reciprocal rank (MRR), which can then be too low by at most `unknown / (N + 1)`.
"""

from dataclasses import dataclass

import numpy as np

from prixlm.types import Array

BEYOND = 1000
"""Ranks above this are not distinguished."""


@dataclass(frozen=True)
class Figures:
    """Shares of the facts, from 0 to 1; `slack` bounds how much too low the MRR may be."""

    number: int  # of facts
    hits_1: float
    hits_3: float
    hits_10: float
    mrr: float
    slack: float


def figures(ranks: Array, beyond: int = BEYOND) -> Figures:
    """Return the figures of ranks; those above `beyond`, or infinite, count as unknown."""
    ranks = np.asarray(ranks, float)
    if not len(ranks):
        nothing = float("nan")
        return Figures(0, nothing, nothing, nothing, nothing, 0.0)
    # Rankers differ in how deep they look: beyond the limit, all of them know nothing.
    ranks = np.where(ranks > beyond, np.inf, ranks)
    one, three, ten = (float((ranks <= k).mean()) for k in (1, 3, 10))
    unknown = float(np.isinf(ranks).mean())
    mrr = float((1 / ranks).mean())
    return Figures(len(ranks), one, three, ten, mrr, unknown / (beyond + 1))


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
