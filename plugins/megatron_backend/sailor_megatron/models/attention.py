"""Causal attention of a rank's heads; which kernel computes it is decided here only."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor.model.arch import ModelSpec
from sailor_megatron.layout import Shard
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.models.recompute import recomputed


class Attention:
    """Attends with query heads [lo, hi) of a model to the key-value heads that serve them.

    Without dropout of probabilities torch's scaled_dot_product_attention does it: a flash kernel
    on a GPU in 16 bits, a fused one on the CPU, and neither keeps the scores. With it the scores
    are written out, since no kernel takes a mask that is the same under every plan; `recompute`
    does so a second time instead of keeping them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        query: Shard,
        key: Shard,
        dropout: Dropout,
        name: str,
        *,
        recompute: bool = False,
    ) -> None:
        self._site = f"{name}.attention.probabilities"
        self._dropout, self._recompute = dropout, recompute
        self._first = query.lo // spec.head_dim
        each = spec.num_heads // spec.num_kv_heads
        heads = range(self._first, query.hi // spec.head_dim)
        first_key = key.lo // spec.head_dim
        served = [head // each - first_key for head in heads]
        count = key.hi // spec.head_dim - first_key
        self._grouped = count != len(heads)
        # Torch groups heads evenly. A rank whose heads are no whole groups says which goes where.
        even = [index * count // len(heads) for index in range(len(heads))]
        self._served = None if served == even and len(heads) % count == 0 else served

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, samples: Sequence[int]) -> Tensor:
        """Return [samples, heads, positions, head_dim] for three of that form."""
        if self._served is not None:
            key, value = key[:, self._served], value[:, self._served]
        grouped = self._grouped and self._served is None
        if not self._dropout.probability:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=grouped
            )
        run = partial(self._written_out, samples)
        return recomputed(run, query, key, value) if self._recompute else run(query, key, value)

    def _written_out(
        self, samples: Sequence[int], query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        if query.shape[1] != key.shape[1]:
            each = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(each, 1), value.repeat_interleave(each, 1)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        size = scores.shape[-1]
        future = torch.ones(size, size, dtype=torch.bool, device=scores.device).triu(1)
        wide = torch.float64 if scores.dtype is torch.float64 else torch.float32
        weights = scores.masked_fill(future, -math.inf).softmax(-1, dtype=wide).to(query.dtype)
        return self._dropout.of_heads(weights, self._site, samples, self._first) @ value
