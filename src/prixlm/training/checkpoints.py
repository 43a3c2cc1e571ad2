"""Checkpoints of a run: complete or absent, in safetensors and JSON only.

    RUN/checkpoints/step-0001200/   model, optimizer.safetensors, state.json

A checkpoint is written under a temporary name and renamed, so that a kill at any moment leaves the
last one complete. It carries a fingerprint of everything that decides what is learnt; a run with
another fingerprint refuses it.
"""

import json
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
from prixlm.files import disk_errors, whole_folder
from prixlm.lm.model import ADAPTER

_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"


def checkpoint_folder(run: Path, step: int) -> Path:
    """Return the folder of the checkpoint after `step` updates."""
    return run / "checkpoints" / f"step-{step:07d}"


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps of a run's complete checkpoints, in order."""
    names = [path.parent.name for path in (run / "checkpoints").glob(f"step-*/{_STATE}")]
    # A temporary folder, step-0001200.PID.tmp, does not match the whole pattern.
    matches = [re.fullmatch(r"step-(\d+)", name) for name in names]
    return sorted(int(match[1]) for match in matches if match)


def save_checkpoint(
    run: Path,
    state: dict[str, Any],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    save_model: Callable[[nn.Module, Path], None],
) -> None:
    """Write the checkpoint of `state["step"]`, unless it exists.

    The caller holds the lock of the run's checkpoints: no other process writes any.
    """
    folder = checkpoint_folder(run, state["step"])
    if (folder / _STATE).exists():
        return
    for abandoned in folder.parent.glob("step-*.tmp"):  # of a run that was killed while saving
        shutil.rmtree(abandoned)
    shutil.rmtree(folder, ignore_errors=True)  # one whose removal was interrupted
    with saving(folder), whole_folder(folder) as temporary:
        save_model(model, temporary)
        save_file(_flatten(optimizer, model), str(temporary / _OPTIMIZER))
        (temporary / _STATE).write_text(json.dumps(state), "utf-8")


def drop_checkpoints(run: Path, keep: Collection[int]) -> None:
    """Remove all checkpoints but those of the steps in `keep`."""
    for step in checkpoint_steps(run):
        if step not in keep:
            folder = checkpoint_folder(run, step)
            (folder / _STATE).unlink()  # first: without it, a folder is not a checkpoint
            shutil.rmtree(folder)


def read_state(run: Path, fingerprint: dict[str, Any]) -> dict[str, Any] | None:
    """Return the state of the newest checkpoint, or None; refuse one of another run.

    fingerprint: hashes by name, such as `KB` and `config`. All of them have to agree.
    """
    state = _newest_state(run)
    if state is None:
        return None
    saved = state["fingerprint"]
    differing = sorted(name for name, value in fingerprint.items() if saved.get(name) != value)
    if differing:
        raise PrixError(
            f"{run} has a checkpoint of another run (different {', '.join(differing)}). "
            "Repeat the options of that run, or name another folder."
        )
    return state


def training_seconds(run: Path) -> float | None:
    """Return how long the updates of a run took, up to its newest checkpoint; None if unknown."""
    state = _newest_state(run)
    return None if state is None else float(state.get("seconds", 0.0)) or None


def load_checkpoint(
    run: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Load the weights and the optimizer's moments of a checkpoint, in place."""
    folder = checkpoint_folder(run, step)
    adapter: Any = getattr(model, "adapter", None)
    name = "model.safetensors" if adapter is None else ADAPTER
    try:
        weights = load_file(str(folder / name))
        moments = load_file(str(folder / _OPTIMIZER))
    except (SafetensorError, OSError) as error:
        raise PrixError(
            f"{folder} is damaged ({error}). Delete it to resume from the checkpoint before it."
        ) from None
    if adapter is None:
        _load_weights(model, weights)
    else:  # the frozen weights are those of the base, which the model was made from
        adapter.load_trained(weights)
    for name, parameter in model.named_parameters():
        state = {k.split("/")[1]: v for k, v in moments.items() if k.split("/")[0] == name}
        if state:
            # Copied: `load_file` maps the file into memory, at addresses that are not aligned.
            device = parameter.device
            optimizer.state[parameter] = {k: v.to(device, copy=True) for k, v in state.items()}


def _load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    # A PrixLM saves its backbone alone, so that transformers can load it; others save themselves.
    backbone: Any = getattr(model, "backbone", model)
    missing, unexpected = backbone.load_state_dict(weights, strict=False)
    # A projection that is tied to the embeddings is saved only once.
    tied = getattr(backbone, "all_tied_weights_keys", {})
    assert not unexpected and set(missing) <= set(tied), (missing, unexpected)
    if hasattr(backbone, "tie_weights"):
        backbone.tie_weights()


@contextmanager
def saving(folder: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one clear line, also if safetensors reports it."""
    with disk_errors(folder):
        try:
            yield
        except SafetensorError as error:
            # It wraps the system's error in a text: find the number of the error in it.
            code = re.search(r"(?:code: |os error )(\d+)", str(error))
            if code is None:
                raise
            raise OSError(int(code[1]), str(error), str(folder)) from None


def _newest_state(run: Path) -> dict[str, Any] | None:
    steps = checkpoint_steps(run)
    if not steps:
        return None
    text = (checkpoint_folder(run, steps[-1]) / _STATE).read_text("utf-8")
    state: dict[str, Any] = json.loads(text)
    return state


def _flatten(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's moments as `parameter/moment`, for safetensors."""
    flat = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            flat[f"{name}/{key}"] = torch.as_tensor(value).contiguous()
    return flat
