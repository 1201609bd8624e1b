"""One transformer block: pre-norm attention and MLP, cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor.model.arch import ModelSpec
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.models.tensor_parallel import TensorParallel
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import Parameters

NORM_EPSILON = 1e-5


class Norm:
    """LayerNorm or RMSNorm over the hidden dimension."""

    def __init__(self, spec: ModelSpec, params: Parameters, name: str) -> None:
        self._shape = (spec.hidden,)
        self._weight = params.leaf(f"{name}.weight")
        self._bias = params.leaf(f"{name}.bias") if spec.norm == "layernorm" else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return x normalised."""
        if self._bias is None:
            return F.rms_norm(x, self._shape, self._weight, NORM_EPSILON)
        return F.layer_norm(x, self._shape, self._weight, self._bias, NORM_EPSILON)


class Rotary:
    """Rotary position embedding in the half-split layout of Llama."""

    def __init__(
        self, head_dim: int, seq_len: int, theta: float, dtype: torch.dtype, device: torch.device
    ) -> None:
        frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        angles = torch.outer(torch.arange(seq_len, dtype=torch.float64), frequencies)
        self._cos = angles.cos().to(device=device, dtype=dtype)
        self._sin = angles.sin().to(device=device, dtype=dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Return x [samples, heads, positions, head_dim] turned by its positions."""
        first, second = x.chunk(2, dim=-1)
        cos, sin = self._cos[: x.shape[-2]], self._sin[: x.shape[-2]]
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Block:
    """A block that holds its rank's heads and MLP columns.

    Query, key and value are one product, as are gate and up. Two sums over the ranks forward and
    two backward.
    """

    def __init__(
        self,
        spec: ModelSpec,
        params: Parameters,
        tp: TensorParallel,
        options: RunOptions,
        index: int,
        rotary: Rotary | None,
    ) -> None:
        name = f"blocks.{index}"
        self._name, self._tp, self._rotary = name, tp, rotary
        self._dropout = Dropout(options.dropout, options.seed)
        self._head_dim = spec.head_dim
        self._gated = spec.gated_mlp
        self._activation = F.relu if options.activation == "relu" else _gelu
        self._attention_norm = Norm(spec, params, f"{name}.attention_norm")
        self._mlp_norm = Norm(spec, params, f"{name}.mlp_norm")
        inward = [f"{name}.attention.{part}" for part in ("query", "key", "value")]
        upward = [f"{name}.mlp.{part}" for part in (("gate", "up") if spec.gated_mlp else ("up",))]
        self._inward = [params.local_shape(f"{part}.weight")[0] for part in inward]
        self._grouped = spec.num_kv_heads != spec.num_heads
        biases = spec.biases

        def weights(parts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
            weight = params.leaf(*(f"{part}.weight" for part in parts))
            return weight, params.leaf(*(f"{part}.bias" for part in parts)) if biases else None

        self._qkv = weights(inward)
        self._output = weights([f"{name}.attention.output"])
        self._up = weights(upward)
        self._down = weights([f"{name}.mlp.down"])

    def __call__(self, x: Tensor, samples: Sequence[int]) -> Tensor:
        """Return the block's output for x [samples, positions, hidden]."""
        attended = self._attention(self._tp.enter(self._attention_norm(x)))
        x = x + self._dropout(attended, f"{self._name}.attention", samples)
        expanded = self._mlp(self._tp.enter(self._mlp_norm(x)))
        return x + self._dropout(expanded, f"{self._name}.mlp", samples)

    def _attention(self, h: Tensor) -> Tensor:
        count, positions, _ = h.shape
        parts = torch.split(F.linear(h, *self._qkv), self._inward, dim=-1)
        query, key, value = (
            part.view(count, positions, -1, self._head_dim).transpose(1, 2) for part in parts
        )
        if self._rotary is not None:
            query, key = self._rotary(query), self._rotary(key)
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=self._grouped
        )
        mixed = mixed.transpose(1, 2).reshape(count, positions, -1)
        return self._join(mixed, self._output)

    def _mlp(self, h: Tensor) -> Tensor:
        up = F.linear(h, *self._up)
        if self._gated:
            gate, up = up.chunk(2, dim=-1)
            return self._join(F.silu(gate) * up, self._down)
        return self._join(self._activation(up), self._down)

    def _join(self, x: Tensor, weights: tuple[Tensor, Tensor | None]) -> Tensor:
        """Multiply with row-cut weights; the bias, which every rank holds, comes once."""
        weight, bias = weights
        if self._tp.group is None:
            return F.linear(x, weight, bias)
        total = self._tp.leave(F.linear(x, weight))
        return total if bias is None else total + bias


def _gelu(x: Tensor) -> Tensor:
    return F.gelu(x)
