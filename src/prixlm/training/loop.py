"""One training loop, for pretraining and for Mirror.

A `Task` says what a step is and what its loss is. The loop accumulates, schedules, clips, writes
checkpoints and resumes, on a CPU, a GPU or several (`accelerate launch`, `torchrun`): each process
takes its share of a step's batches, and gradients are summed over processes once a step. Every step
is seeded by its number, so a run that was stopped, in whatever way, goes on exactly as if it had
not been.

    RUN/checkpoints/step-0001200/   see `checkpoints`
    RUN/metrics.jsonl               a line for each logged step and each validation
"""

import ctypes
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
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from accelerate import Accelerator, PartialState
from torch import Tensor, nn

from prixlm.errors import PrixError, Stopped
from prixlm.files import disk_errors, write_atomically
from prixlm.training.checkpoints import (
    drop_checkpoints,
    load_checkpoint,
    read_state,
    save_checkpoint,
)
from prixlm.types import Progress

TRACKERS = ("tensorboard", "wandb")
NOT_IN_FINGERPRINT = ("checkpoints", "log_every", "save_every", "trackers")
"""Settings that change nothing in what is learnt: a run may go on with others."""
_BUCKET = 1 << 24
"""Gradients (as numbers) that are summed over processes in one message."""
_RELEASE_EVERY = 25
"""Steps after which free memory goes back to the system: passes of ever other sizes leave gaps in
the C library's heap, and without this a run of an hour held more than twice as much."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How to train; the defaults are the paper's, and the clipping is ours."""

    lr: float = 5e-5  # highest learning rate
    betas: tuple[float, float] = (0.9, 0.98)  # of Adam
    weight_decay: float = 0.0
    warmup: float = 0.06  # share of the steps over which the rate rises; then it falls to 0
    clip: float = 1.0  # largest norm of the gradient; ours, the paper states none
    checkpoints: tuple[float, ...] = (0.0, 0.1, 0.75, 1.0)  # shares of the run that are kept
    save_every: int = 500  # steps between checkpoints to go on from; the last one is kept
    validate_every: int = 500  # steps between validations
    patience: int | None = None  # stop after so many validations without a better one; keep that
    log_every: int = 10
    precision: str = "auto"  # bf16 on a GPU that has it, else no; or no, or bf16
    trackers: tuple[str, ...] = ()  # tensorboard, wandb
    optimizer: str = "adam"  # or adagrad
    schedule: str = "linear"  # after the warm-up the rate falls to 0; or constant
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 <= self.warmup <= 1 or not self.clip > 0:
            raise PrixError("lr and clip have to be above 0, and warmup from 0 to 1.")
        if any(not 0 <= share <= 1 for share in self.checkpoints):
            raise PrixError("checkpoints are shares of the run, from 0 to 1.")
        if self.optimizer not in ("adam", "adagrad"):
            raise PrixError(f"optimizer {self.optimizer}: expected adam or adagrad.")
        if self.schedule not in ("linear", "constant"):
            raise PrixError(f"schedule {self.schedule}: expected linear or constant.")
        if self.precision not in ("auto", "no", "bf16"):
            raise PrixError(f"precision {self.precision}: expected auto, no or bf16.")
        if min(self.save_every, self.validate_every, self.log_every, self.patience or 1) < 1:
            raise PrixError("save_every, validate_every, log_every and patience are 1 or more.")
        for name in self.trackers:
            if name not in TRACKERS:
                raise PrixError(f"tracker {name}: expected {' or '.join(TRACKERS)}.")


@dataclass(frozen=True)
class Step:
    """The batches of one update, for one process, and what the sum of losses is divided by."""

    batches: list[Any]
    normaliser: float
    num_facts: int


class Task(Protocol):
    """What is trained: pretraining or Mirror."""

    num_steps: int
    fingerprint: dict[str, Any]
    """What a checkpoint must agree on to be gone on from."""

    def steps(self, first: int, rank: int, world: int) -> Iterator[Step]: ...

    def loss(self, model: Any, batch: Any) -> Tensor: ...

    def validate(self, model: Any) -> dict[str, float]: ...

    def save(self, model: Any, folder: Path) -> None: ...


def learning_rate(config: TrainingConfig, step: int, num_steps: int) -> float:
    """Linear warm-up, then linear to 0 or constant, for the update that makes step `step`."""
    warmup = max(1, round(config.warmup * num_steps))
    if step <= warmup:
        return config.lr * step / warmup
    if config.schedule == "constant":
        return config.lr
    return config.lr * (num_steps - step + 1) / max(1, num_steps - warmup + 1)


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    run: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train until the task's last step or an early stop; go on from the newest checkpoint.

    With patience, the weights at the end are those of the best validation.
    """
    precision = choose_precision(config.precision)
    trackers = [_check_tracker(name) for name in config.trackers]
    processes()
    with disk_errors(run / "metrics.jsonl"):
        run.mkdir(parents=True, exist_ok=True)
        accelerator = Accelerator(
            mixed_precision=precision, log_with=trackers or None, project_dir=str(run)
        )
        model = model.to(accelerator.device)
        loop = _Loop(model, task, config, run, accelerator, progress)
        with _signals() as stopping:
            return loop.run_all(stopping)


def processes() -> PartialState:
    """The processes of this run; several on CPUs too, where there is no GPU."""
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "false").lower() in ("true", "1")
    return PartialState(cpu=use_cpu or not torch.accelerator.is_available())


def make_optimizer(model: nn.Module, config: TrainingConfig) -> torch.optim.Optimizer:
    """The paper's Adam (with weight decay, its decoupled form), or Adagrad."""
    if config.optimizer == "adagrad":
        return torch.optim.Adagrad(
            model.parameters(), lr=config.lr, weight_decay=config.weight_decay, fused=True
        )
    return torch.optim.AdamW(
        model.parameters(),
        lr=config.lr,
        betas=config.betas,
        weight_decay=config.weight_decay,
        fused=True,
    )


def choose_precision(wanted: str) -> str:
    """`bf16` or `no`: what `wanted` means on this machine."""
    if torch.cuda.is_available():
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if wanted == "bf16" and not has_bf16:
            raise PrixError("this GPU cannot multiply in bf16: leave out --precision.")
        return "bf16" if has_bf16 and wanted != "no" else "no"
    if wanted == "bf16" and not _cpu_has_bf16():
        raise PrixError("this machine cannot multiply in bf16: leave out --precision.")
    return "bf16" if wanted == "bf16" else "no"


def _cpu_has_bf16() -> bool:
    """Tried in a process of its own: some machines claim bf16 and die of it."""
    code = "import torch; a = torch.ones(512, 512, dtype=torch.bfloat16); a @ a"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    return done.returncode == 0


def _check_tracker(name: str) -> str:
    if importlib.util.find_spec(name) is None:
        raise PrixError(f"the tracker {name} is not installed: run `pip install {name}`.")
    return name


class _Loop:
    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        run: Path,
        accelerator: Accelerator,
        progress: Progress | None,
    ) -> None:
        self.model, self.task, self.config, self.run = model, task, config, run
        self.accelerator, self.progress = accelerator, progress
        self.optimizer = make_optimizer(model, config)
        self.step = 0
        self.best: float | None = None
        self.best_step = 0
        self.num_worse = 0
        self.seconds = 0.0  # of updates, over all stretches of a run
        self.kept = {round(share * task.num_steps) for share in config.checkpoints}
        self.kept.add(task.num_steps)

    def run_all(self, stopping: list[int]) -> dict[str, Any]:
        is_new = not self._resume()
        if self._has_lost_patience():
            return self._finish()
        if self.config.trackers:
            self.accelerator.init_trackers("prixlm")
        if is_new:
            self._validate()
            self._save()
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        seconds, facts = 0.0, 0
        started = time.monotonic()
        for work in self.task.steps(self.step, rank, world):
            loss, norm, stop_signal = self._update(work, stopping)
            self.step += 1
            facts += work.num_facts
            took = time.monotonic() - started
            seconds, self.seconds = seconds + took, self.seconds + took
            self._report(loss, norm, facts / seconds)
            if self.step % _RELEASE_EVERY == 0:
                _release_memory()
            is_last = self.step == self._last()
            due = is_last or self.step % self.config.validate_every == 0
            stop = due and self._validate()
            if stop or self._is_kept() or self.step % self.config.save_every == 0:
                self._save()
            if world == 1 and stopping:
                stop_signal = stopping[0]
            if stop_signal and self.step < self.task.num_steps:
                self._save()
                raise Stopped(f"stopped at step {self.step}", stop_signal)
            if stop:
                break
            started = time.monotonic()  # validations and checkpoints are not counted
        if self.config.trackers:
            self.accelerator.end_training()
        return self._finish()

    def _finish(self) -> dict[str, Any]:
        """Where the run ended; its early stop goes back to the best weights."""
        is_early = self.config.patience is not None and self.best is not None
        if is_early and self.best_step < self.step:
            load_checkpoint(self.run, self.best_step, self.model, self.optimizer)
        return {"step": self.step, "best": self.best, "best_step": self.best_step}

    def _is_kept(self) -> bool:
        is_best = self.config.patience is not None and self.best_step == self.step
        return is_best or self.step in self.kept

    def _update(self, work: Step, stopping: list[int]) -> tuple[float, float, int]:
        """One update from all batches of a step: its loss, the gradient's norm, a stop signal."""
        config, model = self.config, self.model
        model.train()
        parts = [config.seed, self.step, self.accelerator.process_index]
        torch.manual_seed(int(np.random.SeedSequence(parts).generate_state(1)[0]))
        total = torch.zeros(2, device=self.accelerator.device)
        for batch in work.batches:
            with self.accelerator.autocast():
                loss = self.task.loss(model, batch) / work.normaliser
            self.accelerator.backward(loss)
            total[0] += loss.detach()
        # All processes stop after the same step, whichever of them the signal reached.
        total[1] = stopping[0] if stopping else 0
        if self.accelerator.num_processes > 1:
            total[0] = self._sum(total[0])
            total[1] = self.accelerator.gather(total[1:]).max()
            self._sum_gradients()
        value = total[0].item()
        if not math.isfinite(value):
            raise PrixError(
                f"the loss is {value} at step {self.step + 1}, before the update. The last "
                f"checkpoint is whole; start again in another folder with a lower learning rate."
            )
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), config.clip))
        if not math.isfinite(norm):
            raise PrixError(
                f"the gradient's norm is {norm} at step {self.step + 1}, before the update. The "
                "last checkpoint is whole; start again in another folder with a lower learning "
                "rate."
            )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.step + 1, self.task.num_steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return value, norm, int(total[1].item())

    def _sum(self, value: Tensor) -> Tensor:
        reduced: Tensor = self.accelerator.reduce(value, reduction="sum")
        return reduced

    def _sum_gradients(self) -> None:
        """Sum the gradients of all processes, many in one message."""
        grads: list[Tensor] = []
        for parameter in self.model.parameters():
            if parameter.grad is None:  # no batch of this process reached it
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
            if sum(grad.numel() for grad in grads) >= _BUCKET:
                self._sum_bucket(grads)
                grads = []
        if grads:
            self._sum_bucket(grads)

    def _sum_bucket(self, grads: list[Tensor]) -> None:
        summed = self._sum(torch.cat([grad.reshape(-1) for grad in grads]))
        parts = torch.split(summed, [grad.numel() for grad in grads])
        for grad, part in zip(grads, parts, strict=True):
            grad.copy_(part.view_as(grad))

    def _report(self, loss: float, norm: float, rate: float) -> None:
        if self.progress is not None and self.accelerator.is_main_process:
            self.progress(f"train loss {loss:.3f} {rate:,.0f} facts/s", self.step, self._last())
        if self.step % self.config.log_every == 0 or self.step == self._last():
            lr = self.optimizer.param_groups[0]["lr"]
            self._log({"loss": loss, "gradient": norm, "lr": lr, "facts_per_second": rate})

    def _last(self) -> int:
        return self.task.num_steps

    def _log(self, values: dict[str, float]) -> None:
        if self.accelerator.is_main_process:
            with (self.run / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.step, **values}) + "\n")
        if self.config.trackers:
            self.accelerator.log(values, step=self.step)

    def _validate(self) -> bool:
        """Validate and log; whether the run should stop early."""
        self.model.eval()
        with torch.no_grad():
            figures = self.task.validate(self.model)
        if not figures:
            return False
        self._log({f"valid_{name}": value for name, value in figures.items()})
        loss = figures["loss"]
        better = self.best is None or loss < self.best
        if better:
            self.best, self.best_step = loss, self.step
        self.num_worse = 0 if better else self.num_worse + 1
        return self._has_lost_patience()

    def _has_lost_patience(self) -> bool:
        return self.config.patience is not None and self.num_worse >= self.config.patience

    def _save(self) -> None:
        """Write a checkpoint, and drop the ones that no rule keeps."""
        if self.accelerator.is_main_process:
            state = {
                "step": self.step,
                "best": self.best,
                "best_step": self.best_step,
                "num_worse": self.num_worse,
                "seconds": self.seconds,
                "fingerprint": self.task.fingerprint,
            }
            save_checkpoint(self.run, state, self.model, self.optimizer, self.task.save)
            best = {self.best_step} if self.config.patience is not None else set()
            drop_checkpoints(self.run, self.kept | best | {self.step})
        self.accelerator.wait_for_everyone()

    def _resume(self) -> bool:
        """Take up the newest checkpoint, if there is one: weights, moments, step; later metrics are
        forgotten."""
        state = read_state(self.run, self.task.fingerprint)
        self._forget_metrics(-1 if state is None else state["step"])
        if state is not None:
            load_checkpoint(self.run, state["step"], self.model, self.optimizer)
            self.step, self.best = state["step"], state["best"]
            self.best_step = state.get("best_step", state["step"])
            self.num_worse, self.seconds = state["num_worse"], state.get("seconds", 0.0)
        self.accelerator.wait_for_everyone()  # before the first process writes a checkpoint
        return state is not None

    def _forget_metrics(self, after: int) -> None:
        path = self.run / "metrics.jsonl"
        if self.accelerator.is_main_process and path.exists():
            lines = path.read_text("utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= after]
            write_atomically(path, "".join(line + "\n" for line in kept))


def _release_memory() -> None:
    """Give the gaps of the C library's heap back, where it is glibc."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf  # half a line: the run was killed while it wrote


@contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGINT and SIGTERM end a run after its step, with a checkpoint; the list says which came."""
    came: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    try:
        before = {
            kind: signal.signal(kind, lambda number, _: came.append(number)) for kind in kinds
        }
    except ValueError:  # not in the main thread: whoever runs us has the signals
        yield came
        return
    try:
        yield came
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
