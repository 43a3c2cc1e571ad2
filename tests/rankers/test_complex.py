"""The graph embedding: scores, loss and ranks against direct ones; resuming; lineage; estimates."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from prixlm import KB, PrixError, import_kb
from prixlm.rankers.base import Queries
from prixlm.rankers.complex import (
    SCORES,
    ComplEx,
    GraphBatch,
    GraphConfig,
    GraphRanker,
    GraphTask,
    RotatE,
    TransE,
    estimate_graph,
    load_graph,
    train_graph,
)

SMALL = GraphConfig(rank=8, epochs=60, batch=10)
SHORT = dataclasses.replace(
    SMALL, epochs=4, training=dataclasses.replace(SMALL.training, save_every=3)
)
BATCH = GraphBatch(range(2, 7), np.array([0, 3]), np.array([1, 2]), np.array([4, 1]))
"""Two facts in a language of five entities, 2 to 6."""
NODES = torch.tensor([5, 0, 6, 2, 4])  # of these entities
NONE = np.zeros(0, np.int64)


def make_model() -> ComplEx:
    """Return an embedding with large weights, so that differences show."""
    model = ComplEx(7, 2, 3, num_entities=9, seed=1)
    with torch.no_grad():
        model.node.mul_(1000), model.relation.mul_(1000)
        model.bias.copy_(torch.arange(9) / 4)
    return model


def make_query(kb: KB, lang: str, subject: str, relation: str) -> Queries:
    [entity] = kb.find(subject, lang)
    number = kb.relation_keys().index(relation)
    return Queries(lang, np.array([entity.id]), np.array([number]), np.array([0, 0]), NONE)


def test_the_score_is_the_real_part_of_the_complex_product() -> None:
    model = make_model()
    with torch.no_grad():
        e, r = (torch.complex(*torch.chunk(p, 2, dim=1)) for p in (model.node, model.relation))
        subject, relation = torch.tensor([0, 3]), torch.tensor([1, 2])
        expected = ((e[subject] * r[relation]) @ e[NODES].conj().T).real + model.bias[2:7]
        scores = model.scores(subject, relation, NODES, range(2, 7))
        torch.testing.assert_close(scores, expected)


def test_the_loss_is_softmax_over_the_candidates_and_the_3_norm() -> None:
    model = make_model()
    subject, relation, position = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 1]))
    scores = model.scores(subject, relation, NODES, BATCH.candidates)
    expected = torch.nn.functional.cross_entropy(scores, position, reduction="sum")
    torch.testing.assert_close(model.loss(BATCH, NODES), expected)
    used = (model.node[subject], model.relation[relation], model.node[torch.tensor([4, 0])])
    norms = sum((p[:, :3] ** 2 + p[:, 3:] ** 2).pow(1.5).sum() for p in used)
    torch.testing.assert_close(
        model.loss(BATCH, NODES, 0.5), expected + 0.5 * norms, rtol=1e-4, atol=1e-4
    )


def test_the_relation_is_a_second_target() -> None:
    model = make_model()
    subject, relation, target = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 0]))
    # The score of a triple is the same, whichever of its parts is asked for.
    by_relation = model.relation_queries(subject, target) @ model.relation.T
    for number in range(4):
        queries = model.object_queries(subject, torch.full((2,), number))
        scores = (queries * model.node[target]).sum(1)
        torch.testing.assert_close(by_relation[:, number], scores)
    extra = torch.nn.functional.cross_entropy(by_relation, relation, reduction="sum")
    plain = model.loss(BATCH, NODES, 0.5)
    torch.testing.assert_close(model.loss(BATCH, NODES, 0.5, 0.3), plain + 0.3 * extra)


@pytest.mark.parametrize("kind", [TransE, RotatE])
def test_a_distance_has_the_order_and_the_loss_of_its_square(kind: type[ComplEx]) -> None:
    model = kind(7, 2, 3, num_entities=9, seed=1)
    with torch.no_grad():
        model.node.mul_(1000)
        model.bias.copy_(torch.arange(9) / 4)
    subject, relation, position = (torch.tensor(x) for x in ([0, 3], [1, 2], [4, 1]))
    e, r = (torch.complex(*torch.chunk(p, 2, dim=1)) for p in (model.node, model.relation))
    moved = e[subject] + r[relation] if kind is TransE else e[subject] * torch.sgn(r[relation])
    distance = (moved[:, None] - e[NODES][None]).abs().pow(2).sum(2)
    expected = model.bias[2:7] - distance
    scores = model.scores(subject, relation, NODES, range(2, 7))
    # Equal but for a number that all candidates of a query share, so the softmax is the same.
    gap = scores - expected
    torch.testing.assert_close(gap, gap[:, :1].expand_as(gap))
    loss = torch.nn.functional.cross_entropy(expected, position, reduction="sum")
    torch.testing.assert_close(model.loss(BATCH, NODES), loss)
    used = model.regularised(subject, relation, NODES[position])
    assert len(used) == (3 if kind is TransE else 2), "a rotation has no length"


@pytest.mark.parametrize("score", ["transe", "rotate"])
def test_other_scores_learn_and_are_loaded_as_what_they_are(
    shared_toy: KB, tmp_path: Path, score: str
) -> None:
    config = dataclasses.replace(SMALL, score=score, regulariser=0.0)
    model = train_graph(shared_toy, tmp_path / score, config)
    again = load_graph(tmp_path / score, shared_toy)
    assert type(again) is type(model) is SCORES[score]
    [paris] = shared_toy.find("パリ", "ja")
    queries = make_query(shared_toy, "ja", "フランス", "capital")
    assert GraphRanker(shared_toy, again).best(queries, 1).entity.tolist() == [paris.id]
    settings = json.loads((tmp_path / score / "graph.json").read_text("utf-8"))
    settings["score"] = "nonsense"
    (tmp_path / score / "graph.json").write_text(json.dumps(settings), "utf-8")
    with pytest.raises(PrixError, match="is not a graph embedding: it has an unknown score"):
        load_graph(tmp_path / score, shared_toy)


def test_a_run_can_be_trained_on_one_language_alone(noisy: KB, tmp_path: Path) -> None:
    config = dataclasses.replace(SHORT, langs=("fi",))
    task = GraphTask(noisy, config)
    assert task.triples.shape[1] == 2 * noisy.num_triples("fi", "train")
    assert set(noisy.language_of(task.triples[0])) == {noisy.languages.index("fi")}
    train_graph(noisy, tmp_path / "fi", config)
    settings = json.loads((tmp_path / "fi" / "graph.json").read_text("utf-8"))
    assert settings["langs"] == ["fi"] and list(settings["trained"]["triples"]) == ["fi"]
    with pytest.raises(PrixError, match=r"has no te; it has en"):
        GraphTask(noisy, dataclasses.replace(SHORT, langs=("te",)))


def test_settings_of_older_versions_have_the_same_fingerprint() -> None:
    assert not {"score", "langs"} & set(GraphConfig().as_dict())
    others = [GraphConfig(score="transe"), GraphConfig(langs=("el",))]
    assert len({config.fingerprint() for config in (GraphConfig(), *others)}) == 3
    with pytest.raises(PrixError, match="--score nonsense: expected complex, transe, rotate"):
        GraphConfig(score="nonsense")
    with pytest.raises(PrixError, match=r"relations 0.1: expected 0 with score rotate"):
        GraphConfig(score="rotate", relations=0.1)


def facts_of(batches: list[GraphBatch]) -> list[tuple[int, ...]]:
    """Return the facts of batches: start of the candidates, subject, relation and position."""
    return [
        (batch.candidates.start, int(a), int(r), int(position))
        for batch in batches
        for a, r, position in zip(batch.subject, batch.relation, batch.position, strict=True)
    ]


def test_every_epoch_has_every_train_triple_in_both_directions(noisy: KB) -> None:
    task = GraphTask(noisy, dataclasses.replace(SMALL, epochs=2, batch=70))
    node, num_relations = noisy.concepts(), noisy.num_relations
    expected = []
    for batch in noisy.batches("triples", ["lang", "subject", "relation", "object"], split="train"):
        for row in batch.to_pylist():
            start = noisy.entity_range(row["lang"]).start
            a, r, b = row["subject"], row["relation"], row["object"]
            expected.append((start, node[a], r, b - start))
            expected.append((start, node[b], r + num_relations, a - start))
    steps = list(task.steps(0, 0, 1))
    assert len(steps) == task.num_steps == 2 * -(-len(expected) // 70)
    for epoch in (steps[: len(steps) // 2], steps[len(steps) // 2 :]):
        batches = [batch for step in epoch for batch in step.batches]
        assert sorted(facts_of(batches)) == sorted(expected)
        assert len(batches) < len(epoch) + len(noisy.languages), "most steps are in one language"
    # A resumed run, and processes that share a step, have the same facts.
    for first in (3, len(steps) // 2 + 3):
        rest = [facts_of(step.batches) for step in task.steps(first, 0, 1)]
        assert rest == [facts_of(step.batches) for step in steps[first:]]
    shared = [next(iter(task.steps(0, rank, 3))) for rank in range(3)]
    assert all(step.normaliser == steps[0].normaliser for step in shared)
    together = [fact for step in shared for fact in facts_of(step.batches)]
    assert sorted(together) == sorted(facts_of(steps[0].batches))


def test_a_kb_without_valid_facts_and_more_processes_than_facts_is_fine(shared_toy: KB) -> None:
    task = GraphTask(shared_toy, SMALL)
    assert task.validate(make_model()) == {}
    shares = [next(iter(task.steps(0, rank, 40))).batches for rank in range(40)]
    together = [fact for batches in shares for fact in facts_of(batches)]
    alone = next(iter(task.steps(0, 0, 1))).batches
    assert sorted(together) == sorted(facts_of(alone)) and [] in shares


@pytest.fixture(scope="module")
def graph(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an embedding of the toy KB. Tests do not write to it."""
    folder = tmp_path_factory.mktemp("runs") / "graph"
    train_graph(shared_toy, folder, SMALL)
    return folder


def test_training_learns_and_ranks_exactly(shared_toy: KB, graph: Path) -> None:
    toy, ranker = shared_toy, GraphRanker(shared_toy, load_graph(graph, shared_toy))
    [paris] = toy.find("パリ", "ja")
    queries = make_query(toy, "ja", "フランス", "capital")
    assert ranker.best(queries, 1).entity.tolist() == [paris.id]
    assert ranker.ranks(queries, np.array([paris.id])).tolist() == [1]
    without = dataclasses.replace(queries, offset=np.array([0, 1]), filtered=np.array([paris.id]))
    assert paris.id not in ranker.best(without, 10).entity
    table = next(ranker._tables(queries))[1][0].numpy()
    entities = toy.entity_range("ja")
    for entity in entities:
        score = table[entity - entities.start]
        rank = 1 + (table > score).sum() + ((table == score).sum() - 1) / 2
        assert ranker.ranks(queries, np.array([entity])).tolist() == [rank]


def test_entities_of_one_concept_are_told_apart_by_their_bias(
    toy_files: list[Path], tmp_path: Path
) -> None:
    """Two English names of one concept have one node, and each is a candidate."""
    facts, links = (file.read_text("utf-8") for file in toy_files)
    toy_files[0].write_text(facts + "en\tSuomi\tcurrency\tEuro\n", "utf-8")
    toy_files[1].write_text(links + "en\tSuomi\tfi\tSuomi\n", "utf-8")
    kb = import_kb(toy_files, tmp_path / "kb")
    [other], [finland] = kb.find("Suomi", "en"), kb.find("Finland", "en")
    node, start = kb.concepts(), kb.entity_range("en").start
    assert node[other.id] == node[finland.id]
    model = train_graph(kb, tmp_path / "graph", SMALL)
    queries = make_query(kb, "en", "Helsinki", "country")
    ranker = GraphRanker(kb, model)
    table = next(ranker._tables(queries))[1][0].numpy()
    gap = (model.bias[finland.id] - model.bias[other.id]).item()
    assert table[finland.id - start] - table[other.id - start] == pytest.approx(gap, abs=1e-4)
    # English facts name Finland: the other name of the same concept comes right after it.
    assert gap > 0
    assert ranker.best(queries, 2).entity.tolist() == [finland.id, other.id]
    assert ranker.ranks(queries, np.array([other.id])).tolist() == [2]


@pytest.mark.parametrize(("killed_at", "resumed_at"), [(2, 1), (7, 7)])
def test_a_killed_run_resumes_as_if_it_had_not_been_stopped(
    shared_toy: KB, tmp_path: Path, killed_at: int, resumed_at: int
) -> None:
    whole = train_graph(shared_toy, tmp_path / "whole", SHORT)

    def kill(what: str, done: int, total: int) -> None:
        if done >= killed_at:  # nothing is saved here, as after a SIGKILL
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        train_graph(shared_toy, tmp_path / "killed", SHORT, kill)
    (tmp_path / "killed" / "model.safetensors.tmp").write_bytes(b"half")
    with pytest.raises(PrixError, match="is not a graph embedding"):
        load_graph(tmp_path / "killed", shared_toy)
    steps: list[int] = []
    resumed = train_graph(
        shared_toy, tmp_path / "killed", SHORT, lambda _, done, total: steps.append(done)
    )
    assert steps[0] == resumed_at  # after the last checkpoint: 0, or 6
    assert torch.equal(resumed.node, whole.node) and torch.equal(resumed.bias, whole.bias)
    saved = load_graph(tmp_path / "killed", shared_toy)
    assert torch.equal(saved.node, whole.node)
    with pytest.raises(PrixError, match="checkpoint"):
        train_graph(shared_toy, tmp_path / "killed", dataclasses.replace(SHORT, rank=4))


def test_a_finished_run_is_not_trained_again(shared_toy: KB, graph: Path) -> None:
    before = load_file(graph / "model.safetensors")
    reports: list[int] = []
    train_graph(shared_toy, graph, SMALL, lambda _, done, total: reports.append(done))
    after = load_file(graph / "model.safetensors")
    assert not reports and all(torch.equal(before[name], after[name]) for name in before)


def test_only_an_empty_folder_or_a_run_is_written_to(shared_toy: KB, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("keep")
    with pytest.raises(PrixError, match="is not a run of `prixlm graph`"):
        train_graph(shared_toy, tmp_path / "notes", SHORT)
    with pytest.raises(PrixError, match="is a file"):
        train_graph(shared_toy, tmp_path / "notes" / "mine.txt", SHORT)
    assert [path.name for path in (tmp_path / "notes").iterdir()] == ["mine.txt"]
    # A model has checkpoints too; a finished one may have none of them left.
    (tmp_path / "model" / "checkpoints").mkdir(parents=True)
    (tmp_path / "model" / "prixlm.json").write_text("{}")
    with pytest.raises(PrixError, match="found a model folder, expected a graph embedding"):
        train_graph(shared_toy, tmp_path / "model", SHORT)


def test_the_folder_says_what_was_trained_on(shared_toy: KB, graph: Path) -> None:
    settings = json.loads((graph / "graph.json").read_text("utf-8"))
    assert settings["kb"] == shared_toy.fingerprint() and settings["rank"] == 8
    trained = settings["trained"]
    assert trained["kb_fingerprint"] == shared_toy.fingerprint()
    assert sum(trained["triples"].values()) == shared_toy.num_triples(split="train")
    assert trained["epochs"] == 60 and trained["seed"] == 0


def test_a_folder_of_version_0_1_loads(shared_toy: KB, graph: Path, tmp_path: Path) -> None:
    settings = json.loads((graph / "graph.json").read_text("utf-8"))
    del settings["trained"]
    (tmp_path / "graph.json").write_text(json.dumps(settings), "utf-8")
    (tmp_path / "model.safetensors").write_bytes((graph / "model.safetensors").read_bytes())
    loaded = load_graph(tmp_path, shared_toy)
    assert torch.equal(loaded.node, load_graph(graph, shared_toy).node)


def test_an_embedding_of_another_kb_is_refused(
    shared_toy: KB, noisy: KB, graph: Path, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match=r"was not made from .*: it has 3 nodes, expected"):
        GraphRanker(shared_toy, ComplEx(3, 2, 4, 9))
    with pytest.raises(PrixError, match="is not a graph embedding"):
        load_graph(tmp_path, shared_toy)
    with pytest.raises(PrixError, match="was trained on another KB"):
        load_graph(graph, noisy)
    save_file(
        {"entity": torch.zeros(3, 4), "relation": torch.zeros(4, 4)},
        tmp_path / "model.safetensors",
    )
    with pytest.raises(PrixError, match="older prixlm: train it again"):
        load_graph(tmp_path, shared_toy)


def test_scores_that_are_not_numbers_are_an_error(shared_toy: KB) -> None:
    num_nodes = int(shared_toy.concepts().max()) + 1
    broken = ComplEx(num_nodes, shared_toy.num_relations, 4, shared_toy.num_entities)
    with torch.no_grad():
        broken.node.fill_(float("nan"))
    queries = make_query(shared_toy, "ja", "フランス", "capital")
    with pytest.raises(PrixError, match="scores that are not numbers"):
        GraphRanker(shared_toy, broken).ranks(queries, queries.subject)


def test_an_estimate_has_the_size_of_the_run_and_writes_nothing(
    shared_toy: KB, graph: Path, tmp_path: Path
) -> None:
    before = sorted(shared_toy.folder.rglob("*"))
    reports: list[tuple[int, int]] = []
    estimate = estimate_graph(
        shared_toy, SMALL, lambda _, done, total: reports.append((done, total))
    )
    assert sorted(shared_toy.folder.rglob("*")) == before and not list(tmp_path.iterdir())
    assert reports[-1] == (20, 20)
    model = load_graph(graph, shared_toy)
    assert estimate.parameters == sum(p.numel() for p in model.parameters())
    assert estimate.concepts == model.num_nodes
    assert estimate.triples == 2 * shared_toy.num_triples(split="train")
    assert estimate.steps == 60 * -(-estimate.triples // 10)
    [checkpoint] = (graph / "checkpoints").glob("step-*")
    size = sum(path.stat().st_size for path in checkpoint.iterdir())
    assert estimate.checkpoint == pytest.approx(size, abs=8000)  # headers and settings
    assert estimate.seconds > 0 and estimate.disk > estimate.checkpoint
    assert estimate.as_dict()["steps"] == estimate.steps
    text = estimate.as_text()
    assert f"Steps: {estimate.steps:,}." in text and text.endswith("Nothing was written.")


def test_a_kb_without_train_facts_cannot_be_learnt(tmp_path: Path) -> None:
    (tmp_path / "f.tsv").write_text("lang\tsubject\trelation\tobject\tsplit\nen\ta\tr\tb\ttest\n")
    kb = import_kb([tmp_path / "f.tsv"], tmp_path / "kb")
    with pytest.raises(PrixError, match="has no train triples to learn from"):
        train_graph(kb, tmp_path / "graph", SHORT)
    with pytest.raises(PrixError, match="the weights 0 or more"):
        GraphConfig(regulariser=-1.0)
