"""Checkpoints of a run: whole or not there, safetensors and JSON only.

    RUN/checkpoints/step-0001200/   model, optimizer.safetensors, state.json (written last)

A checkpoint is written under another name and renamed, so a kill at any moment leaves the last one
whole. It carries a fingerprint of what it was made from; a run of anything else refuses it.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from prixlm.errors import PrixError
from prixlm.files import disk_errors, write_atomically

_OPTIMIZER = "optimizer.safetensors"


def checkpoint_folder(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:07d}"


def checkpoint_steps(run: Path) -> list[int]:
    """The steps of a run's whole checkpoints, in order."""
    folders = (run / "checkpoints").glob("step-*/state.json")
    return sorted(int(re.sub(r"\D", "", path.parent.name)) for path in folders)


def save_checkpoint(
    run: Path,
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    save_model: Callable[[nn.Module, Path], None],
) -> None:
    """Write the checkpoint of `state["step"]`, unless it is there."""
    folder = checkpoint_folder(run, state["step"])
    if (folder / "state.json").exists():
        return
    work = folder.with_name("writing")
    shutil.rmtree(work, ignore_errors=True)
    with saving(work):
        work.mkdir(parents=True)
        save_model(model, work)
        save_file(_flatten(optimizer, model), str(work / _OPTIMIZER))
        for path in filter(Path.is_file, work.rglob("*")):
            with path.open("rb") as file:
                os.fsync(file.fileno())
        write_atomically(work / "state.json", json.dumps(state))
        work.rename(folder)


def drop_checkpoints(run: Path, keep: Collection[int]) -> None:
    """Remove the checkpoints that no rule keeps."""
    for step in checkpoint_steps(run):
        if step not in keep:
            folder = checkpoint_folder(run, step)
            (folder / "state.json").unlink()  # first: half a checkpoint is none
            shutil.rmtree(folder)


def read_state(run: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """The state of the newest checkpoint, if there is one and it belongs to this run."""
    steps = checkpoint_steps(run)
    if not steps:
        return None
    path = checkpoint_folder(run, steps[-1]) / "state.json"
    state: dict[str, Any] = json.loads(path.read_text("utf-8"))
    found = state["fingerprint"]
    differ = sorted(key for key, value in fingerprint.items() if found.get(key) != value)
    if differ:
        raise PrixError(
            f"{run} has a checkpoint of another run (other {', '.join(differ)}). "
            "Give the same options as then, or another folder."
        )
    return state


def training_seconds(run: Path) -> float | None:
    """How long the updates of a run took, up to its newest checkpoint."""
    steps = checkpoint_steps(run)
    if not steps:
        return None
    state = json.loads((checkpoint_folder(run, steps[-1]) / "state.json").read_text("utf-8"))
    return float(state.get("seconds", 0.0)) or None


def load_checkpoint(
    run: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """The weights and Adam's moments of a checkpoint."""
    folder = checkpoint_folder(run, step)
    try:
        weights = load_file(str(folder / "model.safetensors"))
        moments = load_file(str(folder / _OPTIMIZER))
    except (SafetensorError, OSError) as error:
        raise PrixError(
            f"{folder} is damaged ({error}). Remove it: the run goes on from the one before."
        ) from None
    backbone: Any = getattr(model, "backbone", model)
    missing, unexpected = backbone.load_state_dict(weights, strict=False)
    assert not unexpected and all("decoder" in name for name in missing), (missing, unexpected)
    if hasattr(backbone, "tie_weights"):
        backbone.tie_weights()
    for name, parameter in model.named_parameters():
        state = {k.split("/")[1]: v for k, v in moments.items() if k.split("/")[0] == name}
        if state:
            optimizer.state[parameter] = {k: v.to(parameter.device) for k, v in state.items()}


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """A full disk as one clear line, also where safetensors has its own words for it."""
    with disk_errors(folder):
        try:
            yield
        except SafetensorError as error:
            code = re.search(r"(?:code: |os error )(\d+)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), str(error), str(folder)) from None


def _flatten(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Adam's moments by parameter name, for safetensors."""
    flat = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            flat[f"{name}/{key}"] = torch.as_tensor(value).contiguous()
    return flat
