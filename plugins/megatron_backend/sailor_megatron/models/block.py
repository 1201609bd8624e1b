"""One transformer block: pre-norm attention and MLP, cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from sailor.model.arch import ModelSpec
from sailor_megatron.models.attention import Attention
from sailor_megatron.models.dropout import Dropout
from sailor_megatron.models.rotary import Rotary
from sailor_megatron.models.tensor_parallel import TensorParallel
from sailor_megatron.options import RunOptions
from sailor_megatron.parameters import Parameters


class Norm:
    """LayerNorm or RMSNorm over the hidden dimension."""

    def __init__(self, spec: ModelSpec, params: Parameters, options: RunOptions, name: str) -> None:
        self._shape = (spec.hidden,)
        self._epsilon = options.norm_epsilon
        self._weight = params.leaf(f"{name}.weight")
        self._bias = params.leaf(f"{name}.bias") if spec.norm == "layernorm" else None

    def __call__(self, x: Tensor) -> Tensor:
        """Return x normalised."""
        if self._bias is None:
            return F.rms_norm(x, self._shape, self._weight, self._epsilon)
        return F.layer_norm(x, self._shape, self._weight, self._bias, self._epsilon)


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
        self._dropout = Dropout(options.dropout, options.seed, tp)
        self._head_dim = spec.head_dim
        self._gated = spec.gated_mlp
        self._activation = _ACTIVATIONS[options.activation]
        self._attention_norm = Norm(spec, params, options, f"{name}.attention_norm")
        self._mlp_norm = Norm(spec, params, options, f"{name}.mlp_norm")
        inward = [f"{name}.attention.{part}" for part in ("query", "key", "value")]
        upward = [f"{name}.mlp.{part}" for part in (("gate", "up") if spec.gated_mlp else ("up",))]
        self._inward = [params.local_shape(f"{part}.weight")[0] for part in inward]
        self._attend = Attention(
            spec,
            params.shards[f"{name}.attention.query.weight"],
            params.shards[f"{name}.attention.key.weight"],
            Dropout(options.attention_dropout, options.seed),
            name,
            recompute=options.recompute_attention and not options.recompute,
        )
        biases = spec.biases

        def weights(parts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
            weight = params.leaf(*(f"{part}.weight" for part in parts))
            return weight, params.leaf(*(f"{part}.bias" for part in parts)) if biases else None

        self._qkv = weights(inward)
        self._output = weights([f"{name}.attention.output"])
        self._up = weights(upward)
        self._down = weights([f"{name}.mlp.down"])

    def __call__(self, x: Tensor, samples: Sequence[int]) -> Tensor:
        """Return the block's output for x [samples, positions, hidden].

        Where positions are split, x is [this rank's positions, samples, hidden].
        """
        attended = self._attention(self._attention_norm(x), samples)
        x = x + self._dropout(attended, f"{self._name}.attention", samples)
        expanded = self._mlp(self._mlp_norm(x))
        return x + self._dropout(expanded, f"{self._name}.mlp", samples)

    def _attention(self, h: Tensor, samples: Sequence[int]) -> Tensor:
        product = self._tp.product(h, *self._qkv)
        first, second, _ = product.shape
        parts = torch.split(product, self._inward, dim=-1)
        heads_first = (1, 2, 0, 3) if self._tp.split else (0, 2, 1, 3)
        back = (2, 0, 1, 3) if self._tp.split else (0, 2, 1, 3)
        query, key, value = (
            part.view(first, second, -1, self._head_dim).permute(heads_first) for part in parts
        )
        if self._rotary is not None:
            query, key = self._rotary(query), self._rotary(key)
        mixed = self._attend(query, key, value, samples)
        return self._join(mixed.permute(back).reshape(first, second, -1), self._output)

    def _mlp(self, h: Tensor) -> Tensor:
        up = self._tp.product(h, *self._up)
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


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "relu": F.relu,
}
