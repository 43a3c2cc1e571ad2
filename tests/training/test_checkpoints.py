"""Checkpoints: complete or absent, and refused by another run."""

import dataclasses
import json
import os
import resource
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from prixlm import KB, PrixError, import_kb
from prixlm.training.checkpoints import (
    checkpoint_folder,
    checkpoint_steps,
    drop_checkpoints,
    read_state,
    save_checkpoint,
    saving,
    training_seconds,
)
from prixlm.training.pretrain import PretrainConfig, pretrain
from tests.training.helpers import losses, run_processes


def save(run: Path, step: int, folder_hook: object = None) -> None:
    """A checkpoint of one weight."""
    layer = torch.nn.Linear(1, 1)
    state = {"step": step, "fingerprint": {"config": "a"}, "seconds": 2.5}

    def save_model(model: torch.nn.Module, folder: Path) -> None:
        if callable(folder_hook):
            folder_hook(folder)
        (folder / "model.safetensors").write_bytes(b"weights")

    save_checkpoint(run, state, layer, torch.optim.Adam(layer.parameters()), save_model)


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
