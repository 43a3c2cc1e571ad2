"""The training loop: it learns, and stopping it at any moment changes nothing."""

import dataclasses
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.optim import AdamW

from prixlm import KB, PrixError, SplitConfig, split_kb
from prixlm.errors import Stopped
from prixlm.lm.compact import make_compact
from prixlm.lm.model import PrixLM
from prixlm.reports.plots import read_metrics
from prixlm.training.checkpoints import checkpoint_folder, checkpoint_steps, drop_checkpoints
from prixlm.training.loop import (
    Step,
    TrainingConfig,
    autocast,
    choose_precision,
    learning_rate,
    train,
)
from prixlm.training.pretrain import PretrainConfig, PretrainTask, pretrain
from tests.training.helpers import TINY, losses, run_processes, same_weights, two_processes


def train_and_signal(kb: str, run: str, config: PretrainConfig, step: int, kind: int) -> None:
    """Send a signal to this process after a step."""

    def progress(stage: str, done: int, _total: int) -> None:
        if stage.startswith("train loss") and done == step:
            os.kill(os.getpid(), kind)

    pretrain(KB(kb), run, config, progress)


def test_the_loss_falls_and_checkpoints_are_kept_by_rule(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    config = dataclasses.replace(tiny, epochs=25)
    model = pretrain(shared_toy, tmp_path / "run", config)
    by_step = losses(tmp_path / "run")
    num_steps = PretrainTask(shared_toy, model, config).num_steps
    assert sorted(by_step) == list(range(1, num_steps + 1))
    assert by_step[num_steps] < 0.6 * by_step[1]
    shares = {round(share * num_steps) for share in (0, 0.1, 0.75, 1)}
    assert set(checkpoint_steps(tmp_path / "run")) == shares
    assert same_weights(model, PrixLM.load(tmp_path / "run"))


def test_a_killed_run_resumes_as_if_it_had_not_been(
    shared_toy: KB, tiny: PretrainConfig, tiny_run: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    kill = (str(shared_toy.folder), str(run), tiny, 11, int(signal.SIGKILL))
    assert run_processes(train_and_signal, *kill) == [-signal.SIGKILL]
    assert checkpoint_steps(run)[-1] == 8
    model = pretrain(shared_toy, run, tiny)
    assert losses(run) == losses(tiny_run)
    assert same_weights(model, PrixLM.load(tiny_run))


def test_training_has_weights_and_moments_in_memory_of_its_own(
    shared_toy: KB, tiny: PretrainConfig, tiny_copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights mapped from a file lie at any address, another one in a resumed run."""
    drop_checkpoints(tiny_copy, {0, 2})
    addresses = []
    real = AdamW.step

    def step(self: AdamW) -> None:
        moments = [state["exp_avg"] for state in self.state.values()]
        tensors = [*self.param_groups[0]["params"], *moments]
        addresses.append({tensor.data_ptr() % 64 for tensor in tensors})
        real(self)

    monkeypatch.setattr(AdamW, "step", step)
    pretrain(shared_toy, tiny_copy, tiny)
    assert len(addresses) > 10 and all(found == {0} for found in addresses)


class OneLayer:
    """A task whose weights each process has drawn on its own."""

    num_steps, fingerprint = 3, {"task": "one layer"}

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        for _ in range(first, self.num_steps):
            yield Step([torch.ones(2, 4) * rank], 2.0, 2)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = model(batch).square().sum()
        return value

    def validate(self, model: torch.nn.Module) -> dict[str, float]:
        return {}

    def save(self, model: torch.nn.Module, folder: Path) -> None:
        save_file(model.state_dict(), folder / "model.safetensors")


def train_one_layer(run: str) -> None:
    rank = int(os.environ["RANK"])
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3).eval())
    model[1].running_mean.fill_(rank)
    train(model, OneLayer(), TrainingConfig(), Path(run))
    save_file(model.state_dict(), f"{run}-{rank}.safetensors")
    os._exit(0)  # without gloo's threads, which would wait for each other


def test_all_processes_start_with_the_weights_of_the_first(tmp_path: Path) -> None:
    environments = two_processes()
    run = tmp_path / "run"
    assert run_processes(train_one_layer, str(run), environments=environments) == [0, 0]
    first, second = (load_file(f"{run}-{rank}.safetensors") for rank in (0, 1))
    assert torch.equal(first["0.weight"], second["0.weight"])
    torch.manual_seed(0)
    start = load_file(checkpoint_folder(run, 0) / "model.safetensors")
    assert torch.equal(start["0.weight"], torch.nn.Linear(4, 3).weight)


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_and_the_run_resumes_as_if_it_had_not_been(
    kind: signal.Signals, shared_toy: KB, tiny: PretrainConfig, tiny_run: Path, tmp_path: Path
) -> None:
    assert threading.current_thread() is threading.main_thread()
    run, before = tmp_path / "run", signal.getsignal(kind)
    with pytest.raises(Stopped, match="stopped at step 11") as stopped:
        train_and_signal(str(shared_toy.folder), str(run), tiny, 11, kind)
    assert stopped.value.signal == kind
    assert signal.getsignal(kind) is before
    assert checkpoint_steps(run)[-1] == 11
    model = pretrain(shared_toy, run, tiny)
    assert losses(run) == losses(tiny_run)
    assert same_weights(model, PrixLM.load(tiny_run))


def test_a_loss_that_is_not_finite_stops_before_the_update(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PretrainTask.loss
    calls = []

    def broken(self: PretrainTask, model: PrixLM, batch: object) -> torch.Tensor:
        calls.append(model.training)
        scale = float("nan") if sum(calls) > 5 else 1.0
        return scale * real(self, model, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(PretrainTask, "loss", broken)
    with pytest.raises(PrixError, match=r"the loss is nan at step \d+, before the update"):
        pretrain(shared_toy, tmp_path / "run", tiny)
    assert max(losses(tmp_path / "run").values()) < 100


def test_a_gradient_that_is_not_finite_stops_before_the_update(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PretrainTask.loss

    def steep(self: PretrainTask, model: PrixLM, batch: object) -> torch.Tensor:
        """A finite loss; the root's slope at 0 is infinite."""
        weight = model.backbone.get_input_embeddings().weight
        return real(self, model, batch) + torch.sqrt((weight * 0).sum())  # type: ignore[arg-type]

    monkeypatch.setattr(PretrainTask, "loss", steep)
    with pytest.raises(PrixError, match=r"the gradient's norm is \w+ at step 1, before the update"):
        pretrain(shared_toy, tmp_path / "run", tiny)


def test_an_early_stop_ends_with_the_weights_of_the_best_validation(
    shared_toy: KB, tmp_path: Path
) -> None:
    split = split_kb(shared_toy, tmp_path / "split", SplitConfig(test=0.1, valid=0.2, seed=1))
    training = TrainingConfig(lr=0.5, validate_every=2, patience=2, log_every=1)
    config = dataclasses.replace(TINY, epochs=40, training=training)
    run = tmp_path / "run"
    pretrain(split, run, config)
    metrics = read_metrics(run)
    last = max(line["step"] for line in metrics)
    assert last < PretrainTask(split, make_compact(split, TINY.compact), config).num_steps
    valid = {line["step"]: line["valid_loss"] for line in metrics if "valid_loss" in line}
    best = min(valid, key=lambda step: valid[step])
    assert best < last
    weights = (run / "model.safetensors").read_bytes()
    assert (checkpoint_folder(run, best) / "model.safetensors").read_bytes() == weights
    pretrain(split, run, config)  # the same command again: the run has stopped already
    assert read_metrics(run) == metrics
    assert (run / "model.safetensors").read_bytes() == weights


def test_the_rate_rises_and_falls_as_in_the_paper() -> None:
    config = TrainingConfig(lr=1.0, warmup=0.06)
    rates = [learning_rate(config, step, 100) for step in range(1, 101)]
    assert rates[:6] == pytest.approx([1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0])
    assert rates[6:] == sorted(rates[6:], reverse=True) and 0 < rates[-1] < 0.02
    falls = [a - b for a, b in itertools.pairwise(rates[6:])]
    assert max(falls) == pytest.approx(min(falls))
    constant = dataclasses.replace(config, schedule="constant")
    assert learning_rate(constant, 100, 100) == 1.0


def test_tensorboard_gets_the_losses(shared_toy: KB, tiny: PretrainConfig, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    training = dataclasses.replace(tiny.training, trackers=("tensorboard",))
    pretrain(shared_toy, tmp_path / "run", dataclasses.replace(tiny, training=training))
    [events] = {path.parent for path in (tmp_path / "run").rglob("events.out.tfevents*")}
    accumulator = EventAccumulator(str(events))
    accumulator.Reload()
    logged = {event.step: event.value for event in accumulator.Scalars("loss")}
    expected = losses(tmp_path / "run")
    assert logged.keys() == expected.keys()
    assert logged[3] == pytest.approx(expected[3], rel=1e-5)


def test_a_tracker_that_is_not_installed_is_named(
    shared_toy: KB, tiny: PretrainConfig, tmp_path: Path
) -> None:
    try:
        import wandb  # noqa: F401
    except ImportError:
        training = dataclasses.replace(tiny.training, trackers=("wandb",))
        config = dataclasses.replace(tiny, training=training)
        with pytest.raises(PrixError, match="wandb is not installed: run `pip install wandb`"):
            pretrain(shared_toy, tmp_path / "run", config)
    else:
        pytest.skip("wandb is installed here")


def test_bf16_is_refused_where_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    if torch.cuda.is_available():
        pytest.skip("a GPU decides otherwise")
    assert choose_precision("auto") == "no" and choose_precision("no") == "no"
    monkeypatch.setattr("prixlm.training.loop._cpu_multiplies", lambda _: False)
    with pytest.raises(PrixError, match="this machine does not support bf16"):
        choose_precision("bf16")
    monkeypatch.setattr("prixlm.training.loop._cpu_multiplies", lambda _: True)
    assert choose_precision("bf16") == "bf16"


def train_with(kb: str, run: str, config: PretrainConfig) -> None:
    pretrain(KB(kb), run, config)


def test_bf16_learns_as_float32_does(shared_toy: KB, tmp_path: Path) -> None:
    make_compact(shared_toy, dataclasses.replace(TINY.compact, dropout=0.0)).save(tmp_path / "base")
    config = dataclasses.replace(TINY, base=str(tmp_path / "base"))
    training = dataclasses.replace(TINY.training, precision="bf16")
    run = tmp_path / "bf16"
    # Some virtual machines report AMX and crash when they use it: use the plainer AVX2 here.
    environments = [{"ONEDNN_MAX_CPU_ISA": "AVX2"}]
    half = (str(shared_toy.folder), str(run), dataclasses.replace(config, training=training))
    assert run_processes(train_with, *half, environments=environments) == [0]
    pretrain(shared_toy, tmp_path / "float32", config)
    mixed, plain = losses(run), losses(tmp_path / "float32")
    assert mixed != plain
    assert mixed[1] == pytest.approx(plain[1], rel=0.01)
    assert mixed[max(mixed)] == pytest.approx(plain[max(plain)], rel=0.1)
    assert PrixLM.load(run).backbone.dtype == torch.float32


def test_fp16_is_used_only_where_it_is_asked_for_and_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("prixlm.training.loop._cpu_multiplies", lambda _: False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(PrixError, match="this machine does not support fp16"):
        choose_precision("fp16")
    # A card without bf16, such as the paper's RTX 8000.
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation: False)
    assert [choose_precision(name) for name in ("auto", "no", "fp16")] == ["no", "no", "fp16"]
    with pytest.raises(PrixError, match="does not support bf16: pass --precision fp16"):
        choose_precision("bf16")
    half = autocast(torch.device("cpu"), "fp16")
    assert half.fast_dtype == torch.float16 and not autocast(torch.device("cpu"), "no")._enabled


class Overflowing(OneLayer):
    """A task whose second loss is so steep that its scaled gradient is not finite."""

    num_steps = 4

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        for step in range(first, self.num_steps):
            size = 1e36 if step == 1 else 1.0
            yield Step([torch.full((2, 4), size)], 1.0, 2)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):  # the overflow is of the scale, not of fp16
            value: torch.Tensor = model(batch).mean()
        return value


def test_an_update_whose_scaled_gradient_overflows_is_left_out_and_the_scale_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.training.loop._cpu_multiplies", lambda _: True)
    points = (0.0, 0.25, 0.5, 0.75, 1.0)
    config = TrainingConfig(precision="fp16", checkpoints=points, lr=0.1, warmup=0.0, log_every=1)
    run = tmp_path / "run"
    torch.manual_seed(0)
    train(torch.nn.Linear(4, 3), Overflowing(), config, run)
    weights, scales = [], []
    for step in checkpoint_steps(run):
        folder = checkpoint_folder(run, step)
        weights.append(load_file(folder / "model.safetensors")["weight"])
        scales.append(json.loads((folder / "state.json").read_text())["scaler"]["scale"])
    assert scales == [2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15]
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(weights)]
    assert changed == [True, False, True, True]
    # Stopped after the second update: the scale is that of the checkpoint.
    drop_checkpoints(run, {0, 1, 2})
    torch.manual_seed(0)
    train(torch.nn.Linear(4, 3), Overflowing(), config, run)
    last = checkpoint_folder(run, 4)
    assert torch.equal(load_file(last / "model.safetensors")["weight"], weights[-1])
    assert json.loads((last / "state.json").read_text())["scaler"]["scale"] == 2.0**15


def test_fp16_learns_as_float32_does(
    shared_toy: KB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prixlm.training.loop._cpu_multiplies", lambda _: True)
    make_compact(shared_toy, dataclasses.replace(TINY.compact, dropout=0.0)).save(tmp_path / "base")
    config = dataclasses.replace(TINY, base=str(tmp_path / "base"))
    training = dataclasses.replace(TINY.training, precision="fp16")
    pretrain(shared_toy, tmp_path / "fp16", dataclasses.replace(config, training=training))
    pretrain(shared_toy, tmp_path / "float32", config)
    mixed, plain = losses(tmp_path / "fp16"), losses(tmp_path / "float32")
    assert mixed != plain
    assert mixed[1] == pytest.approx(plain[1], rel=0.01)
    assert mixed[max(mixed)] == pytest.approx(plain[max(plain)], rel=0.1)
    assert PrixLM.load(tmp_path / "fp16").backbone.dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"precision": "fp8"}, "expected auto, no, bf16 or fp16"),
        ({"checkpoints": (1.5,)}, "expected shares of the run, from 0 to 1, or steps"),
        ({"optimizer": "sgd"}, "expected adam or adagrad"),
        ({"schedule": "cosine"}, "expected linear or constant"),
        ({"lr": 0.0}, "expected lr and clip above 0"),
        ({"save_every": 0}, "must be 1 or more"),
        ({"trackers": ("mlflow",)}, "tracker mlflow: expected tensorboard or wandb"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(PrixError, match=message):
        TrainingConfig(**settings)  # type: ignore[arg-type]
