"""The linker: what is hidden stays hidden, links are one to one, and the confidence holds."""

import numpy as np
import pytest
import scipy.sparse as sp

from prixlm.errors import PrixError
from prixlm.linking import evidence, grams
from prixlm.linking.evidence import FEATURES, PER_SOURCE, CandidatePairs
from prixlm.linking.grams import Pairs, nearest
from prixlm.linking.graph import Facts
from prixlm.linking.linker import (
    Linked,
    LinkerConfig,
    LinkProblem,
    join_concepts,
    link_sides,
    take_apart,
)
from prixlm.linking.names import Names
from prixlm.metrics import reliability

QUICK = LinkerConfig(folds=2, rounds=2)


def make_problem(num: int = 500, seed: int = 0) -> tuple[LinkProblem, np.ndarray]:
    """Two sides of syllables; every third name is another one, and the facts form a chain.

    Every second link is known. Returns the entities whose link is not.
    """
    generator = np.random.default_rng(seed)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    names = ["".join(generator.choice(syllables, 4)) for _ in range(num)]
    others = [
        "".join(generator.choice(syllables, 4)) if i % 3 == 0 else f"{n}i"
        for i, n in enumerate(names)
    ]
    concept = np.arange(2 * num)
    known = np.arange(0, num, 2)
    concept[num + known] = known
    subject = np.arange(num)
    facts = Facts(
        np.concatenate([subject, subject + num]),
        np.zeros(2 * num, int),
        np.concatenate([np.roll(subject, 1), np.roll(subject, 1) + num]),
    )
    sides = [Names(side, np.arange(num)) for side in (names, others)]
    problem = LinkProblem(
        sides[0], sides[1], (np.arange(num), num + np.arange(num)), concept, facts
    )
    return problem, np.setdiff1d(np.arange(num), known)


@pytest.fixture(scope="module")
def problem() -> LinkProblem:
    return make_problem()[0]


@pytest.fixture(scope="module")
def linked(problem: LinkProblem) -> Linked:
    return link_sides(problem, QUICK)


def test_links_that_are_not_known_are_found_with_a_calibrated_confidence(linked: Linked) -> None:
    rows = linked.best()
    is_right = linked.pairs.left[rows] == linked.pairs.right[rows]
    assert len(rows) == 250 and is_right.mean() > 0.9
    assert reliability(linked.confidence[rows], is_right).ece < 0.06
    assert linked.pairs.left[rows].tolist() != sorted(linked.pairs.left[rows].tolist())
    assert (np.diff(linked.share[rows]) <= 0).all(), "the most confident first"


def test_what_is_linked_is_neither_asked_for_nor_a_candidate(linked: Linked) -> None:
    assert (linked.pairs.left % 2 == 1).all() and (linked.pairs.right % 2 == 1).all()


def test_the_graph_finds_what_names_cannot(problem: LinkProblem, linked: Linked) -> None:
    names_only = link_sides(problem, LinkerConfig(folds=2, rounds=1, without=("graph",)))
    rates = []
    for one in (linked, names_only):
        rows = one.best()
        other = one.pairs.left[rows] % 3 == 0  # whose names have nothing in common
        rates.append((one.pairs.left[rows] == one.pairs.right[rows])[other].mean())
    assert rates[0] > 0.8 > 0.2 > rates[1]
    rows = linked.best()
    assert all(
        "graph" in kinds
        for kinds in linked.pairs.origins(rows[linked.pairs.left[rows] % 3 == 0][:20])
    )


def test_the_same_seed_gives_the_same_links(problem: LinkProblem, linked: Linked) -> None:
    again = link_sides(problem, QUICK)
    assert np.array_equal(again.pairs.left, linked.pairs.left)
    assert np.array_equal(again.confidence, linked.confidence)


def test_entities_without_a_counterpart_lower_the_confidence() -> None:
    problem, unknown = make_problem(300, seed=1)
    # Their counterparts are taken away: nothing of theirs is right.
    strange = LinkProblem(
        problem.ours, problem.theirs, problem.ids, problem.concept, problem.facts, unknown[:100]
    )
    plain, careful = (link_sides(p, LinkerConfig(folds=2, rounds=1)) for p in (problem, strange))
    of = np.isin(careful.pairs.left, unknown[:100])
    assert careful.confidence[of].max() <= plain.confidence.max()
    rows = careful.best()
    assert np.mean(careful.confidence[rows]) < np.mean(plain.confidence[plain.best()])


ODD = ["x", "7", "2001", "🙂", "\u0301", "𐎠𐎡", "Ж日", "Αlpha 東京", "…", "ー", "\ud800"]
"""One character, digits, emoji, a bare accent, scripts nobody reads, two scripts in one name."""


def with_more(problem: LinkProblem, ours: list[str], theirs: list[str]) -> LinkProblem:
    """Add entities of some names to the two sides, without links or facts."""
    num, facts = len(problem.ids[0]), problem.facts
    size, other_size = num + len(ours), num + len(theirs)
    assert facts is not None

    def renumbered(entity: np.ndarray) -> np.ndarray:
        return np.where(entity < num, entity, entity - num + size)

    concept = np.arange(size + other_size)
    concept[renumbered(np.arange(2 * num))] = renumbered(problem.concept)
    return LinkProblem(
        Names([*problem.ours.texts, *ours], np.arange(size)),
        Names([*problem.theirs.texts, *theirs], np.arange(other_size)),
        (np.arange(size), size + np.arange(other_size)),
        concept,
        Facts(renumbered(facts.subject), facts.relation, renumbered(facts.object)),
    )


def test_odd_names_find_their_like_and_change_nothing_else(
    problem: LinkProblem, linked: Linked
) -> None:
    more = link_sides(with_more(problem, ODD, ODD), QUICK)
    assert np.isfinite(more.confidence).all() and not np.isinf(more.pairs.features).any()
    rows = more.best()
    found = dict(zip(more.pairs.left[rows].tolist(), more.pairs.right[rows].tolist(), strict=True))
    # Each has a counterpart of the very same name, and no other entity shares a letter with it.
    assert [found.get(500 + number) for number in range(len(ODD))] == [
        500 + number for number in range(len(ODD))
    ]
    rates = []
    for one in (linked, more):
        rows = one.best()
        rows = rows[one.pairs.left[rows] < 500]
        rates.append((one.pairs.left[rows] == one.pairs.right[rows]).mean())
    assert abs(rates[0] - rates[1]) < 0.03


def test_names_of_one_sign_that_share_no_ngram_are_linked() -> None:
    signs = [chr(0x12000 + number) for number in range(120)]  # cuneiform: nobody romanises it
    concept = np.concatenate([np.arange(120), np.arange(80), 200 + np.arange(40)])
    sides = Names(signs, np.arange(120)), Names(signs, np.arange(120))
    problem = LinkProblem(*sides, (np.arange(120), 120 + np.arange(120)), concept)
    linked = link_sides(problem, LinkerConfig(folds=2, rounds=1))
    rows = linked.best()
    assert linked.pairs.left[rows].tolist() == linked.pairs.right[rows].tolist()
    assert len(rows) == 40 and np.isfinite(linked.confidence).all()


def test_ten_thousand_entities_of_one_name_stay_within_bounds(
    problem: LinkProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[int] = []

    def counting(queries: sp.csr_matrix, names: sp.csr_matrix, k: int) -> Pairs:
        searched.append(queries.shape[0])
        return nearest(queries, names, k)

    monkeypatch.setattr(grams, "nearest", counting)
    monkeypatch.setattr(evidence, "nearest", counting)
    # 2,000 of ours, so that the test is quick.
    whole = with_more(problem, ["Saint Mary"] * 2000, ["Saint Mary"] * 10_000)
    linked = link_sides(whole, LinkerConfig(folds=2, rounds=1))
    # Names are searched once for each text, facts for each entity: once in each of three states.
    assert sum(size > 501 for size in searched) == 3
    pairs = linked.pairs
    assert np.bincount(pairs.left)[500:].max() <= 4 * PER_SOURCE, "some of each kind of evidence"
    same = pairs.left >= 500
    assert linked.confidence[same].max() < 0.5, "none can be told from the others, or proposed"
    rows = linked.best()
    rows = rows[pairs.left[rows] < 500]
    assert (pairs.left[rows] == pairs.right[rows]).mean() > 0.85, "the others are found as before"


def test_hidden_concepts_fall_apart_in_all_languages() -> None:
    concept = np.array([0, 1, 2, 0, 1, 2, 0])
    apart = take_apart(concept, np.array([0]))
    assert apart.tolist() == [3, 1, 2, 4, 1, 2, 5]
    assert join_concepts(apart, np.array([0]), np.array([3])).tolist() == [3, 1, 2, 3, 1, 2, 5]


def test_best_is_greedy_one_to_one() -> None:
    left, right = np.array([0, 0, 1, 1, 2]), np.array([0, 1, 0, 1, 0])
    share = np.array([0.9, 0.5, 0.8, 0.7, 0.6])
    pairs = CandidatePairs(left, right, right, np.zeros((5, len(FEATURES)), np.float32))
    linked = Linked(pairs, share, share)
    chosen = linked.best()
    assert list(zip(left[chosen], right[chosen], strict=True)) == [(0, 0), (1, 1)]
    free = linked.best(one_to_one=False)
    assert list(zip(left[free], right[free], strict=True)) == [(0, 0), (1, 0), (2, 0)]


def test_known_links_and_whether_they_are_one_to_one(problem: LinkProblem) -> None:
    left, right = problem.links()
    assert left.tolist() == right.tolist() == list(range(0, 500, 2)) and problem.is_one_to_one()
    double = problem.concept.copy()
    double[500 + np.arange(1, 200, 2)] = np.arange(0, 199, 2)
    many = LinkProblem(problem.ours, problem.theirs, problem.ids, double)
    assert not many.is_one_to_one()


def test_too_few_links_and_bad_settings_are_refused(problem: LinkProblem) -> None:
    none = LinkProblem(problem.ours, problem.theirs, problem.ids, np.arange(1000))
    with pytest.raises(PrixError, match="0 links are too few"):
        link_sides(none)
    with pytest.raises(PrixError, match="evidence magic: expected spelling"):
        LinkerConfig(without=("magic",))
    for bad in ({"folds": 1}, {"rounds": 0}, {"sure": 0.0}):
        with pytest.raises(PrixError, match="expected"):
            LinkerConfig(**bad)  # type: ignore[arg-type]
