"""Which candidates complete a query best: Algorithm 1, the exact answer, and the slow reference.

    beam_search    Algorithm 1 as written: at most K unfinished names a step
    exact_search   the true best k of all candidates, with the bound that proves it
    score_all      every candidate, by walking the whole trie
    exact_ranks    the rank of a given entity among all candidates, or the proof that it is beyond N

All have one signature: `(model, trie, prefixes, k, *, exclude=None, ...)`, one `Found` a query. The
score of a name is the paper's: the sum of the log-probabilities of its tokens and of `[EOS]`.
Log-probabilities only fall along a path, so a node's score bounds all below it; that is why
exact_search can stop, and why a beam below the k-th answer can leave without changing any.
Names that collide share a node and a score; they are ordered by entity id.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prixlm.model import PrixLM
from prixlm.stepper import Asked, NewTokens, Stepper
from prixlm.trie import Trie, ragged_ranges

Array = np.ndarray[Any, Any]
_ROWS = 64
"""Nodes that a round of the exact search looks at, all queries together."""
_TIE = 1e-4
"""A name's score may differ by this from batch to batch: the search goes so far below it."""


@dataclass(frozen=True)
class Found:
    """The answers to one query, best first."""

    entity: Array  # (n,) ids, each at most once, n <= k
    score: Array  # (n,) log-probabilities
    bound: float  # no candidate that is not listed scores above this, if complete
    complete: bool  # whether the list is proven to be the best k
    num_nodes: int  # nodes of the trie that went through the model


@dataclass
class _Beams:
    """Nodes reached, for all queries: flat arrays. entry: -1 where the model has not been yet."""

    query: Array
    node: Array
    score: Array
    parent: Array  # the entry before
    entry: Array

    def __len__(self) -> int:
        return len(self.query)

    def take(self, rows: Array) -> "_Beams":
        return _Beams(
            *(a[rows] for a in (self.query, self.node, self.score, self.parent, self.entry))
        )

    @classmethod
    def join(cls, parts: Sequence["_Beams"]) -> "_Beams":
        names = ("query", "node", "score", "parent", "entry")
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


@dataclass
class _Answers:
    """The finished names of each query: nodes and scores, in the order of their finding."""

    query: list[Array] = field(default_factory=list)
    node: list[Array] = field(default_factory=list)
    score: list[Array] = field(default_factory=list)

    def add(self, query: Array, node: Array, score: Array) -> None:
        self.query.append(query)
        self.node.append(node)
        self.score.append(score)

    def joined(self) -> tuple[Array, Array, Array]:
        if not self.query:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        return tuple(np.concatenate(part) for part in (self.query, self.node, self.score))  # type: ignore[return-value]


class _Walk:
    """A trie and the model's scores along it, for a batch of queries."""

    def __init__(
        self, model: PrixLM, trie: Trie, prefixes: list[list[int]], exclude: Sequence[Array] | None
    ) -> None:
        self.trie, self.num_queries = trie, len(prefixes)
        self.eos = model.encoder.id("[EOS]")
        self.stepper = Stepper(model, prefixes, int(trie.depth[-1]) if trie.num_nodes else 0)
        self.dead, self.excluded = _exclusions(trie, exclude)
        self.answers = _Answers()
        self.num_nodes = np.zeros(self.num_queries, np.int64)
        self.child_score = np.zeros(0, np.float32)  # of all entries, one after another
        self.child_start = np.zeros(0, np.int64)  # by entry
        self.eos_score = np.zeros(0, np.float32)
        self.next_entry = np.zeros(0, np.int64)  # of the only child, in a run; else -1

    def roots(self) -> _Beams:
        """The first tokens of all candidates, for every query."""
        number = int(self.trie.first[1]) - 1 if self.trie.num_nodes > 1 else 0
        query = np.repeat(np.arange(self.num_queries), number)
        node = np.tile(np.arange(1, number + 1), self.num_queries)
        score = self.stepper.first(query, self.trie.token[node].astype(np.int64))
        none = np.full(len(query), -1)
        return self._alive(_Beams(query, node, score.astype(np.float64), none, none.copy()))

    def visit(self, beams: _Beams) -> None:
        """Take the model to the nodes where it has not been, and along the only ways on."""
        rows = np.flatnonzero(beams.entry < 0)
        if not len(rows):
            return
        trie = self.trie
        start, end = beams.node[rows], trie.run_end[beams.node[rows]]
        length = trie.depth[end] - trie.depth[start] + 1
        node = np.repeat(start, length)
        owner = np.repeat(np.arange(len(rows)), length)
        first = np.cumsum(length) - length
        turn = np.arange(len(node)) - first[owner]
        for step in range(1, int(length.max())):  # one level after another, all runs at once
            places = np.flatnonzero(turn == step)
            node[places] = trie.first[node[places - 1]]
        query = beams.query[rows][owner]
        parent = np.where(turn == 0, beams.parent[rows][owner], -2 - (np.arange(len(node)) - 1))
        new = NewTokens(query, parent, trie.depth[node] - 1, trie.token[node].astype(np.int64))
        entries = self._ask(new, node)
        self.next_entry = np.append(
            self.next_entry, np.where(turn + 1 < length[owner], entries + 1, -1)
        )
        beams.entry[rows] = entries[first]
        self.num_nodes += np.bincount(query, minlength=self.num_queries)

    def _ask(self, new: NewTokens, node: Array) -> Array:
        """Extend by new tokens; keep what their children and `[EOS]` would score."""
        trie = self.trie
        child, owner = ragged_ranges(trie.first[node], trie.first[node + 1])
        named = np.flatnonzero(trie.offset[node] < trie.offset[node + 1])
        asked = Asked(
            np.concatenate([owner, named]),
            np.concatenate([trie.token[child], np.full(len(named), self.eos)]).astype(np.int64),
        )
        entries, scores = self.stepper.extend(new, asked)
        counts = np.diff(np.searchsorted(owner, np.arange(len(node) + 1)))
        begin = len(self.child_score) + np.cumsum(counts) - counts
        self.child_score = np.append(self.child_score, scores[: len(child)])
        self.child_start = np.append(self.child_start, begin)
        eos = np.full(len(node), -np.inf, np.float32)
        eos[named] = scores[len(child) :]
        self.eos_score = np.append(self.eos_score, eos)
        return entries

    def finish(self, beams: _Beams) -> None:
        """Names that end at these nodes are answers."""
        trie = self.trie
        rows = np.flatnonzero(trie.offset[beams.node] < trie.offset[beams.node + 1])
        score = beams.score[rows] + self.eos_score[beams.entry[rows]]
        self.answers.add(beams.query[rows], beams.node[rows], score)

    def expand(self, beams: _Beams) -> _Beams:
        """All children of these nodes that can still become an answer."""
        trie = self.trie
        child, owner = ragged_ranges(trie.first[beams.node], trie.first[beams.node + 1])
        entry = beams.entry[owner]
        place = self.child_start[entry] + child - trie.first[beams.node[owner]]
        score = beams.score[owner] + self.child_score[place]
        return self._alive(_Beams(beams.query[owner], child, score, entry, self.next_entry[entry]))

    def _alive(self, beams: _Beams) -> _Beams:
        """Without nodes below which everything is excluded: they would eat a beam's place."""
        if not len(self.dead):
            return beams
        return beams.take(np.flatnonzero(~np.isin(_key(beams.query, beams.node), self.dead)))

    def thresholds(self, k: int) -> Array:
        """The score of each query's k-th answer so far; -inf where there are fewer."""
        query, _, score = self._entities()
        found = np.full(self.num_queries, -np.inf)
        order = np.lexsort((-score, query))
        query, score = query[order], score[order]
        rank = np.arange(len(query)) - np.searchsorted(query, query)
        at = rank == k - 1
        found[query[at]] = score[at]
        return found

    def _entities(self) -> tuple[Array, Array, Array]:
        """Query, entity and score of all answers, without the excluded ones."""
        query, node, score = self.answers.joined()
        place, owner = ragged_ranges(self.trie.offset[node], self.trie.offset[node + 1])
        entity = self.trie.entity[place].astype(np.int64)
        query, score = query[owner], score[owner]
        if len(self.excluded):
            kept = np.flatnonzero(~np.isin(_key(query, entity), self.excluded))
            query, entity, score = query[kept], entity[kept], score[kept]
        return query, entity, score

    def results(self, k: int, bounds: Array, complete: Array) -> list[Found]:
        query, entity, score = self._entities()
        order = np.lexsort((entity, -score, query))
        starts = np.searchsorted(query[order], np.arange(self.num_queries + 1))
        found = []
        for number in range(self.num_queries):
            rows = order[starts[number] : starts[number + 1]][:k]
            found.append(
                Found(
                    entity[rows],
                    score[rows],
                    float(bounds[number]),
                    bool(complete[number]),
                    int(self.num_nodes[number]),
                )
            )
        return found


def beam_search(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int = 10,
    *,
    beam: int = 50,
    exclude: Sequence[Array] | None = None,
    leave: bool = True,
) -> list[Found]:
    """Algorithm 1: one token at a time, at most `beam` unfinished names a query.

    exclude: for each query, entities that are no answers; they take no place in the beam.
    leave: beams below the k-th answer leave; no answer depends on it.
    """
    walk = _Walk(model, trie, prefixes, exclude)
    lost = np.full(len(prefixes), -np.inf)  # the best score that was pruned
    beams = walk.roots()
    while len(beams):
        beams, pruned = _best(beams, beam)
        np.maximum.at(lost, pruned.query, pruned.score)
        if leave:
            beams = beams.take(np.flatnonzero(beams.score >= walk.thresholds(k)[beams.query]))
        if len(beams):
            walk.visit(beams)
            walk.finish(beams)
            beams = walk.expand(beams)
    return walk.results(k, lost, lost <= walk.thresholds(k))


def exact_search(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int = 10,
    *,
    exclude: Sequence[Array] | None = None,
    max_nodes: int = 100_000,
) -> list[Found]:
    """The true best k of all candidates; incomplete only where `max_nodes` a query were visited.

    Best-first: the open nodes with the best scores are visited, until none can beat the k-th
    answer. `bound` is the best score left open.
    """
    walk = _Walk(model, trie, prefixes, exclude)
    bounds = _best_first(walk, lambda: walk.thresholds(k), max_nodes)
    return walk.results(k, bounds, bounds <= walk.thresholds(k))


def _best_first(walk: _Walk, thresholds: Any, max_nodes: int) -> Array:
    """Visit open nodes above their query's threshold, best first; the best left open of each."""
    open_ = walk.roots()
    while True:
        limits = np.where(walk.num_nodes < max_nodes, thresholds(), np.inf)
        worth = np.flatnonzero(open_.score > limits[open_.query])
        if not len(worth):
            break
        width = max(4, _ROWS // len(np.unique(open_.query[worth])))
        order = worth[np.lexsort((-open_.score[worth], open_.query[worth]))]
        query = open_.query[order]
        chosen = order[np.arange(len(order)) - np.searchsorted(query, query) < width]
        beams = open_.take(chosen)
        rest = np.ones(len(open_), bool)
        rest[chosen] = False
        # What is below a threshold now stays below: thresholds only rise.
        rest &= open_.score > thresholds()[open_.query]
        walk.visit(beams)
        beams = _run_down(walk, beams)
        walk.finish(beams)
        open_ = _Beams.join([open_.take(np.flatnonzero(rest)), walk.expand(beams)])
    left = np.full(walk.num_queries, -np.inf)
    np.maximum.at(left, open_.query, open_.score)
    return left


def _run_down(walk: _Walk, beams: _Beams) -> _Beams:
    """Each beam at the end of its run: the only way on has been scored with it."""
    while True:
        going = np.flatnonzero(walk.next_entry[beams.entry] >= 0)
        if not len(going):
            return beams
        entry = beams.entry[going]
        beams.score[going] += walk.child_score[walk.child_start[entry]]
        beams.node[going] = walk.trie.first[beams.node[going]]
        beams.entry[going] = walk.next_entry[entry]


@dataclass(frozen=True)
class Rank:
    """Where an entity stands among all candidates."""

    rank: float | None  # with ties at their mean; None: beyond what was asked
    score: float
    num_better: int  # at least this many score higher; exactly, where there is a rank
    num_nodes: int


def exact_ranks(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    entities: Array,
    *,
    most: int | None = None,
    exclude: Sequence[Array] | None = None,
) -> list[Rank]:
    """The rank of one entity for each query among all candidates, or the proof of `rank > most`.

    Only what scores above the entity is visited. Others that score the same share the mean of
    their ranks (realistic rank).
    """
    if exclude is not None:
        exclude = [np.setdiff1d(part, [e]) for part, e in zip(exclude, entities, strict=True)]
    nodes = trie.nodes_of(np.asarray(entities, np.int64))
    assert (nodes >= 0).all(), "an entity that is no candidate has no rank"
    own = score_nodes(model, trie, prefixes, nodes)
    walk = _Walk(model, trie, prefixes, exclude)
    queries = np.arange(len(prefixes))

    def better() -> Array:
        query, _, score = walk._entities()
        return np.bincount(query[score > own[query] + _TIE], minlength=len(queries))

    def thresholds() -> Array:
        done = better() >= most if most is not None else np.zeros(len(queries), bool)
        return np.where(done, np.inf, own - _TIE)

    _best_first(walk, thresholds, 1 << 60)
    beyond = np.isinf(thresholds())
    query, entity, score = walk._entities()
    ranks = []
    for number in queries:
        rows = query == number
        itself = score[rows & (entity == entities[number])]
        if beyond[number] or not len(itself):
            ranks.append(Rank(None, own[number], int(better()[number]), walk.num_nodes[number]))
            continue
        higher = int((score[rows] > itself[0]).sum())
        equal = int((score[rows] == itself[0]).sum())
        rank = higher + (equal + 1) / 2
        ranks.append(Rank(rank, float(itself[0]), higher, int(walk.num_nodes[number])))
    return ranks


def score_nodes(model: PrixLM, trie: Trie, prefixes: list[list[int]], nodes: Array) -> Array:
    """The score of the name at one node for each query."""
    depth = trie.depth[nodes].astype(np.int64)
    path = np.concatenate([trie.path(int(node)) for node in nodes])
    query = np.repeat(np.arange(len(nodes)), depth)
    first = np.cumsum(depth) - depth
    turn = np.arange(len(path)) - first[query]
    stepper = Stepper(model, prefixes, int(depth.max()))
    total = stepper.first(np.arange(len(nodes)), path[first]).astype(np.float64)
    parent = np.where(turn == 0, -1, -2 - (np.arange(len(path)) - 1))
    following = np.append(path[1:], 0)
    following[first + depth - 1] = model.encoder.id("[EOS]")
    new = NewTokens(query, parent, turn, path)
    _, scores = stepper.extend(new, Asked(np.arange(len(path)), following))
    np.add.at(total, query, scores)
    return total


def score_all(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int | None = None,
    *,
    exclude: Sequence[Array] | None = None,
) -> list[Found]:
    """Every candidate: the whole trie is walked, level by level. Slow, and obvious."""
    walk = _Walk(model, trie, prefixes, exclude)
    beams = walk.roots()
    while len(beams):
        walk.visit(beams)
        walk.finish(beams)
        beams = walk.expand(beams)
    most = len(trie.entity) if k is None else k
    nothing = np.full(len(prefixes), -np.inf)
    return walk.results(most, nothing, np.ones(len(prefixes), bool))


def _best(beams: _Beams, number: int) -> tuple[_Beams, _Beams]:
    """The best of each query, and the rest."""
    order = np.lexsort((beams.node, -beams.score, beams.query))
    query = beams.query[order]
    rank = np.arange(len(order)) - np.searchsorted(query, query)
    return beams.take(order[rank < number]), beams.take(order[rank >= number])


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
    below = trie.num_below[found & 0xFFFFFFFF]
    return found[counts == below], excluded
