"""The graph embedding: its scores, its loss and its ranks against direct ones; going on."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from prixlm import KB, PrixError, import_kb
from prixlm.kb.split import SplitConfig, split_kb
from prixlm.rankers.base import Queries
from prixlm.rankers.complex import (
    Asked,
    ComplEx,
    GraphConfig,
    GraphRanker,
    GraphTask,
    load_graph,
    train_graph,
)

SMALL = GraphConfig(rank=8, epochs=60, batch=10)
ASKED = Asked(range(2, 7), np.array([0, 3]), np.array([1, 2]), np.array([4, 1]))
"""Two facts in a language of five entities, 2 to 6."""
NODES = torch.tensor([5, 0, 6, 2, 4])  # of these entities


def make_model() -> ComplEx:
    model = ComplEx(7, 2, 3, num_entities=9, seed=1)
    with torch.no_grad():
        model.node.mul_(1000), model.relation.mul_(1000)
        model.bias.copy_(torch.arange(9) / 4)
    return model


def test_the_score_is_the_real_part_of_the_complex_product() -> None:
    model = make_model()
    with torch.no_grad():
        e, r = (torch.complex(*torch.chunk(p, 2, dim=1)) for p in (model.node, model.relation))
        subject, relation = torch.tensor([0, 3]), torch.tensor([1, 2])
        expected = ((e[subject] * r[relation]) @ e[NODES].conj().T).real + model.bias[2:7]
        found = model.scores(subject, relation, NODES, range(2, 7))
        torch.testing.assert_close(found, expected)


def test_the_loss_is_softmax_over_the_candidates_and_the_3_norm() -> None:
    model = make_model()
    subject, relation, place = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 1]))
    scores = model.scores(subject, relation, NODES, ASKED.candidates)
    expected = torch.nn.functional.cross_entropy(scores, place, reduction="sum")
    torch.testing.assert_close(model.loss(ASKED, NODES), expected)
    parts = (model.node[subject], model.relation[relation], model.node[torch.tensor([4, 0])])
    norms = sum((p[:, :3] ** 2 + p[:, 3:] ** 2).pow(1.5).sum() for p in parts)
    torch.testing.assert_close(
        model.loss(ASKED, NODES, 0.5), expected + 0.5 * norms, rtol=1e-4, atol=1e-4
    )


def test_the_relation_is_a_second_target() -> None:
    model = make_model()
    subject, relation, target = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 0]))
    # The score of a triple is the same, whichever part of it is asked for.
    by_relation = model.between(subject, target) @ model.relation.T
    for number in range(4):
        asked = torch.full((2,), number)
        scores = (model.queries(subject, asked) * model.node[target]).sum(1)
        torch.testing.assert_close(by_relation[:, number], scores)
    extra = torch.nn.functional.cross_entropy(by_relation, relation, reduction="sum")
    plain = model.loss(ASKED, NODES, 0.5)
    torch.testing.assert_close(model.loss(ASKED, NODES, 0.5, 0.3), plain + 0.3 * extra)


def test_every_epoch_asks_for_every_train_triple_in_both_directions(
    world: KB, tmp_path: Path
) -> None:
    kb = split_kb(world, tmp_path / "kb", SplitConfig(test=0.2, valid=0.2))
    task = GraphTask(kb, dataclasses.replace(SMALL, epochs=2, batch=700))
    node, number = kb.concepts(), kb.num_relations
    expected = []
    for batch in kb.batches("triples", ["lang", "subject", "relation", "object"], split="train"):
        for row in batch.to_pylist():
            start = kb.entity_range(row["lang"]).start
            a, r, b = row["subject"], row["relation"], row["object"]
            expected += [(start, node[a], r, b - start), (start, node[b], r + number, a - start)]
    steps = list(task.steps(0, 0, 1))
    assert len(steps) == task.num_steps == 2 * -(-len(expected) // 700)
    for epoch in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
        asked = [part for step in epoch for part in step.batches]
        assert sorted(_asked(asked)) == sorted(expected)
        assert len(asked) < len(epoch) + len(kb.languages), "a step has one language as a rule"
    # A run that goes on, and processes that share a step, ask for the same.
    for first in (3, len(steps) // 2 + 3):
        again = [_asked(step.batches) for step in task.steps(first, 0, 1)]
        assert again == [_asked(step.batches) for step in steps[first:]]
    shared = [next(iter(task.steps(0, rank, 3))) for rank in range(3)]
    assert all(step.normaliser == steps[0].normaliser for step in shared)
    mine = [row for step in shared for row in _asked(step.batches)]
    assert sorted(mine) == sorted(_asked(steps[0].batches))


def _asked(parts: list[Asked]) -> list[tuple[int, ...]]:
    return [
        (part.candidates.start, int(a), int(r), int(place))
        for part in parts
        for a, r, place in zip(part.subject, part.relation, part.place, strict=True)
    ]


def test_training_learns_and_ranks_exactly(toy: KB, tmp_path: Path) -> None:
    model = train_graph(toy, tmp_path / "graph", SMALL)
    task = GraphTask(toy, SMALL)
    assert task.triples.shape == (3, 2 * toy.num_triples(split="train"))
    again = load_graph(tmp_path / "graph", toy)
    assert torch.equal(again.node, model.node) and torch.equal(again.bias, model.bias)
    ranker = GraphRanker(toy, again)
    [france], [paris] = toy.find("フランス", "ja"), toy.find("パリ", "ja")
    capital = toy.relation_keys().index("capital")
    nothing = np.zeros(0, np.int64)
    queries = Queries("ja", np.array([france.id]), np.array([capital]), np.array([0, 0]), nothing)
    assert ranker.best(queries, 1).entity.tolist() == [paris.id]
    assert ranker.ranks(queries, np.array([paris.id])).tolist() == [1]
    hidden = dataclasses.replace(queries, offset=np.array([0, 1]), hidden=np.array([paris.id]))
    assert paris.id not in ranker.best(hidden, 10).entity
    table = next(ranker._tables(queries))[1][0].numpy()
    own = toy.entity_range("ja")
    for entity in own:
        score = table[entity - own.start]
        rank = 1 + (table > score).sum() + ((table == score).sum() - 1) / 2
        assert ranker.ranks(queries, np.array([entity])).tolist() == [rank]


def test_entities_of_one_concept_are_told_apart_by_their_bias(
    toy_files: list[Path], tmp_path: Path
) -> None:
    """Two English names of one thing have one node, and each is a candidate of its own."""
    facts, links = (file.read_text("utf-8") for file in toy_files)
    toy_files[0].write_text(facts + "en\tSuomi\tcurrency\tEuro\n", "utf-8")
    toy_files[1].write_text(links + "en\tSuomi\tfi\tSuomi\n", "utf-8")
    kb = import_kb(toy_files, tmp_path / "kb")
    [other], [finland] = kb.find("Suomi", "en"), kb.find("Finland", "en")
    [helsinki] = kb.find("Helsinki", "en")
    node, own = kb.concepts(), kb.entity_range("en")
    assert node[other.id] == node[finland.id]
    model = train_graph(kb, tmp_path / "graph", SMALL)
    country = kb.relation_keys().index("country")
    queries = Queries(
        "en", np.array([helsinki.id]), np.array([country]), np.array([0, 0]), np.zeros(0, np.int64)
    )
    ranker = GraphRanker(kb, model)
    table = next(ranker._tables(queries))[1][0].numpy()
    apart = (model.bias[finland.id] - model.bias[other.id]).item()
    assert table[finland.id - own.start] - table[other.id - own.start] == pytest.approx(
        apart, abs=1e-4
    )
    # Finland is what English facts say: the same thing's other name comes right after it.
    assert apart > 0
    assert ranker.best(queries, 2).entity.tolist() == [finland.id, other.id]
    assert ranker.ranks(queries, np.array([other.id])).tolist() == [2]


def test_a_stopped_run_goes_on_as_if_it_had_not_been(toy: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(SMALL, epochs=4)
    config = dataclasses.replace(
        config, training=dataclasses.replace(config.training, save_every=3, checkpoints=(1.0,))
    )
    whole = train_graph(toy, tmp_path / "whole", config)

    def stop(what: str, now: int, of: int) -> None:
        if now >= of // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_graph(toy, tmp_path / "stopped", config, stop)
    again = train_graph(toy, tmp_path / "stopped", config)
    assert torch.equal(again.node, whole.node) and torch.equal(again.bias, whole.bias)
    with pytest.raises(PrixError, match="checkpoint"):
        train_graph(toy, tmp_path / "stopped", dataclasses.replace(config, rank=4))


def test_a_kb_without_valid_facts_and_more_processes_than_facts(toy: KB) -> None:
    task = GraphTask(toy, SMALL)
    assert task.validate(make_model()) == {}
    shares = [next(iter(task.steps(0, rank, 40))).batches for rank in range(40)]
    asked = [row for parts in shares for row in _asked(parts)]
    alone = next(iter(task.steps(0, 0, 1))).batches
    assert sorted(asked) == sorted(_asked(alone)) and [] in shares


def test_an_embedding_of_another_kb_is_refused(toy: KB, tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="was not made from"):
        GraphRanker(toy, ComplEx(3, 2, 4, 9))
    with pytest.raises(PrixError, match="is no graph embedding"):
        load_graph(tmp_path, toy)
    train_graph(toy, tmp_path / "graph", dataclasses.replace(SMALL, epochs=1))
    settings = tmp_path / "graph" / "graph.json"
    settings.write_text(settings.read_text().replace(toy.fingerprint(), "another"))
    with pytest.raises(PrixError, match="was trained on another KB"):
        load_graph(tmp_path / "graph", toy)
    old = tmp_path / "graph" / "model.safetensors"
    save_file({"entity": torch.zeros(3, 4), "relation": torch.zeros(4, 4)}, old)
    with pytest.raises(PrixError, match="older prixlm: train it again"):
        load_graph(tmp_path / "graph", toy)
    broken = ComplEx(int(toy.concepts().max()) + 1, toy.num_relations, 4, toy.num_entities)
    with torch.no_grad():
        broken.node.fill_(float("nan"))
    nothing = np.zeros(0, np.int64)
    queries = Queries(
        "ja", np.array([toy.entity_range("ja").start]), np.zeros(1, int), np.zeros(2, int), nothing
    )
    with pytest.raises(PrixError, match="scores that are no numbers"):
        GraphRanker(toy, broken).ranks(queries, queries.subject)
