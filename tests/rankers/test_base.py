"""The base classes: queries, ranks of scored pairs against a slow count, chunks, languages."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prixlm import KB
from prixlm.decoding.completer import Completer
from prixlm.metrics import BEYOND
from prixlm.rankers import base
from prixlm.rankers import complex as complex_
from prixlm.rankers.base import (
    Queries,
    Ranker,
    drop_filtered,
    make_ranked,
    noisy_or,
    ranks_from_pairs,
    read_merged_triples,
    read_triples,
    scores_from_pairs,
)
from prixlm.rankers.complex import ComplEx, GraphRanker
from prixlm.rankers.features import CandidateFinder
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.links import RelatedPairs
from prixlm.rankers.lm import ModelRanker
from prixlm.types import Array

NONE = np.zeros(0, np.int64)


def make_queries(filtered: list[list[int]]) -> Queries:
    """Return queries that filter these entities each."""
    size = len(filtered)
    offset = np.cumsum([0, *map(len, filtered)])
    zeros = np.zeros(size, np.int64)
    entities = np.array([entity for known in filtered for entity in known], np.int64)
    return Queries("en", np.arange(size), zeros, offset, entities)


def test_selected_queries_keep_the_objects_that_they_filter() -> None:
    queries = make_queries([[3, 4], [], [5]])
    some = queries.select(np.array([2, 0, 2]))
    assert some.subject.tolist() == [2, 0, 2]
    assert [some.filtered_of(row).tolist() for row in range(3)] == [[5], [3, 4], [5]]
    assert some.owners().tolist() == [0, 1, 1, 2]
    assert len(queries.select(NONE)) == 0


def test_the_best_are_sorted_by_score_and_then_by_id() -> None:
    owner, entity = np.array([0, 0, 0, 2, 2]), np.array([6, 5, 4, 4, 5])
    ranked = make_ranked(3, owner, entity, np.array([1.0, 2.0, 2.0, 3.0, 1.0]), 2)
    assert ranked.entity.tolist() == [4, 5, 4, 5]
    assert ranked.offset.tolist() == [0, 2, 2, 4]
    assert ranked.owners().tolist() == [0, 0, 2, 2]


def test_ranks_of_scored_pairs_share_ties() -> None:
    queries = make_queries([[], [], []])
    pairs = (
        np.array([0, 0, 0, 1, 1]),
        np.array([4, 5, 6, 4, 5]),
        np.array([2.0, 2.0, 1.0, 3.0, 1.0]),
    )
    # 5 ties for the first rank; 5 is second; the third query has no score for any of ten.
    assert ranks_from_pairs(queries, pairs, np.array([5, 5, 5]), 10).tolist() == [1.5, 2.0, 5.5]
    # Two of ten candidates have a score: the other eight share ranks 3 to 10.
    assert ranks_from_pairs(queries, pairs, np.array([9, 9, 9]), 10)[1] == 6.5


@given(st.data())
def test_ranks_and_scores_of_pairs_are_those_of_a_full_table(data: st.DataObject) -> None:
    size, num_candidates = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 6))
    entities = st.lists(st.integers(0, num_candidates - 1), unique=True, max_size=num_candidates)
    objects = [data.draw(st.integers(0, num_candidates - 1)) for _ in range(size)]
    filtered = [[e for e in data.draw(entities) if e != truth] for truth in objects]
    table = np.full((size, num_candidates), -np.inf)
    for row in range(size):
        for entity in data.draw(entities):
            table[row, entity] = data.draw(st.integers(0, 3))
    queries = make_queries(filtered)
    owner, entity = np.nonzero(np.isfinite(table))
    pairs = drop_filtered(queries, (owner, entity, table[owner, entity]))
    for row, known in enumerate(filtered):
        table[row, known] = np.nan  # not a candidate
    mine = table[np.arange(size), objects][:, None]
    expected = 1 + (table > mine).sum(1) + ((table == mine).sum(1) - 1) / 2
    ranks = ranks_from_pairs(queries, pairs, np.array(objects), num_candidates)
    assert ranks.tolist() == expected.tolist()
    every = np.indices(table.shape).reshape(2, -1)
    scores = scores_from_pairs(pairs, *every)
    assert scores.tolist() == np.where(np.isnan(table), -np.inf, table).reshape(-1).tolist()


def test_evidence_for_one_pair_adds_up_as_a_noisy_or() -> None:
    owner, target = np.array([1, 0, 1, 1]), np.array([7, 7, 7, 8])
    pairs = noisy_or(owner, target, np.array([0.5, 1.0, 0.2, 0.0]), certain=0.9)
    assert pairs[0].tolist() == [0, 1] and pairs[1].tolist() == [7, 7]  # no evidence, no pair
    assert 1 - np.exp(-pairs[2]) == pytest.approx([0.9, 1 - 0.5 * 0.8])
    assert all(len(column) == 0 for column in noisy_or(NONE, NONE, np.zeros(0), 0.9))


def test_merged_triples_are_each_once_and_of_concepts(nordic: KB) -> None:
    subject, relation, object_ = read_triples(nordic, ("train", "valid"))
    assert len(subject) == nordic.num_triples(split="train") + nordic.num_triples(split="valid")
    concept = nordic.concepts()
    expected = set(
        zip(concept[subject].tolist(), relation.tolist(), concept[object_].tolist(), strict=True)
    )
    merged = read_merged_triples(nordic, ("train", "valid"))
    assert sorted(map(tuple, merged.T.tolist())) == sorted(expected)
    assert read_triples(nordic, lang="fi").shape == (3, nordic.num_triples("fi", "train"))


def every_question(kb: KB) -> Queries:
    """Return every English entity with every relation."""
    english = kb.entity_range("en")
    subjects = np.repeat(np.arange(english.start, english.stop), kb.num_relations)
    relations = np.tile(np.arange(kb.num_relations), len(english))
    return Queries("en", subjects, relations, np.zeros(len(subjects) + 1, np.int64), NONE)


def test_many_queries_are_the_single_ones_together(shared_toy: KB) -> None:
    ranker = RelatedPairs(shared_toy)
    together = every_question(shared_toy)
    ranked = ranker.best(together, 3)
    for row in range(len(together)):
        single = ranker.best(together.select(np.array([row])), 3)
        rows = slice(ranked.offset[row], ranked.offset[row + 1])
        assert single.entity.tolist() == ranked.entity[rows].tolist()
        assert single.score == pytest.approx(ranked.score[rows])


def test_chunks_of_queries_make_no_difference(
    shared_toy: KB, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranker, queries = RelatedPairs(shared_toy), every_question(shared_toy)
    objects = np.full(len(queries), shared_toy.entity_range("en").start)

    def ask() -> list[Array]:
        ranked = ranker.best(queries, 3)
        scores = ranker.scores(queries, ranked.owners()[::-1], ranked.entity[::-1])
        assert scores == pytest.approx(ranked.score[::-1])
        return [*vars(ranked).values(), ranker.ranks(queries, objects), scores]

    whole = ask()
    monkeypatch.setattr(base, "_CHUNK", 4)
    assert all(np.array_equal(a, b) for a, b in zip(whole, ask(), strict=True))


def test_scores_of_given_objects_are_those_of_the_lists(
    nordic: KB, nordic_completer: Completer
) -> None:
    facts = read_facts(nordic, "en")
    num_nodes = int(nordic.concepts().max()) + 1
    graph = GraphRanker(nordic, ComplEx(num_nodes, nordic.num_relations, 4, nordic.num_entities))
    model = ModelRanker(nordic_completer, batch=2)
    rankers: list[Ranker] = [model, RelatedPairs(nordic), graph]
    for ranker in rankers:
        ranked = ranker.best(facts.queries, 100)
        mixed = np.random.default_rng(0).permutation(len(ranked.entity))
        owner, entity = ranked.owners()[mixed], ranked.entity[mixed]
        scores = ranker.scores(facts.queries, owner, entity)
        np.testing.assert_allclose(scores, ranked.score[mixed], rtol=1e-4, atol=1e-4)
        assert len(ranker.scores(facts.queries, owner[:0], entity[:0])) == 0


def test_a_ranker_states_how_deep_its_ranks_are_exact(nordic: KB, nordic_completer: Any) -> None:
    beam = ModelRanker(nordic_completer, search="beam")
    exact = ModelRanker(nordic_completer)
    assert (beam.max_rank, exact.max_rank, RelatedPairs(nordic).max_rank) == (10, BEYOND, BEYOND)


def test_asking_once_agrees_with_asking_for_lists_and_scores_apart(
    nordic: KB, nordic_completer: Completer, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = read_facts(nordic, "en").queries
    num_nodes = int(nordic.concepts().max()) + 1
    graph = GraphRanker(nordic, ComplEx(num_nodes, nordic.num_relations, 4, nordic.num_entities))
    beam = ModelRanker(nordic_completer, batch=2, search="beam")
    exact = ModelRanker(nordic_completer, batch=2)
    rankers: list[Ranker] = [beam, exact, RelatedPairs(nordic), graph]
    # Every entity for every query, in the order of the queries; half of them are given.
    entities = np.array(nordic.entity_range("en"))
    owner = np.repeat(np.arange(len(queries)), len(entities))
    entity = np.tile(entities, len(queries))
    for ranker in rankers:
        apart = ranker.best(queries, 3), ranker.scores(queries, owner, entity)
        is_open = np.ones(len(owner), bool)
        for row in range(len(queries)):  # what a query filters is never asked for
            is_open[(owner == row) & np.isin(entity, queries.filtered_of(row))] = False
        for pairs in (base.NO_PAIRS, (owner[::2], entity[::2])):
            answered = ranker.ask(queries, 3, pairs)
            assert answered.ranked.entity.tolist() == apart[0].entity.tolist()
            np.testing.assert_allclose(answered.ranked.score, apart[0].score, atol=1e-4)
            scores = answered.scores(owner[is_open], entity[is_open])
            np.testing.assert_allclose(scores, apart[1][is_open], atol=1e-4)
    # A table of scores that is too large to keep is made again.
    kept = graph.ask(queries, 3).scores(owner, entity)
    monkeypatch.setattr(complex_, "_KEPT_SCORES", 0)
    assert np.array_equal(graph.ask(queries, 3).scores(owner, entity), kept)


def test_a_fusion_asks_every_ranker_once(nordic: KB, monkeypatch: pytest.MonkeyPatch) -> None:
    ranker, calls = RelatedPairs(nordic), []
    scored = ranker.scored

    def counted(queries: Queries) -> base.Pairs:
        calls.append(len(queries))
        return scored(queries)

    monkeypatch.setattr(ranker, "scored", counted)
    queries = read_facts(nordic, "en").queries
    CandidateFinder(nordic, [ranker], 5).find(queries)
    assert calls == [len(queries)]
