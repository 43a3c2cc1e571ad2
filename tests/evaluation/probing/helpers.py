"""Models that give a known answer."""

import torch

from prixlm import PrixLM
from prixlm.lm.token_cache import encode_names


def favour(model: PrixLM, order: list[int]) -> PrixLM:
    """A model that answers these pieces everywhere, best first."""
    with torch.no_grad():
        weight, bias = model.decoder()
        weight.zero_()
        bias.fill_(0.0)
        for place, piece in enumerate(order):
            bias[piece] = 100.0 - 10 * place
    return model


def piece(model: PrixLM, text: str) -> int:
    (found,) = encode_names(model.encoder.tokenizer, [text])
    assert len(found) == 1, (text, found)
    return found[0]
