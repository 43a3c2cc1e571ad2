"""The backbone's forward pass over real tokens only: what training runs.

transformers computes every layer on a padded (B, L) rectangle, and the last layer at every
position. Here the layers (the very modules of transformers, with their weights) see the real tokens
one after another, (N, H); only attention is laid out in rows. The last layer's queries and what
follows them are computed at the wanted positions alone: nothing else of it is ever read. The result
is that of the padded pass (`PrixLM.hidden`), which a test holds it to.

Dimension letters: B facts, L positions, N real tokens, T wanted positions, Q the most in a row,
H width.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention


class Layout:
    """Where packed rows stand in a padded rectangle: (N, H) to (B, L, H) and back."""

    def __init__(self, place: Tensor, num_rows: int, size: int) -> None:
        self.place, self.num_rows, self.size = place, num_rows, size
        self.source = torch.zeros(num_rows * size, dtype=torch.long, device=place.device)
        self.source[place] = torch.arange(len(place), device=place.device)

    def pad(self, packed: Tensor) -> Tensor:
        """Padding repeats the first row: nobody may attend to it."""
        spread = _Spread.apply(packed, self.source, self.place)  # type: ignore[no-untyped-call]
        return cast(Tensor, spread).view(self.num_rows, self.size, -1)

    def pack(self, padded: Tensor) -> Tensor:
        flat = padded.reshape(self.num_rows * self.size, -1)
        return cast(Tensor, _Pick.apply(flat, self.place))  # type: ignore[no-untyped-call]


def packed_states(
    encoder: Any, embedded: Tensor, tokens: Layout, wanted: Layout, at: Tensor, mask: Tensor
) -> Tensor:
    """The last layer's states at the wanted positions: (T, H).

    encoder: transformers' encoder; embedded: (N, H); at: (T,) the wanted among the N tokens, in
    order; mask: (B, 1, L, L), true where position i sees position j.
    """
    states = embedded
    for layer in encoder.layer[:-1]:
        states = _run_layer(layer, states, states, tokens, tokens, mask)
    rows = _wanted_rows(mask, tokens, wanted, at)
    return _run_layer(encoder.layer[-1], _pick(states, at), states, wanted, tokens, rows)


def _run_layer(
    layer: Any, queries: Tensor, states: Tensor, asking: Layout, tokens: Layout, mask: Tensor
) -> Tensor:
    """One layer's states at the queries: attention to all states, then the feed-forward part."""
    own = layer.attention.self
    width = states.shape[1]
    if queries is states:  # one product of three times the width is faster than three
        mixed = asking.pad(_joined(states, own.query, own.key, own.value))
        asked, told = torch.split(mixed, [width, 2 * width], dim=-1)
    else:
        asked = asking.pad(own.query(queries))
        told = tokens.pad(_joined(states, own.key, own.value))
    q = _split_heads(asked, own.num_attention_heads)
    k, v = (
        _split_heads(part, own.num_attention_heads) for part in torch.split(told, width, dim=-1)
    )
    dropout = own.dropout.p if own.training else 0.0
    seen = scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout)
    attended = layer.attention.output(asking.pack(seen.transpose(1, 2)), queries)
    return cast(Tensor, layer.feed_forward_chunk(attended))


def _joined(states: Tensor, *linears: Any) -> Tensor:
    """Several projections of the same states, side by side."""
    weight = torch.cat([one.weight for one in linears])
    bias = torch.cat([one.bias for one in linears])
    return linear(states, weight, bias)


def _split_heads(padded: Tensor, num_heads: int) -> Tensor:
    """(B, L, H) to (B, heads, L, H / heads)."""
    num_rows, size, width = padded.shape
    return padded.view(num_rows, size, num_heads, width // num_heads).transpose(1, 2)


def _wanted_rows(mask: Tensor, tokens: Layout, wanted: Layout, at: Tensor) -> Tensor:
    """The mask's rows of the wanted positions: (B, 1, Q, L). Padding sees the first token only."""
    rows = torch.zeros(
        wanted.num_rows * wanted.size, tokens.size, dtype=torch.bool, device=mask.device
    )
    rows[:, 0] = True
    rows[wanted.place] = mask.reshape(-1, tokens.size)[tokens.place[at]]
    return rows.view(wanted.num_rows, 1, wanted.size, tokens.size)


def _pick(rows: Tensor, at: Tensor) -> Tensor:
    return cast(Tensor, _Pick.apply(rows, at))  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """Rows by their source; `place` is where each stands, once. Padding has no gradient."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return rows.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        return grads[0].index_select(0, place), None, None


class _Pick(torch.autograd.Function):
    """The rows at some places, each taken once; autograd's own backward adds row by row."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        ctx.size = rows.shape[0]
        return rows.index_select(0, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        grad = grads[0]
        return grad.new_zeros(ctx.size, grad.shape[1]).index_copy_(0, place, grad), None


_LEVELS = 256


class Dropout(nn.Dropout):
    """`nn.Dropout`, with another source of randomness on a CPU."""

    def forward(self, input: Tensor) -> Tensor:
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        return cast(Tensor, _Drop.apply(input, self.p))  # type: ignore[no-untyped-call]


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, p: float) -> Tensor:
        seed = int(torch.randint(1 << 62, ()).item())
        source = np.random.SFC64(seed)
        dropped = int(p * _LEVELS + np.random.Generator(source).random())
        drawn = np.asarray(source.random_raw(-(-values.numel() // 8))).view(np.uint8)
        scale = np.float32(_LEVELS / max(1, _LEVELS - dropped))
        factors = torch.from_numpy((drawn[: values.numel()] >= dropped) * scale)
        factors = factors.to(values.dtype).view(values.shape)
        ctx.save_for_backward(factors)
        return values * factors

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (factors,) = ctx.saved_tensors
        return grads[0] * factors, None


def replace_dropout(module: nn.Module) -> None:
    """Put ours in the place of every `nn.Dropout` below a module."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))


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
