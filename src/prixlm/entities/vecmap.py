"""Map two sets of vectors into one space: supervised VecMap (Artetxe et al., 2018).

    mapping = fit_mapping(source, target, pairs)
    mapping.source, mapping.target                      # all vectors, mapped, of unit length

The steps are those of `--supervised` in the authors' code:

1. normalise both vocabularies: unit length, mean zero, unit length;
2. whiten each side by its training rows;
3. rotate both sides by the singular vectors of the training pairs' cross-covariance;
4. re-weight both sides by the square root of the singular values;
5. undo the whitening of each side;
6. scale to unit length.

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
    """Fit the map on pairs of translations and apply it to all vectors.

    source: (N, H), target: (M, H), pairs: (P, 2) rows of source and target.
    """
    if source.shape[1] != target.shape[1]:
        raise PrixError(
            f"source vectors have {source.shape[1]} dimensions and target vectors "
            f"{target.shape[1]}: encode both with the same model."
        )
    if not len(pairs):
        raise PrixError("no training pair is in both vocabularies: expected at least one.")
    x, z = _normalise(source), _normalise(target)
    x_train, z_train = x[pairs[:, 0]], z[pairs[:, 1]]  # (P, H) each
    whiten_x, whiten_z = _whitening(x_train), _whitening(z_train)
    # The cross-covariance of the whitened pairs, (H, H) = u diag(singular) vt.
    u, singular, vt = np.linalg.svd((x_train @ whiten_x).T @ (z_train @ whiten_z))
    weight = np.sqrt(singular)
    # Steps 2 to 5 as one (H, H) matrix a side. Step 5 happens in the rotated space, so the inverse
    # of the whitening is rotated, too.
    map_x = whiten_x @ u @ (weight[:, None] * (u.T @ np.linalg.inv(whiten_x) @ u))
    map_z = whiten_z @ vt.T @ (weight[:, None] * (vt @ np.linalg.inv(whiten_z) @ vt.T))
    return Mapping(_unit(x @ map_x).astype(np.float32), _unit(z @ map_z).astype(np.float32))


def _normalise(vectors: Array) -> Array:
    """Return vectors of unit length, then of mean zero in every dimension, then of unit length."""
    unit = _unit(np.asarray(vectors, np.float64))
    return _unit(unit - unit.mean(axis=0))


def _whitening(rows: Array) -> Array:
    """Return the symmetric W, (H, H), for which (rows W)^T (rows W) is the identity.

    rows: (P, H). With fewer rows than dimensions, some directions have no variance to divide by:
    they are scaled like the direction of the largest variance, which leaves them small.
    """
    _, singular, vt = np.linalg.svd(rows, full_matrices=False)
    if not singular[0] > 0:
        raise PrixError("all training words have the same vector: there is nothing to map.")
    inverse = 1 / np.maximum(singular, singular[0] * 1e-5)
    unreached = np.eye(rows.shape[1]) - vt.T @ vt  # projects on what the rows do not span
    return np.asarray(vt.T @ (inverse[:, None] * vt) + unreached * inverse[0])


def _unit(vectors: Array) -> Array:
    """Scale vectors to unit length; a zero vector stays zero."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length == 0, 1, length))
