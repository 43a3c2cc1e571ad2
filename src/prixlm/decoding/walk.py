"""A trie and the model's scores along it, for a batch of queries: what the searches of `decode`
are made of.

    walk = Walk(model, trie, prefixes)
    beams = walk.roots()                   # every first token, with its score
    walk.visit(beams)                      # through the model, and along the only ways on
    query, entity, score = walk.finish(beams)      # the names that end there
    beams = walk.expand(beams)             # their children, with their scores

A node is visited at most once: what its children would score is kept with its entry.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from prixlm.arrays import ragged_ranges
from prixlm.decoding.incremental import Asked, NewTokens, Stepper
from prixlm.decoding.trie import Trie
from prixlm.lm.model import PrixLM
from prixlm.types import Array


@dataclass
class Beams:
    """Nodes reached, for all queries: flat arrays. entry: -1 where the model has not been yet."""

    query: Array
    node: Array
    score: Array
    parent: Array  # the entry before
    entry: Array

    def __len__(self) -> int:
        return len(self.query)

    def take(self, rows: Array) -> "Beams":
        return Beams(
            self.query[rows],
            self.node[rows],
            self.score[rows],
            self.parent[rows],
            self.entry[rows],
        )

    @classmethod
    def join(cls, parts: Sequence["Beams"]) -> "Beams":
        names = ("query", "node", "score", "parent", "entry")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


class Walk:
    """Which nodes were visited, and what follows them."""

    def __init__(
        self,
        model: PrixLM,
        trie: Trie,
        prefixes: list[list[int]],
        exclude: Sequence[Array] | None = None,
    ) -> None:
        self.trie, self.num_queries = trie, len(prefixes)
        self.eos = model.encoder.id("[EOS]")
        self.stepper = Stepper(model, prefixes, trie.height)
        self.dead, self.excluded = _exclusions(trie, exclude)
        self.num_nodes = np.zeros(self.num_queries, np.int64)  # visited, by query
        self._child_score = _Column(np.float32)  # of all entries, one after another
        self._child_start = _Column(np.int64)  # by entry, as the two below
        self._eos_score = _Column(np.float32)
        self._next_entry = _Column(np.int64)  # of the only child, in a run; else -1

    def roots(self) -> Beams:
        """The first tokens of all candidates, for every query. They are scored once."""
        beams = self._roots
        return beams.take(np.arange(len(beams)))

    @cached_property
    def _roots(self) -> Beams:
        number = int(self.trie.first[1]) - 1 if self.trie.num_nodes > 1 else 0
        query = np.repeat(np.arange(self.num_queries), number)
        node = np.tile(np.arange(1, number + 1), self.num_queries)
        score = self.stepper.first(self.trie.token[1 : number + 1].astype(np.int64))
        none = np.full(len(query), -1)
        return self._alive(Beams(query, node, score.astype(np.float64), none, none))

    def visit(self, beams: Beams) -> None:
        """Take the model to the nodes where it has not been, and along the only ways on."""
        rows = np.flatnonzero(beams.entry < 0)
        if not len(rows):
            return
        trie = self.trie
        start = beams.node[rows]
        length = trie.run_length[start].astype(np.int64) + 1
        owner = np.repeat(np.arange(len(rows)), length)
        first = np.cumsum(length) - length
        turn = np.arange(len(owner)) - first[owner]
        node = start[owner]
        for step in range(1, int(length.max())):  # one level after another, all runs at once
            places = np.flatnonzero(turn == step)
            node[places] = trie.first[node[places - 1]]
        query = beams.query[rows][owner]
        parent = np.where(turn == 0, beams.parent[rows][owner], -1 - np.arange(len(node)))
        new = NewTokens(query, parent, trie.depth[node] - 1, trie.token[node].astype(np.int64))
        entries = self._ask(new, node)
        self._next_entry.append(np.where(turn + 1 < length[owner], entries + 1, -1))
        beams.entry[rows] = entries[first]
        self.num_nodes += np.bincount(query, minlength=self.num_queries)

    def _ask(self, new: NewTokens, node: Array) -> Array:
        """Extend by new tokens; keep what their children and `[EOS]` would score."""
        trie = self.trie
        begins, ends = trie.first[node].astype(np.int64), trie.first[node + 1].astype(np.int64)
        child, owner = ragged_ranges(begins, ends)
        named = np.flatnonzero(trie.offset[node] < trie.offset[node + 1])
        asked = Asked(
            np.concatenate([owner, named]),
            np.concatenate([trie.token[child], np.full(len(named), self.eos)]).astype(np.int64),
        )
        entries, scores = self.stepper.extend(new, asked)
        counts = ends - begins
        self._child_start.append(self._child_score.size + np.cumsum(counts) - counts)
        self._child_score.append(scores[: len(child)])
        eos = np.full(len(node), -np.inf, np.float32)
        eos[named] = scores[len(child) :]
        self._eos_score.append(eos)
        return entries

    def finish(self, beams: Beams) -> tuple[Array, Array, Array]:
        """The names that end at these nodes: query, entity and score of each that may answer."""
        trie = self.trie
        rows = np.flatnonzero(trie.offset[beams.node] < trie.offset[beams.node + 1])
        node, query = beams.node[rows], beams.query[rows]
        score = beams.score[rows] + self._eos_score[beams.entry[rows]]
        place, owner = ragged_ranges(trie.offset[node], trie.offset[node + 1])
        query, entity, score = query[owner], trie.entity[place].astype(np.int64), score[owner]
        if len(self.excluded):
            kept = np.flatnonzero(~np.isin(_key(query, entity), self.excluded))
            query, entity, score = query[kept], entity[kept], score[kept]
        return query, entity, score

    def expand(self, beams: Beams) -> Beams:
        """All children of these nodes that can still become an answer."""
        trie = self.trie
        begins = trie.first[beams.node].astype(np.int64)
        child, owner = ragged_ranges(begins, trie.first[beams.node + 1])
        entry = beams.entry[owner]
        place = self._child_start[entry] + child - begins[owner]
        score = beams.score[owner] + self._child_score[place]
        return self._alive(Beams(beams.query[owner], child, score, entry, self._next_entry[entry]))

    def run_down(self, beams: Beams) -> Beams:
        """Each beam at the end of its run: the only way on has been scored with it."""
        beams = beams.take(np.arange(len(beams)))
        while True:
            going = np.flatnonzero(self._next_entry[beams.entry] >= 0)
            if not len(going):
                return beams
            entry = beams.entry[going]
            beams.score[going] += self._child_score[self._child_start[entry]]
            beams.node[going] = self.trie.first[beams.node[going]]
            beams.entry[going] = self._next_entry[entry]

    def _alive(self, beams: Beams) -> Beams:
        """Without nodes below which everything is excluded: they would eat a beam's place."""
        if not len(self.dead):
            return beams
        return beams.take(np.flatnonzero(~np.isin(_key(beams.query, beams.node), self.dead)))


class _Column:
    """An array that grows: room is doubled, so a value is copied twice on average."""

    def __init__(self, kind: Any) -> None:
        self.data = np.empty(1024, kind)
        self.size = 0

    def append(self, values: Array) -> None:
        end = self.size + len(values)
        if end > len(self.data):
            larger = np.empty(max(end, 2 * len(self.data)), self.data.dtype)
            larger[: self.size] = self.data[: self.size]
            self.data = larger
        self.data[self.size : end] = values
        self.size = end

    def __getitem__(self, rows: Array) -> Array:
        found: Array = self.data[rows]
        return found


def _key(query: Array, number: Array) -> Array:
    return (query.astype(np.int64) << 32) | number.astype(np.int64)


def _exclusions(trie: Trie, exclude: Sequence[Array] | None) -> tuple[Array, Array]:
    """(query, node) keys below which all is excluded, and (query, entity) keys."""
    nothing = np.zeros(0, np.int64)
    if exclude is None or not any(len(part) for part in exclude):
        return nothing, nothing
    lists = [np.unique(np.asarray(part, np.int64)) for part in exclude]
    query = np.repeat(np.arange(len(lists)), [len(part) for part in lists])
    entity = np.concatenate(lists)
    node = trie.nodes_of(entity)
    excluded = _key(query, entity)
    query, node = query[node >= 0], node[node >= 0]
    keys = []
    level = _key(query, node)
    while len(level):  # climb: each excluded entity counts at every node above it
        keys.append(level)
        node = trie.parent[level & 0xFFFFFFFF].astype(np.int64)
        level = ((level >> 32) << 32 | node)[node > 0]
    if not keys:
        return nothing, excluded
    found, counts = np.unique(np.concatenate(keys), return_counts=True)
    below = trie.num_below(found & 0xFFFFFFFF)
    return found[counts == below], excluded


def score_nodes(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    nodes: Array,
    query: Array | None = None,
) -> Array:
    """The score of the name at each node, for the query beside it (or one for each query).

    What names have in common goes through the model once.
    """
    nodes = np.asarray(nodes, np.int64)
    if not len(nodes):
        return np.zeros(0)
    query = np.arange(len(nodes)) if query is None else np.asarray(query, np.int64)
    number = trie.num_nodes
    level = ends = query * number + nodes
    levels = []
    while len(level):
        levels.append(level)
        above = trie.parent[level % number].astype(np.int64)
        level = np.unique((level // number * number + above)[above > 0])
    pairs = np.unique(np.concatenate(levels))  # of a query and a node; parents come first
    owner, node = pairs // number, pairs % number
    above = trie.parent[node].astype(np.int64)
    parent = np.where(above > 0, np.searchsorted(pairs, owner * number + above), -1)
    token, depth = trie.token[node].astype(np.int64), trie.depth[node].astype(np.int64) - 1
    end = np.searchsorted(pairs, ends)
    later = np.flatnonzero(parent >= 0)
    stepper = Stepper(model, prefixes, int(depth.max()) + 1)
    asked = Asked(
        np.concatenate([parent[later], end]),
        np.append(token[later], np.full(len(end), model.encoder.id("[EOS]"))),
    )
    new = NewTokens(owner, np.where(parent < 0, -1, -2 - parent), depth, token)
    _, found = stepper.extend(new, asked)
    total = np.zeros(len(pairs))
    first = np.flatnonzero(parent < 0)
    total[first] = stepper.first_of(owner[first], token[first])
    total[later] = found[: len(later)]
    for turn in range(1, int(depth.max()) + 1):
        rows = np.flatnonzero(depth == turn)
        total[rows] += total[parent[rows]]
    return np.asarray(total[end] + found[len(later) :])
