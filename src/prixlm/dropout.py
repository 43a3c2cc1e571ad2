"""Dropout that is cheap on a CPU.

torch draws a CPU's dropout masks one number at a time, which took a sixth of a compact model's
training. Here NumPy draws eight random bits for each value. A mask can then drop n / 256 of them
only; which of the two n around p it is, is drawn for each mask, so that p is dropped on average.
The seed of each mask comes from torch's generator, so seeding torch seeds it. On a GPU it is
torch's own dropout.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

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
