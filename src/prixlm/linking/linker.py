"""The linker: which entities of two sides are the same, with a calibrated confidence.

    problem = kb_problem(kb, "el", "en")
    linked = link_sides(problem)
    linked.best()                            # one candidate for each entity, at most

Gradient-boosted trees weigh the evidence of `evidence.py` for each pair. They learn from the known
links, hidden in turn: without the links of a fold, the evidence is computed as if they were not
known, and the pairs of the fold are the cases. The concepts of hidden links fall apart in all
languages, so no third language joins what is hidden.

Pairs compete: the odds of a pair are shared with the other candidates of its entity and, where
links are one to one, with the other entities of its candidate. What is left is "none of them".
Isotonic regression on the hidden links turns this share into a confidence.

It is done in rounds. Sure links of a round count as known in the next, so that the graph reaches
further; each fold has its own, so a hidden link is never known by way of a round.

Dimension letters: P candidate pairs, K features, E entities of the graph.
"""

import logging
from dataclasses import dataclass

import numpy as np

from prixlm.arrays import random_positions
from prixlm.errors import PrixError
from prixlm.linking.confidence import TREES, Confidence, best_of_each, compete
from prixlm.linking.evidence import (
    KINDS,
    CandidatePairs,
    Evidence,
    TextEvidence,
)
from prixlm.linking.grams import Pairs
from prixlm.linking.graph import Facts, Neighbourhoods, unify_relations
from prixlm.linking.names import Names, NameSide
from prixlm.rankers.calibrated import TreeConfig
from prixlm.types import Array, Progress

logger = logging.getLogger(__name__)
MIN_CASES = 50
"""Known links below which no confidence can be fitted."""
_ONE_TO_ONE = 0.99
"""Share of the links that must be one to one, for the others to be taken for errors."""
_MAX_CASES = 2500
"""Hidden links whose pairs the trees are grown on, a random sample of more."""
Links = tuple[Array, Array]
"""Entities of ours, and the entities of theirs that they are linked to."""


@dataclass(frozen=True, kw_only=True)
class LinkerConfig:
    """How links are found."""

    folds: int = 3  # parts into which the known links are cut, each hidden once
    rounds: int = 2  # the sure links of a round are known in the next
    sure: float = 0.9  # confidence from which a link is sure
    without: tuple[str, ...] = ()  # kinds of evidence that are left out
    trees: TreeConfig = TREES
    seed: int = 0  # of folds and random vectors

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise PrixError(f"folds {self.folds}: expected 2 or more.")
        if self.rounds < 1:
            raise PrixError(f"rounds {self.rounds}: expected 1 or more.")
        if not 0 < self.sure <= 1:
            raise PrixError(f"sure {self.sure}: expected a confidence above 0, up to 1.")
        unknown = sorted(set(self.without) - set(KINDS))
        if unknown:
            raise PrixError(f"evidence {', '.join(unknown)}: expected {', '.join(KINDS)}.")


@dataclass(frozen=True)
class LinkProblem:
    """Two sides, and what is known of them."""

    ours: Names
    theirs: Names
    ids: tuple[Array, Array]  # the entities of both sides, as `concept` and `facts` number them
    concept: Array  # (E,) entities of one concept are linked
    facts: Facts | None = None
    without: Array | None = None  # entities of ours that are taken to have no counterpart
    cases: Links | None = None  # links to fit on, which no evidence knows; None: the known ones
    translated: tuple[Pairs, Pairs] | None = None  # by a decoder, in both directions

    def links(self, concept: Array | None = None) -> Links:
        """Return the known links; of several counterparts the first."""
        concept = self.concept if concept is None else concept
        ours, theirs = (concept[ids] for ids in self.ids)
        order = np.argsort(theirs, kind="stable")
        at = np.searchsorted(theirs[order], ours)
        linked = np.flatnonzero(at < len(order))
        linked = linked[theirs[order[at[linked]]] == ours[linked]]
        return linked, order[at[linked]]

    def is_one_to_one(self) -> bool:
        """Return whether nearly all linked concepts have one entity on each side."""
        ours, theirs = (np.bincount(self.concept[ids]) for ids in self.ids)
        width = min(len(ours), len(theirs))
        both = (ours[:width] > 0) & (theirs[:width] > 0)
        single = (ours[:width][both] == 1) & (theirs[:width][both] == 1)
        return bool(single.mean() >= _ONE_TO_ONE) if len(single) else True


@dataclass(frozen=True)
class Linked:
    """Candidates with their confidence, sorted by entity of ours."""

    pairs: CandidatePairs
    share: Array  # (P,) of the odds, between 0 and 1: what candidates are ranked by
    confidence: Array  # (P,) calibrated

    def best(self, one_to_one: bool = True) -> Array:
        """Return the rows of the best candidate of each entity, the most confident first.

        one_to_one: of several entities with one candidate, the most confident keeps it; the
        others get their next one, unless another entity has it already.
        """
        order = np.lexsort((self.pairs.right, self.pairs.left, -self.share))
        if not one_to_one:
            _, first = np.unique(self.pairs.left[order], return_index=True)
            return np.asarray(order[np.sort(first)])
        kept = []
        while len(order):
            # A pair stays if it is the best left of both its ends. Those of a stayed pair go.
            left, right = self.pairs.left[order], self.pairs.right[order]
            of_left, of_right = (np.unique(side, return_index=True)[1] for side in (left, right))
            mutual = np.intersect1d(of_left, of_right)
            kept.append(order[mutual])
            gone = np.isin(left, left[mutual]) | np.isin(right, right[mutual])
            order = order[~gone]
        rows = np.concatenate([np.zeros(0, np.int64), *kept])
        return np.asarray(rows[np.lexsort((self.pairs.left[rows], -self.share[rows]))])


def link_sides(
    problem: LinkProblem, config: LinkerConfig | None = None, progress: Progress | None = None
) -> Linked:
    """Return the candidates of every entity of ours that has no link, with their confidence."""
    return _Linker(problem, config or LinkerConfig(), progress).run()


class _Linker:
    """One run: the states are the known links without each fold, and all of them."""

    def __init__(
        self, problem: LinkProblem, config: LinkerConfig, progress: Progress | None
    ) -> None:
        self.problem, self.config, self.progress = problem, config, progress
        left, right = problem.links() if problem.cases is None else problem.cases
        if len(left) < max(MIN_CASES, config.folds):
            raise PrixError(
                f"{len(left):,} links are too few to fit a confidence on: expected {MIN_CASES} or "
                "more. With a model or encoder, withhold more: "
                "`prixlm split --hide-links 0.2 --valid 0.1`."
            )
        self.one_to_one = problem.is_one_to_one()
        self.texts = TextEvidence(
            NameSide(problem.ours),
            NameSide(problem.theirs),
            without=config.without,
            translated=problem.translated,
        )
        num = len(self.texts.ours)
        # (entities of ours,) the known counterpart, and the fold that hides it; -1 without.
        self.truth, self.fold = np.full(num, -1), np.full(num, -1)
        self.truth[left] = right
        self.fold[left] = random_positions(len(left), config.seed) * config.folds
        # The cases: known links, and entities that are taken to have none, in every fold.
        self.is_case = np.zeros(num, bool)
        self.is_case[
            left[random_positions(len(left), config.seed + 1) * len(left) < _MAX_CASES]
        ] = True
        if problem.without is not None:
            self._draw_without(problem.without, len(left))

    def _draw_without(self, without: Array, num_links: int) -> None:
        """Add entities without a counterpart to the cases, in the proportion they occur in."""
        number = round(int(self.is_case.sum()) * len(without) / max(1, num_links))
        generator = np.random.default_rng(self.config.seed)
        drawn = generator.permutation(without)[:number]
        self.is_case[drawn] = True
        self.fold[drawn] = generator.integers(0, self.config.folds, len(drawn))

    def run(self) -> Linked:
        """Return the links of the last round."""
        folds = self.config.folds
        none = np.zeros(0, np.int64)
        sure: list[Links] = [(none, none)] * (folds + 1)  # of each state; the last knows all links
        steps, done = self.config.rounds * (folds + 1), 0
        for turn in range(self.config.rounds):
            states = []
            for number in range(folds + 1):
                states.append(self._pairs(number, sure[number]))
                done += 1
                if self.progress is not None:
                    self.progress("link", done, steps)
            linked = self._fit(states)
            sure = [self._sure(state) for state in linked]
            logger.info("round %d: %d links are sure", turn + 1, len(sure[-1][0]))
        return linked[-1]

    def _pairs(self, number: int, sure: Links) -> CandidatePairs:
        """Return the pairs of a state: without the links of a fold, and with sure ones."""
        problem = self.problem
        ours, theirs = problem.ids
        hidden = ours[(self.fold == number) & (self.truth >= 0)]
        concept = take_apart(problem.concept, problem.concept[hidden])
        known, taken = problem.links(concept)
        joined = join_concepts(concept, ours[sure[0]], theirs[sure[1]])
        graph = None
        if problem.facts is not None and "graph" not in self.config.without:
            seeds = np.intersect1d(joined[ours], joined[theirs])
            facts = unify_relations(problem.facts, joined, np.isin(problem.facts.subject, ours))
            graph = Neighbourhoods(facts, joined, seeds, self.config.seed)
        links = problem.links(joined)
        evidence = Evidence(self.texts, links, graph, problem.ids, seed=self.config.seed)
        asked = np.setdiff1d(np.arange(len(ours)), known)
        allowed = np.ones(len(theirs), bool)
        allowed[taken] = not self.one_to_one  # what is linked already has its counterpart
        return evidence.pairs(asked, allowed)

    def _fit(self, states: list[CandidatePairs]) -> list[Linked]:
        """Return the confidence of all pairs; in each fold by trees that have not seen it."""
        folds = self.config.folds
        is_case = [self.is_case[p.left] & (self.fold[p.left] == f) for f, p in enumerate(states)]
        cases = [state.select(mask) for state, mask in zip(states[:folds], is_case, strict=False)]
        features = np.concatenate([case.features for case in cases])
        right = np.concatenate([self.truth[case.left] == case.right for case in cases])
        owner = np.repeat(np.arange(folds), [len(case) for case in cases])
        if not all(right[owner == fold].any() for fold in range(folds)):
            raise PrixError("no known link is among its candidates: too few to fit a confidence.")
        confidence = Confidence.grow(features, right, owner, self.config.trees)
        # In each fold by the trees that have not seen it; in the last state, by all of them.
        numbers = [*range(folds), None]
        shares = [
            self._share(p, confidence.score(p.features, f))
            for f, p in zip(numbers, states, strict=True)
        ]
        of_cases = [share[mask] for share, mask in zip(shares[:folds], is_case, strict=False)]
        first = [best_of_each(s, c.left) for s, c in zip(of_cases, cases, strict=True)]
        confidence.calibrate(np.concatenate(of_cases), right, np.concatenate(first))
        return [
            Linked(pairs, share, confidence.probability(share, pairs.left))
            for pairs, share in zip(states, shares, strict=True)
        ]

    def _share(self, pairs: CandidatePairs, score: Array) -> Array:
        return compete(score, pairs.left, pairs.right if self.one_to_one else None)

    def _sure(self, linked: Linked) -> Links:
        """Return the links that count as known in the next round."""
        rows = linked.best(self.one_to_one)
        rows = rows[linked.confidence[rows] >= self.config.sure]
        return linked.pairs.left[rows], linked.pairs.right[rows]


def take_apart(concept: Array, hidden: Array) -> Array:
    """Return the concepts with those of hidden links taken apart, in all languages: (E,)."""
    rows = np.flatnonzero(np.isin(concept, hidden))
    apart = concept.astype(np.int64)
    apart[rows] = int(concept.max(initial=-1)) + 1 + np.arange(len(rows))
    return apart


def join_concepts(concept: Array, ours: Array, theirs: Array) -> Array:
    """Return the concepts after joining those of some pairs of entities, one to one: (E,)."""
    become = np.arange(int(concept.max(initial=-1)) + 1)
    become[concept[theirs]] = concept[ours]
    return become[concept]
