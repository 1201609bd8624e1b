"""Bytes that a unit keeps for its backward pass, counted without computing anything.

The units run once on fake tensors, which have shapes and storages but no data. What autograd saves
goes through a hook; storages are counted once, parameters, constants and the unit's input (which
is the output of the unit before it) are not, and the unit's own output is. Kernels that save
something else on a GPU than on a CPU are replaced by operations that save what the GPU's do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks

from sailor.interfaces import UnitStyle
from sailor.model.arch import ModelSpec
from sailor.model.execution import Precision
from sailor.model.profile import LayerFootprint, Provenance, UnitBytes
from sailor.profiling.blocks import Block, Build, Embedding, Head, Kernels

NormKeeps = Literal["input", "output"]


def count_footprint(
    model: ModelSpec,
    tp: int,
    precision: Precision,
    style: UnitStyle,
    *,
    norm_keeps: NormKeeps = "input",
    microbatch: int = 1,
) -> LayerFootprint:
    """Return parameters and kept bytes of each unit on one of `tp` ranks.

    `norm_keeps` "output" is what memory-efficient norm kernels do (apex): they restore their input
    from the output, which the next product keeps anyway. Bytes are those of `microbatch` samples,
    so 1 for a footprint that goes into a store.
    """
    kernels = Kernels(norm=_NORMS[norm_keeps], attention=_flash_attention)
    # CPU on purpose: autograd on fake tensors of a device that torch wasn't built for aborts.
    with FakeTensorMode():
        build = Build(model, tp, precision, style, torch.device("cpu"), kernels)
        tokens = torch.zeros(model.seq_len, microbatch, dtype=torch.int64)
        x = torch.zeros(
            model.seq_len, microbatch, model.hidden, dtype=build.dtype, requires_grad=True
        )
        embedding = _counted(Embedding(build), (tokens,), lambda unit: unit(tokens))
        block = _counted(Block(build), (x,), lambda unit: unit(x))
        head = _counted(Head(build), (x, tokens), lambda unit: _logits_with_loss(unit, x, tokens))
    return LayerFootprint(
        model=model.name,
        tp=tp,
        precision=precision,
        embedding=embedding,
        first_block=block,
        block=block,
        head=head,
        provenance=Provenance.COUNTED,
        source=f"counted from the tensors that torch {torch.__version__} keeps for the backward "
        f"pass, one sample, {style.described(model)}"
        + ("; norms keep their output" if norm_keeps == "output" else ""),
    )


def _logits_with_loss(head: Head, x: Tensor, targets: Tensor) -> Tensor:
    """Run the loss too, and return the logits: they are the head's output in a footprint."""
    logits = head.logits(x)
    head.loss(logits, targets)
    return logits


def _counted(unit: nn.Module, inputs: Iterable[Tensor], run: Callable[[Any], Tensor]) -> UnitBytes:
    known = {_identity(tensor) for tensor in (*unit.parameters(), *unit.buffers(), *inputs)}
    with _saved_storages() as saved:
        output = run(unit)
    saved[_identity(output)] = output.untyped_storage()
    kept = sum(storage.nbytes() for place, storage in saved.items() if place not in known)
    return UnitBytes(
        params=sum(parameter.numel() for parameter in unit.parameters()),
        activation_bytes=kept,
        output_bytes=output.numel() * output.element_size(),
    )


@contextmanager
def _saved_storages() -> Iterator[dict[int, torch.UntypedStorage]]:
    """Collect the storages of everything that autograd saves, each once."""
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        # The storage is held, so that its identity isn't given to another one meanwhile.
        saved[_identity(tensor)] = tensor.untyped_storage()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        yield saved


def _identity(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


class _Norm(torch.autograd.Function):
    """A norm that saves its statistics in fp32 and its input or output, as GPU kernels do.

    Counting runs no backward pass, and there is none.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, keeps: NormKeeps
    ) -> Tensor:
        rows = x.shape[:-1]
        output = torch.empty_like(x)
        kept = [x if keeps == "input" else output, weight, torch.empty(rows, dtype=torch.float32)]
        if bias is not None:
            kept.append(bias)
            if keeps == "input":  # the mean; RMSNorm has none, and an output has none left
                kept.append(torch.empty(rows, dtype=torch.float32))
        ctx.save_for_backward(*kept)
        return output


class _FlashAttention(torch.autograd.Function):
    """Fused attention: saves its three inputs, its output and a fp32 statistic a row and head.

    Counting runs no backward pass, and there is none.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        # As the kernels lay it out: the next product reads it without a copy.
        samples, heads, positions, size = query.shape
        output = query.new_empty(positions, samples, heads, size).permute(1, 2, 0, 3)
        statistic = torch.empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, statistic)
        return output


_apply_norm: Callable[..., Tensor] = _Norm.apply
_apply_flash: Callable[..., Tensor] = _FlashAttention.apply


def _flash_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    del dropout  # its mask is drawn again from the seed
    return _apply_flash(query, key, value)


def _norm_keeping(keeps: NormKeeps) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    return lambda x, weight, bias: _apply_norm(x, weight, bias, keeps)


_NORMS = {keeps: _norm_keeping(keeps) for keeps in ("input", "output")}
