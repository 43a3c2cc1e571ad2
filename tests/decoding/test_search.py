"""Search: against the slow reference, against a plain Algorithm 1, with every odd kind of name."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prixlm import KB
from prixlm.decoding import incremental, search
from prixlm.decoding.search import Found, beam_search, exact_ranks, exact_search, score_all
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import Walk
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import Ragged, build_tokens
from tests.decoding.test_trie import ragged

PREFIXES = [[0, 5, 9, 11, 2, 2], [0, 5, 7], [0, 6, 8, 10, 12, 14, 16, 2, 2, 7]]


@pytest.fixture(scope="session")
def model(bases: dict[str, Path]) -> PrixLM:
    made = PrixLM.from_base(bases["xlmr"], ["en", "fi"]).eval()
    with torch.no_grad():  # far from uniform, as a trained model is
        for parameter in made.backbone.parameters():
            parameter.mul_(4.0)
    return made


def names_of(number: int, seed: int, most: int = 6) -> Ragged:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, most + 1, number)
    return ragged([generator.integers(20, 32, n).tolist() for n in lengths])


@torch.no_grad()
def log_probability(model: PrixLM, prefix: list[int], tokens: list[int]) -> float:
    """Without any cache: the whole sequence through transformers' own forward pass."""
    ids = torch.tensor([[*prefix, *tokens]])
    states = model.hidden(ids, torch.tensor([len(prefix)]), torch.tensor([ids.shape[1]]))[0]
    scores = model.log_probabilities(states)
    places = range(len(prefix) - 1, ids.shape[1] - 1)
    return sum(scores[i, ids[0, i + 1]].item() for i in places)


def plain_scores(model: PrixLM, prefix: list[int], names: Ragged) -> np.ndarray:
    eos = model.encoder.id("[EOS]")
    return np.array(
        [log_probability(model, prefix, [*names.row(i).tolist(), eos]) for i in range(len(names))]
    )


def algorithm_1(
    model: PrixLM, prefix: list[int], names: list[tuple[int, ...]], beam: int
) -> dict[tuple[int, ...], float]:
    """A plain transcription: no trie, no cache, one forward pass a beam."""
    eos = model.encoder.id("[EOS]")
    objects = {(*name, eos) for name in names}
    prefixes = {name[:n] for name in objects for n in range(1, len(name))}
    found: dict[tuple[int, ...], float] = {}
    current: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(max(map(len, objects))):
        following: dict[tuple[int, ...], float] = {}
        for sequence, score in current.items():
            ids = torch.tensor([[*prefix, *sequence]])
            with torch.no_grad():
                length = torch.tensor([ids.shape[1]])
                states = model.hidden(ids, torch.tensor([len(prefix)]), length)[0, -1]
                scores = model.log_probabilities(states)
            for token in range(len(scores)):
                longer = (*sequence, token)
                total = score + scores[token].item()
                if longer in objects:
                    found[longer[:-1]] = total
                if longer in prefixes:
                    following[longer] = total
        kept = sorted(following, key=lambda s: -following[s])[:beam]
        current = {sequence: following[sequence] for sequence in kept}
    return found


def assert_same(ours: Found, entities: np.ndarray, scores: np.ndarray) -> None:
    """The same answers; those of nearly equal scores may stand in another order."""
    np.testing.assert_allclose(ours.score, scores, atol=1e-4)
    for entity, score in zip(ours.entity, ours.score, strict=True):
        close = entities[np.abs(scores - score) < 1e-4]
        assert entity in close


def top(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((np.arange(len(scores)), -scores))[:k]
    return order, scores[order]


@pytest.mark.parametrize("kind", ["xlmr", "mbert"])
def test_every_score_equals_the_one_without_any_cache(kind: str, bases: dict[str, Path]) -> None:
    model = PrixLM.from_base(bases[kind], ["en"]).eval()
    names = names_of(40, 1)
    found = score_all(model, Trie.build(names, np.arange(40)), PREFIXES)
    for prefix, ours in zip(PREFIXES, found, strict=True):
        expected = plain_scores(model, prefix, names)
        np.testing.assert_allclose(ours.score, np.sort(expected)[::-1], atol=1e-4)
        np.testing.assert_allclose(ours.score, expected[ours.entity], atol=1e-4)


@pytest.mark.parametrize("k", [1, 5, 60])
def test_exact_search_finds_the_best_of_all(model: PrixLM, k: int) -> None:
    names = names_of(200, 2)
    trie = Trie.build(names, np.arange(200))
    everything = score_all(model, trie, PREFIXES)
    for exact, whole in zip(exact_search(model, trie, PREFIXES, k), everything, strict=True):
        assert_same(exact, whole.entity[:k], whole.score[:k])
        assert exact.complete and exact.bound <= exact.score[-1]
    if k == 1:
        assert all(
            exact.num_nodes < trie.num_nodes for exact in exact_search(model, trie, PREFIXES, 1)
        )


def test_a_limit_on_work_is_reported(model: PrixLM) -> None:
    names = names_of(200, 2)
    trie = Trie.build(names, np.arange(200))
    [found] = exact_search(model, trie, PREFIXES[:1], 50, max_nodes=8)
    assert not found.complete and found.num_nodes < 200
    assert np.isfinite(found.bound)


def test_a_wide_beam_agrees_with_scoring_every_entity(model: PrixLM) -> None:
    names = names_of(120, 3)
    trie = Trie.build(names, np.arange(120))
    everything = score_all(model, trie, PREFIXES)
    for beam, whole in zip(
        beam_search(model, trie, PREFIXES, 120, beam=120), everything, strict=True
    ):
        assert_same(beam, whole.entity, whole.score)
        assert beam.complete


@pytest.mark.parametrize("leave", [False, True])
@pytest.mark.parametrize("beam", [2, 5, 50])
def test_the_beam_is_algorithm_1_answer_for_answer(model: PrixLM, beam: int, leave: bool) -> None:
    names = names_of(150, 4)
    trie = Trie.build(names, np.arange(150))
    tuples = [tuple(names.row(i).tolist()) for i in range(150)]
    found = beam_search(model, trie, PREFIXES, 10, beam=beam, leave=leave)
    for prefix, ours in zip(PREFIXES, found, strict=True):
        plain = algorithm_1(model, prefix, tuples, beam)
        scores = np.array([plain.get(name, -np.inf) for name in tuples])
        entities, best = top(scores, 10)
        reached = np.isfinite(best)
        assert_same(ours, entities[reached], best[reached])


def test_beams_that_are_exact_and_beams_that_are_not(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many first tokens; both ways of finding a beam's answers are gone, and agree."""
    generator = np.random.default_rng(8)
    most = len(model.tokenizer) - 20
    names = ragged(
        [generator.integers(20, most, n).tolist() for n in generator.integers(1, 4, 300)]
    )
    trie = Trie.build(names, np.arange(300))
    assert trie.first[1] - 1 > 3 * search._WIDTH
    ways = set()
    monkeypatch.setattr(search, "_is_foreseeable", lambda walk: np.ones(walk.num_queries, bool))
    for beam in (1, 5, 20, 60):
        for k in (1, 3, 10):
            proven = search._where_beams_are_exact(Walk(model, trie, PREFIXES), k, beam)
            levels = search._by_levels(Walk(model, trie, PREFIXES), k, beam, leave=False)
            for ours, level in zip(proven, levels, strict=True):
                ways.add(ours is not None)
                if ours is not None:
                    assert_same(ours, level.entity, level.score)
    assert ways == {True, False}
    # Where no first token is foreseeable, it is not tried at all.
    monkeypatch.setattr(search, "_is_foreseeable", lambda walk: np.zeros(walk.num_queries, bool))
    walk = Walk(model, trie, PREFIXES)
    assert search._where_beams_are_exact(walk, 3, 20) == [None] * 3 and not walk.num_nodes.any()


def test_small_blocks_of_rows_and_pieces_change_nothing(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(120, 9)
    trie = Trie.build(names, np.arange(120))
    whole = score_all(model, trie, PREFIXES)
    monkeypatch.setattr(incremental, "_ROWS", 7)
    monkeypatch.setattr(incremental, "_PIECES", 50)
    for ours, other in zip(score_all(model, trie, PREFIXES), whole, strict=True):
        assert_same(ours, other.entity, other.score)


def test_an_exact_search_that_runs_out_of_memory_says_so(
    model: PrixLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_of(200, 2)
    trie = Trie.build(names, np.arange(200))
    monkeypatch.setattr(search, "_MEMORY", 0)
    assert not any(found.complete for found in exact_search(model, trie, PREFIXES, 5))
    ranks = exact_ranks(model, trie, PREFIXES, np.array([1, 2, 3]))
    assert all(rank.rank is None and not rank.complete for rank in ranks)


def test_no_query_no_answer(model: PrixLM) -> None:
    trie = Trie.build(names_of(5, 1), np.arange(5))
    for method in (beam_search, exact_search, score_all):
        assert method(model, trie, [], 3) == []
    assert exact_ranks(model, trie, [], np.zeros(0, np.int64)) == []


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(20, 23), min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(1, 6),
)
def test_odd_sets_of_names(model: PrixLM, names: list[list[int]], k: int) -> None:
    """Colliding names, one-token names, names that are prefixes of others, one candidate."""
    rows = ragged(names)
    trie = Trie.build(rows, np.arange(len(names)))
    for number, prefix in enumerate(PREFIXES[:2]):
        entities, scores = top(plain_scores(model, prefix, rows), k)
        for found in (
            exact_search(model, trie, PREFIXES[:2], k)[number],
            beam_search(model, trie, PREFIXES[:2], k)[number],
            score_all(model, trie, PREFIXES[:2], k)[number],
        ):
            assert len(found.entity) == min(k, len(names)) == len(set(found.entity.tolist()))
            assert_same(found, entities, scores)


def test_excluded_entities_take_no_place_in_the_beam(model: PrixLM) -> None:
    names = names_of(100, 5)
    trie = Trie.build(names, np.arange(100))
    for number, prefix in enumerate(PREFIXES):
        best = score_all(model, trie, [prefix])[0].entity
        exclude = [np.zeros(0, np.int64)] * 3
        exclude[number] = best[:20]
        allowed = np.setdiff1d(np.arange(100), best[:20])
        small = trie.restrict(allowed)
        expected = beam_search(model, small, [prefix], 10, beam=3)[0]
        ours = beam_search(model, trie, PREFIXES, 10, beam=3, exclude=exclude)[number]
        assert_same(ours, expected.entity, expected.score)
        exact = exact_search(model, trie, PREFIXES, 10, exclude=exclude)[number]
        assert_same(exact, *(a[:10] for a in _scored(model, small, prefix)))


def test_exclusion_after_the_search_is_the_released_codes(model: PrixLM) -> None:
    names = names_of(100, 5)
    trie = Trie.build(names, np.arange(100))
    tuples = [tuple(names.row(i).tolist()) for i in range(100)]
    fewer = 0
    for prefix in PREFIXES:
        known = score_all(model, trie, [prefix])[0].entity[:20]
        plain = algorithm_1(model, prefix, tuples, 5)
        scores = np.array([plain.get(name, -np.inf) for name in tuples])
        scores[known] = -np.inf
        entities, best = top(scores, 10)
        reached = np.isfinite(best)
        [late] = beam_search(model, trie, [prefix], 10, beam=5, exclude=[known], exclude_late=True)
        assert_same(late, entities[reached], best[reached])
        [early] = beam_search(model, trie, [prefix], 10, beam=5, exclude=[known])
        fewer += len(late.entity) < len(early.entity)
    assert fewer > 0  # the known ones have eaten places


def _scored(model: PrixLM, trie: Trie, prefix: list[int]) -> tuple[np.ndarray, np.ndarray]:
    found = score_all(model, trie, [prefix])[0]
    return found.entity, found.score


def test_exact_ranks_are_those_of_the_whole_list(model: PrixLM) -> None:
    names = ragged([*(names_of(150, 6).row(i).tolist() for i in range(150)), [20, 21], [20, 21]])
    trie = Trie.build(names, np.arange(152))
    for entity in (3, 77, 150, 151):
        entities = np.full(3, entity)
        ranks = exact_ranks(model, trie, PREFIXES, entities)
        for number, rank in enumerate(ranks):
            found = score_all(model, trie, PREFIXES)[number]
            own = found.score[found.entity == entity][0]
            higher, equal = (found.score > own).sum(), (found.score == own).sum()
            assert rank.rank == pytest.approx(higher + (equal + 1) / 2)
            assert rank.score == pytest.approx(own, abs=1e-4)
        near = exact_ranks(model, trie, PREFIXES, entities, most=5)
        for whole, short in zip(ranks, near, strict=True):
            assert (short.rank is None) == (whole.num_better >= 5)
            assert short.rank is None or short.rank == whole.rank
            assert short.num_better >= 5 or short.rank is not None


def test_real_names_in_several_scripts(model: PrixLM, toy: KB) -> None:
    cache = build_tokens(toy, model.encoder.tokenizer)
    trie = Trie.build(cache.entities, np.arange(toy.num_entities))
    prefixes = [model.encoder.encode(name, "capital", None) for name in ("Finland", "フランス")]
    exact = exact_search(model, trie, prefixes, 5)
    for ours, whole in zip(exact, score_all(model, trie, prefixes), strict=True):
        assert_same(ours, whole.entity[:5], whole.score[:5])


def test_no_candidate_no_answer(model: PrixLM) -> None:
    trie = Trie.build(ragged([[], [20]]), np.zeros(0, np.int64))
    for method in (beam_search, exact_search, score_all):
        assert [len(found.entity) for found in method(model, trie, PREFIXES, 3)] == [0, 0, 0]
