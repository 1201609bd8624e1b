"""The network being trained: its shape, and what follows from the shape alone."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.model.base import Record
from sailor.model.hardware import Name

MAX_UNITS = 1026

UnitKind = Literal["embedding", "first_block", "block", "head"]


class Experts(Record):
    """The experts of a mixture-of-experts model, in every block but the first `dense_blocks`."""

    num_experts: int = Field(ge=2, le=65536)
    top_k: int = Field(ge=1, le=1024)
    ffn: int = Field(ge=1)  # hidden columns of one expert
    shared_ffn: int = Field(default=0, ge=0)  # columns of the expert that every token visits
    dense_blocks: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k {self.top_k} is larger than num_experts {self.num_experts}")
        return self


class ModelSpec(Record):
    """A decoder-only transformer, dense or with experts.

    Its layers are *units*: 0 the embedding, 1..num_layers the blocks, num_layers + 1 the final
    norm, head and loss.
    """

    name: Name
    num_layers: int = Field(ge=1, le=MAX_UNITS - 2)
    hidden: int = Field(ge=1, le=1_000_000)
    ffn: int = Field(ge=1, le=4_000_000)
    num_heads: int = Field(ge=1, le=4096)
    num_kv_heads: int = Field(ge=1, le=4096)
    head_dim: int = Field(ge=1, le=4096)
    vocab: int = Field(ge=1, le=10_000_000)
    seq_len: int = Field(ge=1, le=10_000_000)
    max_positions: int = Field(default=0, ge=0)  # learned position table; 0: none (rotary)
    tied_embeddings: bool = False
    gated_mlp: bool = False
    biases: bool = True
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    experts: Experts | None = None
    source: str = "job"

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads "
                f"{self.num_kv_heads}; every key-value head serves the same number of heads"
            )
        return self

    @property
    def num_units(self) -> int:
        """Return the number of units: embedding, blocks, head."""
        return self.num_layers + 2

    def unit_kind(self, unit: int) -> UnitKind:
        """Return the kind of a unit; the first block is told apart because profiles time it."""
        if unit == 0:
            return "embedding"
        if unit == self.num_units - 1:
            return "head"
        return "first_block" if unit == 1 else "block"

    def allows_tp(self, tp: int) -> bool:
        """Return whether heads and key-value heads split evenly over `tp` GPUs."""
        return self.num_heads % tp == 0 and self.num_kv_heads % tp == 0

    def padded_vocab(self, tp: int, divisor: int = 128) -> int:
        """Return the vocabulary rows after padding to a multiple of `divisor * tp`.

        Megatron-LM's rule (`--make-vocab-size-divisible-by`, default 128).
        """
        multiple = divisor * tp
        return -(-self.vocab // multiple) * multiple

    def unit_params(self, kind: UnitKind, tp: int = 1) -> int:
        """Return the parameters of one unit on one of `tp` ranks, which hold all experts.

        Column- and row-parallel matrices are split, norms, row-parallel biases and the position
        table are replicated. A tied head holds its copy of the table (it lies on another stage,
        or shares it when it is on the same one: the caller decides).
        """
        norm = self.hidden * (2 if self.norm == "layernorm" else 1)
        table = self.padded_vocab(tp) // tp * self.hidden
        if kind == "embedding":
            return table + self.max_positions * self.hidden
        if kind == "head":
            return table + norm
        queries = self.num_heads * self.head_dim // tp
        keys = self.num_kv_heads * self.head_dim // tp
        attention = self.hidden * (2 * queries + 2 * keys)
        if self.biases:
            attention += queries + 2 * keys + self.hidden
        share = self.experts_share
        if self.experts is None or share == 0:
            return attention + self.ffn_params(self.ffn, tp) + 2 * norm
        routed = self.experts.num_experts * self.ffn_params(self.experts.ffn, tp)
        shared = self.shared_params(tp)
        dense = (1 - share) * self.ffn_params(self.ffn, tp)
        return round(attention + dense + share * (routed + shared) + 2 * norm)

    @property
    def experts_share(self) -> float:
        """Return the part of the blocks that have experts."""
        if self.experts is None:
            return 0.0
        return 1 - min(self.experts.dense_blocks, self.num_layers) / self.num_layers

    def ffn_params(self, columns: int, tp: int = 1) -> int:
        """Return the parameters of a feed-forward part (or of one expert) on one of `tp` ranks."""
        ffn = -(-columns // tp)
        num_up = 2 if self.gated_mlp else 1
        biases = num_up * ffn + self.hidden if self.biases else 0
        return self.hidden * ffn * (num_up + 1) + biases

    def shared_params(self, tp: int = 1) -> int:
        """Return a block's router and the expert that every token visits, on one of `tp` ranks."""
        if self.experts is None:
            return 0
        up = 2 if self.gated_mlp else 1
        router = self.hidden * self.experts.num_experts
        return router + self.hidden * (self.experts.shared_ffn // tp) * (up + 1)

    def num_params(self) -> int:
        """Return the parameters of the whole model, without vocabulary padding."""
        block = self.unit_params("block") * self.num_layers
        table = self.vocab * self.hidden
        norm = self.hidden * (2 if self.norm == "layernorm" else 1)
        heads = 1 if self.tied_embeddings else 2
        return block + heads * table + norm + self.max_positions * self.hidden

    def active_params(self) -> int:
        """Return the parameters that a token visits: all but the experts it is not sent to."""
        if self.experts is None:
            return self.num_params()
        sparse = self.num_layers - min(self.experts.dense_blocks, self.num_layers)
        idle = self.experts.num_experts - self.experts.top_k
        return self.num_params() - sparse * idle * self.ffn_params(self.experts.ffn)
