"""Trained models: a path each, trained once, and checkpoints by share."""

import json
from pathlib import Path

import pytest
import torch

from prixlm import KB, PrixError
from prixlm.entities.mirror import MirrorConfig
from prixlm.evaluation.trained import Run, TrainedModels, check_stamp, single_settings
from prixlm.rankers.complex import GraphConfig
from prixlm.rankers.fusion import FusionConfig
from prixlm.rankers.suite import make_suite
from prixlm.training.loop import TrainingConfig
from tests.evaluation.conftest import TINY


def test_every_model_has_one_path_and_is_trained_once(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = TrainedModels(numbered, tmp_path)
    single = single_settings(TINY, "fi")
    assert single.supply.langs == ("fi",) and single.epochs == TINY.epochs
    run = models.prix_lm("single", single, "fi")
    assert run == Run("single-fi", tmp_path / "models" / "single" / "fi")
    assert run.seconds is not None and run.seconds > 0
    graph = GraphConfig(rank=4, epochs=1, batch=50)
    embedding, seconds = models.graph(graph)
    assert (tmp_path / "graph").is_dir() and seconds is not None
    rankers = make_suite(numbered).rankers
    config = FusionConfig(depth=5, facts=50, iterations=5, leaves=4, smallest=2)
    models.fusion(rankers, config, ["en"])
    assert (tmp_path / "fusion" / "fusion.json").is_file()
    mirror = MirrorConfig(
        positives="links", number=8, batch=4, epochs=1, training=TrainingConfig(checkpoints=(1.0,))
    )
    models.encoder(run.name, run.folder, mirror)
    assert (tmp_path / "encoders" / "single-fi-links" / "encoder.json").is_file()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("optimizer.*")}
    monkeypatch.setattr("prixlm.evaluation.trained.Fusion.fit", None)
    again = TrainedModels(numbered, tmp_path)
    assert again.prix_lm("single", single, "fi") == run
    assert torch.equal(again.graph(graph)[0].node, embedding.node)
    again.fusion(rankers, config, ["en"])
    again.encoder(run.name, run.folder, mirror)
    after = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("optimizer.*")}
    assert before and after == before


def test_a_baseline_is_kept_with_the_seconds_of_its_training(
    numbered: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pykeen", reason="PyKEEN is an extra: pip install 'prixlm[baselines]'")
    from prixlm.rankers.pykeen import BaselineConfig

    models = TrainedModels(numbered, tmp_path)
    config = BaselineConfig(model="TransE", dim=4, epochs=1)
    _, seconds = models.baseline(config, "tuned", "fi")
    models.baseline(config, "merged")
    for path in ("transe-tuned/fi", "transe-merged"):
        assert (tmp_path / "baselines" / path / "baseline.json").is_file()
    monkeypatch.setattr("prixlm.evaluation.trained.train_baseline", None)
    assert models.baseline(config, "tuned", "fi")[1] == seconds > 0


def test_a_stamp_is_of_one_kb_and_one_set_of_settings(tmp_path: Path) -> None:
    path, made = tmp_path / "new" / "stamp.json", tmp_path / "table.json"
    stamp = {"kb": "a", "config": {"epochs": 3, "sizes": (1, 2), "graph": {"rank": 4}}}
    check_stamp(path, stamp, made)
    check_stamp(path, stamp, made)
    other = {"kb": "b", "config": {"epochs": 3, "sizes": (1, 2), "graph": {"rank": 5}}}
    with pytest.raises(PrixError, match=r"table.json was made with other config.graph.rank, kb: "):
        check_stamp(path, other, made)
    saved = json.loads(path.read_text())
    saved["config"]["retired"] = True
    path.write_text(json.dumps(saved))
    check_stamp(path, stamp, made)  # a setting that this version does not have is ignored
    with pytest.raises(PrixError, match=r"made with other config.new: "):
        check_stamp(path, stamp | {"config": {**stamp["config"], "new": 1}}, made)  # type: ignore[dict-item]


def test_a_checkpoint_is_the_nearest_to_a_share_of_the_run(tmp_path: Path) -> None:
    run = Run("all", tmp_path)
    for step in (0, 10, 75, 100):
        folder = tmp_path / "checkpoints" / f"step-{step:07d}"
        folder.mkdir(parents=True)
        state = {"step": step, "best": None, "num_worse": 0, "fingerprint": {}, "seconds": 3.5}
        (folder / "state.json").write_text(json.dumps(state))
    assert run.steps == [0, 10, 75, 100] and run.seconds == 3.5
    for share, step in ((0.0, 0), (0.04, 0), (0.1, 10), (0.7, 75), (1.0, 100)):
        found = run.at(share)
        assert found.name == f"all-step-{step}"
        assert found.folder == tmp_path / "checkpoints" / f"step-{step:07d}"
    assert run.base() == run.at(0.0)
    (tmp_path / "checkpoints" / "step-0000000" / "state.json").unlink()
    with pytest.raises(PrixError, match="kept no step 0: train it with a checkpoint at 0"):
        run.base()


def test_a_run_is_taken_at_a_share_or_at_a_step_that_it_has(tmp_path: Path) -> None:
    for step in (0, 20_000, 150_000, 947_000):
        folder = tmp_path / "checkpoints" / f"step-{step:07d}"
        folder.mkdir(parents=True)
        (folder / "state.json").write_text("{}")
    run = Run("all", tmp_path)
    points = {0.0: 0, 0.021: 20_000, 0.158: 150_000, 1.0: 947_000, 20_000.0: 20_000}
    for point, step in points.items():
        assert run.at(point) == run.at_step(step), point
    with pytest.raises(PrixError, match=r"no checkpoint at step 200,000; it has 0, 20,000, 150,00"):
        run.at(200_000)
    # Single may be shorter than All; a step that it passed without keeping it is still missing.
    assert run.at(2e6, or_end=True) == run.at_step(947_000)
    with pytest.raises(PrixError, match="no checkpoint at step 30,000"):
        run.at(30_000, or_end=True)
