"""Keep what goes into a function instead of its activations, and run it again going backward.

torch.utils.checkpoint does this for any function, at the price of hooks on every saved tensor and
of an import that takes a second; a block is a function of one tensor, which is simpler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def recomputed(run: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """Return run(*tensors). `run` must give the same each time, and all must need gradients."""
    if not torch.is_grad_enabled():
        return run(*tensors)
    return _recompute(run, *tensors)


class _Recompute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        ctx.run = run
        ctx.save_for_backward(*tensors)
        return run(*tensors)  # gradients are off inside of forward()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = [saved.detach().requires_grad_() for saved in ctx.saved_tensors]
        with torch.enable_grad():
            out = ctx.run(*tensors)
        torch.autograd.backward(out, grad)
        return (None, *(tensor.grad for tensor in tensors))


_recompute: Callable[..., Tensor] = _Recompute.apply  # torch declares it without types
