"""Checkpoints: complete or absent, and refused by another run."""

import dataclasses
import json
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError

from prixlm import KB, PrixError, import_kb
from prixlm.training.checkpoints import (
    checkpoint_folder,
    checkpoint_steps,
    drop_checkpoints,
    flatten_moments,
    parse_point,
    read_state,
    save_checkpoint,
    saving,
    steps_to_keep,
    training_seconds,
)
from prixlm.training.pretrain import PretrainConfig, pretrain
from tests.training.helpers import losses, run_processes


def save(run: Path, step: int, folder_hook: object = None) -> None:
    """A checkpoint of one weight."""
    layer = torch.nn.Linear(1, 1)
    state: dict[str, Any] = {"step": step, "fingerprint": {"config": "a"}, "seconds": 2.5}
    state |= {"best": None, "num_worse": 0}

    def save_model(folder: Path) -> None:
        if callable(folder_hook):
            folder_hook(folder)
        (folder / "model.safetensors").write_bytes(b"weights")

    moments = flatten_moments(torch.optim.Adam(layer.parameters()), layer)
    save_checkpoint(run, state, moments, save_model)


def test_checkpoints_are_listed_read_and_dropped(tmp_path: Path) -> None:
    assert checkpoint_steps(tmp_path) == [] and training_seconds(tmp_path) is None
    for step in (0, 20, 3):
        save(tmp_path, step)
    assert checkpoint_steps(tmp_path) == [0, 3, 20]
    state = read_state(tmp_path, {"config": "a"})
    assert state is not None and state["step"] == 20 and training_seconds(tmp_path) == 2.5
    drop_checkpoints(tmp_path, {3})
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0000003"]


def test_a_checkpoint_is_absent_until_it_is_complete(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        assert folder.is_dir() and checkpoint_steps(tmp_path) == []
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save(tmp_path, 4, fail)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_the_temporary_folder_of_a_killed_run_is_neither_read_nor_kept(tmp_path: Path) -> None:
    save(tmp_path, 4)
    killed = shutil.copytree(
        checkpoint_folder(tmp_path, 4), tmp_path / "checkpoints" / "step-0000008.123.tmp"
    )
    assert checkpoint_steps(tmp_path) == [4]
    save(tmp_path, 12)
    assert not killed.exists() and checkpoint_steps(tmp_path) == [4, 12]


def test_a_checkpoint_whose_removal_was_interrupted_is_written_again(tmp_path: Path) -> None:
    save(tmp_path, 4)
    (checkpoint_folder(tmp_path, 4) / "state.json").unlink()
    assert checkpoint_steps(tmp_path) == []
    save(tmp_path, 4)
    assert checkpoint_steps(tmp_path) == [4]


def test_a_checkpoint_of_another_run_is_refused(
    shared_toy: KB, tiny: PretrainConfig, tiny_copy: Path, tmp_path: Path
) -> None:
    refused = r"has a checkpoint of another run \(different {}\)"
    with pytest.raises(PrixError, match=refused.format("config")):
        pretrain(shared_toy, tiny_copy, dataclasses.replace(tiny, batch=8))
    more = tmp_path / "more.tsv"
    more.write_text("lang\tsubject\trelation\tobject\nsw\tUfini\tcapital\tHelsinki\n", "utf-8")
    other = import_kb([more], tmp_path / "other")
    with pytest.raises(PrixError, match=refused.format("KB")):
        pretrain(other, tiny_copy, tiny)
    path = checkpoint_folder(tiny_copy, checkpoint_steps(tiny_copy)[-1]) / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    tokenizer["model"]["vocab"][-1][1] -= 1.0
    path.write_text(json.dumps(tokenizer), "utf-8")
    with pytest.raises(PrixError, match=refused.format("tokenizer")):
        pretrain(shared_toy, tiny_copy, tiny)


def test_a_damaged_checkpoint_is_named(
    shared_toy: KB, tiny: PretrainConfig, tiny_run: Path, tiny_copy: Path
) -> None:
    last = checkpoint_folder(tiny_copy, checkpoint_steps(tiny_copy)[-1])
    (last / "optimizer.safetensors").write_bytes(b"\x00" * 10)
    with pytest.raises(PrixError, match=r"step-\d+ is damaged .* the checkpoint before it"):
        pretrain(shared_toy, tiny_copy, tiny)
    shutil.rmtree(last)
    pretrain(shared_toy, tiny_copy, tiny)
    assert losses(tiny_copy) == losses(tiny_run)


def train_on_a_small_disk(kb: str, run: str, config: PretrainConfig, report: str) -> None:
    """Limit the size of files after step 5: a write then fails as it does on a full disk."""

    def progress(stage: str, done: int, _total: int) -> None:
        if stage.startswith("train loss") and done == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))

    try:
        pretrain(KB(kb), run, config, progress)
    except PrixError as error:
        Path(report).write_text(str(error), "utf-8")
        os._exit(2)


def test_a_full_disk_while_saving_is_one_line_and_the_last_checkpoint_is_complete(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    run, report = tmp_path / "run", tmp_path / "error.txt"
    full = (str(shared_toy.folder), str(run), tiny, str(report))
    assert run_processes(train_on_a_small_disk, *full) == [2]
    assert "is full. Free some space" in report.read_text("utf-8")
    assert checkpoint_steps(run)[-1] == 4
    assert not list((run / "checkpoints").glob("*.tmp"))
    model = pretrain(shared_toy, run, tiny)
    assert max(losses(run)) == model.settings.lineage.steps


def test_other_errors_of_safetensors_are_passed_on(tmp_path: Path) -> None:
    with pytest.raises(PrixError, match="is full"), saving(tmp_path / "x"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError, match="header"), saving(tmp_path / "x"):
        raise SafetensorError("invalid header")


def test_a_point_of_a_run_is_a_share_or_a_step() -> None:
    texts = ["0", "0.75", "1", "20k", "150K", "1.5k", "0.5k", "20_000", " 3 "]
    expected = [0.0, 0.75, 1.0, 20_000.0, 150_000.0, 1500.0, 500.0, 20_000.0, 3.0]
    assert list(map(parse_point, texts)) == expected
    for wrong in ("", "k", "-1", "1.5", "nan", "inf", "20m", "1e3", "half"):
        with pytest.raises(PrixError, match=r"expected a share of the run \(0.75\), or a step"):
            parse_point(wrong)


def test_the_papers_steps_are_kept_beside_shares_and_not_beyond_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    points = (0.0, 20_000.0, 150_000.0, 1.0)
    assert steps_to_keep(points, 947_000) == {0, 20_000, 150_000, 947_000}
    assert not caplog.messages
    assert steps_to_keep(points, 30_000) == {0, 20_000, 30_000}
    assert caplog.messages == ["no checkpoint at 150000: the run ends at step 30000"]
    assert steps_to_keep((), 7) == {7}, "the last one is always kept"


def test_a_run_keeps_a_checkpoint_at_a_step(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    training = dataclasses.replace(tiny.training, checkpoints=(0.0, 3.0, 0.5))
    pretrain(shared_toy, tmp_path / "run", dataclasses.replace(tiny, training=training))
    steps = checkpoint_steps(tmp_path / "run")
    assert steps[:2] == [0, 3] and steps[2] == round(steps[-1] / 2) and len(steps) == 4
