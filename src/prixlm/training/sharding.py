"""Share one model among several processes: FSDP, for bases that do not fit one GPU (`--shard`).

    sharding = Sharding(model)
    sharding.place(device)                        # each process keeps its part of every weight
    sharding.gather_weights(keep=is_first)        # the whole of them in one process, to save

Weights, gradients and Adam's moments are cut along their first dimension, one part per process.
The weights of a layer are whole only while that layer is computed. The model runs transformers'
modules piece by piece and never calls a layer itself (`lm/kernels.py`), so a layer is given a
method to run through, and torch gathers its weights around it. Embeddings, the last norm and the
prediction head are one further part, whole during a pass.

Checkpoints hold whole tensors, as those of one process do: a run resumes on any number of
processes, also without sharding.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from prixlm.lm.model import PrixLM

_CALL = "run_with_whole_weights"
"""Method of a sharded layer: its weights are gathered before it and freed after it."""


class Sharding:
    """A model that is divided among the processes of a run."""

    def __init__(self, model: PrixLM) -> None:
        """Take a model that is whole in every process, on its CPU; `place` divides it."""
        assert model.adapter is None
        self.model = model

    def place(self, device: torch.device) -> None:
        """Divide the model, layer by layer, so that a GPU never holds more than one whole layer.

        All processes start with the weights of the first.
        """
        mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
        layers = list(self.model.kind.layers)
        for layer in layers:
            _share(layer, device)
            fully_shard(layer, mesh=mesh)
            setattr(layer, _CALL, _apply)
            register_fsdp_forward_method(layer, _CALL)
        _share(self.model, device)
        fully_shard(self.model, mesh=mesh)
        register_fsdp_forward_method(self.model, "loss")
        for module in (*layers, self.model):
            # Summed, not averaged: losses are divided by the targets of all processes already.
            # A plain sum, since gloo refuses a scaled one.
            sharded = cast(FSDPModule, module)
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)

        def call(layer: int, run: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
            return cast(Tensor, getattr(layers[layer], _CALL)(run, states))

        self.model.kind.call_layer = call

    def gather_weights(self, *, keep: bool) -> dict[str, Tensor]:
        """Return the whole weights of the backbone, on the CPU.

        Every process has to call it. keep: whether this one wants them; others get nothing.
        """
        self.free()
        backbone = self.model.backbone
        saved = set(backbone.state_dict())
        tensors = (*backbone.named_parameters(remove_duplicate=False), *backbone.named_buffers())
        names: dict[Any, list[str]] = {}  # of each tensor; a tied one has two
        for name, tensor in tensors:
            if name in saved:
                names.setdefault(tensor, []).append(name)
        weights: dict[str, Tensor] = {}
        for tensor, known_as in names.items():
            whole = _whole(tensor)
            if keep:
                weights |= dict.fromkeys(known_as, whole)
        return weights

    def gather_moments(self, optimizer: torch.optim.Optimizer, *, keep: bool) -> dict[str, Tensor]:
        """Return the whole moments of the optimizer, named as `flatten_moments` does, likewise."""
        self.free()
        moments: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            for key, value in optimizer.state.get(parameter, {}).items():
                whole = _whole(torch.as_tensor(value))
                if keep:
                    moments[f"{name}/{key}"] = whole
        return moments

    def save(self, weights: dict[str, Tensor], folder: Path) -> None:
        """Write the model with weights that `gather` returned."""
        self.model.save(folder, weights)

    def free(self) -> None:
        """Let each process hold its own part only: after a pass without gradients it holds more."""
        for module in (*self.model.kind.layers, self.model):
            module.reshard()


def whole_value(scalar: Tensor) -> float:
    """Return a number that is perhaps a sum over the processes."""
    return float(scalar.full_tensor() if isinstance(scalar, DTensor) else scalar)


def _share(module: nn.Module, device: torch.device) -> None:
    """Move a module to a device and copy the weights of the first process to all others."""
    for tensor in (*module.parameters(), *module.buffers()):
        if not isinstance(tensor, DTensor):
            tensor.data = tensor.data.to(device, copy=True)
            torch.distributed.broadcast(tensor.data, src=0)


def _apply(run: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
    return run(states)


def _whole(tensor: Any) -> Tensor:
    """Return a whole tensor on the CPU."""
    whole = tensor.detach()
    if isinstance(whole, DTensor):
        whole = whole.full_tensor()
    return cast(Tensor, whole).cpu().contiguous()
