"""Faster versions of three parts of a transformer, with the results of the plain ones.

1. Packed pass: run transformers' layers over real tokens only, without padding.
2. Dropout: draw masks from a faster random generator on a CPU.
3. Cross entropy: project onto the vocabulary and compute the loss, one chunk of tokens at a time.

They do not know about facts; `PrixLM` calls them. Tests compare each with the plain version.

Dimension letters: B facts, L positions, N real tokens, T wanted positions, Q most wanted positions
of one fact, H width, D size of a head, V vocabulary.
"""

from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from prixlm.lm.backbones import Backbone, Rotation

Masks = dict[int | None, Tensor]
"""Who attends to whom, (B, 1, L, L), by a layer's window; None for layers that see everything."""

# --- 1. Packed pass -------------------------------------------------------------------------------
#
# transformers computes every layer on a padded (B, L) rectangle, and the last layer at every
# position. Here the layers (transformers' own modules, with their weights) see the real tokens as
# one (N, H) matrix; only attention is padded. The last layer is computed at the T wanted positions
# alone, because nothing else of it is read. `PrixLM.hidden` is the padded pass.


class Layout:
    """The positions of packed rows in a padded rectangle: (N, H) to (B, L, H) and back."""

    def __init__(self, place: Tensor, num_rows: int, size: int) -> None:
        """Lay out N rows in `num_rows` x `size` cells. place: (N,) the cell of each, ascending."""
        self.place, self.num_rows, self.size = place, num_rows, size
        # (B * L,) the packed row of each cell; padding repeats row 0, which no mask lets through.
        self.source = torch.zeros(num_rows * size, dtype=torch.long, device=place.device)
        self.source[place] = torch.arange(len(place), device=place.device)

    def pad(self, packed: Tensor) -> Tensor:
        """Spread (N, H) over the rectangle, (B, L, H). Padding gets arbitrary values."""
        spread = _Spread.apply(packed, self.source, self.place)  # type: ignore[no-untyped-call]
        return cast(Tensor, spread).view(self.num_rows, self.size, -1)

    def pack(self, padded: Tensor) -> Tensor:
        """Pick the real rows of (B, L, H), which gives (N, H)."""
        return _pick(padded.reshape(self.num_rows * self.size, -1), self.place)


def packed_states(
    backbone: Backbone,
    embedded: Tensor,
    positions: Tensor,
    tokens: Layout,
    wanted: Layout,
    at: Tensor,
    masks: Masks,
    *,
    recompute: bool = False,
) -> Tensor:
    """Return the last layer's states at the wanted positions, (T, H).

    embedded: (N, H). positions: (N,) of the tokens, from 0.
    tokens, wanted: the layouts of the N tokens, (B, L), and of the T wanted positions, (B, Q).
    at: (T,) the wanted positions among the N tokens, ascending.
    masks: (B, 1, L, L), true where position i sees position j, by a layer's window.
    recompute: keep only each layer's input for the backward pass and compute the layer again there
    (gradient checkpointing).
    """
    states, last = embedded, len(backbone.layers) - 1
    rotation = backbone.rotation(embedded, positions)

    def run(layer: int, states: Tensor) -> Tensor:
        mask = masks[backbone.window(layer)]
        if layer < last:
            return _run_layer(backbone, layer, states, states, tokens, tokens, mask, rotation)
        asking = {kind: (cosine[at], sine[at]) for kind, (cosine, sine) in rotation.items()}
        rows = _wanted_rows(mask, tokens, wanted, at)
        queries = _pick(states, at)
        return _run_layer(backbone, layer, queries, states, wanted, tokens, rows, rotation, asking)

    for layer in range(last + 1):
        call = partial(run, layer)
        if recompute and torch.is_grad_enabled():
            call = partial(checkpoint, call, use_reentrant=False)
        states = backbone.call_layer(layer, call, states)
    return backbone.norm(states)


def _run_layer(
    backbone: Backbone,
    layer: int,
    queries: Tensor,
    states: Tensor,
    asking: Layout,
    tokens: Layout,
    mask: Tensor,
    rotation: Rotation,
    rotation_of_queries: Rotation | None = None,
) -> Tensor:
    """Return one layer's states at the queries: attention to all states, then feed-forward."""
    if queries is states:
        projected = backbone.project(layer, states, rotation)
    else:
        assert rotation_of_queries is not None
        projected = backbone.project(layer, queries, rotation_of_queries, "q")
        projected += backbone.project(layer, states, rotation, "kv")
    padded = [asking.pad(projected[0]), *(tokens.pad(part) for part in projected[1:])]
    heads = [split_heads(part, backbone.head_size) for part in padded]
    is_training = backbone.layers[layer].training
    attended = scaled_dot_product_attention(
        *share_heads(*heads),
        mask,
        dropout_p=backbone.dropout(layer) if is_training else 0.0,
        scale=backbone.scale,
    )
    return backbone.finish(layer, asking.pack(attended.transpose(1, 2)), queries)


def split_heads(padded: Tensor, size: int) -> Tensor:
    """Reshape (B, L, heads * D) to (B, heads, L, D)."""
    num_rows, length, width = padded.shape
    return padded.view(num_rows, length, width // size, size).transpose(1, 2)


def share_heads(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Repeat the heads of keys and values that several heads of queries share."""
    times = queries.shape[1] // keys.shape[1]
    if times == 1:
        return queries, keys, values
    return queries, keys.repeat_interleave(times, 1), values.repeat_interleave(times, 1)


def _wanted_rows(mask: Tensor, tokens: Layout, wanted: Layout, at: Tensor) -> Tensor:
    """Return the mask's rows of the wanted positions, (B, 1, Q, L)."""
    num_cells = wanted.num_rows * wanted.size
    rows = torch.zeros(num_cells, tokens.size, dtype=torch.bool, device=mask.device)
    rows[:, 0] = True  # padding sees the first token: a softmax over nothing is not a number
    rows[wanted.place] = mask.reshape(-1, tokens.size)[tokens.place[at]]
    return rows.view(wanted.num_rows, 1, wanted.size, tokens.size)


def _pick(rows: Tensor, place: Tensor) -> Tensor:
    return cast(Tensor, _Pick.apply(rows, place))  # type: ignore[no-untyped-call]


class _Spread(torch.autograd.Function):
    """`rows[source]`, where only the cells in `place` have a gradient (padding has none)."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return rows.index_select(0, source)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (place,) = ctx.saved_tensors
        return grads[0].index_select(0, place), None, None


class _Pick(torch.autograd.Function):
    """`rows[place]` without repeats, so the backward copies rows, where autograd's adds them."""

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


# --- 2. Dropout -----------------------------------------------------------------------------------
#
# On a CPU, torch draws masks one value at a time, which took a sixth of a compact model's training.
# Here one random byte decides about one value: it is dropped if the byte is below p * 256. That
# product is rounded up or down at random, once per mask, so that the dropped share is p on average.

_LEVELS = 256


class Dropout(nn.Dropout):
    """`nn.Dropout` with a faster random generator on a CPU, seeded by torch's own."""

    def forward(self, input: Tensor) -> Tensor:
        """Drop values in training mode; scale the others so that the mean stays."""
        if not self.training or self.p == 0 or input.device.type != "cpu":
            return super().forward(input)
        return cast(Tensor, _Drop.apply(input, self.p))  # type: ignore[no-untyped-call]


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, p: float) -> Tensor:
        seed = int(torch.randint(1 << 62, ()).item())
        source = np.random.SFC64(seed)
        dropped = int(p * _LEVELS + np.random.Generator(source).random())  # levels of 256
        # Eight random bytes in each raw uint64; there may be a few more than there are values.
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
    """Replace every `nn.Dropout` below a module by ours, with the same rate."""
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p))


# --- 3. Cross entropy -----------------------------------------------------------------------------
#
# The logits of all T targets are (T, V): gigabytes for XLM-R's vocabulary. They are computed one
# chunk of rows at a time, and each chunk's gradients are computed before its logits are dropped.

CHUNK = 1024
"""Rows whose logits are in memory at once: 1 GB with XLM-R's 250,002 pieces."""
CACHED_CHUNK = 256
"""The same for a small vocabulary, whose logits then fit into the processor's cache."""
_SMALL_VOCABULARY = 50_000


def linear_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    trained: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return the sum of the cross entropies of `states @ weight.T + bias`.

    states: (T, H), weight: (V, H), bias: (V,) if any, target: (T,) the right column of each row.
    trained: of a weight that is otherwise frozen, the rows (R,) that are trained, and the
    parameter, (R, H), that they are copies of and that gets their gradient.
    """
    place, rows = (None, None) if trained is None else trained
    arguments = (states, weight, bias, rows, target, place, torch.is_grad_enabled())
    return cast(Tensor, _LinearCrossEntropy.apply(*arguments))  # type: ignore[no-untyped-call]


class _LinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy`, whose forward pass computes the gradients too."""

    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor | None,
        target: Tensor,
        place: Tensor | None,
        learning: bool,
    ) -> Tensor:
        device = states.device.type
        mixed = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if mixed else states.dtype
        # The gradients of states, weight, bias and rows; None where nothing is trained.
        gradients: _Gradients = (None, None, None, None)
        if learning and any(ctx.needs_input_grad):
            inputs = zip((states, weight, bias, rows), ctx.needs_input_grad, strict=False)
            found = [torch.zeros_like(x) if x is not None and need else None for x, need in inputs]
            gradients = (found[0], found[1], found[2], found[3])
        ctx.gradients = gradients
        with torch.autocast(device, enabled=False):  # products in `dtype`, sums in float32
            return _sum_cross_entropy((states, weight, bias), target, dtype, gradients, place)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Ours alone, so they are scaled in place.
        scaled = [None if part is None else part.mul_(grads[0]) for part in ctx.gradients]
        del ctx.gradients
        return (*scaled, None, None, None)


_Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def _sum_cross_entropy(
    inputs: tuple[Tensor, Tensor, Tensor | None],
    target: Tensor,
    dtype: torch.dtype,
    gradients: _Gradients,
    place: Tensor | None,
) -> Tensor:
    """Return the sum of cross entropies; fill in the gradients that are not None."""
    states, weight = inputs[0].to(dtype), inputs[1].to(dtype)
    bias = None if inputs[2] is None else inputs[2].to(dtype)
    total = inputs[0].new_zeros((), dtype=torch.float32)
    chunk = min(CHUNK, CACHED_CHUNK) if len(weight) < _SMALL_VOCABULARY else CHUNK
    buffer = states.new_empty(min(chunk, len(states)), len(weight))
    for start in range(0, len(states), chunk):
        rows = slice(start, start + chunk)
        room = buffer[: len(states) - start]  # the last chunk may be shorter
        if bias is None:
            logits = torch.mm(states[rows], weight.T, out=room).float()
        else:
            logits = torch.addmm(bias, states[rows], weight.T, out=room).float()
        picked = logits.gather(1, target[rows, None])
        highest = logits.amax(1, keepdim=True)
        # (rows, V) numerators of the softmax, in the memory of the logits, and (rows, 1) their sum.
        shares = logits.sub_(highest).exp_()
        divisor = shares.sum(1, keepdim=True)
        total += (divisor.log() + highest - picked).sum()
        if any(part is not None for part in gradients):
            # The gradient of the logits is (shares - divisor * one-hot) / divisor. The division is
            # done on the narrow side of each product: T x H values, not T x V.
            shares.scatter_add_(1, target[rows, None], -divisor)
            scale = 1 / divisor
            if dtype == torch.float16:
                # Flat logits have a divisor near V, and float16 ends at 65,504: divide first.
                shares.mul_(scale)
                scale = torch.ones_like(scale)
            _add_gradients(gradients, rows, states[rows], weight, shares, scale, place)
    return total


def _add_gradients(
    gradients: _Gradients,
    rows: slice,
    states: Tensor,
    weight: Tensor,
    d_logits: Tensor,
    scale: Tensor,
    place: Tensor | None,
) -> None:
    """Add the gradients of one chunk. `d_logits * scale` is the gradient of its logits."""
    d_states, d_weight, d_bias, d_rows = gradients
    if d_bias is not None:
        d_bias += scale[:, 0] @ d_logits
    scaled = states * scale
    if d_rows is not None:
        assert place is not None
        d_rows += d_logits.index_select(1, place).T @ scaled.float()
    d_logits = d_logits.to(weight.dtype)
    if d_states is not None:
        d_states[rows] = (d_logits @ weight) * scale
    if d_weight is None:
        return
    scaled = scaled.to(weight.dtype)
    if weight.dtype == d_weight.dtype:
        d_weight.addmm_(d_logits.T, scaled)
    else:
        d_weight += d_logits.T @ scaled
