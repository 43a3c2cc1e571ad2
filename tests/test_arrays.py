"""Array idioms, each against a plain loop."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prixlm.arrays import (
    find_ranges,
    group_starts,
    hash_share,
    is_in_sorted,
    join_pairs,
    pair_keys,
    ragged_offsets,
    ragged_ranges,
    random_positions,
    rank_in_group,
    split_keys,
    unique_rows,
)

IDS = st.integers(0, 2**31 - 1)
ROWS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30).map(sorted)


def column(rows: list[tuple[int, int]], index: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.array([row[index] for row in rows], np.int64)


@given(ROWS)
def test_a_group_starts_where_a_row_differs_from_the_one_before(
    rows: list[tuple[int, int]],
) -> None:
    expected = [i for i, row in enumerate(rows) if i == 0 or row != rows[i - 1]]
    assert group_starts(column(rows, 0), column(rows, 1)).tolist() == expected
    assert [rows[i] for i in expected] == sorted(set(rows))


@given(ROWS)
def test_ranks_count_from_zero_in_each_group(rows: list[tuple[int, int]]) -> None:
    owner = column(rows, 0)
    expected = [i - owner.tolist().index(value) for i, value in enumerate(owner.tolist())]
    assert rank_in_group(owner).tolist() == expected


@given(st.lists(st.integers(0, 4), max_size=20))
def test_offsets_cut_a_flat_array_into_rows(counts: list[int]) -> None:
    offsets = ragged_offsets(np.array(counts, np.int64))
    assert offsets.dtype == np.int64 and offsets[0] == 0
    assert np.diff(offsets).tolist() == counts


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=20))
def test_ranges_are_joined_with_their_owners(ranges: list[tuple[int, int]]) -> None:
    starts = column(ranges, 0)
    values, owner = ragged_ranges(starts, starts + column(ranges, 1))
    expected = [(v, i) for i, (a, n) in enumerate(ranges) for v in range(a, a + n)]
    assert list(zip(values.tolist(), owner.tolist(), strict=True)) == expected


@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=20))
def test_pair_keys_sort_as_the_pairs_do_and_can_be_unpacked(pairs: list[tuple[int, int]]) -> None:
    high, low = column(pairs, 0), column(pairs, 1)
    keys = pair_keys(high.astype(np.int32), low.astype(np.int32))
    assert keys.dtype == np.int64
    assert [pairs[i] for i in np.argsort(keys, kind="stable")] == sorted(pairs)
    assert [part.tolist() for part in split_keys(keys)] == [high.tolist(), low.tolist()]


def test_a_hashed_share_has_the_asked_size_and_other_shifts_pick_other_ids() -> None:
    ids = np.arange(100_000)
    for every in (2, 10):
        picked, others = hash_share(ids, every, 16), hash_share(ids, every, 8)
        assert abs(picked.mean() * every - 1) < 0.02
        assert abs((picked & others).mean() * every**2 - 1) < 0.2
    assert hash_share(ids, 1, 8).all()
    assert (hash_share(ids[::3], 10, 8) == hash_share(ids, 10, 8)[::3]).all(), "ids alone decide"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=30))
def test_distinct_rows_come_sorted_with_their_counts(rows: list[tuple[int, int]]) -> None:
    [first, second], counts = unique_rows(column(rows, 0), column(rows, 1))
    distinct = list(zip(first.tolist(), second.tolist(), strict=True))
    assert distinct == sorted(set(rows))
    assert dict(zip(distinct, counts.tolist(), strict=True)) == Counter(rows)


@given(st.lists(st.integers(0, 9), max_size=30), st.lists(st.integers(0, 9), max_size=10))
def test_all_rows_of_each_wanted_key_are_found(keys: list[int], wanted: list[int]) -> None:
    keys.sort()
    rows, owner = find_ranges(np.array(keys, np.int64), np.array(wanted, np.int64))
    expected = [(i, w) for w, key in enumerate(wanted) for i, k in enumerate(keys) if k == key]
    assert list(zip(rows.tolist(), owner.tolist(), strict=True)) == expected


def test_random_positions_are_even_and_depend_on_the_seed() -> None:
    positions = random_positions(1000, 0)
    assert sorted(positions.tolist()) == [i / 1000 for i in range(1000)]
    assert (positions == random_positions(1000, 0)).all()
    assert (positions != random_positions(1000, 1)).any()
    assert random_positions(0, 0).tolist() == []


def test_ids_are_joined_with_all_their_pairs() -> None:
    left, right = np.array([5, 2, 5, 7]), np.array([50, 20, 51, 70])
    row, found = join_pairs(np.array([5, 1, 2]), left, right)
    assert row.tolist() == [0, 0, 2] and found.tolist() == [50, 51, 20]


def test_values_are_found_among_sorted_ones() -> None:
    values, known = np.array([0, 3, 9, 4]), np.array([3, 4, 4, 8])
    assert is_in_sorted(values, known).tolist() == np.isin(values, known).tolist()
    assert is_in_sorted(values, known[:0]).tolist() == [False] * 4
