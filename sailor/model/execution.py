"""How a model is executed: what framework, kernels and memory savings a run uses.

The same plan takes different time and memory under two frameworks, so that every estimate without
a profile needs them. A job's `training` is an `Execution` with a global batch.
"""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.model.arch import ModelSpec
from sailor.model.base import Record
from sailor.model.hardware import GpuType

Precision = Literal["fp32", "fp16", "bf16"]
Framework = Literal[
    "megatron-lm",  # Megatron-LM and its core library
    "megatron-deepspeed",  # Megatron-LM models under DeepSpeed's engine
    "torchtitan",  # PyTorch FSDP2 with tensor, pipeline and context parallelism
    "llm-foundry",  # PyTorch FSDP under Composer
    "internevo",
    "nanotron",
    "galvatron",
]
# selective: eager attention's core; operators: every other matrix product and what lies between
Recompute = Literal["none", "selective", "operators", "full"]
Attention = Literal["flash", "flash1", "eager"]  # flash1: fused kernels of 2022 and 2023


class Execution(Record):
    """Program options with the defaults of the framework's own command line.

    `zero` 1 is also Megatron's distributed optimizer, 3 also FSDP's full sharding; `zero_group`
    limits the ranks that share states (None: the whole data-parallel group). `cp` splits the
    sequence, `ep` the experts.
    """

    framework: Framework = "megatron-lm"
    precision: Precision = "bf16"
    tf32: bool = False  # fp32 products on tensor cores, at half of the 16-bit rate
    fp8: bool = False  # the blocks' matrix products in 8 bits, at twice the 16-bit rate
    optimizer: Literal["adam", "sgd"] = "adam"  # "adam" is AdamW too: the same states
    zero: int = Field(default=0, ge=0, le=3)
    zero_group: int | None = Field(default=None, ge=1)
    recompute: Recompute = "none"
    recompute_stops_early: bool = False  # full: all but a block's last product runs again
    sequence_parallel: bool = False
    attention: Attention | None = None  # None: flash where the GPU type can, which bf16 tells
    dropout: bool = False
    cp: int = Field(default=1, ge=1, le=1024)
    ep: int = Field(default=1, ge=1, le=4096)
    expert_tp: int | None = Field(default=None, ge=1)  # None: as tp
    fused_norms: bool = True  # norm, rotary and activation kernels that keep no extra copies
    fused_loss: bool = False  # one kernel for softmax and loss over the vocabulary's parts
    deferred_head_grad: bool = False  # the head's weight gradients are left for the pass's end
    fused_accumulation: bool = False  # weight-gradient products add to the sum themselves
    overlap_grads: bool = False  # gradient reduction runs beside the backward pass
    overlap_params: bool = False  # parameter gathering runs beside the forward pass
    overlap_tp: bool = False  # tensor-parallel traffic runs beside matrix products
    overlap_warmup: bool = False  # interleaved schedule overlaps its first and last sends
    keep_gathered: bool = False  # fully sharded weights stay gathered until the backward pass
    vocab_parallel: bool = True  # tp splits the vocabulary's table (off: each rank gathers it)
    vocab_divisor: int = Field(default=128, ge=1)  # vocabulary pads to a multiple of this times tp

    def on(self, gpu: GpuType) -> Self:
        """Return the options with the attention kernel that runs on a GPU type."""
        if self.attention is not None:
            return self
        return self.model_copy(update={"attention": "flash" if gpu.bf16 else "eager"})

    def check_model(self, model: ModelSpec) -> None:
        """Raise ValueError where the degrees don't suit a model's experts."""
        experts = model.experts
        if self.ep > 1 and experts is None:
            raise ValueError(f"ep {self.ep} needs experts: {model.name} has none to spread")
        if experts and experts.num_experts % self.ep:
            raise ValueError(f"num_experts {experts.num_experts} is not a multiple of ep {self.ep}")


class Chunk(Record):
    """Consecutive units on one pipeline rank: blocks, and the embedding or head beside them."""

    blocks: int = Field(ge=0)
    embedding: bool = False
    head: bool = False


class Layout(Record):
    """A model cut for uniform replicas: degrees, and the chunks in model order.

    Chunk i lies on pipeline rank i % pp; there are pp * vpp of them. Every replica runs
    `num_microbatches` microbatches of `microbatch` sequences an iteration.
    """

    tp: int = Field(ge=1, le=4096)
    dp: int = Field(ge=1, le=1_000_000)
    microbatch: int = Field(ge=1)
    num_microbatches: int = Field(ge=1)
    pp: int = Field(ge=1, le=1024)
    chunks: tuple[Chunk, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if len(self.chunks) % self.pp:
            raise ValueError(f"{len(self.chunks)} chunks don't divide over {self.pp} ranks")
        for part in ("embedding", "head"):
            if sum(getattr(chunk, part) for chunk in self.chunks) != 1:
                raise ValueError(f"a layout has one {part}")
        return self

    @property
    def vpp(self) -> int:
        """Return the chunks of a pipeline rank."""
        return len(self.chunks) // self.pp

    @property
    def num_blocks(self) -> int:
        """Return the blocks of all chunks."""
        return sum(chunk.blocks for chunk in self.chunks)

    def rank_chunks(self, rank: int) -> tuple[Chunk, ...]:
        """Return the chunks of a pipeline rank, in model order."""
        return self.chunks[rank :: self.pp]


def even_chunks(num_blocks: int, pp: int, vpp: int = 1) -> tuple[Chunk, ...]:
    """Return chunks whose block counts differ by at most one, the earlier ones larger."""
    parts = pp * vpp
    least, more = divmod(num_blocks, parts)
    return chunks_of([least + (index < more) for index in range(parts)])


def chunks_of(blocks: list[int]) -> tuple[Chunk, ...]:
    """Return chunks with these block counts, the embedding on the first, the head on the last."""
    last = len(blocks) - 1
    return tuple(
        Chunk(blocks=count, embedding=index == 0, head=index == last)
        for index, count in enumerate(blocks)
    )
