"""Ragged arrays and grouped numpy: the few array idioms that several rooms share.

A *group* is a run of equal rows in sorted columns. A *ragged* array is a flat array of values with
the start of each row; row `i` is `values[start[i]:end[i]]`.
"""

import numpy as np

from prixlm.types import Array


def group_starts(*columns: Array) -> Array:
    """Return the index of the first row of each group of equal rows.

    columns: sorted together, (N,) each.
    """
    if not len(columns[0]):
        return np.zeros(0, np.int64)
    differs = np.zeros(len(columns[0]), bool)
    differs[0] = True
    for column in columns:
        differs[1:] |= column[1:] != column[:-1]
    return np.flatnonzero(differs)


def ragged_ranges(starts: Array, ends: Array) -> tuple[Array, Array]:
    """Concatenate the integers of the ranges `starts[i]:ends[i]`.

    Returns the integers, (sum of lengths,), and the range that each of them belongs to.
    """
    counts = ends - starts
    owner = np.repeat(np.arange(len(starts)), counts)
    # Where range i begins in the result; its integers are shifted from there to starts[i].
    shift = np.repeat(starts - np.cumsum(counts) + counts, counts)
    return np.arange(len(owner)) + shift, owner
