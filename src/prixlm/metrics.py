"""Figures of a ranking: the tie rule, Hits@k, the mean reciprocal rank; and of a confidence.

The rank of the truth is one more than the number of candidates that score higher, and half of those
that score the same ("realistic" rank): a ranker that cannot tell candidates apart gains nothing. A
rank that is only known to be beyond some N is infinity: it counts as 0 in the mean reciprocal rank,
which can then be too low by at most `unknown / (N + 1)`.
"""

from dataclasses import dataclass

import numpy as np

from prixlm.types import Array

BEYOND = 1000
"""Ranks above this are not told apart."""


@dataclass(frozen=True)
class Figures:
    """Shares of the facts, from 0 to 1; `slack` is how much too low the MRR may be."""

    number: int
    hits_1: float
    hits_3: float
    hits_10: float
    mrr: float
    slack: float


def figures(ranks: Array, beyond: int = BEYOND) -> Figures:
    """The figures of some ranks; infinite ones are beyond `beyond`."""
    ranks = np.asarray(ranks, float)
    if not len(ranks):
        nothing = float("nan")
        return Figures(0, nothing, nothing, nothing, nothing, 0.0)
    ranks = np.where(ranks > beyond, np.inf, ranks)
    one, three, ten = (float((ranks <= k).mean()) for k in (1, 3, 10))
    unknown = float(np.isinf(ranks).mean())
    mrr = float((1 / ranks).mean())
    return Figures(len(ranks), one, three, ten, mrr, unknown / (beyond + 1))


def mean_figures(parts: list[Figures]) -> Figures:
    """The plain mean over languages, as the paper has it."""
    rows = [(p.hits_1, p.hits_3, p.hits_10, p.mrr, p.slack) for p in parts]
    one, three, ten, mrr, slack = np.mean(rows, axis=0).tolist()
    return Figures(sum(part.number for part in parts), one, three, ten, mrr, slack)


@dataclass(frozen=True)
class Reliability:
    """How far confidences can be believed."""

    number: int
    ece: float  # expected calibration error: the mean gap between confidence and share right
    brier: float  # the mean squared error
    auroc: float  # how well right and wrong ones are told apart; 0.5 is chance
    bins: list[tuple[float, float, int]]  # mean confidence, share right, number

    @property
    def noise(self) -> float:
        """The calibration error that a perfect confidence would be expected to show here.

        The share right of n answers strays from their mean confidence p by √(2p(1 - p) / πn).
        """
        strays = (size * np.sqrt(2 * p * (1 - p) / (np.pi * size)) for p, _, size in self.bins)
        return float(sum(strays) / self.number) if not np.isnan(self.ece) else float("nan")


def reliability(
    confidence: Array, right: Array, least: int = 50, most_bins: int = 10
) -> Reliability:
    """Bins of about equal size with `least` answers or more in each; equal ones are never cut.

    With fewer answers than that there is no calibration error.
    """
    confidence, right = np.asarray(confidence, float), np.asarray(right, bool)
    number, nothing = len(right), float("nan")
    if not number:
        return Reliability(0, nothing, nothing, nothing, [])
    brier = float(((confidence - right) ** 2).mean())
    bins = _bins(confidence, right, max(least, -(-number // most_bins)))
    ece = sum(abs(mean - share) * size for mean, share, size in bins) / number
    ece = ece if number >= least else nothing
    return Reliability(number, ece, brier, _auroc(confidence, right), bins)


def _bins(confidence: Array, right: Array, size: int) -> list[tuple[float, float, int]]:
    """Answers in the order of their confidence, cut where it changes, `size` or more a bin."""
    values, place, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    good = np.bincount(place, right, len(values))
    bins: list[tuple[float, float, int]] = []
    start, total = 0, int(counts.sum())
    done = held = 0
    for end, count in enumerate(counts.tolist(), start=1):
        held += count
        # What is left over after a full bin joins it, if it is too small for one of its own.
        if (held >= size and (total - done - held >= size or end == len(counts))) or end == len(
            counts
        ):
            part = slice(start, end)
            weight = counts[part].sum()
            mean = float((values[part] * counts[part]).sum() / weight)
            bins.append((mean, float(good[part].sum() / weight), int(weight)))
            start, done, held = end, done + held, 0
    return bins


def _auroc(confidence: Array, right: Array) -> float:
    """The chance that a right answer has more confidence than a wrong one; ties count half."""
    positives = int(right.sum())
    negatives = len(right) - positives
    if not positives or not negatives:
        return float("nan")
    _, place, counts = np.unique(confidence, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    return float((ranks[right].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@dataclass(frozen=True)
class AtLevel:
    """Answers with a confidence of `level` or more."""

    level: float
    proposed: int
    precision: float  # NaN where nothing is proposed
    recall: float  # of all that was hidden


def at_levels(
    confidence: Array, right: Array, hidden: int, levels: tuple[float, ...] = (0.5, 0.8, 0.95)
) -> list[AtLevel]:
    """Precision and recall of what is proposed at each level."""
    found = []
    for level in levels:
        chosen = np.asarray(confidence) >= level
        number, good = int(chosen.sum()), int(np.asarray(right)[chosen].sum())
        precision = good / number if number else float("nan")
        found.append(AtLevel(level, number, precision, good / hidden if hidden else float("nan")))
    return found


def average_precision(confidence: Array, right: Array, hidden: int) -> float:
    """The area below the curve of precision over recall: the order alone counts, no level does.

    What has the same confidence comes at once. Recall is of all that was hidden, so that finding
    more counts too.
    """
    values, place, counts = np.unique(
        -np.asarray(confidence), return_inverse=True, return_counts=True
    )
    good = np.bincount(place, np.asarray(right, float), len(values))
    precision = np.cumsum(good) / np.cumsum(counts)
    return float((precision * good).sum() / hidden) if hidden else float("nan")
