"""The collectives of tensor parallelism, written out, and the loss over a cut vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor


@dataclass(frozen=True)
class TensorParallel:
    """The tensor-parallel group of a replica; `group` is None where one rank has everything."""

    group: dist.ProcessGroup | None
    rank: int
    size: int

    def enter(self, x: Tensor) -> Tensor:
        """Pass a tensor that every rank holds to cut weights; its gradients are summed."""
        if self.group is None:
            return x
        return _enter(x, self.group)

    def leave(self, x: Tensor) -> Tensor:
        """Sum the partial results of cut weights; gradients pass."""
        if self.group is None:
            return x
        return _leave(x, self.group)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        total = grad.contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.contiguous().clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


# torch declares apply() without types.
_enter: Callable[..., Tensor] = _Enter.apply
_leave: Callable[..., Tensor] = _Leave.apply


def embed(table: Tensor, tokens: Tensor, lo: int, tp: TensorParallel) -> Tensor:
    """Look tokens up in rows [lo, lo + len(table)) of a table, summed over the ranks."""
    if tp.group is None:
        return F.embedding(tokens, table)
    local = tokens - lo
    absent = (local < 0) | (local >= table.shape[0])
    rows = F.embedding(local.masked_fill(absent, 0), table)
    return tp.leave(rows.masked_fill(absent.unsqueeze(-1), 0.0))


def cross_entropy_sum(logits: Tensor, targets: Tensor, lo: int, tp: TensorParallel) -> Tensor:
    """Return the summed negative log-likelihood of `targets` (nats).

    `logits` [tokens, words of this rank] start at word `lo`. Computed in fp32 at least.
    """
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if tp.group is None:
        return F.cross_entropy(logits, targets, reduction="sum")
    return _cut_cross_entropy(logits, targets, lo, tp.group)


class _CutCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, lo: int, group: dist.ProcessGroup
    ) -> Tensor:
        top = logits.amax(dim=-1)
        dist.all_reduce(top, op=dist.ReduceOp.MAX, group=group)
        shifted = logits - top.unsqueeze(-1)
        local = targets - lo
        absent = (local < 0) | (local >= logits.shape[-1])
        local = local.masked_fill(absent, 0).unsqueeze(-1)
        wanted = shifted.gather(-1, local).squeeze(-1).masked_fill(absent, 0.0)
        shifted.exp_()
        both = torch.stack((shifted.sum(dim=-1), wanted))
        dist.all_reduce(both, group=group)
        total, wanted = both
        probabilities = shifted.div_(total.unsqueeze(-1))
        ctx.save_for_backward(probabilities, local, absent)
        loss: Tensor = (total.log() - wanted).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        probabilities, local, absent = ctx.saved_tensors
        ones = (~absent).to(probabilities.dtype).unsqueeze(-1)
        return probabilities.scatter_add(-1, local, -ones).mul_(grad), None, None, None


_cut_cross_entropy: Callable[..., Tensor] = _CutCrossEntropy.apply
