"""One training loop, for pretraining and for Mirror.

A `Task` says what a step is and what its loss is. The loop accumulates, schedules, clips, writes
checkpoints and resumes, on a CPU, a GPU or several (`accelerate launch`, `torchrun`): each process
takes its share of a step's batches, and gradients are summed over processes once a step. Every step
is seeded by its number, so a run that was stopped, in whatever way, goes on exactly as if it had
not been.

    RUN/checkpoints/step-0001200/   model, optimizer.safetensors, state.json (written last)
    RUN/metrics.jsonl               a line for each logged step and each validation
"""

import json
import math
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prixlm.errors import PrixError, Stopped
from prixlm.kb.disk import disk_errors, write_atomically

Progress = Callable[[str, int, int], None]


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
    patience: int | None = None  # stop after this many validations without a better one
    log_every: int = 10
    precision: str = "no"  # or bf16
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.lr > 0 or not 0 <= self.warmup <= 1 or not self.clip > 0:
            raise PrixError("lr and clip have to be above 0, and warmup from 0 to 1.")
        if any(not 0 <= share <= 1 for share in self.checkpoints):
            raise PrixError("checkpoints are shares of the run, from 0 to 1.")
        if self.precision not in ("no", "bf16"):
            raise PrixError(f"--precision {self.precision}: expected no or bf16.")


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
    """Linear warm-up, then linear to 0, for the update that makes step `step` (from 1)."""
    warmup = max(1, round(config.warmup * num_steps))
    if step <= warmup:
        return config.lr * step / warmup
    return config.lr * (num_steps - step + 1) / max(1, num_steps - warmup + 1)


def train(
    model: nn.Module,
    task: Task,
    config: TrainingConfig,
    run: Path,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train until the task's last step or an early stop; go on from the newest checkpoint."""
    accelerator = Accelerator(mixed_precision=config.precision)
    model = model.to(accelerator.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay
    )
    loop = _Loop(model, task, config, run, accelerator, optimizer, progress)
    with disk_errors(run / "checkpoints"), _signals() as stopping:
        return loop.run_all(stopping)


class _Loop:
    def __init__(
        self,
        model: nn.Module,
        task: Task,
        config: TrainingConfig,
        run: Path,
        accelerator: Accelerator,
        optimizer: torch.optim.Optimizer,
        progress: Progress | None,
    ) -> None:
        self.model, self.task, self.config, self.run = model, task, config, run
        self.accelerator, self.optimizer, self.progress = accelerator, optimizer, progress
        self.step = 0
        self.best: float | None = None
        self.num_worse = 0
        shares = {round(share * task.num_steps) for share in config.checkpoints}
        self.kept = shares | {task.num_steps}

    def run_all(self, stopping: list[int]) -> dict[str, Any]:
        (self.run / "checkpoints").mkdir(parents=True, exist_ok=True)
        self._resume()
        if self.step == 0:
            self._validate()
            self._save()
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        started, facts = time.monotonic(), 0
        for work in self.task.steps(self.step, rank, world):
            loss, norm = self._update(work)
            self.step += 1
            facts += work.num_facts
            rate = facts / (time.monotonic() - started)
            self._report(loss, norm, rate)
            stop = self.step % self.config.validate_every == 0 and self._validate()
            if stop or self.step in self.kept or self.step % self.config.save_every == 0:
                self._save()
            if stopping and self.step < self.task.num_steps:
                self._save()
                raise Stopped(f"stopped at step {self.step}", stopping[0])
            if stop:
                break
        if self.step % self.config.validate_every:
            self._validate()
        return {"step": self.step, "best": self.best}

    def _update(self, work: Step) -> tuple[float, float]:
        """One update from all batches of a step; its loss and the norm of its gradient."""
        config, model = self.config, self.model
        model.train()
        torch.manual_seed(config.seed * 1_000_003 + 2 * self.step + self.accelerator.process_index)
        total = torch.zeros((), device=self.accelerator.device)
        for batch in work.batches:
            with self.accelerator.autocast():
                loss = self.task.loss(model, batch) / work.normaliser
            self.accelerator.backward(loss)
            total += loss.detach()
        if self.accelerator.num_processes > 1:
            total = self._sum(total)
            for parameter in model.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad = self._sum(parameter.grad)
        if not math.isfinite(total.item()):
            raise PrixError(
                f"the loss is {total.item()} at step {self.step + 1}, before the update. The last "
                f"checkpoint is whole; go on from it with a lower learning rate."
            )
        norm = nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(config, self.step + 1, self.task.num_steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total.item(), float(norm)

    def _sum(self, value: Tensor) -> Tensor:
        reduced: Tensor = self.accelerator.reduce(value, reduction="sum")
        return reduced

    def _report(self, loss: float, norm: float, rate: float) -> None:
        if self.progress is not None:
            self.progress(f"loss {loss:.3f}  {rate:,.0f} facts/s", self.step, self.task.num_steps)
        if self.step % self.config.log_every == 0 or self.step == self.task.num_steps:
            lr = self.optimizer.param_groups[0]["lr"]
            self._log({"loss": loss, "gradient": norm, "lr": lr, "facts_per_second": rate})

    def _log(self, values: dict[str, float]) -> None:
        if self.accelerator.is_main_process:
            with (self.run / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": self.step, **values}) + "\n")

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
        self.best = loss if better else self.best
        self.num_worse = 0 if better else self.num_worse + 1
        return self.config.patience is not None and self.num_worse >= self.config.patience

    def _folder(self, step: int) -> Path:
        return checkpoint_folder(self.run, step)

    def _save(self) -> None:
        """Write a checkpoint under a temporary name, and drop the ones that no rule keeps."""
        if self.accelerator.is_main_process and not self._folder(self.step).exists():
            work = self.run / "checkpoints" / "writing"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            self.task.save(self.model, work)
            save_file(_flatten(self.optimizer, self.model), str(work / "optimizer.safetensors"))
            state = {
                "step": self.step,
                "best": self.best,
                "num_worse": self.num_worse,
                "fingerprint": self.task.fingerprint,
            }
            write_atomically(work / "state.json", json.dumps(state))
            work.rename(self._folder(self.step))
            for step in checkpoint_steps(self.run):
                if step != self.step and step not in self.kept:
                    shutil.rmtree(self._folder(step))
        self.accelerator.wait_for_everyone()

    def _resume(self) -> None:
        """Take up the newest checkpoint: weights, moments, step; later metrics are forgotten."""
        steps = checkpoint_steps(self.run)
        if not steps:
            return
        folder = self._folder(steps[-1])
        state = json.loads((folder / "state.json").read_text("utf-8"))
        if state["fingerprint"] != self.task.fingerprint:
            differ = [
                k for k, v in self.task.fingerprint.items() if state["fingerprint"].get(k) != v
            ]
            raise PrixError(
                f"{self.run} has a checkpoint of another run (other {', '.join(differ)}). "
                "Give the same options as then, or another folder."
            )
        weights = load_file(str(folder / "model.safetensors"))
        backbone: Any = getattr(self.model, "backbone", self.model)
        missing, unexpected = backbone.load_state_dict(weights, strict=False)
        assert not unexpected and all("decoder" in name for name in missing), (missing, unexpected)
        backbone.tie_weights()
        _unflatten(self.optimizer, self.model, load_file(str(folder / "optimizer.safetensors")))
        self.step, self.best, self.num_worse = state["step"], state["best"], state["num_worse"]
        self._forget_metrics()

    def _forget_metrics(self) -> None:
        path = self.run / "metrics.jsonl"
        if self.accelerator.is_main_process and path.exists():
            lines = path.read_text("utf-8").splitlines()
            kept = [line for line in lines if _step_of(line) <= self.step]
            write_atomically(path, "".join(line + "\n" for line in kept))


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:07d}"


def checkpoint_steps(run: Path) -> list[int]:
    """The steps of a run's whole checkpoints, in order."""
    folders = (run / "checkpoints").glob("step-*/state.json")
    return sorted(int(re.sub(r"\D", "", path.parent.name)) for path in folders)


def _step_of(line: str) -> float:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError):
        return math.inf  # half a line: the run was killed while it wrote


def _flatten(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Adam's moments by parameter name, for safetensors."""
    flat = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            flat[f"{name}/{key}"] = torch.as_tensor(value).contiguous()
    return flat


def _unflatten(optimizer: torch.optim.Optimizer, model: nn.Module, flat: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        state = {k.split("/")[1]: v for k, v in flat.items() if k.split("/")[0] == name}
        if state:
            moved = {k: v if k == "step" else v.to(parameter.device) for k, v in state.items()}
            optimizer.state[parameter] = moved


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
