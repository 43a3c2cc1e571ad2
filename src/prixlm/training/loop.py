"""The training loop of pretraining, Mirror and the graph embedding.

A `Task` provides the steps and the loss. The loop accumulates gradients, schedules the learning
rate, clips, validates, writes checkpoints and resumes, on a CPU, a GPU or several (`accelerate
launch`, `torchrun`). Each process takes its share of a step's batches, and the gradients of all
processes are summed once a step. Every step has its own random seed, so a run that was stopped at
any moment resumes exactly as if it had not been. All processes start with the weights of the first.

    RUN/checkpoints/step-0001200/   see `checkpoints`
    RUN/metrics.jsonl               one line for each logged step and each validation
"""

import ctypes
import functools
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from torch import Tensor, nn

from prixlm.errors import PrixError, Stopped
from prixlm.files import append_line, disk_errors, write_atomically
from prixlm.reports.plots import read_metric
from prixlm.training.checkpoints import (
    drop_checkpoints,
    flatten_moments,
    is_point,
    load_checkpoint,
    read_state,
    save_checkpoint,
    steps_to_keep,
)
from prixlm.training.sharding import Sharding, whole_value
from prixlm.types import Progress

TRACKERS = ("tensorboard", "wandb")
NOT_IN_FINGERPRINT = ("checkpoints", "log_every", "save_every", "trackers")
"""Settings that do not affect what is learnt: a run may resume with other values."""

_METRICS = "metrics.jsonl"
_CUT = {"step": math.inf}
"""What half a line says, which a kill left: it is after every step."""
_BUCKET = 1 << 24
"""Gradient values that are summed over the processes in one message."""
_SMALLEST_SCALE = 2.0**-10
"""Scale of the loss of fp16 below which a gradient that is not finite is an error."""
_RELEASE_EVERY = 25
"""Steps between returning free memory to the system. Varying batch sizes fragment glibc's heap:
without this, a run of one hour held more than twice as much memory."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train. The defaults are the paper's, except for clipping, which it does not state."""

    lr: float = 5e-5  # highest learning rate
    betas: tuple[float, float] = (0.9, 0.98)  # of Adam
    weight_decay: float = 0.0  # decoupled, as in AdamW
    warmup: float = 0.06  # share of the steps over which the learning rate rises
    clip: float = 1.0  # largest norm of the gradient
    checkpoints: tuple[float, ...] = (0.0, 0.1, 0.75, 1.0)  # kept: shares of the run, or steps
    save_every: int = 500  # steps between checkpoints for resuming; only the newest is kept
    validate_every: int = 500  # steps between validations
    patience: int | None = None  # validations without improvement before an early stop; None: never
    log_every: int = 10  # steps between lines of metrics.jsonl
    precision: str = "auto"  # auto (bf16 on a GPU that supports it), no, bf16 or fp16
    trackers: tuple[str, ...] = ()  # tensorboard, wandb
    optimizer: str = "adam"  # or adagrad
    schedule: str = "linear"  # learning rate after the warm-up: linear (falls to 0) or constant
    seed: int = 0  # of new weights and of dropout

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 1 << 63:
            raise PrixError(f"seed {self.seed}: expected 0 to {(1 << 63) - 1}.")
        if not 0 < self.lr < math.inf or not 0 <= self.warmup <= 1 or not self.clip > 0:
            raise PrixError(
                f"lr {self.lr}, clip {self.clip}, warmup {self.warmup}: expected lr and clip above "
                "0, and warmup from 0 to 1."
            )
        if not all(map(is_point, self.checkpoints)):
            raise PrixError(
                f"checkpoints {list(self.checkpoints)}: expected shares of the run, from 0 to 1, "
                "or steps: whole numbers above 1."
            )
        if self.optimizer not in ("adam", "adagrad"):
            raise PrixError(f"optimizer {self.optimizer}: expected adam or adagrad.")
        if self.schedule not in ("linear", "constant"):
            raise PrixError(f"schedule {self.schedule}: expected linear or constant.")
        if self.precision not in ("auto", "no", "bf16", "fp16"):
            raise PrixError(f"precision {self.precision}: expected auto, no, bf16 or fp16.")
        if min(self.save_every, self.validate_every, self.log_every, self.patience or 1) < 1:
            raise PrixError("save_every, validate_every, log_every and patience must be 1 or more.")
        for name in self.trackers:
            if name not in TRACKERS:
                raise PrixError(f"tracker {name}: expected {' or '.join(TRACKERS)}.")


@dataclass(frozen=True)
class Step:
    """One update, as one process sees it."""

    batches: list[Any]  # of this process
    normaliser: float  # the losses of all processes are summed and divided by this
    num_facts: int  # of all processes
    spare: Any = None  # a small batch, to compute and not to count when other processes have more


class Task(Protocol):
    """What is trained: pretraining, Mirror, or the graph embedding."""

    num_steps: int
    fingerprint: dict[str, Any]
    """Hashes that a checkpoint has to share with the task if the run is to resume from it."""

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]:
        """Yield the steps from number `first` on, for process `rank` of `world`."""

    def loss(self, model: Any, batch: Any) -> Tensor:
        """Return the sum of the losses of one batch."""

    def validate(self, model: Any) -> dict[str, float]:
        """Return figures to log, among them `loss`; nothing if there is nothing to validate on."""

    def save(self, model: Any, folder: Path) -> None:
        """Write the model, with its weights in `model.safetensors`."""


def learning_rate(config: TrainingConfig, step: int, num_steps: int) -> float:
    """Return the learning rate of update `step`, counted from 1.

    It rises linearly during the warm-up, then falls linearly to 0 or stays constant.
    """
    warmup = max(1, round(config.warmup * num_steps))
    if step <= warmup:
        return config.lr * step / warmup
    if config.schedule == "constant":
        return config.lr
    # Counted so that the last update still has a rate above 0.
    return config.lr * (num_steps - step + 1) / max(1, num_steps - warmup + 1)


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    run: Path,
    progress: Progress | None = None,
    sharding: Sharding | None = None,
) -> dict[str, Any]:
    """Train up to the task's last step or an early stop; resume from the newest checkpoint.

    With patience, the model ends with the weights of the best validation. Returns the last step,
    the best validation loss and its step.
    sharding: divides the model among the processes; None if each holds the whole.
    """
    precision = choose_precision(config.precision)
    trackers = [_check_tracker(name) for name in config.trackers]
    processes()  # the Accelerator reuses its state, which allows several processes on CPUs
    with disk_errors(run / _METRICS):
        run.mkdir(parents=True, exist_ok=True)
        # The loop scales the loss of fp16 itself, so that a checkpoint can hold the scale.
        mixed = "no" if precision == "fp16" else precision
        accelerator = Accelerator(
            mixed_precision=mixed, log_with=trackers or None, project_dir=str(run)
        )
        if sharding is not None:
            sharding.place(accelerator.device)
        else:
            model = model.to(accelerator.device)
            _own_weights(model)
        loop = _Loop(model, task, config, run, accelerator, progress, sharding)
        with _signals() as received:
            return loop.run_all(received)


def processes() -> PartialState:
    """Return the state of this run's processes, which may run on CPUs if there is no GPU."""
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1")
    return PartialState(cpu=use_cpu or not torch.accelerator.is_available())


def is_first_process() -> bool:
    """Tell whether this process is the first of `torchrun`'s; known before the group starts."""
    return os.environ.get("RANK", "0") == "0"


def autocast(device: torch.device, precision: str) -> torch.autocast:
    """Return the context of a forward pass. precision: as `choose_precision` says."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype, enabled=precision != "no")


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """Return the paper's Adam (decoupled, if there is weight decay), or Adagrad."""
    # Fused: one kernel call updates a parameter and its moments. Of an adapted model, most
    # parameters are frozen.
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "adagrad":
        return torch.optim.Adagrad(
            parameters, lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def choose_precision(wanted: str) -> str:
    """Return what a setting means on this machine: `bf16`, `fp16` or `no`.

    fp16, for GPUs without bf16, is used only if it is asked for.
    """
    if wanted == "fp16":
        if not torch.cuda.is_available() and not _cpu_multiplies("float16"):
            raise PrixError("this machine does not support fp16: leave out --precision.")
        return "fp16"
    if torch.cuda.is_available():
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if wanted == "bf16" and not has_bf16:
            raise PrixError("this GPU does not support bf16: pass --precision fp16.")
        return "bf16" if has_bf16 and wanted != "no" else "no"
    # On a CPU, auto means no: bf16 has to be asked for.
    if wanted == "bf16" and not _cpu_multiplies("bfloat16"):
        raise PrixError("this machine does not support bf16: leave out --precision.")
    return "bf16" if wanted == "bf16" else "no"


@functools.cache  # a process that imports torch takes seconds
def _cpu_multiplies(dtype: str) -> bool:
    """Multiply in a separate process: some machines report a type and crash when they use it."""
    code = f"import torch; a = torch.ones(512, 512, dtype=torch.{dtype}); a @ a"
    attempt = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return attempt.returncode == 0


def _check_tracker(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        raise PrixError(f"the tracker {name} is not installed: run `pip install {name}`.")
    return name


class _Loop:
    """The state of a run, and the steps that change it."""

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        run: Path,
        accelerator: Accelerator,
        progress: Progress | None,
        sharding: Sharding | None,
    ) -> None:
        self.sharding = sharding
        self.model, self.task, self.config, self.run = model, task, config, run
        self.accelerator, self.progress = accelerator, progress
        self.optimizer = make_optimizer(model, config)
        self.precision = choose_precision(config.precision)
        # Gradients of fp16 underflow: the loss is scaled up and they are scaled down again. In any
        # other precision this does nothing.
        self.scaler = torch.amp.GradScaler(
            accelerator.device.type, enabled=self.precision == "fp16"
        )
        self.step = 0  # updates so far
        self.best: float | None = None  # lowest validation loss
        self.best_step = 0
        self.num_worse = 0  # validations since the best one
        self.seconds = 0.0  # spent on updates, before and after resuming
        self.kept = steps_to_keep(config.checkpoints, task.num_steps)

    def run_all(self, received: list[int]) -> dict[str, Any]:
        """Run all steps that are left. received: signals that came meanwhile."""
        is_new = not self._resume()
        self._share_weights()
        if self._has_lost_patience():
            return self._finish()
        if self.config.trackers:
            self.accelerator.init_trackers("prixlm")
        if is_new:  # checkpoint 0 has the weights and the validation loss before training
            self._validate()
            self._save()
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        seconds, num_facts = 0.0, 0  # since this process started
        started = time.monotonic()
        for step in self.task.steps(self.step, rank, world):
            loss, norm, stop_signal = self._update(step, received)
            self.step += 1
            num_facts += step.num_facts
            elapsed = time.monotonic() - started
            seconds, self.seconds = seconds + elapsed, self.seconds + elapsed
            self._report(loss, norm, num_facts / seconds)
            if self.step % _RELEASE_EVERY == 0:
                _release_memory()
            # Validate first: the checkpoint then holds the figure, and knows if it is the best.
            is_due = self._is_last() or self.step % self.config.validate_every == 0
            stops_early = is_due and self._validate()
            if stops_early or self._is_kept() or self.step % self.config.save_every == 0:
                self._save()
            if world == 1 and received:  # one that came during validation or saving counts too
                stop_signal = received[0]
            if stop_signal and not self._is_last():
                self._save()
                raise Stopped(f"stopped at step {self.step}", stop_signal)
            if stops_early:
                break
            started = time.monotonic()  # validations and checkpoints are not counted
        if self.config.trackers:
            self.accelerator.end_training()
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        """Return to the best weights if there is a patience, and tell where the run ended."""
        is_early = self.config.patience is not None and self.best is not None
        if is_early and self.best_step < self.step:
            load_checkpoint(self.run, self.best_step, self.model, self.optimizer)
        return {"step": self.step, "best": self.best, "best_step": self.best_step}

    def _is_last(self) -> bool:
        return self.step == self.task.num_steps

    def _is_kept(self) -> bool:
        is_best = self.config.patience is not None and self.best_step == self.step
        return is_best or self.step in self.kept

    def _has_lost_patience(self) -> bool:
        return self.config.patience is not None and self.num_worse >= self.config.patience

    def _update(self, step: Step, received: list[int]) -> tuple[float, float, int]:
        """Make one update from all batches of a step.

        Returns its loss, the norm of the gradient, and a signal that any process received, or 0.
        """
        self.model.train()
        # A seed for each step and process: a resumed run draws the same dropout as an unbroken one.
        key = [self.config.seed, self.step, self.accelerator.process_index]
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
        totals = torch.zeros(2, device=self.accelerator.device)  # the loss, and a signal
        for batch, weight in self._passes(step):
            with autocast(self.accelerator.device, self.precision):
                loss = weight * self.task.loss(self.model, batch) / step.normaliser
            self.accelerator.backward(self.scaler.scale(loss))
            totals[0] += loss.detach()
        totals[1] = received[0] if received else 0
        if self.accelerator.num_processes > 1:
            totals[0] = self._sum(totals[0])
            # All processes stop after the same step, whichever of them received the signal.
            totals[1] = self.accelerator.gather(totals[1:]).max()
            if self.sharding is None:
                self._sum_gradients()
        # Check before the update, so that no checkpoint ever holds weights that are not finite.
        value = totals[0].item()
        self._check_finite("loss", value)
        self.scaler.unscale_(self.optimizer)
        norm = whole_value(nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip))
        # Where a scaled gradient overflows, the scaler leaves out the update and halves the scale.
        # All processes have the same sum of gradients, so they agree.
        if not self.scaler.is_enabled() or self.scaler.get_scale() < _SMALLEST_SCALE:
            self._check_finite("gradient's norm", norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.config, self.step + 1, self.task.num_steps)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return value, norm, int(totals[1].item())

    def _passes(self, step: Step) -> list[tuple[Any, float]]:
        """Return the batches of this process with the weight of each.

        Processes that share a model gather its weights together, so all make as many passes as the
        one that has most; those beyond a process's own have weight 0.
        """
        passes = [(batch, 1.0) for batch in step.batches]
        if self.sharding is not None:
            count = torch.tensor([len(passes)], device=self.accelerator.device)
            most = int(self.accelerator.gather(count).max().item())
            passes += [(step.spare, 0.0)] * (most - len(passes))
        return passes

    def _check_finite(self, what: str, value: float) -> None:
        if not math.isfinite(value):
            raise PrixError(
                f"the {what} is {value} at step {self.step + 1}, before the update. The last "
                "checkpoint is intact. Start again in another folder with a lower learning rate."
            )

    def _sum(self, value: Tensor) -> Tensor:
        """Sum a tensor over the processes."""
        reduced: Tensor = self.accelerator.reduce(value, reduction="sum")
        return reduced

    def _sum_gradients(self) -> None:
        """Sum the gradients over the processes, many parameters in one message."""
        # Every process has to send the same parameters in the same order.
        grads: list[Tensor] = []
        for parameter in self.model.parameters():
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # no batch of this process reached it
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
            if sum(grad.numel() for grad in grads) >= _BUCKET:
                self._sum_bucket(grads)
                grads = []
        if grads:
            self._sum_bucket(grads)

    def _sum_bucket(self, grads: list[Tensor]) -> None:
        """Concatenate gradients to one flat tensor, sum it over the processes, and copy it back."""
        summed = self._sum(torch.cat([grad.reshape(-1) for grad in grads]))
        sums = torch.split(summed, [grad.numel() for grad in grads])
        for grad, total in zip(grads, sums, strict=True):
            grad.copy_(total.view_as(grad))

    def _report(self, loss: float, norm: float, rate: float) -> None:
        """Show progress after each step, and log some of the steps. rate: facts per second."""
        if self.progress is not None and self.accelerator.is_main_process:
            stage = f"train loss {loss:.3f} {rate:,.0f} facts/s"
            self.progress(stage, self.step, self.task.num_steps)
        if self.step % self.config.log_every == 0 or self._is_last():
            lr = self.optimizer.param_groups[0]["lr"]
            self._log({"loss": loss, "gradient": norm, "lr": lr, "facts_per_second": rate})

    def _log(self, values: dict[str, float]) -> None:
        if self.accelerator.is_main_process:
            append_line(self.run / _METRICS, json.dumps({"step": self.step, **values}))
        if self.config.trackers:
            self.accelerator.log(values, step=self.step)

    def _validate(self) -> bool:
        """Validate and log; tell whether the run should stop early."""
        self.model.eval()
        with torch.no_grad():
            figures = self.task.validate(self.model)
        if not figures:
            return False
        self._log({f"valid_{name}": value for name, value in figures.items()})
        loss = figures["loss"]
        is_better = self.best is None or loss < self.best
        if is_better:
            self.best, self.best_step = loss, self.step
        self.num_worse = 0 if is_better else self.num_worse + 1
        return self._has_lost_patience()

    def _save(self) -> None:
        """Write a checkpoint, and drop the ones that no rule keeps."""
        is_main = self.accelerator.is_main_process
        save_model = partial(self.task.save, self.model)
        if self.sharding is not None:
            weights = self.sharding.gather_weights(keep=is_main)
            moments = self.sharding.gather_moments(self.optimizer, keep=is_main)
            save_model = partial(self.sharding.save, weights)
        elif is_main:
            moments = flatten_moments(self.optimizer, self.model)
        if is_main:
            state = {
                "step": self.step,
                "best": self.best,
                "best_step": self.best_step,
                "num_worse": self.num_worse,
                "seconds": self.seconds,
                "fingerprint": self.task.fingerprint,
                "scaler": self.scaler.state_dict(),
            }
            save_checkpoint(self.run, state, moments, save_model)
            # Only now are older ones dropped: there is always a complete one to resume from.
            best = {self.best_step} if self.config.patience is not None else set()
            drop_checkpoints(self.run, self.kept | best | {self.step})
        self.accelerator.wait_for_everyone()

    def _resume(self) -> bool:
        """Continue from the newest checkpoint; tell whether there was one.

        Metrics of steps after it are removed: those steps are repeated.
        """
        state = read_state(self.run, self.task.fingerprint)
        self._drop_metrics(-1 if state is None else state["step"])
        if state is not None:
            load_checkpoint(self.run, state["step"], self.model, self.optimizer)
            self.step, self.best = state["step"], state["best"]
            self.best_step = state.get("best_step", state["step"])
            self.num_worse, self.seconds = state["num_worse"], state.get("seconds", 0.0)
            if state.get("scaler"):  # empty in any precision but fp16
                self.scaler.load_state_dict(state["scaler"])
        self.accelerator.wait_for_everyone()  # before the first process writes a checkpoint
        return state is not None

    def _share_weights(self) -> None:
        """Copy the weights of the first process to all others: they may have drawn other ones."""
        if self.accelerator.num_processes > 1 and self.sharding is None:
            for tensor in (*self.model.parameters(), *self.model.buffers()):
                torch.distributed.broadcast(tensor.data, src=0)

    def _drop_metrics(self, after: int) -> None:
        path = self.run / _METRICS
        if self.accelerator.is_main_process and path.exists():
            lines = path.read_text("utf-8").splitlines()
            kept = [line for line in lines if (read_metric(line) or _CUT)["step"] <= after]
            write_atomically(path, "".join(line + "\n" for line in kept))


def _own_weights(model: nn.Module) -> None:
    """Copy weights that are mapped from a file, in place, to memory of this process.

    Mapped weights lie where the file's header ends, elsewhere in a resumed run than in its start,
    and they change if the file is overwritten. Training writes those that are not frozen: a copy
    of them costs no memory.
    """
    for parameter in model.parameters():
        if parameter.device.type == "cpu" and parameter.requires_grad:
            parameter.data = parameter.data.clone()


def _release_memory() -> None:
    """Return the free memory of glibc's heap to the system."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in a list, so that a run can finish its step and save."""
    received: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {
            kind: signal.signal(kind, lambda number, _: received.append(number)) for kind in kinds
        }
    except ValueError:  # not in the main thread, which alone may handle signals
        yield received
        return
    try:
        yield received
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
