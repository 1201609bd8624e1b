"""From a row's fields to what the simulator takes: model, execution, layout, hardware."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from sailor.model.arch import Experts, ModelSpec
from sailor.model.base import Record
from sailor.model.catalog import Catalog
from sailor.model.execution import Chunk, Execution, Layout, even_chunks
from sailor.model.hardware import GpuType
from sailor.sim.clusters import ClusterFacts
from sailor.validation.fields import Fields, Refused

_Built = TypeVar("_Built", bound=Record)

ARCHITECTURES = (
    (r"GH-?200|GH-?96", "GH200-96GB"),
    (r"GB-?200", "GB200"),
    (r"B200", "B200-180GB"),
    (r"H200", "H200-141GB"),
    (r"[HG]100|H800", "H100-80GB"),
    (r"A[18]00.{0,12}40", "A100-40GB"),
    (r"A[18]00", "A100-80GB"),
    (r"V100.{0,6}16", "V100-16GB"),
    (r"V100", "V100-32GB"),
    (r"A10G", "A10G-24GB"),
    (r"\bL4\b", "L4-24GB"),
    (r"\bT4\b", "T4-16GB"),
)


@dataclass(frozen=True)
class Subject:
    """A row that can be simulated, and what was measured on it.

    `layouts` holds one layout; several where the source gives the best of unstated microbatch
    sizes. `view` names the part of `RankMemory` that the source measured, `rank` its pipeline
    rank (None: the fullest). `oom` marks a run that ended for want of memory.
    """

    fields: Fields
    model: ModelSpec
    execution: Execution
    layouts: tuple[Layout, ...]
    gpu: GpuType
    cluster: ClusterFacts
    measured_s: float | None
    measured_bytes: float | None
    view: str
    rank: int | None
    oom: bool
    parts: dict[str, float]
    other: Execution | None = None  # the same run with the other attention kernel


@dataclass
class Draft:
    """What a family of sources decides beside the fields; the defaults fit unknown sources."""

    cluster: ClusterFacts
    framework: str = "megatron-lm"
    attention: str = "flash"
    other_attention: str | None = None  # where the source doesn't say which of two it used
    dropout: bool = False
    gated: bool = False
    tied: bool = False
    biases: bool = True
    rmsnorm: bool = False
    positions: bool = True
    head_dim: int | None = None
    zero: int | None = None
    zero_group: int | None = None
    recompute: str | None = None
    sequence_parallel: bool = False
    chunks: tuple[Chunk, ...] | None = None
    experts: Experts | None = None
    ep: int = 1
    expert_tp: int | None = None
    options: dict[str, bool] | None = None
    vocab_divisor: int = 128
    view: str = "allocated"
    rank: int | None = None
    microbatches: Sequence[int] = ()
    memory_unit: float = 2.0**30
    memory_bytes: float | None = None
    optimizer: str = "adam"
    parts: dict[str, float] = field(default_factory=dict)  # bytes of states, of activations


def gpu_of(text: str) -> GpuType:
    """Return the GPU type that a row's free text means."""
    if re.search(r"B300", text, re.IGNORECASE):
        raise Refused(f"the GPU type {text!r} is not in the catalogue")
    if "/" in text or "+" in text:
        raise Refused(
            f"{text!r} is a mix of GPU types and the row doesn't say which stage has which"
        )
    for pattern, name in ARCHITECTURES:
        if re.search(pattern, text, re.IGNORECASE):
            return Catalog.builtin().gpu(name)
    raise Refused(f"the GPU type {text!r} is not known")


def subject_of(fields: Fields, draft: Draft) -> Subject:
    """Return the row as the simulator sees it."""
    precision = f"{fields.precision} {fields.flag_text()}".lower()
    if "fp4" in precision:
        raise Refused("fp4 matrix products are not modelled")
    if "fp8" in precision:
        draft.options = (draft.options or {}) | {"fp8": True}
    model = _model(fields, draft)
    execution = _execution(fields, draft)
    other = None
    if draft.other_attention:
        other = execution.model_copy(update={"attention": draft.other_attention})
    try:
        execution.check_model(model)
    except ValueError as error:
        raise Refused(str(error)) from None
    layouts = _layouts(fields, draft, model)
    oom = "OOM" in fields.memory.upper()
    memory = draft.memory_bytes
    if memory is None and fields.memory and not oom:
        try:
            memory = float(fields.memory) * draft.memory_unit
        except ValueError:
            memory = None
    return Subject(
        fields, model, execution, layouts, gpu_of(fields.gpu), draft.cluster,
        _seconds(fields, model), memory, draft.view, draft.rank, oom, draft.parts, other,
    )  # fmt: skip


def _model(fields: Fields, draft: Draft) -> ModelSpec:
    layers, hidden = fields.need("layers"), fields.need("hidden")
    heads = fields.heads or usual_heads(hidden)
    seq = fields.need("seq")
    return _checked(
        ModelSpec,
        name=re.sub(r"\s+", "-", fields.model)[:100] or "unnamed",
        num_layers=layers, hidden=hidden, ffn=fields.ffn or 4 * hidden,
        num_heads=heads, num_kv_heads=fields.kv_heads or heads,
        head_dim=draft.head_dim or max(1, hidden // heads),
        vocab=fields.need("vocab"), seq_len=seq,
        max_positions=seq if draft.positions else 0,
        tied_embeddings=draft.tied, gated_mlp=draft.gated, biases=draft.biases,
        norm="rmsnorm" if draft.rmsnorm else "layernorm", experts=draft.experts,
        source=fields.source[:80],
    )  # fmt: skip


def usual_heads(hidden: int) -> int:
    """Return the head count with heads of 128 (or 96, 64) that divides a hidden size."""
    for width in (128, 96, 64, 80):
        if hidden % width == 0:
            return hidden // width
    return 1


def _execution(fields: Fields, draft: Draft) -> Execution:
    precision = "fp16" if re.search("fp16", fields.precision) else "bf16"
    if "fp32" in fields.precision and "16" not in fields.precision:
        precision = "fp32"
    text = fields.recompute.lower()
    recompute = draft.recompute
    if recompute is None:
        recompute = next((kind for kind in ("full", "selective") if kind in text), "none")
        if re.search(r"\bop\b|operator", text):
            recompute = "operators"
    zero = draft.zero
    if zero is None:
        zero = _zero_of(fields.sharding)
    return _checked(
        Execution,
        framework=draft.framework, precision=precision, optimizer=draft.optimizer, zero=zero,
        zero_group=draft.zero_group, recompute=recompute,
        sequence_parallel=(draft.sequence_parallel or "sequence" in text) and "no sp" not in text,
        attention=draft.attention, dropout=draft.dropout, cp=fields.cp or 1,
        ep=draft.ep, expert_tp=draft.expert_tp,
        vocab_divisor=draft.vocab_divisor, **(draft.options or {}),
    )  # fmt: skip


def _zero_of(text: str) -> int:
    lowered = text.lower()
    if "shard_grad_op" in lowered:
        return 2
    if "fsdp" in lowered or "zero-3" in lowered or "full_shard" in lowered:
        return 3
    if "zero-2" in lowered:
        return 2
    return 1 if "zero-1" in lowered or "distributed optimizer" in lowered else 0


def _layouts(fields: Fields, draft: Draft, model: ModelSpec) -> tuple[Layout, ...]:
    tp, pp, cp = fields.tp or 1, fields.pp or 1, fields.cp or 1
    gpus = fields.need("n_gpus")
    if gpus % (tp * pp * cp):
        raise Refused(f"tp {tp} x pp {pp} x cp {cp} doesn't divide {gpus} GPUs")
    dp = gpus // (tp * pp * cp)
    if fields.dp and fields.dp != dp:
        raise Refused(
            f"tp {tp} x pp {pp} x cp {cp} x dp {fields.dp} is not the {gpus} GPUs of the row"
        )
    if draft.chunks is None and pp * (fields.vpp or 1) > model.num_layers:
        raise Refused(f"pp {pp} x vpp {fields.vpp or 1} is more than the model's layers")
    chunks = draft.chunks or even_chunks(model.num_layers, pp, fields.vpp or 1)
    if sum(chunk.blocks for chunk in chunks) != model.num_layers:
        raise Refused("the stages' layers don't add up to the model's")
    sizes = draft.microbatches or (fields.mbs,)
    found = []
    for size in sizes:
        if size is None or size < 1:
            raise Refused("the row doesn't give mbs")
        batch = fields.gbs or size * dp * max(4, 2 * pp)
        if batch % dp or (batch // dp) % size:
            if len(sizes) > 1:
                continue
            count = max(1, round(batch / dp / size))
        else:
            count = batch // dp // size
        found.append(
            _checked(Layout, tp=tp, dp=dp, microbatch=size, num_microbatches=count, pp=pp,
                     chunks=chunks)
        )  # fmt: skip
    if not found:
        raise Refused("no microbatch size divides the batch")
    return tuple(found)


def _seconds(fields: Fields, model: ModelSpec) -> float | None:
    if fields.iter_s is not None:
        return fields.iter_s
    if fields.tokens_per_s is not None and fields.gbs:
        return fields.gbs * model.seq_len / (fields.tokens_per_s * fields.need("n_gpus"))
    return None


def _checked(kind: type[_Built], **values: object) -> _Built:
    """Return a record, or refuse the row with the record's own complaint."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise Refused(f"{where}: {first['msg']}" if where else str(first["msg"])) from None
