"""The trie: the same names as a set of tuples, in flat arrays."""

from dataclasses import fields
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prixlm.arrays import ragged_ranges
from prixlm.decoding.trie import Trie
from prixlm.lm.token_cache import Ragged

NAMES = st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=30)


def ragged(names: list[list[int]]) -> Ragged:
    offsets = np.concatenate([[0], np.cumsum([len(name) for name in names])]).astype(np.int64)
    return Ragged(offsets, np.array([t for name in names for t in name], np.int32))


def as_dict(trie: Trie) -> dict[tuple[int, ...], list[int]]:
    """Names and their entities, by walking from the root."""
    found: dict[tuple[int, ...], list[int]] = {}
    stack = [(0, ())]
    while stack:
        node, path = stack.pop()
        if trie.offset[node] < trie.offset[node + 1]:
            found[path] = trie.entities_at(node).tolist()
        for child in range(trie.first[node], trie.first[node + 1]):
            assert trie.parent[child] == node and trie.depth[child] == len(path) + 1
            assert trie.path(child) == [*path, trie.token[child]]
            stack.append((child, (*path, int(trie.token[child]))))
    return found


def expected(names: list[list[int]], entities: list[int]) -> dict[tuple[int, ...], list[int]]:
    found: dict[tuple[int, ...], list[int]] = {}
    for entity in sorted(entities):
        if names[entity]:
            found.setdefault(tuple(names[entity]), []).append(entity)
    return found


@given(NAMES)
def test_a_trie_holds_the_names_that_went_in(names: list[list[int]]) -> None:
    trie = Trie.build(ragged(names), np.arange(len(names)))
    assert as_dict(trie) == expected(names, list(range(len(names))))
    prefixes = {tuple(name[:n]) for name in names for n in range(len(name) + 1)} | {()}
    assert trie.num_nodes == len(prefixes)


@given(NAMES, st.data())
def test_a_restricted_trie_is_the_one_built_of_the_subset(
    names: list[list[int]], data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.sampled_from(range(len(names))), unique=True)) if names else []
    trie = Trie.build(ragged(names), np.arange(len(names))).restrict(np.array(some, np.int64))
    again = Trie.build(ragged(names), np.array(sorted(some), np.int64))
    for field in fields(Trie):
        np.testing.assert_array_equal(getattr(trie, field.name), getattr(again, field.name))


@given(NAMES)
def test_runs_end_at_names_and_forks(names: list[list[int]]) -> None:
    trie = Trie.build(ragged(names), np.arange(len(names)))
    for node in range(trie.num_nodes):
        place = node
        while (
            trie.first[place + 1] - trie.first[place] == 1
            and trie.offset[place] == trie.offset[place + 1]
        ):
            place = int(trie.first[place])
        assert trie.depth[place] == len(trie.path(place))
        assert trie.run_length[node] == trie.depth[place] - trie.depth[node]


@given(NAMES)
def test_the_entities_below_a_node_are_counted(names: list[list[int]]) -> None:
    trie = Trie.build(ragged(names), np.arange(len(names)))
    paths = [trie.path(node) for node in range(trie.num_nodes)]
    expected = [sum(bool(n) and n[: len(path)] == path for n in names) for path in paths]
    assert trie.num_below(np.arange(trie.num_nodes)).tolist() == expected


@given(NAMES, st.lists(st.integers(0, 40)))
def test_entities_are_found_at_their_nodes(names: list[list[int]], asked: list[int]) -> None:
    trie = Trie.build(ragged(names), np.arange(len(names)))
    nodes = trie.nodes_of(np.array(asked, np.int64))
    for entity, node in zip(asked, nodes, strict=True):
        known = entity < len(names) and names[entity]
        assert (node >= 0) == bool(known)
        assert not known or trie.path(int(node)) == names[entity]


def test_a_saved_trie_is_mapped_and_equal(tmp_path: Path) -> None:
    trie = Trie.build(ragged([[1, 2], [1], [1, 2], [3]]), np.arange(4))
    trie.save(tmp_path / "trie")
    again = Trie.open(tmp_path / "trie")
    assert isinstance(again.token.base, np.memmap)
    assert as_dict(again) == {(1,): [1], (1, 2): [0, 2], (3,): [3]}


def test_ranges_are_laid_end_to_end() -> None:
    numbers, owner = ragged_ranges(np.array([3, 9, 5]), np.array([5, 9, 8]))
    assert numbers.tolist() == [3, 4, 5, 6, 7] and owner.tolist() == [0, 0, 2, 2, 2]
