"""Search a trie for the candidates that complete a query best.

    beam_search    Algorithm 1: at most K unfinished names per step
    exact_search   the true best k of all candidates, with the bound that proves it
    exact_ranks    the rank of a given entity among all candidates, or the proof that it is beyond N
    score_all      every candidate, by walking the whole trie: the slow reference

The searches share a signature, `(model, trie, prefixes, k, *, exclude=None, ...)`, and return one
`Found` per query. The score of a name is the paper's: the sum of the log-probabilities of its
tokens and of `[EOS]`. Log-probabilities are at most 0, so scores only fall along a path, and the
score of a node bounds all names below it. This is why `exact_search` can stop, and why a beam below
the k-th answer can be dropped without changing any answer. Entities whose names collide share a
node and a score; they are ordered by id.

A caller that wants the scores of certain names beside the best ones passes them as `Given`. They
are scored first and count as answers from the start, so that the search drops what is below the
k-th of them; the nodes on their paths are not run again.

Dimension letters: B queries, M beams (nodes of the trie, of all queries together), G given names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from prixlm.arrays import pair_keys, ragged_ranges, rank_in_group
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import Beams, Walk
from prixlm.lm.model import PrixLM
from prixlm.types import Array

_WIDTH = 16
"""Nodes of a query that one round of the exact search visits."""
_MAX_BYTES = 4 << 30
"""Size of the cache of keys and values at which an exact search stops, incomplete."""
_TIE = 1e-4
"""Scores of the same name differ by less than this between batches; closer scores are a tie."""


@dataclass(frozen=True)
class Found:
    """The answers to one query, best first."""

    entity: Array  # (n,) ids, each at most once, n <= k
    score: Array  # (n,) log-probabilities
    bound: float  # the best score left open: no candidate that was not looked at scores above it
    complete: bool  # whether the list is proven to be the best k
    num_nodes: int  # nodes that the search ran through the model, without those of given names


@dataclass(frozen=True)
class Given:
    """Names to score beside a search, (G,) each: candidates that their queries do not exclude."""

    query: Array
    entity: Array  # each at most once per query, and in the trie

    def score_in(self, walk: Walk) -> Array:
        """Return the score of each name: (G,)."""
        return walk.score_names(self.query, walk.trie.nodes_of(self.entity))


class _Answers:
    """Collects the finished names of all queries, and tracks each query's k-th best score."""

    def __init__(
        self, num_queries: int, k: int, given: Given | None = None, scores: Array | None = None
    ) -> None:
        """Begin with the given names, if any. scores: (G,) of them."""
        self.num_queries, self.k = num_queries, k
        self.parts: list[tuple[Array, Array, Array]] = []  # query, entity, score
        self.num_ranked = 0  # parts that `best` includes
        self.best = np.zeros((num_queries, 0))  # (B, up to k) scores, falling; -inf where fewer
        self.given = np.zeros(0, np.int64)  # sorted (query, entity) keys
        if given is not None and scores is not None:
            self.add(given.query, given.entity, scores)
            self.given = np.sort(pair_keys(given.query, given.entity))

    def add(self, query: Array, entity: Array, score: Array) -> None:
        """Add finished names; given ones are there already."""
        if len(self.given):
            is_new = np.flatnonzero(~np.isin(pair_keys(query, entity), self.given))
            query, entity, score = query[is_new], entity[is_new], score[is_new]
        if len(query):
            self.parts.append((query, entity, score))

    def kth_scores(self) -> Array:
        """Return the score of each query's k-th answer so far, (B,); -inf where there are fewer."""
        for query, _, score in self.parts[self.num_ranked :]:
            rank = _ranks(query, score)
            kept = rank < self.k
            # Lay the part out as a (B, ranks) table, put it beside the best so far, keep k.
            table = np.full((self.num_queries, min(self.k, int(rank.max()) + 1)), -np.inf)
            table[query[kept], rank[kept]] = score[kept]
            self.best = -np.sort(-np.concatenate([self.best, table], axis=1), axis=1)[:, : self.k]
        self.num_ranked = len(self.parts)
        if self.best.shape[1] < self.k:
            return np.full(self.num_queries, -np.inf)
        return self.best[:, -1]

    def columns(self) -> tuple[Array, Array, Array]:
        """Return query, entity and score of all finished names."""
        if not self.parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        query, entity, score = (np.concatenate(part) for part in zip(*self.parts, strict=True))
        return query, entity, score

    def found(self, bounds: Array, complete: Array, num_nodes: Array) -> list[Found]:
        """Return the best k of each query; bounds, complete, num_nodes: (B,)."""
        query, entity, score = self.columns()
        # Sorted by query, then best first, then by id: the answers of a query are one slice.
        order = np.lexsort((entity, -score, query))
        starts = np.searchsorted(query[order], np.arange(self.num_queries + 1))
        results = []
        for index in range(self.num_queries):
            rows = order[starts[index] : starts[index + 1]][: self.k]
            state = float(bounds[index]), bool(complete[index]), int(num_nodes[index])
            results.append(Found(entity[rows], score[rows], *state))
        return results


# --- Algorithm 1 ----------------------------------------------------------------------------------


def beam_search(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int = 10,
    *,
    beam: int = 50,
    exclude: Sequence[Array] | None = None,
) -> list[Found]:
    """Return the answers of Algorithm 1: one token at a time, at most `beam` unfinished names.

    exclude: for each query, entities that are not answers; they take up no room in the beam.
    """
    nothing = Given(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return beam_search_beside(model, trie, prefixes, nothing, k, beam=beam, exclude=exclude)[0]


def beam_search_beside(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    given: Given,
    k: int = 10,
    *,
    beam: int = 50,
    exclude: Sequence[Array] | None = None,
) -> tuple[list[Found], Array]:
    """Return the answers of `beam_search` or better given names, and all given scores: (G,).

    Every prefix, and every node that both need, goes through the model once.
    """
    if not prefixes:
        return [], np.zeros(0)
    walk = Walk(model, trie, prefixes, exclude)
    scores = given.score_in(walk)
    results = _where_beams_are_exact(walk, _Answers(len(prefixes), k, given, scores), beam)
    open_queries = np.flatnonzero([found is None for found in results])
    if len(open_queries):  # start again, without the queries that are done
        walk.remember()
        by_level = _by_levels(walk, _Answers(len(prefixes), k, given, scores), beam, open_queries)
        for index in open_queries:
            results[index] = by_level[index]
    return [found for found in results if found is not None], scores


def _by_levels(walk: Walk, answers: _Answers, beam: int, queries: Array) -> list[Found]:
    """Run Algorithm 1 as written for some queries, one level of the trie after another."""
    best_pruned = np.full(walk.num_queries, -np.inf)
    beams = walk.roots()
    beams = beams.take(np.flatnonzero(np.isin(beams.query, queries)))
    while len(beams):
        rank = _ranks(beams.query, beams.score)
        pruned = beams.take(np.flatnonzero(rank >= beam))
        np.maximum.at(best_pruned, pruned.query, pruned.score)
        beams = beams.take(np.flatnonzero(rank < beam))
        # Nothing below a beam can score above it: below the k-th answer it changes no answer.
        beams = beams.take(np.flatnonzero(beams.score >= answers.kth_scores()[beams.query]))
        if len(beams):
            walk.visit(beams)
            answers.add(*walk.finish(beams))
            beams = walk.expand(beams)
    return answers.found(best_pruned, best_pruned <= answers.kth_scores(), walk.num_nodes)


def _where_beams_are_exact(walk: Walk, answers: _Answers, beam: int) -> list[Found | None]:
    """Return the answers of queries whose beam provably holds the best of all; None elsewhere.

    This is so if no level of the trie has more than `beam` nodes above the k-th answer: then none
    of them can be pruned. The exact search counts these nodes, and visits a third of the nodes that
    the beam would. It is not tried where the first token is not predictable.
    """
    levels = _LevelCounts(walk.num_queries, walk.trie)
    max_nodes = np.where(_is_first_token_predictable(walk), 4 * beam, 0)
    bounds = _best_first(walk, answers.add, answers.kth_scores, max_nodes, levels.add)
    # Within a tie of the k-th answer, nodes count as above it: rounding may order them either way.
    worst = answers.kth_scores() - _TIE
    nothing_left = np.isinf(bounds) & (bounds < 0)
    fits = levels.most_above(worst) <= beam
    is_exact = ((bounds < worst) | nothing_left) & fits & (max_nodes > 0)
    results = answers.found(bounds, is_exact, walk.num_nodes)
    return [found if proven else None for found, proven in zip(results, is_exact, strict=True)]


def _is_first_token_predictable(walk: Walk) -> Array:
    """Tell, for each query, whether its best few first tokens hold a quarter of the probability.

    The whole is the probability of all candidates' first tokens, not of the vocabulary.
    """
    roots = walk.roots()
    probability = np.exp(roots.score)
    is_best = _ranks(roots.query, roots.score) < _WIDTH
    best = np.bincount(roots.query[is_best], probability[is_best], walk.num_queries)
    return np.asarray(best > np.bincount(roots.query, probability, walk.num_queries) / 4)


class _LevelCounts:
    """Counts visited nodes by query and level of the trie."""

    def __init__(self, num_queries: int, trie: Trie) -> None:
        self.num_queries, self.trie = num_queries, trie
        self.visited: list[Beams] = []

    def add(self, beams: Beams) -> None:
        """Add beams that are visited, each with its whole run."""
        self.visited.append(beams)

    def most_above(self, scores: Array) -> Array:
        """Return, for each query, the most nodes on one level that score above `scores`: (B,)."""
        # A run covers the levels from its first node to its last. So +1 where it begins, -1 right
        # after its end, and the running sum over levels is the number of nodes on each.
        steps = np.zeros((self.num_queries, self.trie.height + 2), np.int64)
        for beams in self.visited:
            above = beams.take(np.flatnonzero(beams.score > scores[beams.query]))
            depth = self.trie.depth[above.node].astype(np.int64)
            np.add.at(steps, (above.query, depth), 1)
            np.add.at(steps, (above.query, depth + self.trie.run_length[above.node] + 1), -1)
        return np.asarray(np.cumsum(steps, axis=1).max(axis=1))


# --- exact search ---------------------------------------------------------------------------------


def exact_search(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int = 10,
    *,
    exclude: Sequence[Array] | None = None,
    max_nodes: int = 100_000,
) -> list[Found]:
    """Return the true best k of all candidates; incomplete only where a limit was reached.

    The open nodes with the best scores are visited first, until none can beat the k-th answer.
    max_nodes: limit of visited nodes per query. exclude: as in `beam_search`.
    """
    if not prefixes:
        return []
    walk = Walk(model, trie, prefixes, exclude)
    answers = _Answers(len(prefixes), k)
    limit = np.full(len(prefixes), max_nodes)
    bounds = _best_first(walk, answers.add, answers.kth_scores, limit)
    return answers.found(bounds, bounds <= answers.kth_scores(), walk.num_nodes)


def _best_first(
    walk: Walk,
    add_answers: Callable[[Array, Array, Array], None],
    thresholds: Callable[[], Array],
    max_nodes: Array,
    add_visited: Callable[[Beams], None] | None = None,
) -> Array:
    """Visit open nodes, best first, while they score above their query's threshold.

    thresholds: returns (B,) scores that never fall. max_nodes: (B,). Returns (B,) the best score
    that is left open; -inf where nothing is.
    """
    first_tokens = _FirstTokens(walk.roots(), walk.num_queries)
    open_ = first_tokens.next(_WIDTH, thresholds())
    while walk.stepper.num_bytes <= _MAX_BYTES:
        limits = np.where(walk.num_nodes < max_nodes, thresholds(), np.inf)
        worth = np.flatnonzero(open_.score > limits[open_.query])
        if not len(worth):
            break
        chosen = worth[_ranks(open_.query[worth], open_.score[worth]) < _WIDTH]
        beams = open_.take(chosen)
        if add_visited is not None:
            add_visited(beams)
        walk.visit(beams)
        beams = walk.run_down(beams)
        add_answers(*walk.finish(beams))
        limits = thresholds()
        # Thresholds never fall, so an open node that is below its own now can be forgotten.
        is_open = open_.score > limits[open_.query]
        is_open[chosen] = False
        more = first_tokens.next(_WIDTH, limits)
        open_ = Beams.join([open_.take(np.flatnonzero(is_open)), walk.expand(beams), more])
    best_open = first_tokens.best_left()
    np.maximum.at(best_open, open_.query, open_.score)
    return best_open


class _FirstTokens:
    """Hands out the first tokens of all names, best first.

    There are thousands of them and few are ever visited, so they are not all kept open.
    """

    def __init__(self, roots: Beams, num_queries: int) -> None:
        self.beams = roots.take(np.lexsort((-roots.score, roots.query)))
        starts = np.searchsorted(self.beams.query, np.arange(num_queries + 1))
        self.next_row, self.end = starts[:-1].copy(), starts[1:]  # (B,) rows of each query

    def next(self, count: int, limits: Array) -> Beams:
        """Hand out up to `count` tokens of each query that score above its limit, (B,)."""
        # Rows are best first, so those above the limit are a prefix of each query's slice.
        ends = np.minimum(self.next_row + count, self.end)
        rows, owner = ragged_ranges(self.next_row, ends)
        rows = rows[self.beams.score[rows] > limits[owner]]
        self.next_row += np.bincount(self.beams.query[rows], minlength=len(self.next_row))
        return self.beams.take(rows)

    def best_left(self) -> Array:
        """Return the best score of each query that was not handed out, (B,); -inf without one."""
        best = np.full(len(self.next_row), -np.inf)
        some_left = self.next_row < self.end
        best[some_left] = self.beams.score[self.next_row[some_left]]
        return best


# --- exact ranks ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rank:
    """The rank of an entity among all candidates."""

    rank: float | None  # ties share their mean; None: beyond what was asked, or not complete
    score: float
    num_better: int  # candidates that score higher; a lower bound where there is no rank
    num_nodes: int  # nodes of the trie that went through the model
    complete: bool = True  # False where the search ran out of memory first


def exact_ranks(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    entities: Array,
    *,
    most: int | None = None,
    exclude: Sequence[Array] | None = None,
) -> list[Rank]:
    """Return the rank of one entity per query among all candidates, or the proof of `rank > most`.

    Only nodes that score above the entity are visited. Candidates with equal scores share the mean
    of their ranks (the realistic rank). entities: (B,), all of them candidates.
    """
    if not prefixes:
        return []
    if exclude is not None:  # the entity itself always takes part
        exclude = [np.setdiff1d(part, [e]) for part, e in zip(exclude, entities, strict=True)]
    nodes = trie.nodes_of(np.asarray(entities, np.int64))
    assert (nodes >= 0).all(), "an entity that is not a candidate has no rank"
    walk = Walk(model, trie, prefixes, exclude)
    target = walk.score_names(np.arange(len(prefixes)), nodes)  # (B,)
    answers = _Answers(len(prefixes), 1)
    num_better = np.zeros(len(prefixes), np.int64)

    def add(query: Array, entity: Array, score: Array) -> None:
        answers.add(query, entity, score)
        is_better = score > target[query] + _TIE
        num_better[:] += np.bincount(query[is_better], minlength=len(num_better))

    def thresholds() -> Array:
        is_beyond = num_better >= (np.inf if most is None else most)
        return np.where(is_beyond, np.inf, target - _TIE)

    bounds = _best_first(walk, add, thresholds, np.full(len(prefixes), 1 << 60))
    # Beyond `most`, the search of a query has stopped; otherwise it is complete if no open node
    # could still tie with the entity. Only memory keeps it from that.
    is_beyond = np.isinf(thresholds())
    is_complete = is_beyond | (bounds <= target - _TIE)
    query, entity, score = answers.columns()  # everything that scores within a tie or above
    ranks = []
    for index, (better, num_nodes) in enumerate(zip(num_better, walk.num_nodes, strict=True)):
        if is_beyond[index] or not is_complete[index]:
            complete = bool(is_complete[index])
            ranks.append(Rank(None, target[index], int(better), int(num_nodes), complete))
            continue
        is_of_query = query == index
        # The walk's own score of the entity: names that tie with it have the very same one.
        scored = score[is_of_query & (entity == entities[index])]
        exact_score = float(scored[0]) if len(scored) else float(target[index])
        num_higher = int((score[is_of_query] > exact_score).sum())
        num_equal = max(1, int((score[is_of_query] == exact_score).sum()))
        ranks.append(
            Rank(num_higher + (num_equal + 1) / 2, exact_score, num_higher, int(num_nodes))
        )
    return ranks


# --- the reference --------------------------------------------------------------------------------


def score_all(
    model: PrixLM,
    trie: Trie,
    prefixes: list[list[int]],
    k: int | None = None,
    *,
    exclude: Sequence[Array] | None = None,
) -> list[Found]:
    """Score every candidate by walking the whole trie, level by level: slow, and obvious."""
    if not prefixes:
        return []
    walk = Walk(model, trie, prefixes, exclude)
    answers = _Answers(len(prefixes), len(trie.entity) if k is None else k)
    beams = walk.roots()
    while len(beams):
        walk.visit(beams)
        answers.add(*walk.finish(beams))
        beams = walk.expand(beams)
    nothing_open = np.full(len(prefixes), -np.inf)
    return answers.found(nothing_open, np.ones(len(prefixes), bool), walk.num_nodes)


def _ranks(query: Array, score: Array) -> Array:
    """Return the rank of each score within its query, (M,) from 0; ties by position."""
    order = np.lexsort((-score, query))
    rank = np.empty(len(order), np.int64)
    rank[order] = rank_in_group(query[order])
    return rank
