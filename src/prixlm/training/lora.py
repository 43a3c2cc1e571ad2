"""Adapt a model cheaply: LoRA (Hu et al., 2022) beside training all weights (`--adapt lora`).

    adapter = adapt(model, rank=16)       # freezes the model; small matrices are trained instead
    adapter.merged_state()                # the weights that it stands for, as a plain checkpoint
    adapter.merge()                       # the model is plain again, with these weights

Every linear layer of the backbone gets a product of two narrow matrices beside its frozen weight.
Three kinds of weights are trained as they are: the rows of role and language tokens, which the base
has never seen, in the embeddings and in the projection; the rest of a prediction head; and nothing
else. The matrices are those of peft, which comes with `pip install prixlm[lora]`.

Dimension letters: R rows of new tokens, H width, V vocabulary.
"""

import importlib.util
from typing import Any

import torch
from torch import Tensor, nn

from prixlm.errors import PrixError
from prixlm.lm.model import PrixLM

_NAME = "default"  # of the one adapter that peft holds
_LAYER, _MATRICES = ".base_layer.", ".lora_"  # how peft names a frozen weight and its matrices


class TrainedRows(nn.Module):
    """Rows of a frozen weight, trained as a parameter of their own."""

    def __init__(self, weight: nn.Parameter, place: Tensor) -> None:
        """Copy the rows to train. weight: (V, H), frozen; place: (R,) the rows."""
        super().__init__()
        self.rows = nn.Parameter(weight.detach()[place].clone())
        self.register_buffer("place", place, persistent=False)
        # (V,) the number of each trained row; R for all others, where the correction is zero.
        slot = torch.full((len(weight),), len(place), device=weight.device)
        slot[place] = torch.arange(len(place), device=weight.device)
        self.register_buffer("slot", slot, persistent=False)

    def write(self, weight: Tensor) -> None:
        """Copy the rows into the weight: an update has changed them."""
        weight.data.index_copy_(0, self.get_buffer("place"), self.rows.detach())

    def correction(self, ids: Tensor) -> Tensor:
        """Return zeros, (..., H), through which the gradient of these tokens reaches their rows."""
        zeros = self.rows - self.rows.detach()
        zeros = torch.cat([zeros, zeros.new_zeros(1, zeros.shape[1])])
        return zeros[self.get_buffer("slot")[ids]]


class LoraAdapter(nn.Module):
    """What is trained of an adapted model: an `Adapter` of `lm/model.py`."""

    def __init__(self, model: PrixLM, rank: int, seed: int) -> None:
        """Freeze a model and add matrices of a rank to its linear layers, drawn with the seed."""
        super().__init__()
        from peft import LoraConfig, inject_adapter_in_model

        # Not as modules of this one: they are parts of the model already.
        self._model: list[PrixLM] = [model]
        backbone, kind = model.backbone, model.kind
        targets = [
            name
            for name, module in backbone.named_modules()
            if type(module) is nn.Linear
            and name.split(".")[-1] in kind.lora_targets
            and not name.startswith(kind.head)
        ]
        config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets, bias="none")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            inject_adapter_in_model(config, backbone, _NAME)
        embeddings, projection = self._weights()
        for name, parameter in backbone.named_parameters():
            is_head = name.startswith(kind.head) and parameter is not projection
            parameter.requires_grad_(_MATRICES in name or is_head)
        place = torch.tensor(model.encoder.special_ids(), device=embeddings.device)
        self.embedded = TrainedRows(embeddings, place)
        # One parameter for both, if the projection is tied to the embeddings.
        self.is_tied = projection is embeddings
        self.projected = self.embedded if self.is_tied else TrainedRows(projection, place)
        self._hook = backbone.get_input_embeddings().register_forward_hook(self._embed)

    def _weights(self) -> tuple[nn.Parameter, nn.Parameter]:
        backbone = self._model[0].backbone
        embeddings, projection = backbone.get_input_embeddings(), backbone.get_output_embeddings()
        return embeddings.weight, projection.weight

    def _embed(self, module: Any, ids: tuple[Tensor, ...], states: Tensor) -> Tensor:
        """Let the gradient of new tokens reach their rows."""
        scale = getattr(module, "embed_scale", 1.0)  # Gemma's
        return states + self.embedded.correction(ids[0]) * scale

    def sync(self) -> None:
        """Write the trained rows into the frozen weights, before these are read."""
        embeddings, projection = self._weights()
        self.embedded.write(embeddings)
        if not self.is_tied:
            self.projected.write(projection)

    @property
    def trained_projection(self) -> tuple[Tensor, Tensor]:
        """The rows of the projection that are trained, (R,), and their parameter, (R, H)."""
        return self.projected.get_buffer("place"), self.projected.rows

    def trained_state(self) -> dict[str, Tensor]:
        """Return all weights that are trained, by their name in the model."""
        pairs = self._model[0].named_parameters()
        return {name: tensor.detach() for name, tensor in pairs if tensor.requires_grad}

    def load_trained(self, state: dict[str, Tensor]) -> None:
        """Load what `trained_state` returned, in place."""
        own = dict(self._model[0].named_parameters())
        assert state.keys() == self.trained_state().keys()
        for name, tensor in state.items():
            own[name].data.copy_(tensor)
        self.sync()

    @torch.no_grad()
    def merged_state(self) -> dict[str, Tensor]:
        """Return the weights of the backbone as a plain checkpoint has them."""
        self.sync()
        backbone = self._model[0].backbone
        layers = dict(_adapted(backbone))
        state = {}
        for name, tensor in backbone.state_dict().items():
            if _MATRICES in name:
                continue
            owner, _, last = name.rpartition(_LAYER)
            if owner and last == "weight":
                tensor = tensor + layers[owner].get_delta_weight(_NAME)
            state[name.replace(_LAYER, ".")] = tensor
        return state

    @torch.no_grad()
    def merge(self) -> None:
        """Make the model plain again: its linear layers get the merged weights."""
        self.sync()
        model = self._model[0]
        for name, layer in _adapted(model.backbone):
            plain = layer.get_base_layer()
            plain.weight.data += layer.get_delta_weight(_NAME)
            parent, _, last = name.rpartition(".")
            setattr(model.backbone.get_submodule(parent), last, plain)
        self._hook.remove()
        for parameter in model.backbone.parameters():
            parameter.requires_grad_(True)
        model.adapter = None


def adapt(model: PrixLM, *, rank: int = 16, seed: int = 0) -> LoraAdapter:
    """Freeze a model and return what is trained of it; `model.adapter` is set, too."""
    if importlib.util.find_spec("peft") is None:
        raise PrixError("LoRA needs peft, which is not installed: run `pip install prixlm[lora]`.")
    assert model.adapter is None
    adapter = LoraAdapter(model, rank, seed)
    model.adapter = adapter
    return adapter


def _adapted(backbone: Any) -> list[tuple[str, Any]]:
    """Return the names and modules of the adapted layers."""
    from peft.tuners.lora import LoraLayer

    return [(name, m) for name, m in backbone.named_modules() if isinstance(m, LoraLayer)]
