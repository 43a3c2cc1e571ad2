"""Figures of a ranking: the tie rule, Hits@k, the mean reciprocal rank.

The rank of the truth is one more than the number of candidates that score higher, and half of those
that score the same ("realistic" rank): a ranker that cannot tell candidates apart gains nothing. A
rank that is only known to be beyond some N is infinity: it counts as 0 in the mean reciprocal rank,
which can then be too low by at most `unknown / (N + 1)`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
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
