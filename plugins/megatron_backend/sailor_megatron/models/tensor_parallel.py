"""The collectives of tensor parallelism, written out, and the loss over a cut vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor_megatron.process_groups import gather_shares, reduce_shares


@dataclass(frozen=True)
class TensorParallel:
    """The tensor-parallel group of a replica; `group` is None where one rank has everything.

    Between cut weights every rank holds the whole activation [samples, positions, ...]. With
    sequence parallelism (`split`) it holds its positions only, [rows, samples, ...]: ceil(positions
    / size) of them, where those behind the sequence's end are 0 or never looked at.
    """

    group: dist.ProcessGroup | None
    rank: int
    size: int
    split: bool = False
    positions: int = 0  # of a sequence; needed where they are split

    @property
    def rows(self) -> int:
        """Return the positions that a rank holds."""
        return -(-self.positions // self.size)

    def enter(self, x: Tensor) -> Tensor:
        """Pass a whole activation to cut weights; its gradients are summed over the ranks."""
        if self.group is None or self.split:
            return x
        return _enter(x, self.group)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return enter(x) multiplied with cut weights.

        Where positions are split only x is kept for the backward pass, which gathers it again, as
        Megatron-LM does.
        """
        if self.group is not None and self.split:
            return _gathered_product(x, weight, bias, self)
        return F.linear(self.enter(x), weight, bias)

    def leave(self, x: Tensor) -> Tensor:
        """Sum the partial results of cut weights; split again where positions are."""
        if self.group is None:
            return x
        return _scatter(x, self) if self.split else _leave(x, self.group)

    def own(self, x: Tensor) -> Tensor:
        """Return this rank's rows of [positions, ...]; 0 behind the sequence's end."""
        part = x[self.rank * self.rows : (self.rank + 1) * self.rows]
        if len(part) == self.rows:
            return part
        return F.pad(part, (0, 0) * (x.dim() - 1) + (0, self.rows - len(part)))


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


class _GatheredProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, tp: TensorParallel
    ) -> Tensor:
        ctx.tp, ctx.has_bias = tp, bias is not None
        ctx.save_for_backward(x, weight)
        return F.linear(_gathered(x, tp), weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        whole = _gathered(x, ctx.tp).flatten(0, -2)
        rows = grad.flatten(0, -2)
        of_bias = rows.sum(dim=0) if ctx.has_bias else None
        return _scattered(grad @ weight, ctx.tp), rows.T @ whole, of_bias, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, tp: TensorParallel) -> Tensor:
        ctx.tp = tp
        return _scattered(x, tp)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _gathered(grad, ctx.tp), None


def _gathered(x: Tensor, tp: TensorParallel) -> Tensor:
    whole = x.new_empty((tp.rows * tp.size, *x.shape[1:]))
    if tp.group is not None:
        gather_shares(whole, x.contiguous(), tp.group)
    return whole[: tp.positions]


def _scattered(x: Tensor, tp: TensorParallel) -> Tensor:
    missing = tp.rows * tp.size - tp.positions
    whole = F.pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) if missing else x.contiguous()
    share = x.new_empty((tp.rows, *x.shape[1:]))
    if tp.group is not None:
        reduce_shares(share, whole, tp.group)
    return share


# torch declares apply() without types.
_enter: Callable[..., Tensor] = _Enter.apply
_leave: Callable[..., Tensor] = _Leave.apply
_gathered_product: Callable[..., Tensor] = _GatheredProduct.apply
_scatter: Callable[..., Tensor] = _Scatter.apply


def embed(table: Tensor, tokens: Tensor, lo: int, tp: TensorParallel) -> Tensor:
    """Look tokens up in rows [lo, lo + len(table)) of a table, summed over the ranks.

    Tokens are [samples, positions], or [positions, samples] where positions are split.
    """
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
