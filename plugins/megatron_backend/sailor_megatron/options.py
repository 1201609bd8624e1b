"""How a run computes: what a plan leaves open. Plain records, written beside the plan."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.model.base import Record

RunPrecision = Literal["fp64", "fp32", "bf16", "fp16"]


class RopeScaling(Record):
    """How rotary embeddings are slowed for sequences beyond those first trained on (Llama 3.1).

    Factors count waves in `original_positions`: below the low one frequencies are divided by
    `factor`, above the high one they stay.
    """

    factor: float = Field(ge=1)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_positions: int = Field(ge=1)

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError("high_freq_factor is not above low_freq_factor")
        return self


class RunOptions(Record):
    """Numerics and hyper-parameters of a run.

    `clip_norm` bounds the Euclidean norm of the whole gradient (None: no clipping). `zero1` keeps
    each optimizer state on one of the ranks that hold the same parameters. `weight_decay` is
    AdamW's, on matrices only. The learning rate rises linearly over `warmup_steps`.
    """

    precision: RunPrecision = "fp32"
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = Field(default=1e-3, gt=0)
    warmup_steps: int = Field(default=0, ge=0)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float | None = Field(default=1.0, gt=0)
    recompute: bool = False
    recompute_attention: bool = False  # only its scores, which are kept where they are dropped from
    zero1: bool = False
    stages: Literal["torch", "megatron", "auto"] = "torch"  # auto: megatron-core's where they can
    sequence_parallel: bool = False  # norms and dropout are split over the tp ranks by positions
    dropout: float = Field(default=0.0, ge=0, lt=1)
    attention_dropout: float = Field(default=0.0, ge=0, lt=1)  # of attention's probabilities
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"  # of an MLP without gate
    norm_epsilon: float = Field(default=1e-5, gt=0)
    position_offset: int = Field(default=0, ge=0)  # of a table's row for position 0 (2: OPT's)
    rope_theta: float = Field(default=10_000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    loss_scale: float = Field(default=65536.0, gt=0)  # the first one; fp16 only
    seed: int = Field(default=0, ge=0, lt=2**31)
