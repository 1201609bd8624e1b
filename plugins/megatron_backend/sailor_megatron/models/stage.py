"""The units of one stage as one callable: tokens or activation in, activation or loss out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from sailor_megatron.layout import EMBEDDING
from sailor_megatron.models.block import Block, Norm
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.models.recompute import recomputed
from sailor_megatron.models.rotary import Rotary
from sailor_megatron.models.tensor_parallel import TensorParallel, cross_entropy_sum, embed
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import Parameters

RunBlock = Callable[[Tensor, Sequence[int]], Tensor]
MakeBlock = Callable[[int], RunBlock]


class TorchStage:
    """What one worker computes of a stage of the plan for one microbatch.

    The first stage takes tokens [samples, positions]; the others an activation [samples,
    positions, hidden]. The last returns the summed loss in nats, the others an activation.
    `make_block` None: the native blocks.
    """

    def __init__(
        self,
        params: Parameters,
        index: int,
        tp: TensorParallel,
        options: RunOptions,
        make_block: MakeBlock | None = None,
        kind: str = "torch",
    ) -> None:
        self.kind = kind
        layout = params.layout
        spec, stage = layout.spec, layout.plan.stages[index]
        self._params, self._tp, self._options = params, tp, options
        self._dropout = Dropout(options.dropout, options.seed, tp)
        self.first = stage.start == 0
        self.last = stage.stop == spec.num_units
        blocks = range(max(stage.start, 1) - 1, min(stage.stop, spec.num_units - 1) - 1)
        make = make_block or _native_blocks(params, tp, options)
        self._blocks = [make(block) for block in blocks]
        if self.first:
            self._table = params.leaf(EMBEDDING)
            self._positions = params.leaf("positions.weight") if spec.max_positions else None
            self._offset = options.position_offset
        if self.last:
            self._norm = Norm(spec, params, options, "final_norm")
            self._head_name = EMBEDDING if spec.tied_embeddings else "head.weight"
            self._head = params.leaf(self._head_name)

    def __call__(self, x: Tensor, targets: Tensor | None, samples: Sequence[int]) -> Tensor:
        """Run all units for one microbatch; `samples` are the indices of its samples."""
        if self.first:
            x = self._embed(x, samples)
        for block in self._blocks:
            if self._options.recompute:
                x = recomputed(partial(_run, block, samples), x)
            else:
                x = block(x, samples)
        if not self.last:
            return x
        if targets is None:
            raise RuntimeError("the last stage needs targets")
        return self._loss(x, targets)

    def _embed(self, tokens: Tensor, samples: Sequence[int]) -> Tensor:
        lo = self._params.shards[EMBEDDING].lo
        if self._tp.split:
            x = embed(self._table, tokens.transpose(0, 1), lo, self._tp)
            if self._positions is not None:
                x = x + self._tp.own(self._rows(self._positions, tokens)).unsqueeze(1)
        else:
            x = embed(self._table, tokens, lo, self._tp)
            if self._positions is not None:
                x = x + self._rows(self._positions, tokens)
        return self._dropout(x, "embedding", samples)

    def _rows(self, table: Tensor, tokens: Tensor) -> Tensor:
        return table[self._offset : self._offset + tokens.shape[1]]

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self._tp.product(self._norm(x), self._head).flatten(0, 1)
        wanted = targets.transpose(0, 1) if self._tp.split else targets
        lo = self._params.shards[self._head_name].lo
        return cross_entropy_sum(logits, wanted.reshape(-1), lo, self._tp)


def _run(block: RunBlock, samples: Sequence[int], x: Tensor) -> Tensor:
    return block(x, samples)


def _native_blocks(params: Parameters, tp: TensorParallel, options: RunOptions) -> MakeBlock:
    spec = params.layout.spec
    rotary = None
    if not spec.max_positions:
        device = params.master.device
        rotary = Rotary(spec.head_dim, spec.seq_len, options, params.dtype, device)
    return lambda index: Block(spec, params, tp, options, index, rotary)
