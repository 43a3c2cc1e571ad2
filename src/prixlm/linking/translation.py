"""Which letters and words of one language stand for which of another, learnt from linked names.

Names are made of words, and words of letters. Both methods here learn from pairs of names alone:

- `learn_chunks`: IBM model 1 over n-grams and words. For each n-gram of the one language, the
  n-grams of the other that it explains. A name is turned into the n-grams that its counterpart
  should have, which are looked up as any other name is.
- `learn_maps`: canonical correlation analysis of the two n-gram spaces. Each name becomes a short
  vector, and the vectors of counterparts are close.

Both are counts and one decomposition, a few seconds on one core for 10,000 links.

Dimension letters: L links, S and T n-grams of either side, H width.
"""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from prixlm.arrays import pair_keys, ragged_ranges, split_keys
from prixlm.linking.grams import row_numbers, unit_rows
from prixlm.types import Array

MAX_LINKS = 8000
"""Links that are learnt from, a random sample of more."""
_WIDTH = 300
_ROUNDS = 6
_LEAST = 0.01
"""Smallest probability that is kept. It bounds the table."""
_NO_CAUSE = 1e-3
"""Weight of an n-gram that no n-gram of the other name explains."""
_UNSEEN = 0.5
"""Pseudo-count that shrinks the probabilities of n-grams seen once or twice."""
_REGULAR = 0.3
"""Share of the mean variance that is added to every direction."""


def learn_chunks(ours: sp.csr_matrix, theirs: sp.csr_matrix) -> sp.csr_matrix:
    """Return P(their n-gram | our n-gram): (D, D), rows of n-grams that no link has are empty.

    ours, theirs: (L, D) weights of the n-grams of linked names, row i of one linked to row i of
    the other. A rarer n-gram of theirs counts more, by its weight.
    """
    width = ours.shape[1]
    num_ours, num_theirs = np.diff(ours.indptr), np.diff(theirs.indptr)
    # One cell for each link, each of its n-grams in `theirs` and each in `ours`. The n-grams of
    # `theirs` come first, so that those which compete for one of them are adjacent.
    link = row_numbers(theirs)
    at, explained = ragged_ranges(ours.indptr[link], ours.indptr[link + 1])  # (cells,) each
    source, target = ours.indices[at], theirs.indices[explained]
    weight = theirs.data[explained]
    pairs, cell = np.unique(pair_keys(source, target), return_inverse=True)
    rows, columns = split_keys(pairs)
    table = (
        1 / np.bincount(rows, minlength=width)[rows]
    )  # (pairs,) at first, all are equally likely
    assert len(cell) == int((num_ours.astype(np.int64) * num_theirs).sum())
    for _ in range(_ROUNDS):
        share = table[cell]
        total = np.bincount(explained, share, minlength=theirs.nnz) + _NO_CAUSE
        share *= weight / total[explained]
        counts = np.bincount(cell, share, minlength=len(pairs))
        table = counts / (np.bincount(rows, counts, minlength=width)[rows] + _UNSEEN)
    kept = table >= _LEAST
    cells = (table[kept].astype(np.float32), (rows[kept], columns[kept]))
    return sp.csr_matrix(cells, (width, width))


def translate(names: sp.csr_matrix, chunks: sp.csr_matrix) -> sp.csr_matrix:
    """Return the n-grams that the counterparts of names should have: (N, D), unit rows."""
    return unit_rows((names @ chunks).tocsr().astype(np.float32))


@dataclass(frozen=True)
class Maps:
    """Linear maps of two n-gram spaces into one of H dimensions."""

    ours: Array  # (D', H), over the columns `our_columns`
    theirs: Array
    our_columns: Array  # (D',) columns that occur
    their_columns: Array

    def encode_ours(self, names: sp.csr_matrix) -> Array:
        """Return unit vectors of our names: (N, H) float32."""
        return unit(names[:, self.our_columns] @ self.ours)

    def encode_theirs(self, names: sp.csr_matrix) -> Array:
        """Return unit vectors of their names: (N, H) float32."""
        return unit(names[:, self.their_columns] @ self.theirs)


Directions = tuple[Array, Array]
"""Columns that occur, and the main directions of names in them: (columns, H)."""


def learn_maps(
    ours: sp.csr_matrix,
    theirs: sp.csr_matrix,
    left: Array,
    right: Array,
    directions: tuple[Directions, Directions],
) -> Maps:
    """Fit maps on links: name left[i] of `ours` is linked to name right[i] of `theirs`.

    The directions of each space are those of all its names, so few links are enough. Directions
    that agree better weigh more.
    """
    (our_columns, u), (their_columns, v) = directions
    width = min(len(left) // 2, u.shape[1], v.shape[1])
    u, v = u[:, :width], v[:, :width]
    a, b = ours[left][:, our_columns] @ u, theirs[right][:, their_columns] @ v  # (L, H) each
    whiten_a, whiten_b = _whitening(a), _whitening(b)
    p, agreement, q = np.linalg.svd(whiten_a.T @ (a.T @ b / len(a)) @ whiten_b)
    return Maps(
        (u @ (whiten_a @ p * agreement)).astype(np.float32),
        (v @ (whiten_b @ q.T * agreement)).astype(np.float32),
        our_columns,
        their_columns,
    )


_SAMPLE = 20_000
"""Names whose main directions are computed."""


def main_directions(names: sp.csr_matrix, seed: int = 0) -> Directions:
    """Return the main directions of names: a truncated SVD of a sample of them.

    Names without a common n-gram, such as one sign each, have one direction, in which all are 0.
    """
    from sklearn.utils.extmath import randomized_svd

    if names.shape[0] > _SAMPLE:
        drawn = np.random.default_rng(seed).permutation(names.shape[0])[:_SAMPLE]
        names = names[np.sort(drawn)]
    columns = np.flatnonzero(np.bincount(names.indices, minlength=names.shape[1]) > 1)
    if not len(columns):
        return columns, np.zeros((0, 1), np.float32)
    _, _, directions = randomized_svd(
        names[:, columns], min(_WIDTH, len(columns)), n_iter=3, random_state=seed
    )
    return columns, np.asarray(directions.T)


def _whitening(values: Array) -> Array:
    """Return W for which W' C W = 1, where C is the regularised covariance of the values."""
    covariance = values.T @ values / len(values)
    mean = float(np.trace(covariance)) / len(covariance)
    covariance += (_REGULAR * mean + 1e-12) * np.eye(len(covariance))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)).T)


def unit(vectors: Array) -> Array:
    """Return dense rows at length 1; rows of zeros stay: (N, H) float32."""
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1), np.float32)
