"""The graph embedding: its scores, its loss and its ranks against direct ones; going on."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError
from prixlm.graph import ComplEx, GraphConfig, GraphRanker, GraphTask, load_graph, train_graph
from prixlm.ranking import Queries

SMALL = GraphConfig(rank=8, epochs=60, batch=10)


def test_the_score_is_the_real_part_of_the_complex_product() -> None:
    model = ComplEx(5, 2, 3, seed=1)
    with torch.no_grad():
        e, r = (torch.complex(*torch.chunk(p, 2, dim=1)) for p in (model.entity, model.relation))
        subject, relation = torch.tensor([0, 3]), torch.tensor([1, 2])
        expected = ((e[subject] * r[relation]) @ e.conj().T).real
        torch.testing.assert_close(model.queries(subject, relation) @ model.entity.T, expected)


def test_the_loss_is_softmax_over_all_entities_and_the_3_norm() -> None:
    model = ComplEx(7, 2, 3, seed=1)
    with torch.no_grad():
        model.entity.mul_(1000), model.relation.mul_(1000)
    subject, relation, target = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 6]))
    scores = model.queries(subject, relation) @ model.entity.T
    expected = torch.nn.functional.cross_entropy(scores, target, reduction="sum")
    torch.testing.assert_close(model.loss(subject, relation, target, 0.0), expected)
    parts = (model.entity[subject], model.relation[relation], model.entity[target])
    norms = sum((p[:, :3] ** 2 + p[:, 3:] ** 2).pow(1.5).sum() for p in parts)
    torch.testing.assert_close(
        model.loss(subject, relation, target, 0.5), expected + 0.5 * norms, rtol=1e-4, atol=1e-4
    )


def test_the_relation_is_a_second_target() -> None:
    model = ComplEx(7, 2, 3, seed=1)
    with torch.no_grad():
        model.entity.mul_(1000), model.relation.mul_(1000)
    subject, relation, target = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 6]))
    # The score of a triple is the same, whichever part of it is asked for.
    by_relation = model.between(subject, target) @ model.relation.T
    for number in range(4):
        asked = torch.full((2,), number)
        scores = (model.queries(subject, asked) * model.entity[target]).sum(1)
        torch.testing.assert_close(by_relation[:, number], scores)
    extra = torch.nn.functional.cross_entropy(by_relation, relation, reduction="sum")
    plain = model.loss(subject, relation, target, 0.5)
    torch.testing.assert_close(model.loss(subject, relation, target, 0.5, 0.3), plain + 0.3 * extra)


def test_training_learns_and_goes_on_and_ranks_exactly(toy: KB, tmp_path: Path) -> None:
    model = train_graph(toy, tmp_path / "graph", SMALL)
    task = GraphTask(toy, SMALL)
    assert task.triples.shape[1] == 2 * 10  # merged: ten different facts, in both directions
    again = load_graph(tmp_path / "graph", toy)
    assert torch.equal(again.entity, model.entity)
    ranker = GraphRanker(toy, again)
    [japan], [helsinki] = toy.find("フランス", "ja"), toy.find("パリ", "ja")
    capital = toy.relation_keys().index("capital")
    nothing = np.zeros(0, np.int64)
    queries = Queries("ja", np.array([japan.id]), np.array([capital]), np.array([0, 0]), nothing)
    assert ranker.best(queries, 1).entity.tolist() == [helsinki.id]
    assert ranker.ranks(queries, np.array([helsinki.id])).tolist() == [1]
    hidden = dataclasses.replace(queries, offset=np.array([0, 1]), hidden=np.array([helsinki.id]))
    assert helsinki.id not in ranker.best(hidden, 10).entity
    table = next(ranker._tables(queries))[1][0].numpy()
    own = toy.entity_range("ja")
    for entity in own:
        score = table[entity - own.start]
        rank = 1 + (table > score).sum() + ((table == score).sum() - 1) / 2
        assert ranker.ranks(queries, np.array([entity])).tolist() == [rank]


def test_an_embedding_of_another_kb_is_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="was not made from"):
        GraphRanker(toy, ComplEx(3, 2, 4))
    with pytest.raises(PrixError, match="is no graph embedding"):
        load_graph(tmp_path, toy)
    train_graph(toy, tmp_path / "graph", dataclasses.replace(SMALL, epochs=1))
    settings = tmp_path / "graph" / "graph.json"
    settings.write_text(settings.read_text().replace(toy.fingerprint(), "another"))
    with pytest.raises(PrixError, match="was trained on another KB"):
        load_graph(tmp_path / "graph", toy)
    broken = ComplEx(int(toy.concepts().max()) + 1, toy.num_relations, 4)
    with torch.no_grad():
        broken.entity.fill_(float("nan"))
    nothing = np.zeros(0, np.int64)
    queries = Queries(
        "ja", np.array([toy.entity_range("ja").start]), np.zeros(1, int), np.zeros(2, int), nothing
    )
    with pytest.raises(PrixError, match="scores that are no numbers"):
        GraphRanker(toy, broken).ranks(queries, queries.subject)
