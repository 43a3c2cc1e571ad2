"""Walking a trie: every node once, scored as without a cache; excluded names stay out."""

from pathlib import Path

import numpy as np
import pytest

from prixlm.decoding.incremental import NO_ENTRY
from prixlm.decoding.search import score_all
from prixlm.decoding.trie import Trie
from prixlm.decoding.walk import Beams, Walk, score_nodes
from prixlm.lm.model import PrixLM
from prixlm.lm.token_cache import make_ragged
from tests.decoding.helpers import (
    PREFIXES,
    path_to,
    plain_scores,
    random_trie,
    sequence_score,
)


@pytest.mark.parametrize("kind", ["xlmr", "mbert"])
def test_every_score_equals_the_one_without_any_cache(kind: str, bases: dict[str, Path]) -> None:
    model = PrixLM.from_base(bases[kind], ["en"]).eval()
    names, trie = random_trie(40, 1)
    for prefix, ours in zip(PREFIXES, score_all(model, trie, PREFIXES), strict=True):
        expected = plain_scores(model, prefix, names)
        np.testing.assert_allclose(ours.score, np.sort(expected)[::-1], atol=1e-4)
        np.testing.assert_allclose(ours.score, expected[ours.entity], atol=1e-4)


def test_children_are_scored_before_they_are_visited(model: PrixLM) -> None:
    _, trie = random_trie(60, 3)
    walk = Walk(model, trie, PREFIXES)
    beams = walk.roots()
    walk.visit(beams)
    children = walk.expand(beams)
    for row in range(0, len(children), 7):
        path = path_to(trie, int(children.node[row]))
        expected = sequence_score(model, PREFIXES[children.query[row]], path)
        assert children.score[row] == pytest.approx(expected, abs=1e-4)


def test_no_node_is_visited_twice(model: PrixLM) -> None:
    _, trie = random_trie(80, 2)
    walk = Walk(model, trie, PREFIXES)
    beams = walk.roots()
    while len(beams):
        walk.visit(beams)
        assert (beams.entry != NO_ENTRY).all()
        visited = walk.num_nodes.copy()
        walk.visit(beams)
        assert (walk.num_nodes == visited).all(), "the second visit has nothing to do"
        beams = walk.expand(beams)
    assert (walk.num_nodes == trie.num_nodes - 1).all()


def test_a_run_is_visited_in_one_go(model: PrixLM) -> None:
    trie = Trie.build(make_ragged([[20, 21, 22, 23, 24], [25]]), np.arange(2))
    walk = Walk(model, trie, PREFIXES[:1])
    beams = walk.roots()
    assert beams.node.tolist() == [1, 2]
    walk.visit(beams)
    assert walk.num_nodes.tolist() == [6]
    ends = walk.run_down(beams)
    assert [path_to(trie, node) for node in ends.node] == [[20, 21, 22, 23, 24], [25]]
    query, entity, score = walk.finish(ends)
    assert query.tolist() == [0, 0] and entity.tolist() == [0, 1]
    expected = plain_scores(model, PREFIXES[0], make_ragged([[20, 21, 22, 23, 24], [25]]))
    np.testing.assert_allclose(score, expected[entity], atol=1e-4)
    assert beams.node.tolist() == [1, 2], "the beams themselves stay where they were"
    # Step by step, the nodes of the run come with their entries: nothing is left to visit.
    child = walk.expand(beams)
    assert path_to(trie, int(child.node[0])) == [20, 21] and child.entry[0] != NO_ENTRY


def test_nodes_below_which_all_is_excluded_are_not_walked(model: PrixLM) -> None:
    names = [[20, 21], [20, 22], [23, 21], [23, 21], [24]]
    trie = Trie.build(make_ragged(names), np.arange(5))
    exclude = [np.array([0, 1, 2]), np.array([3, 4, 99]), np.zeros(0, np.int64)]
    walk = Walk(model, trie, PREFIXES, exclude)
    reached: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    tokens: dict[int, set[int]] = {0: set(), 1: set(), 2: set()}
    beams = walk.roots()
    while len(beams):
        for query, node in zip(beams.query, beams.node, strict=True):
            tokens[int(query)].add(int(trie.token[node]))
        walk.visit(beams)
        query, entity, _ = walk.finish(beams)
        for who, what in zip(query, entity, strict=True):
            reached[int(who)].add(int(what))
        beams = walk.expand(beams)
    assert reached == {0: {3, 4}, 1: {0, 1, 2}, 2: {0, 1, 2, 3, 4}}
    assert 20 not in tokens[0] and 23 in tokens[0], "one of two that share a name is excluded"
    assert 24 not in tokens[1]


def test_given_names_are_scored_without_a_search(model: PrixLM) -> None:
    names, trie = random_trie(100, 4)
    entities = np.array([5, 5, 17, 40, 99, 17])
    query = np.array([0, 1, 2, 2, 0, 0])
    scores = score_nodes(model, trie, PREFIXES, trie.nodes_of(entities), query)
    for entity, who, score in zip(entities, query, scores, strict=True):
        expected = plain_scores(model, PREFIXES[who], make_ragged([names.row(entity).tolist()]))
        assert score == pytest.approx(expected[0], abs=1e-4)
    nothing = np.zeros(0, np.int64)
    assert score_nodes(model, trie, PREFIXES, nothing, nothing).shape == (0,)


def test_beams_are_taken_and_joined_row_by_row() -> None:
    columns = [np.arange(4) + 10 * column for column in range(5)]
    beams = Beams(*columns)
    some = beams.take(np.array([3, 1]))
    assert some.node.tolist() == [13, 11] and len(some) == 2
    joined = Beams.join([some, beams])
    assert joined.entry.tolist() == [43, 41, 40, 41, 42, 43]
    some.entry[:] = 0
    assert beams.entry.tolist() == [40, 41, 42, 43], "taken rows are a copy"
