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

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


class Layout:
    """Where packed rows stand in a padded rectangle: (N, H) to (B, L, H) and back."""

    def __init__(self, place: Tensor, num_rows: int, size: int) -> None:
        self.place, self.num_rows, self.size = place, num_rows, size

    def pad(self, packed: Tensor) -> Tensor:
        spread = _Spread.apply(packed, self.place, self.num_rows * self.size)  # type: ignore[no-untyped-call]
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
    q = _split_heads(asking.pad(own.query(queries)), own.num_attention_heads)
    k = _split_heads(tokens.pad(own.key(states)), own.num_attention_heads)
    v = _split_heads(tokens.pad(own.value(states)), own.num_attention_heads)
    dropout = own.dropout.p if own.training else 0.0
    seen = scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout)
    mixed = layer.attention.output(asking.pack(seen.transpose(1, 2)), queries)
    return cast(Tensor, layer.feed_forward_chunk(mixed))


def _split_heads(padded: Tensor, num_heads: int) -> Tensor:
    """(B, L, H) to (B, heads, L, H / heads)."""
    return padded.view(*padded.shape[:2], num_heads, -1).transpose(1, 2)


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
    """Rows to their places among `size`; zeros elsewhere. No place is taken twice."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, place: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(place)
        return rows.new_zeros(size, rows.shape[1]).index_copy_(0, place, rows)

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
