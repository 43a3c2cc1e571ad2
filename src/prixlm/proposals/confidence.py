"""The confidence of proposals after a review: Platt scaling on the judged rows, with a prior.

    corrected_confidence("proposals", "facts")      # (N,), as an export writes it

The log-odds x become a x + b. Before any mark, log a and b have a normal prior around 0, so a few
marks change little; the marks move both to their most probable values. A mark may be a slip: one
near-certain proposal that is rejected does not pull down thousands of others, ten of them do.
Without a rejection nothing changes: reviewers accept the obvious ones first, and that says nothing
about the doubtful ones.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from prixlm.proposals.marks import Verdicts, read_verdicts
from prixlm.proposals.tables import check_confidence, table_path
from prixlm.types import Array

_PRIOR_DEVIATION = 0.35
"""Standard deviation of log a and b before any mark."""
_SLIP = 0.02
"""Probability that a mark is not what the proposal deserves."""
_STEPS, _TOLERANCE = 200, 1e-8
_CHUNK = 1 << 14


@dataclass(frozen=True)
class Correction:
    """Log-odds x become scale * x + shift; order is kept, since the scale is above 0."""

    scale: float = 1.0
    shift: float = 0.0

    def apply(
        self, confidence: Array, odds: Array | None = None, out: Array | None = None
    ) -> Array:
        """Return corrected confidences: (N,) float64.

        odds: the log-odds, if they are known. out: where to write the result.
        """
        out = np.empty(len(confidence)) if out is None else out
        if self == Correction():
            out[:] = confidence
            return out
        # In chunks that stay in the processor's cache: there may be millions of rows.
        for start in range(0, len(out), _CHUNK):
            part = slice(start, start + _CHUNK)
            known = log_odds(confidence[part]) if odds is None else odds[part]
            out[part] = 1 / (1 + np.exp(-(self.scale * known + self.shift)))
        return out


def log_odds(confidence: Array) -> Array:
    """Return log(p / (1 - p)), with p kept from 0 and 1."""
    clipped = np.clip(confidence, 1e-4, 1 - 1e-4)
    return np.asarray(np.log(clipped / (1 - clipped)))


def corrected_confidence(folder: Path | str, table: str) -> Array:
    """Return the confidence of every row of a table, corrected by its marks: (N,)."""
    path = table_path(Path(folder), table)
    confidence = pq.read_table(path, columns=["confidence"])["confidence"].to_numpy()
    check_confidence(path, confidence)
    return correct_confidence(confidence, read_verdicts(folder, table))


def correct_confidence(confidence: Array, verdicts: Verdicts) -> Array:
    """Correct the confidences of a table, (N,), by the verdicts on some of its rows."""
    rows, right = verdicts.judged()
    return fit_correction(confidence[rows], right).apply(confidence)


def fit_correction(confidence: Array, right: Array) -> Correction:
    """Return the most probable correction.

    confidence: (M,) of the judged rows. right: (M,) bool.
    """
    if right.all():
        return Correction()
    odds, sign = log_odds(confidence), np.where(right, 1.0, -1.0)
    prior = 1 / _PRIOR_DEVIATION**2

    def loss(parameters: Array) -> float:
        """Negative log-posterior of (log a, b): of the judged rows, and the prior."""
        scaled = np.exp(parameters[0]) * odds + parameters[1]
        likelihood = _SLIP + (1 - 2 * _SLIP) / (1 + np.exp(-sign * scaled))
        return float(-np.log(likelihood).sum() + prior * (parameters**2).sum() / 2)

    # Fisher scoring: the information is positive definite, so that the step points downhill. A
    # step is halved until it goes downhill.
    parameters, value = np.zeros(2), loss(np.zeros(2))
    for _ in range(_STEPS):
        slopes = np.stack([np.exp(parameters[0]) * odds, np.ones_like(odds)])  # (2, M)
        holds = 1 / (1 + np.exp(-(slopes[0] + parameters[1])))  # (M,) without slips
        accepted = _SLIP + (1 - 2 * _SLIP) * holds  # (M,) with them
        change = (1 - 2 * _SLIP) * holds * (1 - holds)  # of `accepted` by the scaled log-odds
        spread = accepted * (1 - accepted)
        gradient = slopes @ (change * (accepted - right) / spread) + prior * parameters
        information = (slopes * (change**2 / spread)) @ slopes.T + prior * np.eye(2)
        step = np.linalg.solve(information, gradient)
        while (new_value := loss(parameters - step)) > value and np.abs(step).max() > _TOLERANCE:
            step = step / 2
        parameters, value = parameters - step, new_value
        if np.abs(step).max() <= _TOLERANCE:
            break
    return Correction(float(np.exp(parameters[0])), float(parameters[1]))
