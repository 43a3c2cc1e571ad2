"""The searches: against scoring everything, against a plain Algorithm 1, with odd sets of names."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm import KB
from prixlm.decoding import search
from prixlm.decoding.search import (
    Found,
    Given,
    beam_search,
    beam_search_beside,
    exact_ranks,
    exact_search,
    score_all,
)
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import Walk
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import build_tokens, make_ragged
from tests.decoding.helpers import (
    PREFIXES,
    READINGS,
    Array,
    algorithm_1,
    assert_same,
    best,
    plain_scores,
    random_names,
    random_trie,
)


@pytest.mark.parametrize("k", [1, 5, 60])
def test_exact_search_finds_the_best_of_all(model: PrixLM, k: int) -> None:
    _, trie = random_trie(200, 2)
    everything = score_all(model, trie, PREFIXES)
    for exact, whole in zip(exact_search(model, trie, PREFIXES, k), everything, strict=True):
        assert_same(exact, whole.entity[:k], whole.score[:k])
        assert exact.complete and exact.bound <= exact.score[-1]
        assert k > 1 or exact.num_nodes < trie.num_nodes


def test_a_limit_on_work_is_reported(model: PrixLM) -> None:
    _, trie = random_trie(200, 2)
    [found] = exact_search(model, trie, PREFIXES[:1], 50, max_nodes=8)
    assert not found.complete and found.num_nodes < 200
    assert np.isfinite(found.bound)


def test_a_wide_beam_agrees_with_scoring_every_entity(model: PrixLM) -> None:
    _, trie = random_trie(120, 3)
    everything = score_all(model, trie, PREFIXES)
    beams = beam_search(model, trie, PREFIXES, 120, beam=120)
    for found, whole in zip(beams, everything, strict=True):
        assert_same(found, whole.entity, whole.score)
        assert found.complete


def by_levels(
    model: PrixLM, trie: Trie, prefixes: list[list[int]], k: int, *, beam: int
) -> list[Found]:
    walk, answers = Walk(model, trie, prefixes), search._Answers(len(prefixes), k)
    return search._by_levels(walk, answers, beam, np.arange(len(prefixes)))


@pytest.mark.parametrize("how", [by_levels, beam_search])
@pytest.mark.parametrize("beam", [2, 5, 50])
def test_the_beam_is_algorithm_1_answer_for_answer(model: PrixLM, beam: int, how: object) -> None:
    names, trie = random_trie(150, 4)
    tuples = [tuple(names.row(i).tolist()) for i in range(150)]
    found = how(model, trie, PREFIXES, 10, beam=beam)  # type: ignore[operator]
    for prefix, ours in zip(PREFIXES, found, strict=True):
        plain = algorithm_1(model, prefix, tuples, beam)
        scores = np.array([plain.get(name, -np.inf) for name in tuples])
        assert_same(ours, *best(scores, 10))


def test_beams_that_are_exact_and_beams_that_are_not_agree_with_algorithm_1(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many first tokens, both ways of finding a beam's answers are taken."""
    generator = np.random.default_rng(8)
    highest = len(model.tokenizer) - 20
    lengths = generator.integers(1, 4, 300)
    names = make_ragged([generator.integers(20, highest, n).tolist() for n in lengths])
    trie = Trie.build(names, np.arange(300))
    assert trie.first[1] - 1 > 3 * search._WIDTH
    is_proven = set()
    always = lambda walk: np.ones(walk.num_queries, bool)  # noqa: E731
    monkeypatch.setattr(search, "_is_first_token_predictable", always)
    for beam in (1, 5, 20, 60):
        for k in (1, 3, 10):
            walk, answers = Walk(model, trie, PREFIXES), search._Answers(len(PREFIXES), k)
            proven = search._where_beams_are_exact(walk, answers, beam)
            levels = by_levels(model, trie, PREFIXES, k, beam=beam)
            for ours, level in zip(proven, levels, strict=True):
                is_proven.add(ours is not None)
                if ours is not None:
                    assert_same(ours, level.entity, level.score)
    assert is_proven == {True, False}


def test_the_shortcut_is_not_tried_where_no_first_token_is_predictable(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trie = random_trie(100, 8)
    never = lambda walk: np.zeros(walk.num_queries, bool)  # noqa: E731
    monkeypatch.setattr(search, "_is_first_token_predictable", never)
    walk = Walk(model, trie, PREFIXES)
    answers = search._Answers(len(PREFIXES), 3)
    assert search._where_beams_are_exact(walk, answers, 20) == [None] * 3
    assert not walk.num_nodes.any()


def test_an_exact_search_that_runs_out_of_memory_says_so(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, trie = random_trie(200, 2)
    monkeypatch.setattr(search, "_MAX_BYTES", 0)
    assert not any(found.complete for found in exact_search(model, trie, PREFIXES, 5))
    ranks = exact_ranks(model, trie, PREFIXES, np.array([1, 2, 3]))
    assert all(rank.rank is None and not rank.complete for rank in ranks)


def test_without_queries_there_are_no_answers(model: PrixLM) -> None:
    _, trie = random_trie(5, 1)
    for how in (beam_search, exact_search, score_all):
        assert how(model, trie, [], 3) == []
    assert exact_ranks(model, trie, [], np.zeros(0, np.int64)) == []


def test_without_candidates_there_are_no_answers(model: PrixLM) -> None:
    trie = Trie.build(make_ragged([[], [20]]), np.zeros(0, np.int64))
    for how in (beam_search, exact_search, score_all):
        assert [len(found.entity) for found in how(model, trie, PREFIXES, 3)] == [0, 0, 0]


@pytest.mark.parametrize("model", READINGS, indirect=True)
def test_searches_of_every_family_find_what_scoring_one_by_one_finds(model: PrixLM) -> None:
    """A beam as wide as all names, a narrow one against Algorithm 1, and the exact search."""
    names, trie = random_trie(25, 11)
    tuples = [tuple(names.row(i).tolist()) for i in range(25)]
    wide = beam_search(model, trie, PREFIXES, 8, beam=25)
    narrow = beam_search(model, trie, PREFIXES, 8, beam=3)
    exact = exact_search(model, trie, PREFIXES, 8)
    for row, prefix in enumerate(PREFIXES):
        everything = best(plain_scores(model, prefix, names), 8)
        assert_same(wide[row], *everything)
        assert_same(exact[row], *everything)
        plain = algorithm_1(model, prefix, tuples, 3)
        scores = np.array([plain.get(name, -np.inf) for name in tuples])
        assert_same(narrow[row], *best(scores, 8))


@given(
    st.lists(st.lists(st.integers(20, 23), min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_odd_sets_of_names(model: PrixLM, names: list[list[int]], k: int) -> None:
    """Colliding names, one-token names, names that are prefixes of others, one candidate."""
    rows = make_ragged(names)
    trie = Trie.build(rows, np.arange(len(names)))
    prefixes = PREFIXES[:2]
    results = [how(model, trie, prefixes, k) for how in (exact_search, beam_search, score_all)]
    for index, prefix in enumerate(prefixes):
        entities, scores = best(plain_scores(model, prefix, rows), k)
        for found in (result[index] for result in results):
            assert len(found.entity) == min(k, len(names)) == len(set(found.entity.tolist()))
            assert_same(found, entities, scores)


def test_excluded_entities_take_up_no_room_in_the_beam(model: PrixLM) -> None:
    _, trie = random_trie(100, 5)
    for index, prefix in enumerate(PREFIXES):
        known = score_all(model, trie, [prefix])[0].entity[:20]
        exclude = [np.zeros(0, np.int64)] * 3
        exclude[index] = known
        small = trie.restrict(np.setdiff1d(np.arange(100), known))
        expected = beam_search(model, small, [prefix], 10, beam=3)[0]
        ours = beam_search(model, trie, PREFIXES, 10, beam=3, exclude=exclude)[index]
        assert_same(ours, expected.entity, expected.score)
        exact = exact_search(model, trie, PREFIXES, 10, exclude=exclude)[index]
        whole = score_all(model, small, [prefix])[0]
        assert_same(exact, whole.entity[:10], whole.score[:10])


def without(found: Found, known: Array) -> tuple[Array, Array]:
    kept = ~np.isin(found.entity, known)
    return found.entity[kept], found.score[kept]


def test_excluding_after_the_search_as_the_released_code_does_finds_fewer(model: PrixLM) -> None:
    """There, known objects take up room in the beam; here they do not."""
    names, trie = random_trie(100, 5)
    tuples = [tuple(names.row(i).tolist()) for i in range(100)]
    num_fewer = 0
    for prefix in PREFIXES:
        known = score_all(model, trie, [prefix])[0].entity[:20]
        plain = algorithm_1(model, prefix, tuples, 5)
        scores = np.array([plain.get(name, -np.inf) for name in tuples])
        scores[known] = -np.inf
        [all_found] = beam_search(model, trie, [prefix], 10 + len(known), beam=5)
        late, late_scores = (column[:10] for column in without(all_found, known))
        assert_same(Found(late, late_scores, 0.0, False, 0), *best(scores, 10))
        [early] = beam_search(model, trie, [prefix], 10, beam=5, exclude=[known])
        num_fewer += len(late) < len(early.entity)
    assert num_fewer > 0


def test_exact_ranks_are_those_of_the_whole_list(model: PrixLM) -> None:
    rows = [random_names(150, 6).row(i).tolist() for i in range(150)]
    trie = Trie.build(make_ragged([*rows, [20, 21], [20, 21]]), np.arange(152))
    everything = score_all(model, trie, PREFIXES)
    for entity in (3, 77, 150, 151):
        entities = np.full(3, entity)
        ranks = exact_ranks(model, trie, PREFIXES, entities)
        for rank, whole in zip(ranks, everything, strict=True):
            own = whole.score[whole.entity == entity][0]
            higher, equal = (whole.score > own).sum(), (whole.score == own).sum()
            assert rank.rank == pytest.approx(higher + (equal + 1) / 2)
            assert rank.score == pytest.approx(own, abs=1e-4)
        near = exact_ranks(model, trie, PREFIXES, entities, most=5)
        for rank, short in zip(ranks, near, strict=True):
            assert (short.rank is None) == (rank.num_better >= 5)
            assert short.rank is None or short.rank == rank.rank
            assert short.num_better >= 5 or short.rank is not None


def test_a_filtered_rank_leaves_out_all_known_answers_but_the_entity(model: PrixLM) -> None:
    _, trie = random_trie(100, 7)
    everything = score_all(model, trie, PREFIXES)
    entities = np.array([whole.entity[9] for whole in everything])
    known = [whole.entity[[0, 3, 9]] for whole in everything]
    ranks = exact_ranks(model, trie, PREFIXES, entities, exclude=known)
    for whole, filtered, rank in zip(everything, known, ranks, strict=True):
        own = whole.score[9]
        others = whole.score[~np.isin(whole.entity, filtered)]
        assert rank.rank == (others > own).sum() + 1 + (others == own).sum() / 2


def test_real_names_in_several_scripts(model: PrixLM, shared_toy: KB) -> None:
    cache = build_tokens(shared_toy, model.encoder.tokenizer)
    trie = Trie.build(cache.entities, np.arange(shared_toy.num_entities))
    prefixes = [model.encoder.encode(name, "capital", None) for name in ("Finland", "フランス")]
    exact = exact_search(model, trie, prefixes, 5)
    for ours, whole in zip(exact, score_all(model, trie, prefixes), strict=True):
        assert_same(ours, whole.entity[:5], whole.score[:5])


@given(seed=st.integers(0, 1000), k=st.integers(1, 30), beam=st.sampled_from([2, 5, 50]))
def test_names_given_to_a_search_are_scored_and_compete_with_what_it_finds(
    model: PrixLM, seed: int, k: int, beam: int
) -> None:
    _, trie = random_trie(150, seed)
    generator = np.random.default_rng(seed)
    excluded = [generator.choice(trie.entity, 5, replace=False) for _ in PREFIXES]
    rows = [
        np.setdiff1d(generator.choice(trie.entity, generator.integers(0, 20)), excluded[query])
        for query in range(len(PREFIXES))
    ]
    query = np.repeat(np.arange(len(rows)), [len(part) for part in rows])
    named = Given(query, np.concatenate(rows).astype(np.int64))

    found, scores = beam_search_beside(model, trie, PREFIXES, named, k, beam=beam, exclude=excluded)

    everything = score_all(model, trie, PREFIXES, exclude=excluded)
    alone = beam_search(model, trie, PREFIXES, k, beam=beam, exclude=excluded)
    for index, whole in enumerate(everything):
        true_score = dict(zip(whole.entity.tolist(), whole.score.tolist(), strict=True))
        mine = named.entity[query == index].tolist()
        assert scores[query == index] == pytest.approx([true_score[e] for e in mine], abs=1e-4)
        # No answer comes twice, and none is worse than what the beam or the given names have.
        entities = found[index].entity.tolist()
        assert len(set(entities)) == len(entities)
        reference = {*alone[index].entity.tolist(), *mine}
        expected = sorted((true_score[e] for e in reference), reverse=True)[:k]
        assert len(entities) >= len(expected)
        got = [true_score[e] for e in entities]
        assert all(a >= b - 1e-4 for a, b in zip(got, expected, strict=False))


def test_a_search_does_not_run_the_nodes_of_given_names_again(model: PrixLM) -> None:
    _, trie = random_trie(100, 4)
    everything = np.unique(trie.entity).astype(np.int64)
    query = np.repeat(np.arange(len(PREFIXES)), len(everything))
    named = Given(query, np.tile(everything, len(PREFIXES)))
    found, _ = beam_search_beside(model, trie, PREFIXES, named, 10)
    assert [part.num_nodes for part in found] == [0] * len(PREFIXES)
    for part, whole in zip(found, score_all(model, trie, PREFIXES, 10), strict=True):
        assert_same(part, whole.entity, whole.score)
