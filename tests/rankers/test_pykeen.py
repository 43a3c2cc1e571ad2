"""Baselines through PyKEEN: trained on train facts alone, and ranked as PyKEEN ranks them."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from prixlm import KB, PrixError
from prixlm.metrics import figures
from prixlm.rankers.heldout import read_facts
from prixlm.rankers.pykeen import (
    MODELS,
    BaselineConfig,
    _read_nodes,
    load_baseline,
    train_baseline,
)

pytest.importorskip("pykeen", reason="PyKEEN is an extra: pip install 'prixlm[baselines]'")
LOSSES = {"TransE": "default", "ComplEx": "softmax", "RotatE": "self-adversarial"}
Train = Callable[[str, bool], Path]


@pytest.fixture(scope="module")
def trained(noisy: KB, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Trains a model on English, once for all tests. Two epochs: any weights have ranks."""

    @cache
    def train(model: str, inverse: bool) -> Path:
        folder = tmp_path_factory.mktemp(model)
        config = BaselineConfig(
            model=model, dim=8, epochs=2, batch=32, lr=0.05, inverse=inverse, seed=3
        )
        train_baseline(noisy, folder, config, "en")
        return folder

    return train


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("inverse", [False, True])
def test_ranks_are_those_of_pykeens_evaluator(
    noisy: KB, trained: Train, model: str, inverse: bool
) -> None:
    from pykeen.evaluation import RankBasedEvaluator

    ranker = load_baseline(noisy, trained(model, inverse))
    facts = read_facts(noisy, "en")
    ours = figures(ranker.ranks(facts.queries, facts.objects))
    known = np.concatenate([read_split(noisy, "train"), read_split(noisy, "valid")])
    theirs = RankBasedEvaluator(filtered=True).evaluate(
        ranker.model.model,  # type: ignore[attr-defined]
        torch.from_numpy(read_split(noisy, "test")),
        additional_filter_triples=torch.from_numpy(known),
        targets=("tail",),
        batch_size=16,
        use_tqdm=False,
    )
    assert ours.mrr == pytest.approx(theirs.get_metric("tail.realistic.inverse_harmonic_mean_rank"))
    assert ours.hits_1 == pytest.approx(theirs.get_metric("tail.realistic.hits_at_1"))
    assert ours.hits_3 == pytest.approx(theirs.get_metric("tail.realistic.hits_at_3"))
    assert ours.hits_10 == pytest.approx(theirs.get_metric("tail.realistic.hits_at_10"))


def read_split(kb: KB, split: str) -> np.ndarray[Any, Any]:
    """Return English triples with entities numbered from 0: (T, 3)."""
    start = kb.entity_range("en").start
    rows = [
        (row["subject"] - start, row["relation"], row["object"] - start)
        for batch in kb.batches("triples", langs=["en"], split=split)
        for row in batch.to_pylist()
    ]
    return np.array(rows, np.int64)


@pytest.mark.parametrize("model", MODELS)
def test_a_model_of_the_merged_graph_has_pykeens_scores(
    noisy: KB, model: str, tmp_path: Path
) -> None:
    config = BaselineConfig(
        model=model,
        dim=8,
        epochs=2,
        loss=LOSSES[model],  # type: ignore[arg-type]
        negatives=4,
        inverse=model == "ComplEx",
    )
    reports: list[tuple[int, int]] = []
    ranker = train_baseline(
        noisy, tmp_path / "run", config, None, lambda _, done, total: reports.append((done, total))
    )
    assert reports[-1] == (2, 2) and ranker.name == f"{model}, merged"
    scorer: Any = ranker.model
    subject, relation = torch.tensor([0, 5, 9]), torch.tensor([0, 1, 2])
    nodes = torch.arange(3, 40)
    expected = scorer.model.predict_t(torch.stack([subject, relation], 1))[:, nodes]
    queries = (subject, relation, nodes, range(3, 40))
    torch.testing.assert_close(scorer.scores(*queries), expected, rtol=1e-4, atol=1e-4)
    again: Any = load_baseline(noisy, tmp_path / "run").model
    assert torch.equal(again.scores(*queries), scorer.scores(*queries))


def test_only_train_facts_are_learnt(noisy: KB) -> None:
    triples, num_nodes = _read_nodes(noisy, "en")
    assert num_nodes == 40
    assert set(map(tuple, triples.tolist())) == set(map(tuple, read_split(noisy, "train").tolist()))
    merged, num_nodes = _read_nodes(noisy, None)
    assert num_nodes == 40 and len(merged) > len(triples)


@pytest.mark.parametrize("model", MODELS)
def test_the_recipe_of_openke_trains_and_is_loaded(noisy: KB, model: str, tmp_path: Path) -> None:
    recipe = BaselineConfig.openke(model)
    assert recipe.epochs == {"TransE": 1000, "ComplEx": 2000, "RotatE": 6000}[model]
    assert recipe.num_batches == (None if model == "RotatE" else 100)
    # All but its size: the optimizer, the loss, the sampler and the number of batches.
    config = replace(recipe, dim=8, epochs=2, negatives=4)
    train_baseline(noisy, tmp_path / "run", config, "en")
    ranker = load_baseline(noisy, tmp_path / "run")
    facts = read_facts(noisy, "en")
    assert np.isfinite(ranker.ranks(facts.queries, facts.objects)).all()
    scorer: Any = ranker.model
    lengths = scorer.model.relation_representations[0]().abs().pow(2).sum(-1)
    assert torch.allclose(lengths, torch.ones_like(lengths)) == (model == "TransE")


@pytest.mark.parametrize("lang", ["en", None])
@pytest.mark.parametrize(
    "changes",
    [
        {"model": "TransE", "loss": "margin", "optimizer": "sgd", "sampler": "bernoulli"},
        {"model": "ComplEx", "loss": "softplus", "optimizer": "adagrad", "penalty": 0.1},
        {"model": "ComplEx", "loss": "softmax", "inverse": True},
        {"model": "RotatE", "loss": "self-adversarial", "negatives": 4},
    ],
)
def test_a_run_that_was_stopped_ends_like_one_that_was_not(
    noisy: KB,
    changes: dict[str, Any],
    lang: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = BaselineConfig(dim=8, epochs=5, batch=32, lr=0.05, seed=3, **changes)
    train_baseline(noisy, tmp_path / "whole", config, lang)
    monkeypatch.setattr("prixlm.rankers.pykeen._SAVE_SECONDS", 0.0)
    epochs: list[int] = []

    def stop_after_the_third(_: str, done: int, total: int) -> None:
        epochs.append(done)
        if len(epochs) == 4:
            raise KeyboardInterrupt

    to = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train_baseline(noisy, to, config, lang, stop_after_the_third)
    assert [path.name for path in to.iterdir()] == ["unfinished.safetensors"]
    torch.manual_seed(99)  # another process has another generator
    train_baseline(noisy, to, config, lang, stop_after_the_third)
    assert epochs == [1, 2, 3, 4, 4, 5]
    files = [(folder / "model.safetensors").read_bytes() for folder in (tmp_path / "whole", to)]
    assert files[0] == files[1] and not (to / "unfinished.safetensors").exists()


@pytest.mark.parametrize("damage", ["settings", "bytes"])
def test_the_state_of_another_run_is_not_resumed(
    noisy: KB, damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.rankers.pykeen._SAVE_SECONDS", 0.0)
    config = BaselineConfig(model="TransE", dim=8, epochs=3, batch=32)

    def stop(_: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_baseline(noisy, tmp_path, config, "en", stop)
    if damage == "settings":
        config = replace(config, lr=0.1)
    else:
        path = tmp_path / "unfinished.safetensors"
        path.write_bytes(path.read_bytes()[:-40])
    epochs: list[int] = []
    train_baseline(noisy, tmp_path, config, "en", lambda _, done, total: epochs.append(done))
    assert epochs == [1, 2, 3]


def test_a_grid_has_the_tuned_settings() -> None:
    for model in MODELS:
        grid = BaselineConfig.grid(model)
        assert BaselineConfig.tuned(model) in grid and len(grid) == 8
    for wrong, message in (
        ({"num_batches": 0}, "num_batches 0: expected 1 or more"),
        ({"optimizer": "lion"}, "optimizer lion: expected adam, sgd, adagrad"),
        ({"sampler": "best"}, "sampler best: expected basic or bernoulli"),
    ):
        with pytest.raises(PrixError, match=message):
            BaselineConfig(model="TransE", **wrong)  # type: ignore[arg-type]


def test_tuned_settings_are_those_of_the_model() -> None:
    assert BaselineConfig.tuned("RotatE").epochs == 90 > BaselineConfig.default("RotatE").epochs
    with pytest.raises(PrixError, match="baseline DistMult: expected TransE, ComplEx, RotatE"):
        BaselineConfig.tuned("DistMult")
    with pytest.raises(PrixError, match="are 1 or more"):
        BaselineConfig(model="TransE", epochs=0)


def test_a_wrong_folder_kb_or_language_is_refused(
    noisy: KB, nordic: KB, trained: Train, tmp_path: Path
) -> None:
    with pytest.raises(PrixError, match="is not a baseline"):
        load_baseline(noisy, tmp_path)
    folder = trained("TransE", False)
    with pytest.raises(PrixError, match=r"the baseline .* was trained on another KB"):
        load_baseline(nordic, folder)
    ranker = load_baseline(noisy, folder)
    with pytest.raises(PrixError, match="TransE, en was asked in fi; it knows en only"):
        ranker.best(read_facts(noisy, "fi").queries, 1)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("inverse", [False, True])
def test_scores_are_computed_on_the_device_of_the_model(
    noisy: KB, trained: Train, model: str, inverse: bool
) -> None:
    """The meta device computes shapes and refuses tensors of any other, as a GPU does."""
    ranker = load_baseline(noisy, trained(model, inverse), "meta")
    numbers = torch.arange(3)
    scores = ranker.model.scores(numbers, numbers % 2, torch.arange(5), range(5))
    assert scores.device.type == "meta" and scores.shape == (3, 5)


def test_a_device_that_is_not_there_is_refused(noisy: KB, tmp_path: Path) -> None:
    config = BaselineConfig(model="TransE", dim=4, epochs=1)
    for device in ("cuda:7", "nonsense"):
        with pytest.raises(PrixError, match=f"device {device} cannot be used here: "):
            train_baseline(noisy, tmp_path / "b", config, "en", device=device)
    assert not (tmp_path / "b").exists()
