"""Weights and their config, checked before a model is built from them.

A model folder may come from anyone. Its weights are read from safetensors alone, and refused if a
value is not a number; its config is believed only as far as the weights confirm it, because a few
bytes of JSON can ask for more memory than any machine has.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from prixlm.errors import PrixError

_FEWEST_POSITIONS = 16
"""Positions that the shortest fact needs: its special tokens, and some for each name."""
_KINDS = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)
"""Kinds of weights. Older checkpoints also store the numbers of their positions, as int64."""
_MOST_LARGER = 4
"""How many times as many values as the weights a config may describe: a head may be missing, and
the projection onto the vocabulary, tied to the embeddings, is stored once."""


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, mapped into memory; refuse damaged ones."""
    try:
        weights = load_file(str(path))
    except (OSError, SafetensorError, ValueError) as error:
        raise PrixError(f"{path} cannot be read: {error}. Download or make it again.") from None
    for name, tensor in weights.items():
        if tensor.dtype not in _KINDS:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise PrixError(
                f"{path}: {name} is {kind}, expected float32, float16, bfloat16 or float64. "
                "Convert it, or download the model again."
            )
        if not is_finite(tensor):
            raise PrixError(
                f"{path}: {name} has values that are not finite numbers. A training that diverged "
                "or a damaged file: download or make it again."
            )
    return weights


def is_finite(tensor: Tensor) -> bool:
    """Tell whether all values are finite as float32."""
    if tensor.dtype == torch.float64:  # as it is used: what float32 cannot hold becomes infinite
        tensor = tensor.float()
    # A sum is finite unless a value is not, or it overflows: only then look at each value.
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum(dtype=torch.float64))):
        return True
    return bool(torch.isfinite(tensor).all())


def check_config(config: Any, kind: Any, weights: Mapping[str, Tensor], where: object) -> None:
    """Refuse a config that no model has, or that states other shapes than the weights.

    kind: the class of the architecture in `BACKBONES`. The model is built without data, so that
    nothing is allocated.
    """
    try:
        num_layers = int(config.num_hidden_layers)
        if not 1 <= num_layers <= len(weights):
            raise ValueError(f"{num_layers} layers, but {len(weights)} tensors of weights")
        with torch.device("meta"):
            model = kind.model_class(config)
        shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
        first = int(kind(model).first_position)
        positions = int(config.max_position_embeddings) - first
        if first < 0 or positions < _FEWEST_POSITIONS:
            raise ValueError(
                f"{positions} positions for tokens, expected at least {_FEWEST_POSITIONS}"
            )
    except Exception as error:  # whatever a value of the wrong kind or size leads to
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"config.json of {where} describes no model: {reason}. Expected the config and the "
            "weights of one model: download it again."
        ) from None
    for name, shape in shapes.items():
        # A base without a head has the names of the inner model: `embeddings...` alone.
        found = weights.get(name, weights.get(name.partition(".")[2]))
        if found is not None and found.shape != shape:
            raise PrixError(
                f"{name} of {where} does not fit config.json: {tuple(found.shape)}, expected "
                f"{tuple(shape)}. Expected the weights and the config of one model: download it "
                "again."
            )
    described = sum(shape.numel() for shape in shapes.values())
    stored = sum(tensor.numel() for tensor in weights.values())
    if described > _MOST_LARGER * stored + (1 << 20):
        raise PrixError(
            f"config.json of {where} describes a model of {described:,} values, but the weights "
            f"have {stored:,}: download the model again."
        )


def check_vocabulary(tokenizer: Any, num_embeddings: int, where: object) -> None:
    """Refuse a tokenizer with ids that the model has no embedding for."""
    largest = max(tokenizer.backend_tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
    if largest >= num_embeddings:
        raise PrixError(
            f"the tokenizer of {where} has ids up to {largest:,}, but the model has "
            f"{num_embeddings:,} embeddings. Expected the tokenizer and the weights of one model: "
            "download it again."
        )
