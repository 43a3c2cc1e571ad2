"""One model shared by two processes (FSDP): the losses and checkpoints are those of one process."""

import dataclasses
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from prixlm import KB, PrixError
from prixlm.lm.compact import make_compact
from prixlm.lm.model import PrixLM
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, drop_checkpoints
from prixlm.training.loop import TrainingConfig
from prixlm.training.pretrain import PretrainConfig, pretrain
from prixlm.training.sharding import Sharding
from tests.training.helpers import TINY, losses, run_processes, two_processes


def train_sharded(kb: str, run: str, config: PretrainConfig) -> None:
    """Train as one of two processes, and note how many values of the model it holds itself."""
    place = Sharding.place

    def counted(sharding: Sharding, device: torch.device) -> None:
        whole = sum(parameter.numel() for parameter in sharding.model.parameters())
        place(sharding, device)
        own = sum(p.to_local().numel() for p in sharding.model.parameters())  # type: ignore[operator]
        Path(f"{run}-rank-{os.environ['RANK']}.txt").write_text(f"{own} {whole}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sharding, "place", counted)
        pretrain(KB(kb), run, config)
    os._exit(0)  # without gloo's threads, which would wait for each other


def launch_two(kb: KB, run: Path, config: PretrainConfig) -> None:
    args = (str(kb.folder), str(run), config)
    assert run_processes(train_sharded, *args, environments=two_processes()) == [0, 0]


@pytest.fixture(scope="module")
def config(shared_toy: KB, tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """A tiny pretraining without dropout, whose masks differ by process."""
    compact = dataclasses.replace(TINY.compact, dropout=0.0)
    base = tmp_path_factory.mktemp("sharded") / "base"
    make_compact(shared_toy, compact).save(base)
    return dataclasses.replace(TINY, base=str(base), compact=compact, shard=True)


@pytest.fixture(scope="module")
def one(shared_toy: KB, config: PretrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("one") / "run"
    pretrain(shared_toy, run, config)
    return run


@pytest.fixture(scope="module")
def two(shared_toy: KB, config: PretrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("two") / "run"
    launch_two(shared_toy, run, config)
    return run


def assert_same_losses(one: Path, other: Path) -> None:
    expected, found = losses(one), losses(other)
    assert expected.keys() == found.keys() and len(expected) > 10
    assert list(found.values()) == pytest.approx(list(expected.values()), abs=1e-4)


def test_two_processes_that_share_a_model_give_the_losses_of_one(one: Path, two: Path) -> None:
    assert_same_losses(one, two)
    for rank in (0, 1):
        own, whole = map(int, Path(f"{two}-rank-{rank}.txt").read_text().split())
        assert own < 0.55 * whole


def test_checkpoints_of_a_shared_model_are_whole(one: Path, two: Path) -> None:
    assert checkpoint_steps(one) == checkpoint_steps(two)
    step = checkpoint_steps(two)[-1]
    for name in ("model.safetensors", "optimizer.safetensors"):
        left, right = (load_file(checkpoint_folder(run, step) / name) for run in (one, two))
        assert {k: v.shape for k, v in left.items()} == {k: v.shape for k, v in right.items()}
        for key, value in left.items():
            assert torch.allclose(right[key], value, atol=1e-3), key
    start = "model.safetensors"
    first, second = (checkpoint_folder(run, 0) / start for run in (one, two))
    assert first.read_bytes() == second.read_bytes()
    assert PrixLM.load(two).settings == PrixLM.load(one).settings


@pytest.mark.parametrize("step", [0, 8])
def test_a_run_of_two_processes_resumes_with_one(
    step: int, shared_toy: KB, config: PretrainConfig, one: Path, two: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(two, tmp_path / "run")
    keep_up_to(run, step)
    pretrain(shared_toy, run, dataclasses.replace(config, shard=False))
    assert_same_losses(one, run)


def test_a_run_of_one_process_resumes_with_two(
    shared_toy: KB, config: PretrainConfig, one: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(one, tmp_path / "run")
    keep_up_to(run, 2)
    launch_two(shared_toy, run, config)
    assert_same_losses(one, run)


def keep_up_to(run: Path, step: int) -> None:
    """Leave the newest checkpoint up to a step, as if the run had been killed after it."""
    newest = max(found for found in checkpoint_steps(run) if found <= step)
    drop_checkpoints(run, {newest})


@pytest.mark.parametrize("family", ["gemma", "modernbert"])
def test_other_families_and_recomputed_layers_are_shared_too(
    family: str, families: dict[str, Path], shared_toy: KB, tmp_path: Path
) -> None:
    config = dataclasses.replace(
        TINY, base=str(families[family]), epochs=2, recompute=True, shard=True
    )
    pretrain(shared_toy, tmp_path / "one", config)
    launch_two(shared_toy, tmp_path / "two", config)
    expected, found = losses(tmp_path / "one"), losses(tmp_path / "two")
    assert list(found.values()) == pytest.approx(list(expected.values()), abs=1e-4)


def test_sharding_refuses_what_it_cannot_divide() -> None:
    with pytest.raises(PrixError, match="leave out --adapt lora"):
        PretrainConfig(adapt="lora", shard=True)
    with pytest.raises(PrixError, match="leave out --precision fp16"):
        PretrainConfig(shard=True, training=TrainingConfig(precision="fp16"))
    assert PretrainConfig(shard=True).fingerprint() == PretrainConfig().fingerprint()
