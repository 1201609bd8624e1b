"""The units of a model as plain torch modules, cut for one tensor-parallel rank.

A module has the shapes that one of `tp` ranks has and does that rank's work. Communication between
the ranks is not in it: what it computes is a rank's part, not the model's result. Activations are
[positions, samples, hidden], so that heads are views and nothing is copied to reach them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from sailor.interfaces import UnitStyle
from sailor.model.arch import ModelSpec
from sailor.model.execution import Precision

DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
NORM_EPSILON = 1e-5
INITIAL_STD = 0.02
ROTARY_BASE = 10_000.0

_Norm = Callable[[Tensor, Tensor, Tensor | None], Tensor]
_FusedAttention = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def torch_norm(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return LayerNorm of x over its last dimension; without a bias RMSNorm."""
    if bias is None:
        return F.rms_norm(x, weight.shape, weight, NORM_EPSILON)
    return F.layer_norm(x, weight.shape, weight, bias, NORM_EPSILON)


def torch_attention(query: Tensor, key: Tensor, value: Tensor, dropout: float) -> Tensor:
    """Return causal attention of [samples, heads, positions, head_dim] tensors."""
    return F.scaled_dot_product_attention(
        query, key, value, dropout_p=dropout, is_causal=True,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """The operations that one kernel does on a GPU and several on a CPU."""

    norm: _Norm = torch_norm
    attention: _FusedAttention = torch_attention


@dataclass(frozen=True)
class Build:
    """What a unit is made of: the model, one rank's share of it, and where its tensors lie."""

    model: ModelSpec
    tp: int
    precision: Precision
    style: UnitStyle
    device: torch.device
    kernels: Kernels

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of weights and activations."""
        return DTYPES[self.precision]

    @property
    def vocab_rows(self) -> int:
        """Return the rank's rows of the vocabulary's table."""
        return self.model.padded_vocab(self.tp) // self.tp

    def weight(self, *shape: int) -> nn.Parameter:
        """Return a weight with normal entries: zeros would draw less power, and run faster."""
        data = torch.empty(shape, dtype=self.dtype, device=self.device)
        return nn.Parameter(data.normal_(0.0, INITIAL_STD))

    def ones(self, length: int) -> nn.Parameter:
        """Return a norm's weight."""
        return nn.Parameter(torch.ones(length, dtype=self.dtype, device=self.device))

    def bias(self, length: int, present: bool) -> nn.Parameter | None:
        """Return a bias of zeros, or None."""
        if not present:
            return None
        return nn.Parameter(torch.zeros(length, dtype=self.dtype, device=self.device))


class Norm(nn.Module):
    """LayerNorm or RMSNorm over the hidden size."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.weight = build.ones(build.model.hidden)
        self.bias = build.bias(build.model.hidden, build.model.norm == "layernorm")
        self._kernel = build.kernels.norm

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised."""
        return self._kernel(x, self.weight, self.bias)


class Linear(nn.Module):
    """A product with the rank's part of a matrix."""

    def __init__(self, build: Build, rows: int, columns: int) -> None:
        super().__init__()
        self.weight = build.weight(columns, rows)
        self.bias = build.bias(columns, build.model.biases)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the matrix."""
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Rows of the rank's part of the vocabulary's table, and learned positions."""

    positions: Tensor

    def __init__(self, build: Build) -> None:
        super().__init__()
        model = build.model
        self.table = build.weight(build.vocab_rows, model.hidden)
        self.position_table = (
            build.weight(model.max_positions, model.hidden) if model.max_positions else None
        )
        positions = torch.arange(model.seq_len, device=build.device).unsqueeze(1)
        self.register_buffer("positions", positions)
        self._split = build.tp > 1
        self._dropout = build.style.dropout

    def forward(self, tokens: Tensor) -> Tensor:
        """Return [positions, samples, hidden] for [positions, samples] tokens."""
        if self._split:  # tokens of other ranks' rows give zeros, which the ranks would add up
            elsewhere = tokens >= self.table.shape[0]
            found = F.embedding(tokens.masked_fill(elsewhere, 0), self.table)
            x = found.masked_fill(elsewhere.unsqueeze(-1), 0.0)
        else:
            x = F.embedding(tokens, self.table)
        if self.position_table is not None:
            x = x + F.embedding(self.positions, self.position_table)
        return dropped(x, self._dropout)


class Attention(nn.Module):
    """Causal self-attention of the rank's heads, eager or fused, with grouped keys and values."""

    mask: Tensor
    cosine: Tensor
    sine: Tensor

    def __init__(self, build: Build) -> None:
        super().__init__()
        model = build.model
        self._heads = model.num_heads // build.tp
        self._groups = model.num_kv_heads // build.tp
        self._head_dim = model.head_dim
        self._rotary = model.max_positions == 0
        self._kernel = build.kernels.attention
        self._eager = build.style.attention == "eager"
        self._dropout = build.style.dropout
        queries, keys = self._heads * model.head_dim, self._groups * model.head_dim
        # One product for all three where they are used as they come; a rotary embedding makes
        # new queries and keys, and one product's output would be kept for the values alone.
        widths = (queries, keys, keys) if self._rotary else (queries + 2 * keys,)
        self.inputs = nn.ModuleList(Linear(build, model.hidden, width) for width in widths)
        self.output = Linear(build, queries, model.hidden)
        if self._eager:
            ones = torch.ones(model.seq_len, model.seq_len, dtype=torch.bool, device=build.device)
            self.register_buffer("mask", ones.triu(1))
        if self._rotary:
            cosine, sine = _rotary_tables(build)
            self.register_buffer("cosine", cosine)
            self.register_buffer("sine", sine)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rank's part of attention's output."""
        shape = (*x.shape[:2], -1, self._head_dim)
        if self._rotary:
            query, key, value = (project(x).view(shape) for project in self.inputs)
            query, key = self._turned(query), self._turned(key)
        else:
            parts = (self._heads, self._groups, self._groups)
            query, key, value = self.inputs[0](x).view(shape).split(parts, dim=2)
        attend = self._eager_attention if self._eager else self._fused_attention
        kept: Tensor = self.output(attend(query, key, value))
        return kept

    def _fused_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        result = self._kernel(query, key, value, self._dropout)
        return result.permute(2, 0, 1, 3).flatten(2)

    def _eager_attention(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Write the score matrix out. Queries that share a key are rows of one product."""
        length, samples = query.shape[:2]
        groups = samples * self._groups
        shared = self._heads // self._groups
        rows = query.reshape(length, groups, shared, -1).permute(1, 2, 0, 3)
        rows = rows.reshape(groups, shared * length, -1)
        keys = key.reshape(length, groups, -1).permute(1, 2, 0)
        values = value.reshape(length, groups, -1).transpose(0, 1)
        scores = torch.baddbmm(
            query.new_zeros(1, 1, 1), rows, keys, beta=0, alpha=self._head_dim**-0.5
        )
        by_query = scores.view(groups, shared, length, length)
        weights = by_query.masked_fill_(self.mask, float("-inf")).softmax(-1)
        weights = dropped(weights, self._dropout).view(groups, shared * length, length)
        result = torch.bmm(weights, values).view(groups, shared, length, -1)
        return result.permute(2, 0, 1, 3).reshape(length, samples, -1)

    def _turned(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat(
            (
                first * self.cosine - second * self.sine,
                second * self.cosine + first * self.sine,
            ),
            dim=-1,
        )


class FeedForward(nn.Module):
    """Two products with an activation between them, or three with a gate."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        model = build.model
        columns = -(-model.ffn // build.tp)
        self._gated = model.gated_mlp
        self._activation = _ACTIVATIONS[build.style.activation_of(model)]
        self.up = Linear(build, model.hidden, 2 * columns if self._gated else columns)
        self.down = Linear(build, columns, model.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return the rank's part of the feed-forward output."""
        wide = self.up(x)
        if self._gated:
            gate, value = wide.chunk(2, dim=-1)
            inner = self._activation(gate) * value
        else:
            inner = self._activation(wide)
        result: Tensor = self.down(inner)
        return result


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.attention_norm, self.attention = Norm(build), Attention(build)
        self.feed_forward_norm, self.feed_forward = Norm(build), FeedForward(build)
        self._dropout = build.style.dropout

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        x = x + dropped(self.attention(self.attention_norm(x)), self._dropout)
        return x + dropped(self.feed_forward(self.feed_forward_norm(x)), self._dropout)


class Head(nn.Module):
    """Final norm, the rank's rows of the output table, and the loss over them in fp32."""

    def __init__(self, build: Build) -> None:
        super().__init__()
        self.norm = Norm(build)
        self.table = build.weight(build.vocab_rows, build.model.hidden)
        self._split = build.tp > 1

    def logits(self, x: Tensor) -> Tensor:
        """Return the rank's share of the logits."""
        return F.linear(self.norm(x), self.table)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean loss over the tokens whose target is one of the rank's rows."""
        rows = logits.flatten(0, 1).float()
        wanted = targets.flatten()
        if not self._split:
            return F.cross_entropy(rows, wanted)
        elsewhere = wanted >= rows.shape[1]
        losses = F.cross_entropy(rows, wanted.masked_fill(elsewhere, 0), reduction="none")
        return losses.masked_fill(elsewhere, 0.0).mean()

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        """Return the loss."""
        return self.loss(self.logits(x), targets)


def dropped(x: Tensor, probability: float) -> Tensor:
    """Return x with dropout as GPU kernels do it: one byte of mask an element."""
    return torch.native_dropout(x, probability, True)[0] if probability else x


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "relu": F.relu,
    "silu": F.silu,
}


def _rotary_tables(build: Build) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, build.model.head_dim, 2, dtype=torch.float32, device=build.device)
    frequencies = ROTARY_BASE ** (-half / build.model.head_dim)
    positions = torch.arange(build.model.seq_len, dtype=torch.float32, device=build.device)
    angles = torch.outer(positions, frequencies)[:, None, None, :]
    return angles.cos().to(build.dtype), angles.sin().to(build.dtype)
