"""Walk down a trie of candidate names, scoring its nodes with the model, for a batch of queries.

All searches of `search.py` are made of these steps:

    walk = Walk(model, trie, prefixes)
    beams = walk.roots()                       # every first token, with its score
    walk.visit(beams)                          # run the model at these nodes
    query, entity, score = walk.finish(beams)  # the names that end there
    beams = walk.expand(beams)                 # the children, with their scores

The score of a node is the log-probability of the tokens that lead to it. To *visit* a node is to
run the model on its token: the node becomes an entry of the `Stepper`, and the walk keeps with the
entry what each child and `[EOS]` would score. So a node goes through the model at most once, and
children get their scores before anyone visits them. Where the trie has a *run* of nodes with only
one child each, visiting the first node visits the whole run in the same pass.

`Walk.score_names` scores given names. The searches that follow reuse the nodes on their paths.
`score_nodes` does the same with no search at all.

Dimension letters: B queries, N nodes of the trie, M beams, T visited nodes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from prixlm.arrays import pair_keys, ragged_ranges, rank_in_group, split_keys
from prixlm.decoding.incremental import NO_ENTRY, Asked, NewTokens, Stepper
from prixlm.decoding.trie import Trie
from prixlm.lm.model import PrixLM
from prixlm.types import Array


@dataclass
class Beams:
    """Unfinished names of all queries: nodes of the trie, (M,) each."""

    query: Array
    node: Array
    score: Array  # of the tokens up to the node, without [EOS]
    parent: Array  # the entry of the node above; NO_ENTRY right after the prefix
    entry: Array  # the entry of the node itself; NO_ENTRY until it is visited

    def __len__(self) -> int:
        return len(self.query)

    def take(self, rows: Array) -> "Beams":
        """Return a copy of these rows."""
        return Beams(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def join(cls, parts: Sequence["Beams"]) -> "Beams":
        """Concatenate several sets of beams."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Walk:
    """A trie, a batch of queries, and all that the model has said about visited nodes."""

    def __init__(
        self,
        model: PrixLM,
        trie: Trie,
        prefixes: list[list[int]],
        exclude: Sequence[Array] | None = None,
    ) -> None:
        """Encode the prefixes. exclude: for each query, entities that are not answers."""
        self.trie, self.num_queries = trie, len(prefixes)
        self.eos = model.end_of_name
        self.stepper = Stepper(model, prefixes, trie.height)
        self.excluded, self.dead = _find_excluded(trie, exclude)  # sorted keys
        self.num_nodes = np.zeros(self.num_queries, np.int64)  # (B,) visited nodes
        # One row per entry of the stepper; the scores of its children lie side by side in
        # `_child_score`, in the trie's order, from `_first_child_score` on.
        self._child_score = _GrowingArray(np.float32)
        self._first_child_score = _GrowingArray(np.int64)
        self._eos_score = _GrowingArray(np.float32)  # -inf where no name ends
        self._run_entry = _GrowingArray(np.int64)  # of the only child; NO_ENTRY at a run's end
        self._visited = _GrowingArray(np.int64)  # the (query, node) key of each entry
        # (keys, entries), sorted by key: the nodes that `visit` finds again instead of running the
        # model. It is renewed by `remember`, because sorting at every visit would take longer.
        self._remembered = np.zeros(0, np.int64), np.zeros(0, np.int64)

    def roots(self) -> Beams:
        """Return the first tokens of all candidates, for every query. They are scored once."""
        return self._roots.take(np.arange(len(self._roots)))  # a copy: visiting changes beams

    @cached_property
    def _roots(self) -> Beams:
        # Nodes 1, 2, ... are the children of the root, node 0.
        first_nodes = np.arange(1, int(self.trie.first[1]) if self.trie.num_nodes > 1 else 1)
        query = np.repeat(np.arange(self.num_queries), len(first_nodes))
        node = np.tile(first_nodes, self.num_queries)
        score = self.stepper.score_first(query, self.trie.token[node].astype(np.int64))
        nothing = np.full(len(query), NO_ENTRY)
        return self._drop_dead(Beams(query, node, score.astype(np.float64), nothing, nothing))

    def visit(self, beams: Beams) -> None:
        """Run the model at the beams that have no entry yet, each with its whole run.

        Sets `beams.entry` to the entry of the beam's own node, the first of its run.
        """
        rows = np.flatnonzero(beams.entry == NO_ENTRY)
        beams.entry[rows] = self._find_remembered(pair_keys(beams.query[rows], beams.node[rows]))
        rows = rows[beams.entry[rows] == NO_ENTRY]
        if not len(rows):
            return
        runs = _unroll_runs(self.trie, beams.node[rows])
        query = beams.query[rows][runs.beam]
        # The nodes of a run lie side by side, so each one's parent has the entry just before it.
        entries = self.stepper.next_entries(len(runs.node))
        parent = np.where(runs.step == 0, beams.parent[rows][runs.beam], entries - 1)
        self._visit_nodes(query, runs.node, parent)
        self._run_entry.append(np.where(runs.is_last, NO_ENTRY, entries + 1))
        beams.entry[rows] = entries[runs.step == 0]
        self.num_nodes += np.bincount(query, minlength=self.num_queries)

    def _visit_nodes(self, query: Array, node: Array, parent: Array) -> None:
        """Run the model at nodes, (T,) each; keep the scores of their children and of `[EOS]`."""
        trie = self.trie
        begins, ends = trie.first[node].astype(np.int64), trie.first[node + 1].astype(np.int64)
        child, child_row = ragged_ranges(begins, ends)
        name_row = np.flatnonzero(trie.offset[node] < trie.offset[node + 1])  # where names end
        eos = np.full(len(name_row), self.eos)
        asked = Asked(
            np.concatenate([child_row, name_row]),
            np.concatenate([trie.token[child], eos]).astype(np.int64),
        )
        depth, token = trie.depth[node] - 1, trie.token[node].astype(np.int64)
        scores = self.stepper.extend(NewTokens(query, parent, depth, token), asked)
        counts = ends - begins
        self._first_child_score.append(self._child_score.size + np.cumsum(counts) - counts)
        self._child_score.append(scores[: len(child)])
        eos_score = np.full(len(node), -np.inf, np.float32)
        eos_score[name_row] = scores[len(child) :]
        self._eos_score.append(eos_score)
        self._visited.append(pair_keys(query, node))

    def remember(self) -> None:
        """Let later visits find all nodes that were visited so far."""
        keys = self._visited[np.arange(self._visited.size)]
        order = np.argsort(keys, kind="stable")
        self._remembered = keys[order], order

    def _find_remembered(self, keys: Array) -> Array:
        """Return the entries of remembered (query, node) keys; NO_ENTRY for all others."""
        known, entries = self._remembered
        if not len(known):
            return np.full(len(keys), NO_ENTRY)
        row = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where(known[row] == keys, entries[row], NO_ENTRY)

    def score_names(self, query: Array, node: Array) -> Array:
        """Return the score of the name that ends at each node, for its query: (S,) float64.

        All nodes on their paths are visited, once, and remembered. To be called before a search.
        """
        if not len(node):
            return np.zeros(0)
        # (T,) all nodes on the paths, each once per query. Nodes are numbered level by level, so in
        # this order a parent comes before its children.
        keys = np.unique(_path_keys(self.trie, query, node))
        owner, path_node = split_keys(keys)
        entries = self.stepper.next_entries(len(keys))
        depth = self.trie.depth[path_node].astype(np.int64) - 1
        # (T,) the row of each node's parent among the T; of no meaning at the first tokens.
        parent_row = np.searchsorted(keys, pair_keys(owner, self.trie.parent[path_node]))
        parent = np.where(depth == 0, NO_ENTRY, entries[np.minimum(parent_row, len(keys) - 1)])
        self._visit_nodes(owner, path_node, parent)
        # A run has one way down, so the nodes of a run are all on the path of a name below it.
        only_child = np.searchsorted(keys, pair_keys(owner, self.trie.first[path_node]))
        in_run = self.trie.run_length[path_node] > 0
        next_entry = entries[np.minimum(only_child, len(keys) - 1)]
        self._run_entry.append(np.where(in_run, next_entry, NO_ENTRY))
        self.remember()
        # (T,) first each token's own log P, then the sum along its path.
        total = np.zeros(len(keys))
        first, later = np.flatnonzero(depth == 0), np.flatnonzero(depth > 0)
        tokens = self.trie.token[path_node[first]].astype(np.int64)
        total[first] = self.stepper.score_first(owner[first], tokens)
        above = path_node[parent_row[later]]
        place = self._first_child_score[parent[later]] + path_node[later] - self.trie.first[above]
        total[later] = self._child_score[place]
        for level in range(1, int(depth.max()) + 1):
            rows = np.flatnonzero(depth == level)
            total[rows] += total[parent_row[rows]]
        name_row = np.searchsorted(keys, pair_keys(query, node))  # (S,)
        return np.asarray(total[name_row] + self._eos_score[entries[name_row]])

    def finish(self, beams: Beams) -> tuple[Array, Array, Array]:
        """Return the names that end at visited beams: query, entity and score of each.

        Entities whose names collide share a node, and so a score. Excluded ones are left out.
        """
        trie = self.trie
        rows = np.flatnonzero(trie.offset[beams.node] < trie.offset[beams.node + 1])
        node = beams.node[rows]
        score = beams.score[rows] + self._eos_score[beams.entry[rows]]
        index, owner = ragged_ranges(trie.offset[node], trie.offset[node + 1])
        query, score = beams.query[rows][owner], score[owner]
        entity = trie.entity[index].astype(np.int64)
        if len(self.excluded):
            kept = np.flatnonzero(~np.isin(pair_keys(query, entity), self.excluded))
            query, entity, score = query[kept], entity[kept], score[kept]
        return query, entity, score

    def expand(self, beams: Beams) -> Beams:
        """Return all children of visited beams that can still become an answer."""
        trie = self.trie
        begins = trie.first[beams.node].astype(np.int64)
        child, owner = ragged_ranges(begins, trie.first[beams.node + 1])
        entry = beams.entry[owner]  # of the node above each child
        index = self._first_child_score[entry] + child - begins[owner]
        score = beams.score[owner] + self._child_score[index]
        # In a run, the only child was visited together with its parent.
        children = Beams(beams.query[owner], child, score, entry, self._run_entry[entry])
        return self._drop_dead(children)

    def run_down(self, beams: Beams) -> Beams:
        """Move visited beams to the ends of their runs, whose nodes were scored with them."""
        beams = beams.take(np.arange(len(beams)))
        while True:
            rows = np.flatnonzero(self._run_entry[beams.entry] != NO_ENTRY)
            if not len(rows):
                return beams
            entry = beams.entry[rows]
            beams.score[rows] += self._child_score[self._first_child_score[entry]]
            beams.node[rows] = self.trie.first[beams.node[rows]]
            beams.entry[rows] = self._run_entry[entry]

    def _drop_dead(self, beams: Beams) -> Beams:
        """Drop nodes below which everything is excluded: they would take up room in a beam."""
        if not len(self.dead):
            return beams
        return beams.take(np.flatnonzero(~np.isin(pair_keys(beams.query, beams.node), self.dead)))


class _Runs(NamedTuple):
    """The nodes of several runs, one run after another, (T,) each."""

    node: Array
    beam: Array  # the beam whose run it is
    step: Array  # how far it is below the beam's own node
    is_last: Array  # whether the run ends there


def _unroll_runs(trie: Trie, start: Array) -> _Runs:
    """Lay out each start node and all nodes below it up to the first name or fork."""
    length = trie.run_length[start].astype(np.int64) + 1
    beam = np.repeat(np.arange(len(start)), length)
    step = rank_in_group(beam)
    node = start[beam]
    for depth in range(1, int(length.max())):  # all runs at once: row - 1 is the parent of row
        rows = np.flatnonzero(step == depth)
        node[rows] = trie.first[node[rows - 1]]
    return _Runs(node, beam, step, step + 1 == length[beam])


class _GrowingArray:
    """An array to append to. Its capacity doubles, so a value is copied twice on average."""

    def __init__(self, dtype: Any) -> None:
        self.data = np.empty(1024, dtype)
        self.size = 0

    def append(self, values: Array) -> None:
        """Add values at the end."""
        end = self.size + len(values)
        if end > len(self.data):
            larger = np.empty(max(end, 2 * len(self.data)), self.data.dtype)
            larger[: self.size] = self.data[: self.size]
            self.data = larger
        self.data[self.size : end] = values
        self.size = end

    def __getitem__(self, rows: Array) -> Array:
        values: Array = self.data[rows]
        return values


def _find_excluded(trie: Trie, exclude: Sequence[Array] | None) -> tuple[Array, Array]:
    """Return sorted keys: excluded (query, entity), and (query, node) with nothing else below.

    exclude: for each query, entities in any order; some may not be in the trie.
    """
    nothing = np.zeros(0, np.int64)
    if exclude is None or not any(len(entities) for entities in exclude):
        return nothing, nothing
    lists = [np.unique(np.asarray(entities, np.int64)) for entities in exclude]
    query = np.repeat(np.arange(len(lists)), [len(entities) for entities in lists])
    entity = np.concatenate(lists)
    node = trie.nodes_of(entity)
    in_trie = node >= 0
    # An excluded entity counts once at every node above it. A node is dead for a query when it
    # counts as many excluded entities as it has entities at all.
    key, num_excluded = np.unique(
        _path_keys(trie, query[in_trie], node[in_trie]), return_counts=True
    )
    num_below = trie.num_below(split_keys(key)[1])
    return pair_keys(query, entity), key[num_excluded == num_below]


def _path_keys(trie: Trie, query: Array, node: Array) -> Array:
    """Return the (query, node) keys of these nodes and of all nodes above them but the root.

    A key that lies on several paths comes once for each of them.
    """
    keys = [np.zeros(0, np.int64)]
    while len(node):  # one level up in each turn; paths end below the root
        keys.append(pair_keys(query, node))
        above = trie.parent[node].astype(np.int64)
        query, node = query[above > 0], above[above > 0]
    return np.concatenate(keys)


def score_nodes(
    model: PrixLM, trie: Trie, prefixes: list[list[int]], nodes: Array, query: Array
) -> Array:
    """Return the score of the name that ends at each node, `[EOS]` included, for its query.

    nodes, query: (S,) in any order. Returns (S,) float64. Tokens that several names of a query
    share go through the model once.
    """
    return Walk(model, trie, prefixes).score_names(query, nodes)
