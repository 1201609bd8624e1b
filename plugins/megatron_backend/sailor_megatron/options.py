"""How a run computes: what a plan leaves open. Plain records, written beside the plan."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from sailor.model.base import Record

RunPrecision = Literal["fp64", "fp32", "bf16", "fp16"]
ScheduleName = Literal["1f1b", "gpipe"]


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
    zero1: bool = False
    dropout: float = Field(default=0.0, ge=0, lt=1)
    schedule: ScheduleName = "1f1b"
    activation: Literal["gelu", "relu"] = "gelu"  # of an MLP without gate
    rope_theta: float = Field(default=10_000.0, gt=0)
    loss_scale: float = Field(default=65536.0, gt=0)  # the first one; fp16 only
    seed: int = Field(default=0, ge=0, lt=2**31)
