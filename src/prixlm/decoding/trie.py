"""Trie: every candidate name of a language as flat arrays (Sec. 2.2).

Nodes are numbered level by level, siblings side by side and sorted by token, so that the children
of a node are one slice, and a subset of the nodes keeps the order. Node 0 is the root. A name is
the path of its tokens; its entities are listed at the last node (names can collide).

    trie = Trie.build(cache.entities, np.arange(5, 90))
    trie.save(folder); trie = Trie.open(folder)          # mapped into memory
    small = trie.restrict(np.array([7, 12]))             # no name is looked at again
"""

import shutil
import uuid
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from prixlm.files import disk_errors
from prixlm.lm.token_cache import Ragged, TokenCache
from prixlm.types import Array


@dataclass(frozen=True)
class Trie:
    """Candidate names. Shapes: N nodes, E entities."""

    token: Array  # (N,) int32, the token of each node; -1 at the root
    parent: Array  # (N,) int32; -1 at the root
    first: Array  # (N + 1,) int32: the children of n are first[n] to first[n + 1]
    offset: Array  # (N + 1,) int32: the entities at n are entity[offset[n]:offset[n + 1]]
    entity: Array  # (E,) int32
    depth: Array  # (N,) int16: how many tokens lead to each node
    run_length: Array  # (N,) int16: how far the only way on goes: to a name or a fork

    @classmethod
    def build(cls, names: Ragged, entities: Array) -> "Trie":
        """The trie of these entities' names; names without a token cannot be written, or found."""
        rows = np.asarray(entities, np.int64)
        lengths = names.lengths(rows)
        rows, lengths = rows[lengths > 0], lengths[lengths > 0]
        starts = np.asarray(names.offsets[rows])
        node = np.zeros(len(rows), np.int64)  # where each name is, at this depth
        tokens, parents = [np.full(1, -1, np.int32)], [np.full(1, -1, np.int32)]
        num_nodes, active = 1, np.arange(len(rows))
        for depth in range(int(lengths.max(initial=0))):
            active = active[lengths[active] > depth]
            keys = (node[active] << 32) | names.ids[starts[active] + depth].astype(np.int64)
            found, place = np.unique(keys, return_inverse=True)
            tokens.append((found & 0xFFFFFFFF).astype(np.int32))
            parents.append((found >> 32).astype(np.int32))
            node[active] = num_nodes + place
            num_nodes += len(found)
        return _from_nodes(np.concatenate(tokens), np.concatenate(parents), node, rows)

    def restrict(self, entities: Array) -> "Trie":
        """The trie of a subset of its entities, by climbing from their nodes."""
        chosen = np.isin(self.entity, entities)
        ends = np.searchsorted(self.offset, np.flatnonzero(chosen), side="right") - 1
        levels = [np.zeros(1, np.int64)]
        level = np.unique(ends)
        while len(level):
            levels.append(level)
            above = self.parent[level]
            level = np.unique(above[above > 0])
        kept = np.unique(np.concatenate(levels))
        parent = np.searchsorted(kept, self.parent[kept]).astype(np.int32)
        parent[0] = -1
        node = np.searchsorted(kept, ends)
        return _from_nodes(np.asarray(self.token[kept]), parent, node, self.entity[chosen])

    @property
    def num_nodes(self) -> int:
        return len(self.token)

    @property
    def height(self) -> int:
        """The tokens of the longest name."""
        return int(self.depth[-1])

    def num_below(self, nodes: Array) -> Array:
        """How many entities stand at each of these nodes or below it."""
        low, high = np.asarray(nodes, np.int64), np.asarray(nodes, np.int64) + 1
        counts = np.zeros(len(low), np.int64)
        while (low < high).any():  # what is below a node is one stretch of each level
            counts += self.offset[high] - self.offset[low]
            low, high = self.first[low], self.first[high]
        return counts

    def entities_at(self, node: int) -> Array:
        return np.asarray(self.entity[self.offset[node] : self.offset[node + 1]])

    def path(self, node: int) -> list[int]:
        """The tokens from the root to a node."""
        tokens: list[int] = []
        while node > 0:
            tokens.append(int(self.token[node]))
            node = int(self.parent[node])
        return tokens[::-1]

    def nodes_of(self, entities: Array) -> Array:
        """The node of each of these entities, -1 for one that is no candidate."""
        if not len(self.entity):
            return np.full(len(entities), -1)
        order = self._by_entity
        place = np.searchsorted(self.entity, entities, sorter=order)
        place = order[np.minimum(place, len(order) - 1)]
        node = np.searchsorted(self.offset, place, side="right") - 1
        return np.where(self.entity[place] == entities, node, -1)

    @cached_property
    def _by_entity(self) -> Array:
        return np.argsort(self.entity, kind="stable")

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name), allow_pickle=False)

    @classmethod
    def open(cls, folder: Path) -> "Trie":
        """A saved trie, mapped into memory."""
        paths = (folder / f"{field.name}.npy" for field in fields(cls))
        arrays = (np.load(path, mmap_mode="r", allow_pickle=False) for path in paths)
        return cls(*(np.asarray(array) for array in arrays))


def open_trie(cache: TokenCache, lang: str, entities: range, longest: int) -> Trie:
    """The trie of a language's entities: the one beside the token cache, or a new one.

    longest: names of more tokens are left out; one of them would take the room of every query.
    """
    folder = cache.folder / f"trie-2-{longest}-{lang}"
    if folder.is_dir():
        return Trie.open(folder)
    rows = np.arange(entities.start, entities.stop)
    trie = Trie.build(cache.entities, rows[cache.entities.lengths(rows) <= longest])
    with disk_errors(folder):
        work = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
        trie.save(work)
        try:
            work.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(work)
    return Trie.open(folder)


def _from_nodes(token: Array, parent: Array, node: Array, entity: Array) -> Trie:
    """A trie from its nodes in order, and the last node of each entity's name."""
    number = len(token)
    first = np.ones(number + 1, np.int64)  # parents rise: children are side by side
    np.cumsum(np.bincount(parent[1:], minlength=number), out=first[1:])
    first[1:] += 1
    order = np.lexsort((entity, node))
    offset = np.zeros(number + 1, np.int64)
    np.cumsum(np.bincount(node, minlength=number), out=offset[1:])
    return Trie(
        token.astype(np.int32),
        parent.astype(np.int32),
        first.astype(np.int32),
        offset.astype(np.int32),
        entity[order].astype(np.int32),
        _depths(first),
        _run_lengths(first, offset),
    )


def _depths(first: Array) -> Array:
    depth = np.zeros(len(first) - 1, np.int16)
    start, end, level = 0, 1, 0
    while start < end:
        depth[start:end] = level
        start, end, level = end, int(first[end]), level + 1
    return depth


def _run_lengths(first: Array, offset: Array) -> Array:
    """From the last level up: one more than the only child's."""
    length = np.zeros(len(first) - 1, np.int16)
    only = np.flatnonzero((np.diff(first) == 1) & (np.diff(offset) == 0))
    child = first[only]
    while len(only):  # as many rounds as the longest run has nodes
        longer = length[child] + 1
        changed = longer != length[only]
        length[only] = longer
        only, child = only[changed], child[changed]
    return length
