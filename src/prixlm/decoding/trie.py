"""Hold the candidate names of a language as a trie in flat arrays (Sec. 2.2).

A name is a path of tokens from the root. Nodes are numbered level by level, and siblings lie side
by side, sorted by token. So the children of a node are one slice, all nodes below a node are one
slice per level, and a subset of the nodes keeps the order. Node 0 is the root. The entities of a
name are listed at its last node; several entities may have the same name.

    trie = Trie.build(cache.entities, np.arange(5, 90))
    trie.save(folder); trie = Trie.open(folder)          # mapped into memory
    small = trie.restrict(np.array([7, 12]))             # without looking at names again

Dimension letters: N nodes, E entities.
"""

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path

import numpy as np

from prixlm.arrays import pair_keys, ragged_offsets, split_keys
from prixlm.files import disk_errors, whole_folder
from prixlm.lm.token_cache import Ragged, TokenCache
from prixlm.types import Array


@dataclass(frozen=True)
class Trie:
    """The candidate names of a search."""

    token: Array  # (N,) int32, the token of each node; -1 at the root
    parent: Array  # (N,) int32; -1 at the root
    first: Array  # (N + 1,) int32: the children of n are the nodes first[n] to first[n + 1] - 1
    offset: Array  # (N + 1,) int32: the entities at n are entity[offset[n]:offset[n + 1]]
    entity: Array  # (E,) int32
    depth: Array  # (N,) int16: number of tokens from the root to each node
    run_length: Array  # (N,) int16: number of nodes below it up to the first name or fork

    @classmethod
    def build(cls, names: Ragged, entities: Array) -> "Trie":
        """Build the trie of these entities' names. Entities whose name has no token are left out.

        names: the tokens of all names, by entity id.
        """
        rows = np.asarray(entities, np.int64)
        lengths = names.lengths(rows)
        rows, lengths = rows[lengths > 0], lengths[lengths > 0]
        starts = np.asarray(names.offsets[rows])
        tokens, parents = [np.full(1, -1, np.int32)], [np.full(1, -1, np.int32)]
        num_nodes = 1
        node = np.zeros(len(rows), np.int64)  # the node that each name has reached
        active = np.arange(len(rows))  # names that go on below this depth
        for depth in range(int(lengths.max(initial=0))):
            active = active[lengths[active] > depth]
            next_token = names.ids[starts[active] + depth]
            # Names with the same node and the same next token share the next node. Sorted keys
            # give the new nodes in order: by parent, then by token.
            children, child = np.unique(pair_keys(node[active], next_token), return_inverse=True)
            parent, token = split_keys(children)
            tokens.append(token.astype(np.int32))
            parents.append(parent.astype(np.int32))
            node[active] = num_nodes + child
            num_nodes += len(children)
        return _from_nodes(np.concatenate(tokens), np.concatenate(parents), node, rows)

    def restrict(self, entities: Array) -> "Trie":
        """Return the trie of a subset of its entities, by climbing from their nodes."""
        chosen = np.isin(self.entity, entities)
        last_node = np.searchsorted(self.offset, np.flatnonzero(chosen), side="right") - 1
        levels = [np.zeros(1, np.int64)]  # the root stays in any case
        level = np.unique(last_node)
        while len(level):
            levels.append(level)
            above = self.parent[level]
            level = np.unique(above[above > 0])
        kept = np.unique(np.concatenate(levels))  # sorted, so the order of the nodes stays
        parent = np.searchsorted(kept, self.parent[kept]).astype(np.int32)
        parent[0] = -1
        node = np.searchsorted(kept, last_node)
        return _from_nodes(np.asarray(self.token[kept]), parent, node, self.entity[chosen])

    @property
    def num_nodes(self) -> int:
        """Number of nodes, the root included."""
        return len(self.token)

    @property
    def height(self) -> int:
        """Number of tokens of the longest name."""
        return int(self.depth[-1])

    def num_below(self, nodes: Array) -> Array:
        """Count the entities at each of these nodes and below it."""
        # On every level, the nodes below a node are one slice, low:high. The children of a slice
        # are again a slice, and entities are listed in the order of the nodes.
        low, high = np.asarray(nodes, np.int64), np.asarray(nodes, np.int64) + 1
        counts = np.zeros(len(low), np.int64)
        while (low < high).any():
            counts += self.offset[high] - self.offset[low]
            low, high = self.first[low], self.first[high]
        return counts

    def nodes_of(self, entities: Array) -> Array:
        """Return the last node of each entity's name; -1 for entities that are not candidates."""
        if not len(self.entity):
            return np.full(len(entities), -1)
        order = self._by_entity
        index = np.searchsorted(self.entity, entities, sorter=order)
        index = order[np.minimum(index, len(order) - 1)]
        node = np.searchsorted(self.offset, index, side="right") - 1
        return np.where(self.entity[index] == entities, node, -1)

    @cached_property
    def _by_entity(self) -> Array:
        """(E,) the order that sorts `entity`, which is listed by node."""
        return np.argsort(self.entity, kind="stable")

    def save(self, folder: Path) -> None:
        """Write each array as one `.npy` file."""
        folder.mkdir(parents=True, exist_ok=True)
        for field in fields(self):
            np.save(folder / f"{field.name}.npy", getattr(self, field.name), allow_pickle=False)

    @classmethod
    def open(cls, folder: Path) -> "Trie":
        """Map a saved trie into memory."""
        paths = (folder / f"{field.name}.npy" for field in fields(cls))
        arrays = (np.load(path, mmap_mode="r", allow_pickle=False) for path in paths)
        return cls(*(np.asarray(array) for array in arrays))


def open_trie(cache: TokenCache, lang: str, entities: range, longest: int) -> Trie:
    """Open the trie of a language's entities beside the token cache, building it if needed.

    longest: names with more tokens are left out. A query must leave room for the longest
    candidate, so a single very long name would make other queries impossible.
    """
    folder = cache.folder / f"trie-2-{longest}-{lang}"  # 2: the version of the arrays
    if not folder.is_dir():
        rows = np.arange(entities.start, entities.stop)
        trie = Trie.build(cache.entities, rows[cache.entities.lengths(rows) <= longest])
        with disk_errors(folder), whole_folder(folder) as temporary:
            trie.save(temporary)
    return Trie.open(folder)


def _from_nodes(token: Array, parent: Array, node: Array, entity: Array) -> Trie:
    """Make a trie from its nodes in order and the last node of each entity's name.

    token, parent: (N,); node, entity: (E,) in any order.
    """
    # Node 0 is nobody's child, hence the shift by one. Parents never fall from one node to the
    # next, so children are side by side, and counting them says where each slice begins.
    first = ragged_offsets(np.bincount(parent[1:], minlength=len(token))) + 1
    offset = ragged_offsets(np.bincount(node, minlength=len(token)))
    order = np.lexsort((entity, node))
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
    """Return the depth of each node: a level is one slice, and `first` says where it ends."""
    depth = np.zeros(len(first) - 1, np.int16)
    start, end, level = 0, 1, 0
    while start < end:
        depth[start:end] = level
        start, end, level = end, int(first[end]), level + 1
    return depth


def _run_lengths(first: Array, offset: Array) -> Array:
    """Return how many nodes follow each node before the first name or fork."""
    length = np.zeros(len(first) - 1, np.int16)
    # In a run, each node has one child and no name ends at it; its length is its child's plus
    # one. Lengths settle from the ends of the runs upwards, in as many turns as the longest has.
    in_run = np.flatnonzero((np.diff(first) == 1) & (np.diff(offset) == 0))
    child = first[in_run]
    while len(in_run):
        longer = length[child] + 1
        changed = longer != length[in_run]
        length[in_run] = longer
        in_run, child = in_run[changed], child[changed]
    return length
