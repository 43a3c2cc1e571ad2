"""Checkpoints of a run: complete or absent, in safetensors and JSON only.

    RUN/checkpoints/step-0001200/   model, optimizer.safetensors, state.json

A checkpoint is written under a temporary name and renamed, so that a kill at any moment leaves the
last one complete. It carries a fingerprint of everything that decides what is learnt; a run with
another fingerprint refuses it.
"""

import json
import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from prixlm.config import checked
from prixlm.errors import PrixError
from prixlm.files import disk_errors, read_json, whole_folder
from prixlm.lm.model import ADAPTER
from prixlm.lm.weights import is_finite

logger = logging.getLogger(__name__)
_OPTIMIZER = "optimizer.safetensors"
_STATE = "state.json"
_NUM_STEPS, _ADAM, _ADAGRAD = "step", {"step", "exp_avg", "exp_avg_sq"}, {"step", "sum"}
"""What the optimizers keep of a parameter."""
_KINDS: dict[str, Any] = {
    "step": int,
    "best": float | None,
    "num_worse": int,
    "fingerprint": dict[str, Any],
    "best_step": int,
    "seconds": float,
    "scaler": dict[str, float],
}
"""Kinds of the values of a state."""
_NEWER = ("best_step", "seconds", "scaler")
"""Those that runs of older versions do not have."""


def is_point(point: float) -> bool:
    """Tell whether a number names a point of a run: a share from 0 to 1, or a step above 1."""
    return 0 <= point <= 1 or (point > 1 and float(point).is_integer())


def parse_point(text: str) -> float:
    """Read a point of a run: a share (`0.75`) or a step (`150000`, `150k`)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(k?)", text.strip().lower().replace("_", ""))
    # Rounded, because 1.1 * 1000 is not whole; `0.5k` is step 500, not a share.
    point = -1.0 if match is None else float(match[1])
    if match is not None and match[2]:
        point = float(round(point * 1000))
    if not is_point(point):
        raise PrixError(
            f"checkpoint {text}: expected a share of the run (0.75), or a step (150000 or 150k)."
        )
    return point


def step_of(point: float, num_steps: int) -> int:
    """Return the step of a point of a run that has `num_steps`."""
    return round(point * num_steps) if point <= 1 else int(point)


def steps_to_keep(points: Iterable[float], num_steps: int) -> set[int]:
    """Return the steps whose checkpoints a run keeps: those of the points, and its last one."""
    steps = {step_of(point, num_steps) for point in points} | {num_steps}
    beyond = sorted(step for step in steps if step > num_steps)
    if beyond:
        logger.warning(
            "no checkpoint at %s: the run ends at step %d", ", ".join(map(str, beyond)), num_steps
        )
    return steps - set(beyond)


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
    moments: dict[str, Tensor],
    save_model: Callable[[Path], None],
) -> None:
    """Write the checkpoint of `state["step"]`, unless it exists.

    moments: of the optimizer, as `flatten_moments` names them.
    The caller holds the lock of the run's checkpoints: no other process writes any.
    """
    folder = checkpoint_folder(run, state["step"])
    if (folder / _STATE).exists():
        return
    for abandoned in folder.parent.glob("step-*.tmp"):  # of a run that was killed while saving
        shutil.rmtree(abandoned)
    shutil.rmtree(folder, ignore_errors=True)  # one whose removal was interrupted
    with saving(folder), whole_folder(folder) as temporary:
        save_model(temporary)
        save_file(moments, str(temporary / _OPTIMIZER))
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
        _check_weights(weights, model)
        _check_moments(moments, model, optimizer)
    except (SafetensorError, OSError, ValueError) as error:
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
            optimizer.state[parameter] = {
                key: _divided(value.to(device, copy=True), parameter)
                for key, value in state.items()
            }


def _check_weights(weights: dict[str, Tensor], model: nn.Module) -> None:
    """Raise ValueError unless these are the weights that a checkpoint of the model has."""
    adapter: Any = getattr(model, "adapter", None)
    backbone: Any = getattr(model, "backbone", model)
    own = backbone.state_dict() if adapter is None else adapter.trained_state()
    # A projection that is tied to the embeddings is saved only once.
    tied = set(getattr(backbone, "all_tied_weights_keys", {})) if adapter is None else set()
    odd = sorted((weights.keys() - own.keys()) | (own.keys() - weights.keys() - tied))
    if odd:
        raise ValueError(f"the weights of {odd[0]} are missing or unknown")
    for name, tensor in weights.items():
        _check_tensor(name, tensor, own[name])


def _check_moments(
    moments: dict[str, Tensor], model: nn.Module, optimizer: torch.optim.Optimizer
) -> None:
    """Raise ValueError unless these are the optimizer's moments of the model's parameters."""
    expected = _ADAM if "betas" in optimizer.param_groups[0] else _ADAGRAD
    own = dict(model.named_parameters())
    kinds: dict[str, set[str]] = {}
    for place, tensor in moments.items():
        name, _, kind = place.partition("/")
        if name not in own:
            raise ValueError(f"the optimizer has an unknown {name}")
        kinds.setdefault(name, set()).add(kind)
        _check_tensor(place, tensor, torch.tensor(0.0) if kind == _NUM_STEPS else own[name])
    for name, found in kinds.items():
        if found != expected:
            raise ValueError(f"the optimizer has {', '.join(sorted(found))} of {name}")


def _check_tensor(name: str, tensor: Tensor, like: Tensor) -> None:
    if tensor.shape != like.shape:
        raise ValueError(f"{name} has shape {[*tensor.shape]}, expected {[*like.shape]}")
    if not is_finite(tensor):
        raise ValueError(f"{name} has values that are not finite numbers")


def _load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    # A PrixLM saves its backbone alone, so that transformers can load it; others save themselves.
    backbone: Any = getattr(model, "backbone", model)
    own = backbone.state_dict()
    weights = {name: _divided(tensor, own[name]) for name, tensor in weights.items()}
    backbone.load_state_dict(weights, strict=False)  # `_check_weights` was strict
    if hasattr(backbone, "tie_weights"):
        backbone.tie_weights()


def _divided(whole: Tensor, like: Tensor) -> Tensor:
    """Return a process's part of a tensor if the weight that it belongs to is divided among them.

    Every process has read the whole of it, so that nothing is sent.
    """
    if not isinstance(like, DTensor) or whole.shape != like.shape:  # Adam counts steps in a scalar
        return whole
    whole = whole.to(like.device)
    return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)


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
    folder = checkpoint_folder(run, steps[-1])
    try:
        return checked(read_json(folder / _STATE), _KINDS, optional=_NEWER)
    except (OSError, ValueError) as error:
        raise PrixError(
            f"{folder} is damaged ({error}). Delete it to resume from the checkpoint before it."
        ) from None


def flatten_moments(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimizer's moments as `parameter/moment`, for safetensors."""
    flat = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            flat[f"{name}/{key}"] = torch.as_tensor(value).contiguous()
    return flat
