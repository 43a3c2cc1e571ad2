"""The trie: the same names as a set of tuples, in flat arrays."""

from dataclasses import fields
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from prixlm import KB
from prixlm.decoding.trie import Trie, open_trie
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import build_tokens, make_ragged
from tests.decoding.helpers import path_to

NAMES = st.lists(st.lists(st.integers(0, 5), max_size=5), max_size=30)


def as_dict(trie: Trie) -> dict[tuple[int, ...], list[int]]:
    """Names and their entities, by walking from the root."""
    entities: dict[tuple[int, ...], list[int]] = {}
    stack: list[tuple[int, tuple[int, ...]]] = [(0, ())]
    while stack:
        node, path = stack.pop()
        if trie.offset[node] < trie.offset[node + 1]:
            entities[path] = trie.entity[trie.offset[node] : trie.offset[node + 1]].tolist()
        for child in range(trie.first[node], trie.first[node + 1]):
            assert trie.parent[child] == node and trie.depth[child] == len(path) + 1
            stack.append((child, (*path, int(trie.token[child]))))
    return entities


def expected_dict(names: list[list[int]], entities: list[int]) -> dict[tuple[int, ...], list[int]]:
    expected: dict[tuple[int, ...], list[int]] = {}
    for entity in sorted(entities):
        if names[entity]:
            expected.setdefault(tuple(names[entity]), []).append(entity)
    return expected


@given(NAMES)
def test_a_trie_holds_the_names_that_went_in(names: list[list[int]]) -> None:
    trie = Trie.build(make_ragged(names), np.arange(len(names)))
    assert as_dict(trie) == expected_dict(names, list(range(len(names))))
    beginnings = {tuple(name[:n]) for name in names for n in range(len(name) + 1)} | {()}
    assert trie.num_nodes == len(beginnings)
    assert trie.height == max(map(len, names), default=0)


@given(NAMES, st.data())
def test_a_restricted_trie_is_the_one_built_of_the_subset(
    names: list[list[int]], data: st.DataObject
) -> None:
    some = data.draw(st.lists(st.sampled_from(range(len(names))), unique=True)) if names else []
    trie = Trie.build(make_ragged(names), np.arange(len(names))).restrict(np.array(some, np.int64))
    again = Trie.build(make_ragged(names), np.array(sorted(some), np.int64))
    for field in fields(Trie):
        np.testing.assert_array_equal(getattr(trie, field.name), getattr(again, field.name))


@given(NAMES)
def test_runs_end_at_names_and_forks(names: list[list[int]]) -> None:
    trie = Trie.build(make_ragged(names), np.arange(len(names)))
    for node in range(trie.num_nodes):
        last = node
        while (
            trie.first[last + 1] - trie.first[last] == 1
            and trie.offset[last] == trie.offset[last + 1]
        ):
            last = int(trie.first[last])
        assert trie.depth[last] == len(path_to(trie, last))
        assert trie.run_length[node] == trie.depth[last] - trie.depth[node]


@given(NAMES)
def test_the_entities_below_a_node_are_counted(names: list[list[int]]) -> None:
    trie = Trie.build(make_ragged(names), np.arange(len(names)))
    paths = [path_to(trie, node) for node in range(trie.num_nodes)]
    expected = [sum(bool(n) and n[: len(path)] == path for n in names) for path in paths]
    assert trie.num_below(np.arange(trie.num_nodes)).tolist() == expected


@given(NAMES, st.lists(st.integers(0, 40)))
def test_entities_are_found_at_their_nodes(names: list[list[int]], asked: list[int]) -> None:
    trie = Trie.build(make_ragged(names), np.arange(len(names)))
    nodes = trie.nodes_of(np.array(asked, np.int64))
    for entity, node in zip(asked, nodes, strict=True):
        is_candidate = entity < len(names) and names[entity]
        assert (node >= 0) == bool(is_candidate)
        assert not is_candidate or path_to(trie, int(node)) == names[entity]


def test_a_saved_trie_is_mapped_and_equal(tmp_path: Path) -> None:
    trie = Trie.build(make_ragged([[1, 2], [1], [1, 2], [3]]), np.arange(4))
    trie.save(tmp_path / "trie")
    again = Trie.open(tmp_path / "trie")
    assert isinstance(again.token.base, np.memmap)
    assert as_dict(again) == {(1,): [1], (1, 2): [0, 2], (3,): [3]}


def test_the_trie_of_a_language_is_built_once_without_names_that_are_too_long(
    model: PrixLM, shared_toy: KB
) -> None:
    cache = build_tokens(shared_toy, model.encoder.tokenizer)
    rows = shared_toy.entity_range("en")
    lengths = cache.entities.lengths(np.arange(rows.start, rows.stop))
    longest = int(lengths.max()) - 1
    trie = open_trie(cache, "en", rows, longest)
    expected = rows.start + np.flatnonzero(lengths <= longest)
    assert sorted(trie.entity.tolist()) == expected.tolist()
    assert 0 < len(expected) < len(rows)
    [folder] = cache.folder.glob(f"trie-*-{longest}-en")
    before = (folder / "token.npy").stat().st_mtime_ns
    assert as_dict(open_trie(cache, "en", rows, longest)) == as_dict(trie)
    assert (folder / "token.npy").stat().st_mtime_ns == before, "read, not built again"
    assert not list(cache.folder.glob("*.tmp"))
