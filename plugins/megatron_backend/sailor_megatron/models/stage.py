"""The units of one stage as one callable: tokens or activation in, activation or loss out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor_megatron.layout import EMBEDDING, Worker
from sailor_megatron.models.block import Block, Norm, Rotary
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.models.recompute import recomputed
from sailor_megatron.models.tensor_parallel import TensorParallel, cross_entropy_sum, embed
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import Parameters


class TorchStage:
    """The native stage: what one worker computes for one microbatch.

    The first stage takes tokens [samples, positions]; the others an activation [samples,
    positions, hidden]. The last returns the summed loss in nats, the others an activation.
    """

    kind = "torch"

    def __init__(
        self, params: Parameters, worker: Worker, tp: TensorParallel, options: RunOptions
    ) -> None:
        layout = params.layout
        spec, stage = layout.spec, layout.plan.stages[worker.stage]
        self._params, self._tp, self._options = params, tp, options
        self._dropout = Dropout(options.dropout, options.seed)
        self.first = stage.start == 0
        self.last = stage.stop == spec.num_units
        rotary = None
        if not spec.max_positions:
            rotary = Rotary(
                spec.head_dim, spec.seq_len, options.rope_theta, params.dtype, params.master.device
            )
        blocks = range(max(stage.start, 1) - 1, min(stage.stop, spec.num_units - 1) - 1)
        self._blocks = [Block(spec, params, tp, options, index, rotary) for index in blocks]
        if self.first:
            self._table = params.leaf(EMBEDDING)
            self._positions = params.leaf("positions.weight") if spec.max_positions else None
        if self.last:
            self._norm = Norm(spec, params, "final_norm")
            self._head_name = EMBEDDING if spec.tied_embeddings else "head.weight"
            self._head = params.leaf(self._head_name)

    def __call__(self, x: Tensor, targets: Tensor | None, samples: Sequence[int]) -> Tensor:
        """Run all units for one microbatch; `samples` are the indices of its samples."""
        if self.first:
            x = self._embed(x, samples)
        for block in self._blocks:
            if self._options.recompute:
                x = recomputed(partial(block, samples=samples), x)
            else:
                x = block(x, samples)
        if not self.last:
            return x
        if targets is None:
            raise RuntimeError("the last stage needs targets")
        return self._loss(x, targets)

    def _embed(self, tokens: Tensor, samples: Sequence[int]) -> Tensor:
        x = embed(self._table, tokens, self._params.shards[EMBEDDING].lo, self._tp)
        if self._positions is not None:
            x = x + self._positions[: tokens.shape[1]]
        return self._dropout(x, "embedding", samples)

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        hidden = self._tp.enter(self._norm(x))
        logits = F.linear(hidden, self._head).flatten(0, 1)
        lo = self._params.shards[self._head_name].lo
        return cross_entropy_sum(logits, targets.reshape(-1), lo, self._tp)
