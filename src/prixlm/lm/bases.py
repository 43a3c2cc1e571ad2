"""Base models: the architectures of transformers that a Prix-LM can be built on.

A new architecture is one `Backbone` in `BACKBONES`, and its special tokens in `lm/encoding.py`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    PreTrainedTokenizerFast,
    XLMRobertaForMaskedLM,
)
from transformers.utils import logging as transformers_logging

from prixlm.errors import PrixError
from prixlm.lm.encoding import MBERT, XLMR, BaseTokens
from prixlm.lm.trim import trim_tokenizer
from prixlm.types import Array


@dataclass(frozen=True)
class Backbone:
    """How a Prix-LM reads one architecture."""

    model_class: Any  # transformers' class with the whole prediction head
    tokens: BaseTokens
    first_position: Callable[[Any], int]  # config to the position id of the first token
    transform: Callable[[Any, Tensor], Tensor]  # the head before its projection: dense, GELU, norm
    decoder: Callable[[Any], nn.Linear]  # the projection onto the vocabulary


def _transform_xlmr(model: Any, states: Tensor) -> Tensor:
    head = model.lm_head
    return cast(Tensor, head.layer_norm(nn.functional.gelu(head.dense(states))))


BACKBONES = {
    "xlm-roberta": Backbone(
        model_class=XLMRobertaForMaskedLM,
        tokens=XLMR,
        first_position=lambda config: int(config.pad_token_id) + 1,  # as it was pretrained
        transform=_transform_xlmr,
        decoder=lambda model: model.lm_head.decoder,
    ),
    "bert": Backbone(
        model_class=BertForMaskedLM,
        tokens=MBERT,
        first_position=lambda config: 0,
        transform=lambda model, states: model.cls.predictions.transform(states),
        decoder=lambda model: model.cls.predictions.decoder,
    ),
}
"""By transformers' `model_type`."""


def load_base(base: str | Path) -> tuple[Any, PreTrainedTokenizerFast, bool]:
    """Load a base from the hub or a folder.

    Returns the model with its prediction head, its tokenizer, and whether it is a causal decoder.
    """
    try:
        config = AutoConfig.from_pretrained(base)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise PrixError(
            f"no model at {base}: {reason}. Expected xlm-roberta-base, "
            "bert-base-multilingual-cased, or a folder in their format."
        ) from None
    if config.model_type not in BACKBONES:
        raise PrixError(
            f"{base} is a {config.model_type} model. Expected an architecture that Prix-LM is "
            f"built on: {' or '.join(BACKBONES)}."
        )
    # As a decoder, transformers would apply its own causal mask on top of ours.
    causal, config.is_decoder = bool(config.is_decoder), False
    model_class = BACKBONES[config.model_type].model_class
    with no_progress_bars():
        model = model_class.from_pretrained(base, config=config, dtype=torch.float32)
    return model, PreTrainedTokenizerFast.from_pretrained(base), causal


def trim_base(model: Any, tokenizer: Any, kept: Array) -> PreTrainedTokenizerFast:
    """Reduce the vocabulary of a model to the kept pieces, in place; return its new tokenizer.

    kept: (V',) ids that stay, ascending. New id i is old id `kept[i]`.
    """
    rows = torch.from_numpy(kept)
    config = model.config
    assert config.pad_token_id < 2 and kept[config.pad_token_id] == config.pad_token_id
    embeddings, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    weight, bias = embeddings.weight.data[rows].clone(), decoder.bias.data[rows].clone()
    # The library's resize drops the last rows, whichever they are: fill in the kept ones after it.
    model.resize_token_embeddings(len(kept), mean_resizing=False)
    model.get_input_embeddings().weight.data.copy_(weight)
    decoder = model.get_output_embeddings()
    decoder.weight.data.copy_(weight)
    decoder.bias.data.copy_(bias)
    for name in ("bos_token_id", "eos_token_id"):
        old = getattr(config, name, None)
        if old is not None:
            setattr(config, name, int(np.searchsorted(kept, old)))
    small = trim_tokenizer(tokenizer.backend_tokenizer, kept)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=small, **tokenizer.special_tokens_map
    )


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Turn off transformers' progress bars: the command line shows its own."""
    was_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if was_on:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
