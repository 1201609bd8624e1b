"""Keep a block's input instead of its activations, and run the block again going backward.

torch.utils.checkpoint does this for any function, at the price of hooks on every saved tensor and
of an import that takes a second; a block is a function of one tensor, which is simpler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def recomputed(run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return run(x). `run` must give the same result each time, and x must need a gradient."""
    if not torch.is_grad_enabled():
        return run(x)
    return _recompute(x, run)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(x)
        return run(x)  # gradients are off inside of forward()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        (saved,) = ctx.saved_tensors
        x = saved.detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.run(x)
        torch.autograd.backward(out, grad)
        return x.grad, None


_recompute: Callable[..., Tensor] = _Recompute.apply  # torch declares it without types
