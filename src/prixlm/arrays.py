"""Ragged arrays, groups, packed keys and hashes: the array idioms that several rooms share.

A *group* is a run of equal rows in sorted columns. A *ragged* array is a flat array of values with
the start of each row; row `i` is `values[start[i]:end[i]]`.
"""

import numpy as np

from prixlm.types import Array

_MULTIPLIER = 2654435761  # 2**32 / golden ratio: Knuth's multiplicative hash


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


def unique_rows(*columns: Array) -> tuple[list[Array], Array]:
    """Return the distinct rows of some columns, and how often each occurs.

    columns: (N,) each. The rows come back sorted by the first column, then by the next.
    """
    order = np.lexsort(columns[::-1])
    ordered = [column[order] for column in columns]
    first = group_starts(*ordered)
    counts = np.diff(np.append(first, len(order)))
    return [column[first] for column in ordered], counts


def rank_in_group(sorted_owner: Array) -> Array:
    """Return the position of each row within its group, from 0.

    sorted_owner: (N,) group of each row; equal values are adjacent.
    """
    # The start of a row's group is subtracted from its index.
    starts = group_starts(sorted_owner)
    counts = np.diff(np.append(starts, len(sorted_owner)))
    return np.asarray(np.arange(len(sorted_owner)) - np.repeat(starts, counts))


def ragged_offsets(counts: Array) -> Array:
    """Return (N + 1,) int64 offsets: row `i` of `counts[i]` values is `offsets[i]:offsets[i+1]`."""
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    return offsets


def ragged_ranges(starts: Array, ends: Array) -> tuple[Array, Array]:
    """Concatenate the integers of the ranges `starts[i]:ends[i]`.

    Returns the integers, (sum of lengths,), and the range that each of them belongs to.
    """
    counts = ends - starts
    owner = np.repeat(np.arange(len(starts)), counts)
    # Where range i begins in the result; its integers are shifted from there to starts[i].
    shift = np.repeat(starts - np.cumsum(counts) + counts, counts)
    return np.arange(len(owner)) + shift, owner


def find_ranges(sorted_keys: Array, wanted: Array) -> tuple[Array, Array]:
    """Return the rows of a sorted column that equal each wanted key.

    Returns the rows of all wanted keys, one key after another, and the key that each belongs to.
    """
    first = np.searchsorted(sorted_keys, wanted)
    return ragged_ranges(first, np.searchsorted(sorted_keys, wanted, side="right"))


def pair_keys(high: Array, low: Array) -> Array:
    """Pack two columns of ids below 2**31 into one int64 key that sorts by `high`, then `low`.

    `split_keys` gives the ids back.
    """
    return (np.asarray(high, np.int64) << 32) | np.asarray(low, np.int64)


def split_keys(keys: Array) -> tuple[Array, Array]:
    """Return the `high` and `low` ids that `pair_keys` packed."""
    return keys >> 32, keys & 0xFFFFFFFF


def hash_share(ids: Array, every: int, shift: int) -> Array:
    """Return a mask that picks about one in `every` ids: the same ids whatever else is asked.

    ids: (N,) int64. shift: how many low bits of the hash are dropped. Other shifts pick
    other ids, so that two samples of the same ids differ.
    """
    return np.asarray((ids * _MULTIPLIER >> shift) % every == 0)


def random_positions(number: int, seed: int) -> Array:
    """Return where each of `number` items stands in a random order: (number,) in [0, 1).

    Items below 0.5 are a random half, those below 0.75 that half and a further quarter.
    """
    return np.asarray(np.argsort(np.random.default_rng(seed).permutation(number)) / max(1, number))


def join_pairs(ids: Array, left: Array, right: Array) -> tuple[Array, Array]:
    """Join ids with pairs of ids: return the row of each match, and its right-hand id."""
    order = np.argsort(left, kind="stable")
    low = np.searchsorted(left, ids, sorter=order)
    high = np.searchsorted(left, ids, side="right", sorter=order)
    position, row = ragged_ranges(low, high)
    return row, right[order[position]]


def is_in_sorted(values: Array, known: Array) -> Array:
    """Return which values are among sorted ones: (N,) bool. Faster than `np.isin` if N is small."""
    if not len(known):
        return np.zeros(len(values), bool)
    position = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return np.asarray(known[position] == values)
