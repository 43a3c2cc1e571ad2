"""Dropout that is cheap on a CPU.

torch draws a CPU's dropout masks one number at a time, which took a sixth of a compact model's
training. Here NumPy draws sixteen random bits for each value: the share that is dropped is p to
within 1/65,536. The seed of each mask comes from torch's generator, so seeding torch seeds it.
On a GPU it is torch's own dropout.
"""

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

_LEVELS = 1 << 16


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
        bits = np.random.Generator(np.random.SFC64(seed)).bytes(2 * values.numel())
        dropped = round(p * _LEVELS)
        drawn = np.frombuffer(bits, np.uint16)
        kept = torch.from_numpy((drawn >= dropped).view(np.uint8)).view(values.shape)
        factors = kept.to(values.dtype).mul_(_LEVELS / (_LEVELS - dropped))
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
