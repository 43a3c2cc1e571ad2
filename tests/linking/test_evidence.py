"""Candidates and features of pairs, compared with slow counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rapidfuzz import fuzz

from prixlm.linking.evidence import FEATURES, KINDS, SCORES, Evidence, TextEvidence, gap_to_others
from prixlm.linking.grams import Pairs, keep_rarest
from prixlm.linking.graph import Facts, Neighbourhoods
from prixlm.linking.names import Names, NameSide

OURS = NameSide(Names(["Αθήνα", "Παρίσι", "Σπάρτη", "12"], np.arange(4), langs="el"))
THEIRS = NameSide(
    Names(["Athens", "Athina", "Paris", "Sparta", "Thebes", "12"], np.array([0, 0, 1, 2, 3, 4]))
)
ALL = np.arange(4)


def test_a_candidate_answers_with_its_best_name() -> None:
    pairs = Evidence(TextEvidence(OURS, THEIRS)).pairs(ALL, np.ones(5, bool))
    found = {(a, b): row for row, (a, b) in enumerate(zip(pairs.left, pairs.right, strict=True))}
    assert len(found) == len(pairs), "one row for each pair"
    row = found[0, 0]
    assert pairs.name[row] == 1 and pairs.column("alias")[row] == 1, "Athina is nearest to Αθήνα"
    assert pairs.column("romanised")[row] == 1 and pairs.column("spelling")[row] == 0
    exact = found[3, 4]
    assert pairs.column("exact")[exact] == 1 and pairs.column("digits")[exact] == 1
    assert np.isnan(pairs.column("digits")[row]), "neither has digits"
    for (a, b), at in found.items():
        name = THEIRS.read[pairs.name[at]]
        assert pairs.column("romanised")[at] == pytest.approx(
            fuzz.ratio(OURS.read[a], name) / 100
        ), (a, b)


def test_an_alias_of_ours_is_asked_with_too() -> None:
    eye = np.eye(4, dtype=np.float32)
    ours = NameSide(Names(["Constantinople", "Istanbul", "Lygos"], np.array([0, 0, 1]), eye[:3]))
    theirs = NameSide(Names(["Stambul", "Istanbul", "Lygos"], np.array([0, 0, 1]), eye[[3, 1, 2]]))
    for without in ((), ("spelling", "romanised"), ("encoder",)):
        texts = TextEvidence(ours, theirs, without=without)
        pairs = Evidence(texts).pairs(np.arange(2), np.ones(2, bool))
        found = list(zip(pairs.left.tolist(), pairs.right.tolist(), strict=True))
        assert len(set(found)) == len(found), "one row for each pair of entities"
        row = found.index((0, 0))
        assert pairs.name[row] == 1, without
        if not without:
            assert pairs.column("exact")[row] == pairs.column("encoder")[row] == 1
    assert Evidence(texts).pairs(np.array([1]), np.ones(2, bool)).left.tolist() == [1]


def test_what_is_not_allowed_or_not_asked_is_no_candidate() -> None:
    allowed = np.array([False, True, True, True, True])
    pairs = Evidence(TextEvidence(OURS, THEIRS)).pairs(np.array([0, 1]), allowed)
    assert set(pairs.left.tolist()) <= {0, 1} and 0 not in pairs.right


def make_namesakes() -> tuple[NameSide, NameSide]:
    """Both sides have 60 namesakes of three kinds, and 30 names of their own."""
    generator = np.random.default_rng(0)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    own = ["".join(generator.choice(syllables, 3)) for _ in range(30)]
    ours = [*["Saint Mary", "Springfield", "Naples"] * 20, *own]
    theirs = [*["Saint Mary", "Springfield", "Naples"] * 20, *(f"{name}i" for name in own)]
    eye = np.eye(90, dtype=np.float32)
    near = np.roll(eye, 1, axis=0) * 0.6 + eye * 0.8
    return (
        NameSide(Names(ours, np.arange(90), eye)),
        NameSide(Names(theirs, np.arange(90), near)),
    )


@pytest.mark.parametrize("kind", ["spelling", "romanised", "encoder", "words"])
def test_the_places_go_to_those_that_may_answer(kind: str) -> None:
    ours, theirs = make_namesakes()
    without = tuple({"spelling", "romanised", "encoder", "words"} - {kind})
    texts = TextEvidence(ours, theirs, without=without, per_source=3)
    links = (np.arange(30, 90), np.arange(30, 90))
    evidence = Evidence(texts, links)
    # Of the namesakes only the last may answer: 57 others stood before each of them.
    allowed = np.ones(90, bool)
    allowed[:57] = False
    asked = np.arange(0, 90, 2)
    left, name = evidence.candidates(asked, allowed)
    for scores in slow_scores(evidence, kind):  # (ours, names) each
        for entity in asked.tolist():
            best = np.sort(scores[entity, allowed])[::-1][:3]
            best = best[best > 1e-6]
            found = scores[entity, name[left == entity]]
            # Equal scores leave the choice free, so scores are compared.
            assert np.sort(found)[::-1][: len(best)] == pytest.approx(best, abs=1e-5), entity
    assert allowed[name].all()


def slow_scores(evidence: Evidence, kind: str) -> list[np.ndarray]:
    """Return what each search of a kind compares all names by: (ours, names) each."""
    texts = evidence.texts
    if kind == "encoder":
        assert texts.vectors is not None
        return [texts.vectors[0] @ texts.vectors[1].T]
    if kind == "words":
        assert evidence.chunks is not None and evidence.maps is not None
        chunks, theirs = evidence.chunks
        return [(chunks @ theirs.T).toarray(), evidence.maps[0] @ evidence.maps[1].T]
    is_spelled = kind == "spelling"
    index = texts.theirs.spelled_index if is_spelled else texts.theirs.read_index
    rarest = keep_rarest(texts.spelled if is_spelled else texts.read, index.idf, 16)
    return [(rarest @ index.vectors.T).toarray()]


def test_evidence_that_is_absent_is_nan_and_brings_no_candidates() -> None:
    pairs = Evidence(TextEvidence(OURS, THEIRS)).pairs(ALL, np.ones(5, bool))
    for name in ("chunks", "maps", "facts", "around", "encoder", "degree", "facts_gap"):
        assert np.isnan(pairs.column(name)).all(), name
    nothing = TextEvidence(OURS, THEIRS, without=("spelling", "romanised"))
    assert len(Evidence(nothing).pairs(ALL, np.ones(5, bool))) == 0


def test_a_kind_that_is_left_out_leaves_no_trace_in_the_features() -> None:
    texts = TextEvidence(OURS, THEIRS, without=("romanised",))
    pairs = Evidence(texts).pairs(ALL, np.ones(5, bool))
    for name in (*KINDS["romanised"], "romanised_gap", "romanised_back"):
        assert np.isnan(pairs.column(name)).all(), name
    assert set().union(*KINDS.values()) <= set(FEATURES) and set(SCORES) <= set(FEATURES)


def test_the_graph_brings_candidates_of_other_names() -> None:
    # Σπάρτη (2) and Thebes (3 of theirs) both lie in what Αθήνα and Athens are linked to.
    ids = np.arange(4), 4 + np.arange(5)
    facts = Facts(np.array([2, 7]), np.array([0, 0]), np.array([0, 4]))
    concept = np.array([0, 1, 2, 3, 0, 5, 6, 7, 8])
    graph = Neighbourhoods(facts, concept, np.array([0]))
    texts = TextEvidence(OURS, THEIRS, per_source=1)
    pairs = Evidence(texts, graph=graph, ids=ids).pairs(np.array([2]), np.ones(5, bool))
    assert 3 in pairs.right
    row = pairs.right.tolist().index(3)
    assert pairs.column("facts")[row] == pytest.approx(1) and pairs.column("linked")[row] == 1


def test_vectors_of_an_encoder_are_compared_and_searched() -> None:
    eye = np.eye(6, dtype=np.float32)
    ours = NameSide(Names(["x", "y"], np.arange(2), eye[[3, 5]]))
    theirs = NameSide(Names(list("abcdef"), np.arange(6), eye))
    pairs = Evidence(TextEvidence(ours, theirs)).pairs(np.arange(2), np.ones(6, bool))
    assert list(zip(pairs.left, pairs.right, strict=True)) == [(0, 3), (1, 5)]
    assert pairs.column("encoder").tolist() == [1, 1]


def make_vectors(count: int, seed: int) -> np.ndarray:
    """Return unit rows, with a cluster in which every name is near every other."""
    generator = np.random.default_rng(seed)
    rows = generator.normal(size=(count, 6)).astype(np.float32)
    rows[: count // 2] += np.array([4, 0, 0, 0, 0, 0], np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def test_csls_subtracts_how_crowded_it_is_around_both_names() -> None:
    own, other = make_vectors(30, 0), make_vectors(25, 1)
    ours = NameSide(Names([f"a{i}" for i in range(30)], np.arange(30), own))
    theirs = NameSide(Names([f"b{i}" for i in range(25)], np.arange(25), other))
    texts = TextEvidence(ours, theirs, without=("spelling", "romanised"))
    pairs = Evidence(texts).pairs(np.arange(30), np.ones(25, bool))
    assert len(pairs) > 100
    for at in range(len(pairs)):
        x, y = own[pairs.left[at]], other[pairs.right[at]]
        around_x = sorted((float(x @ name) for name in other), reverse=True)[:10]
        around_y = sorted((float(y @ name) for name in own), reverse=True)[:10]
        expected = 2 * float(x @ y) - sum(around_x) / 10 - sum(around_y) / 10
        assert pairs.column("csls")[at] == pytest.approx(expected, abs=1e-5)
    # Its gaps are those of any other score.
    score = pairs.column("csls")
    np.testing.assert_allclose(pairs.column("csls_gap"), gap_to_others(score, pairs.left))
    np.testing.assert_allclose(pairs.column("csls_back"), gap_to_others(score, pairs.right))


def test_mentions_have_no_csls_so_that_none_depends_on_the_others() -> None:
    own, other = make_vectors(30, 0), make_vectors(25, 1)
    theirs = NameSide(Names([f"b{i}" for i in range(25)], np.arange(25), other))

    def describe(number: int) -> tuple[TextEvidence, np.ndarray]:
        names = Names([f"a{i}" for i in range(number)], np.arange(number), own[:number])
        texts = TextEvidence(NameSide(names), theirs)
        pairs = Evidence(texts, mutual=False).pairs(np.arange(number), np.ones(25, bool))
        return texts, pairs.select(pairs.left == 0).features

    texts, together = describe(30)
    np.testing.assert_array_equal(together, describe(1)[1])
    assert np.isnan(together[:, FEATURES.index("csls")]).all()
    assert not np.isnan(together[:, FEATURES.index("encoder")]).any()
    assert "crowding" not in vars(texts), "what is not used is not computed"


def test_without_vectors_or_names_there_is_no_csls() -> None:
    pairs = Evidence(TextEvidence(OURS, THEIRS)).pairs(ALL, np.ones(5, bool))
    assert np.isnan(pairs.column("csls")).all() and np.isnan(pairs.column("csls_back")).all()
    ours = NameSide(Names(["x"], np.arange(1), np.eye(6, dtype=np.float32)[:1]))
    none = NameSide(Names([], np.zeros(0, np.int64), np.zeros((0, 6), np.float32)))
    assert len(Evidence(TextEvidence(ours, none)).pairs(np.arange(1), np.ones(0, bool))) == 0
    left_out = TextEvidence(ours, ours, without=("encoder",))
    pairs = Evidence(left_out).pairs(np.arange(1), np.ones(1, bool))
    assert len(pairs) == 1 and np.isnan(pairs.column("csls")).all()


def test_translations_of_a_decoder_are_candidates_and_scores() -> None:
    there = Pairs(np.array([2, 0]), np.array([3, 0]), np.array([0.5, 0.25], np.float32))
    back = Pairs(np.array([1]), np.array([4]), np.array([0.75], np.float32))
    texts = TextEvidence(OURS, THEIRS, translated=(there, back))
    pairs = Evidence(texts).pairs(ALL, np.ones(5, bool))
    found = {(a, b): row for row, (a, b) in enumerate(zip(pairs.left, pairs.right, strict=True))}
    expected = {(2, 3): (0.5, 0), (0, 0): (0.25, 0), (1, 4): (0, 0.75)}
    assert set(expected) <= set(found)
    for pair, row in found.items():
        scores = pairs.column("decoder")[row], pairs.column("decoder_reverse")[row]
        assert scores == expected.get(pair, (0, 0))
    left_out = TextEvidence(OURS, THEIRS, without=("decoder",), translated=(there, back))
    assert np.isnan(Evidence(left_out).pairs(ALL, np.ones(5, bool)).column("decoder")).all()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0.0, 0.25, 0.5, 1.0, None]))))
def test_the_gap_is_that_to_the_best_other_of_the_group(
    rows: list[tuple[int, float | None]],
) -> None:
    group = np.array([a for a, _ in rows], int)
    score = np.array([np.nan if b is None else b for _, b in rows], np.float32)
    gaps = gap_to_others(score, group)
    for row in range(len(rows)):
        others = [
            score[i]
            for i in range(len(rows))
            if i != row and group[i] == group[row] and not np.isnan(score[i])
        ]
        if np.isnan(score[row]) or not others:
            assert np.isnan(gaps[row])
        else:
            assert gaps[row] == score[row] - max(others)
