"""Cross entropy over a large vocabulary, without ever holding all its logits."""

from typing import Any, cast

import torch
from torch import Tensor

CHUNK = 1024
"""Rows whose logits are held at once: with XLM-R's 250,002 pieces, 1 GB."""
CACHED_CHUNK = 256
"""The same where the vocabulary is small enough for a processor's cache."""


def linear_cross_entropy(states: Tensor, weight: Tensor, bias: Tensor, target: Tensor) -> Tensor:
    """The sum of the cross entropies of `states @ weight.T + bias`: (T, H), (V, H), (V,), (T,)."""
    arguments = (states, weight, bias, target, torch.is_grad_enabled())
    return cast(Tensor, _LinearCrossEntropy.apply(*arguments))  # type: ignore[no-untyped-call]


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of cross entropies of `states @ weight.T + bias`, a chunk of tokens at a time.

    The gradients are made while a chunk's logits are there, so memory does not grow with T x V.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, bias: Tensor, target: Tensor, learning: bool
    ) -> Tensor:
        device = states.device.type
        mixed = torch.is_autocast_enabled(device)
        kind = torch.get_autocast_dtype(device) if mixed else states.dtype
        with torch.autocast(device, enabled=False):  # products in `kind`, sums in float32
            return _sum_cross_entropy(ctx, (states, weight, bias), target, kind, learning)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [gradient.mul_(grads[0]) for gradient in ctx.gradients]  # ours alone: in place
        del ctx.gradients
        return (*scaled, None, None)


def _sum_cross_entropy(
    ctx: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    target: Tensor,
    kind: torch.dtype,
    learning: bool,
) -> Tensor:
    states, weight, bias = inputs
    needed = learning and any(ctx.needs_input_grad)
    if needed:
        d_states = torch.empty_like(states)
        d_weight, d_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        ctx.gradients = (d_states, d_weight, d_bias)
    total = states.new_zeros((), dtype=torch.float32)
    states, weight, bias = states.to(kind), weight.to(kind), bias.to(kind)
    chunk = min(CHUNK, CACHED_CHUNK) if len(weight) < 50_000 else CHUNK
    buffer = states.new_empty(min(chunk, len(states)), len(weight))
    for start in range(0, len(states), chunk):
        rows = slice(start, start + chunk)
        room = buffer[: len(states) - start]
        logits = torch.addmm(bias, states[rows], weight.T, out=room).float()
        picked = logits.gather(1, target[rows, None])
        highest = logits.amax(1, keepdim=True)
        shares = logits.sub_(highest).exp_()  # softmax but for its divisor, in place
        divisor = shares.sum(1, keepdim=True)
        total += (divisor.log() + highest - picked).sum()
        if needed:
            # d_logits is (shares - divisor * one-hot) / divisor; the division is left to the
            # narrow side of each product.
            shares.scatter_add_(1, target[rows, None], -divisor)
            weights = 1 / divisor
            d_bias += weights[:, 0] @ shares
            shares = shares.to(kind)
            d_states[rows] = (shares @ weight) * weights
            scaled = (states[rows] * weights).to(kind)
            if kind == d_weight.dtype:
                d_weight.addmm_(shares.T, scaled)
            else:
                d_weight += shares.T @ scaled
    return total
