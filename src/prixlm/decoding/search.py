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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from prixlm.arrays import ragged_ranges
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import Beams, Walk, score_nodes
from prixlm.lm.model import PrixLM
from prixlm.types import Array

_WIDTH = 16
"""Nodes of a query that a round of the exact search visits."""
_MEMORY = 4 << 30
"""Bytes of keys and values at which an exact search stops, incomplete."""
_TIE = 1e-4
"""A name's score may differ by this from batch to batch: the search goes so far below it."""


@dataclass(frozen=True)
class Found:
    """The answers to one query, best first."""

    entity: Array  # (n,) ids, each at most once, n <= k
    score: Array  # (n,) log-probabilities
    bound: float  # the best score left open: nothing that was not looked at scores above it
    complete: bool  # whether the list is proven to be the best k
    num_nodes: int  # nodes of the trie that went through the model


class _Answers:
    """The finished names of all queries, and the score of each query's k-th so far."""

    def __init__(self, num_queries: int, k: int) -> None:
        self.num_queries, self.k = num_queries, k
        self.parts: list[tuple[Array, Array, Array]] = []
        self.num_ranked = 0  # parts that `best` knows of
        self.best = np.zeros((num_queries, 0))  # scores, falling

    def add(self, query: Array, entity: Array, score: Array) -> None:
        if len(query):
            self.parts.append((query, entity, score))

    @property
    def kth(self) -> Array:
        """The score of each query's k-th answer so far; -inf where there are fewer."""
        for query, _, score in self.parts[self.num_ranked :]:
            rank = _ranks(query, score)
            kept = rank < self.k
            new = np.full((self.num_queries, min(self.k, int(rank.max()) + 1)), -np.inf)
            new[query[kept], rank[kept]] = score[kept]
            self.best = -np.sort(-np.concatenate([self.best, new], axis=1), axis=1)[:, : self.k]
        self.num_ranked = len(self.parts)
        enough = self.best.shape[1] == self.k
        return self.best[:, -1] if enough else np.full(self.num_queries, -np.inf)

    def all(self) -> tuple[Array, Array, Array]:
        """Query, entity and score of all answers."""
        if not self.parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        return tuple(np.concatenate(column) for column in zip(*self.parts, strict=True))  # type: ignore[return-value]

    def found(self, bounds: Array, complete: Array, num_nodes: Array) -> list[Found]:
        query, entity, score = self.all()
        order = np.lexsort((entity, -score, query))
        starts = np.searchsorted(query[order], np.arange(self.num_queries + 1))
        found = []
        for number in range(self.num_queries):
            rows = order[starts[number] : starts[number + 1]][: self.k]
            found.append(
                Found(
                    entity[rows],
                    score[rows],
                    float(bounds[number]),
                    bool(complete[number]),
                    int(num_nodes[number]),
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
    exclude_late: bool = False,
    leave: bool = True,
) -> list[Found]:
    """Algorithm 1: one token at a time, at most `beam` unfinished names a query.

    exclude: for each query, entities that are no answers; they take no place in the beam.
    exclude_late: as the released code does it: they take their places, and are taken out of what
    the beam has found at the end.
    leave: beams below the k-th answer leave; no answer depends on it.
    """
    if not prefixes:
        return []
    if exclude is not None and exclude_late:
        more = k + max(len(known) for known in exclude)
        found = beam_search(model, trie, prefixes, more, beam=beam, leave=leave)
        return [_without(one, known, k) for one, known in zip(found, exclude, strict=True)]
    walk = Walk(model, trie, prefixes, exclude)
    if not leave:
        return _by_levels(walk, k, beam, leave=False)
    proven = _where_beams_are_exact(walk, k, beam)
    rest = [number for number, one in enumerate(proven) if one is None]
    tried = walk.num_nodes.copy()
    if tried.any():  # some were visited: the rest begin anew, without the others
        hidden = None if exclude is None else [exclude[number] for number in rest]
        walk = Walk(model, trie, [prefixes[number] for number in rest], hidden) if rest else walk
    others = iter(_by_levels(walk, k, beam, leave=True) if rest else [])
    return [
        one if one is not None else _with_nodes(next(others), int(before))
        for one, before in zip(proven, tried, strict=True)
    ]


def _with_nodes(found: Found, number: int) -> Found:
    return replace(found, num_nodes=found.num_nodes + number)


def _by_levels(walk: Walk, k: int, beam: int, *, leave: bool) -> list[Found]:
    """Algorithm 1, one level of the trie after another."""
    answers = _Answers(walk.num_queries, k)
    lost = np.full(walk.num_queries, -np.inf)  # the best score that was pruned
    beams = walk.roots()
    while len(beams):
        beams, pruned = _best(beams, beam)
        np.maximum.at(lost, pruned.query, pruned.score)
        if leave:
            beams = beams.take(np.flatnonzero(beams.score >= answers.kth[beams.query]))
        if len(beams):
            walk.visit(beams)
            answers.add(*walk.finish(beams))
            beams = walk.expand(beams)
    return answers.found(lost, lost <= answers.kth, walk.num_nodes)


def _where_beams_are_exact(walk: Walk, k: int, beam: int) -> list[Found | None]:
    """The answers of those queries for which the best of a beam are the best of all; else None.

    That is so if no level of the trie has more than `beam` nodes above the k-th answer: none of
    them can then be pushed out of its beam. The exact search counts them, and visits a third of
    the nodes that the beam would. Where the first token is not foreseeable, it is not tried.
    """
    answers = _Answers(walk.num_queries, k)
    levels = _Levels(walk.num_queries, walk.trie)
    limit = np.where(_is_foreseeable(walk), 4 * beam, 0)
    bounds = _best_first(walk, answers.add, lambda: answers.kth, limit, levels.add)
    worst = answers.kth - _TIE  # nodes within a tie of the k-th answer count as above it
    nothing_left = np.isinf(bounds) & (bounds < 0)
    exact = ((bounds < worst) | nothing_left) & (levels.most(worst) <= beam) & (limit > 0)
    found = answers.found(bounds, exact, walk.num_nodes)
    return [one if is_exact else None for one, is_exact in zip(found, exact, strict=True)]


def _is_foreseeable(walk: Walk) -> Array:
    """Whether a few first tokens have a quarter of the probability that all candidates' have."""
    roots = walk.roots()
    chance = np.exp(roots.score)
    few = _ranks(roots.query, roots.score) < _WIDTH
    every = np.bincount(roots.query, chance, walk.num_queries)
    return np.asarray(np.bincount(roots.query[few], chance[few], walk.num_queries) > every / 4)


class _Levels:
    """How many nodes above a score were visited on each level of the trie."""

    def __init__(self, num_queries: int, trie: Trie) -> None:
        self.num_queries, self.trie = num_queries, trie
        self.visited: list[Beams] = []

    def add(self, beams: Beams) -> None:
        self.visited.append(beams)

    def most(self, scores: Array) -> Array:
        """The most on one level, by query. A stretch with one way on counts to its end."""
        counts = np.zeros((self.num_queries, self.trie.height + 2), np.int64)
        for beams in self.visited:
            above = beams.take(np.flatnonzero(beams.score > scores[beams.query]))
            depth = self.trie.depth[above.node].astype(np.int64)
            np.add.at(counts, (above.query, depth), 1)
            np.add.at(counts, (above.query, depth + self.trie.run_length[above.node] + 1), -1)
        return np.asarray(np.cumsum(counts, axis=1).max(axis=1))


def _without(found: Found, known: Array, k: int) -> Found:
    """The best k of what was found that is not known."""
    rows = np.flatnonzero(~np.isin(found.entity, known))[:k]
    kth = found.score[rows[-1]] if len(rows) == k else -np.inf
    complete = bool(found.bound <= kth)
    return Found(found.entity[rows], found.score[rows], found.bound, complete, found.num_nodes)


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
    if not prefixes:
        return []
    walk = Walk(model, trie, prefixes, exclude)
    answers = _Answers(len(prefixes), k)
    limit = np.full(len(prefixes), max_nodes)
    bounds = _best_first(walk, answers.add, lambda: answers.kth, limit)
    return answers.found(bounds, bounds <= answers.kth, walk.num_nodes)


def _best_first(
    walk: Walk,
    found: Callable[[Array, Array, Array], None],
    thresholds: Callable[[], Array],
    max_nodes: Array,
    visited: Callable[[Beams], None] | None = None,
) -> Array:
    """Visit open nodes above their query's threshold, best first; the best left open of each."""
    reserve = _Reserve(walk.roots(), walk.num_queries)
    open_ = reserve.next(_WIDTH, thresholds())
    while True:
        limits = np.where(walk.num_nodes < max_nodes, thresholds(), np.inf)
        if walk.stepper.num_bytes > _MEMORY:
            break
        worth = np.flatnonzero(open_.score > limits[open_.query])
        if not len(worth):
            break
        chosen = worth[_ranks(open_.query[worth], open_.score[worth]) < _WIDTH]
        beams = open_.take(chosen)
        if visited is not None:
            visited(beams)
        walk.visit(beams)
        beams = walk.run_down(beams)
        found(*walk.finish(beams))
        limits = thresholds()
        rest = np.ones(len(open_), bool)
        rest[chosen] = False
        # What is below a threshold now stays below: thresholds only rise.
        rest &= open_.score > limits[open_.query]
        more = reserve.next(_WIDTH, limits)
        open_ = Beams.join([open_.take(np.flatnonzero(rest)), walk.expand(beams), more])
    left = reserve.best()
    np.maximum.at(left, open_.query, open_.score)
    return left


class _Reserve:
    """The first tokens of all names, best first: there are thousands, and few are ever visited."""

    def __init__(self, roots: Beams, num_queries: int) -> None:
        self.beams = roots.take(np.lexsort((-roots.score, roots.query)))
        starts = np.searchsorted(self.beams.query, np.arange(num_queries + 1))
        self.at, self.end = starts[:-1].copy(), starts[1:]

    def next(self, number: int, limits: Array) -> Beams:
        """The next best of each query that are above its limit."""
        ends = np.minimum(self.at + number, self.end)
        rows, owner = ragged_ranges(self.at, ends)
        rows = rows[self.beams.score[rows] > limits[owner]]
        self.at += np.bincount(self.beams.query[rows], minlength=len(self.at))
        return self.beams.take(rows)

    def best(self) -> Array:
        """The best score of each query that is still here."""
        left = np.full(len(self.at), -np.inf)
        some = self.at < self.end
        left[some] = self.beams.score[self.at[some]]
        return left


@dataclass(frozen=True)
class Rank:
    """Where an entity stands among all candidates."""

    rank: float | None  # with ties at their mean; None: beyond what was asked, or not finished
    score: float
    num_better: int  # at least this many score higher; exactly, where there is a rank
    num_nodes: int
    complete: bool = True  # False where the search ran out of memory before it knew


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
    if not prefixes:
        return []
    if exclude is not None:
        exclude = [np.setdiff1d(part, [e]) for part, e in zip(exclude, entities, strict=True)]
    nodes = trie.nodes_of(np.asarray(entities, np.int64))
    assert (nodes >= 0).all(), "an entity that is no candidate has no rank"
    own = score_nodes(model, trie, prefixes, nodes)
    walk = Walk(model, trie, prefixes, exclude)
    answers = _Answers(len(prefixes), 1)
    better = np.zeros(len(prefixes), np.int64)

    def found(query: Array, entity: Array, score: Array) -> None:
        answers.add(query, entity, score)
        nonlocal better
        better += np.bincount(query[score > own[query] + _TIE], minlength=len(better))

    def thresholds() -> Array:
        done = better >= most if most is not None else np.zeros(len(better), bool)
        return np.where(done, np.inf, own - _TIE)

    left = _best_first(walk, found, thresholds, np.full(len(better), 1 << 60))
    beyond = np.isinf(thresholds())
    complete = beyond | (left <= own - _TIE)
    query, entity, score = answers.all()
    ranks = []
    for number in range(len(prefixes)):
        rows = query == number
        nodes_visited = int(walk.num_nodes[number])
        if beyond[number] or not complete[number]:
            known = bool(complete[number])
            ranks.append(Rank(None, own[number], int(better[number]), nodes_visited, known))
            continue
        itself = score[rows & (entity == entities[number])]
        mine = float(itself[0]) if len(itself) else float(own[number])
        higher = int((score[rows] > mine).sum())
        equal = max(1, int((score[rows] == mine).sum()))
        ranks.append(Rank(higher + (equal + 1) / 2, mine, higher, nodes_visited))
    return ranks


def score_all(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int | None = None,
    *,
    exclude: Sequence[Array] | None = None,
) -> list[Found]:
    """Every candidate: the whole trie is walked, level by level. Slow, and obvious."""
    if not prefixes:
        return []
    walk = Walk(model, trie, prefixes, exclude)
    answers = _Answers(len(prefixes), len(trie.entity) if k is None else k)
    beams = walk.roots()
    while len(beams):
        walk.visit(beams)
        answers.add(*walk.finish(beams))
        beams = walk.expand(beams)
    nothing = np.full(len(prefixes), -np.inf)
    return answers.found(nothing, np.ones(len(prefixes), bool), walk.num_nodes)


def _best(beams: Beams, number: int) -> tuple[Beams, Beams]:
    """The best of each query, and the rest. Of equal scores, the node that comes first."""
    rank = _ranks(beams.query, beams.score)
    return beams.take(np.flatnonzero(rank < number)), beams.take(np.flatnonzero(rank >= number))


def _ranks(query: Array, score: Array) -> Array:
    """The rank of each score within its query, from 0; of equal ones the first is better."""
    order = np.lexsort((-score, query))
    sorted_ = query[order]
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(sorted_, sorted_)
    return rank
