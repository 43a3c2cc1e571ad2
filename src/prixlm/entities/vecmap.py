"""Supervised VecMap (Artetxe et al., 2018): two sets of vectors brought into one space.

    mapping = fit_mapping(source, target, pairs)
    mapping.source, mapping.target                      # all vectors, mapped, unit length

The steps, as `--supervised` of the authors' code has them: unit length, mean-centre and unit length
over the whole vocabularies; whiten either side by its training rows; rotate both by the singular
vectors of the cross-covariance of the training pairs; re-weight both by the square root of the
singular values; undo the whitening of each side; unit length.

Dimension letters: N source vectors, M target vectors, P training pairs, H width.
"""

from dataclasses import dataclass

import numpy as np

from prixlm.errors import PrixError
from prixlm.types import Array


@dataclass(frozen=True)
class Mapping:
    """Both sides in the common space, as unit vectors."""

    source: Array  # (N, H) float32
    target: Array  # (M, H) float32


def fit_mapping(source: Array, target: Array, pairs: Array) -> Mapping:
    """source: (N, H), target: (M, H), pairs: (P, 2) rows that are translations of each other."""
    if source.shape[1] != target.shape[1]:
        raise PrixError(
            f"source vectors have {source.shape[1]} numbers and target vectors "
            f"{target.shape[1]}: encode both with one model."
        )
    if not len(pairs):
        raise PrixError("there is no training pair that both vocabularies have.")
    x, z = normalise(source), normalise(target)
    own, other = x[pairs[:, 0]], z[pairs[:, 1]]
    whiten_x, whiten_z = whitening(own), whitening(other)
    u, singular, vt = np.linalg.svd((own @ whiten_x).T @ (other @ whiten_z))
    weight = np.sqrt(singular)
    # Whiten, rotate, re-weight, undo the whitening in the rotated space: one matrix a side.
    map_x = whiten_x @ u @ (weight[:, None] * (u.T @ np.linalg.inv(whiten_x) @ u))
    map_z = whiten_z @ vt.T @ (weight[:, None] * (vt @ np.linalg.inv(whiten_z) @ vt.T))
    return Mapping(_unit(x @ map_x).astype(np.float32), _unit(z @ map_z).astype(np.float32))


def normalise(vectors: Array) -> Array:
    """Unit length, mean zero in every dimension, unit length again."""
    unit = _unit(np.asarray(vectors, np.float64))
    return _unit(unit - unit.mean(axis=0))


def whitening(rows: Array) -> Array:
    """The symmetric matrix W for which (rows W)^T (rows W) is the identity: (H, H).

    Directions that the rows do not have (fewer rows than dimensions) are left small, not divided
    by nothing.
    """
    _, singular, vt = np.linalg.svd(rows, full_matrices=False)
    if not singular[0] > 0:
        raise PrixError("the training words have one and the same vector: nothing can be mapped.")
    floor = singular[0] * 1e-5
    inverse = 1 / np.maximum(singular, floor)
    rest = np.eye(rows.shape[1]) - vt.T @ vt  # what the rows do not reach
    return np.asarray(vt.T @ (inverse[:, None] * vt) + rest * inverse[0])


def _unit(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length == 0, 1, length))
