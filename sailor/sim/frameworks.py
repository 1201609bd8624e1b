"""Constants of training frameworks: what they keep in memory, and how long their hosts take.

Bytes of states follow from each framework's documented mixed-precision scheme; the remaining
figures were fitted to public measurements, as each field says. Nothing here depends on a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sailor.model.execution import Execution, Framework

MIB = 2**20
GIB = 2**30
_FP32_ADAM_BYTES = 28.0
_MOMENT_TRAFFIC_BYTES = 16.0
# Of a sharded optimizer's gathering of weights, where it runs beside the forward pass.
EXPOSED_GATHER = 0.2


@dataclass(frozen=True)
class StateBytes:
    """Bytes a parameter; `*_stage` is the ZeRO stage from which the data-parallel ranks share."""

    weights: float  # the copy that takes part in matrix products
    grads: float  # what the backward pass adds up into
    master: float  # the fp32 copy that the optimizer updates
    moments: float  # the optimizer's two averages
    weights_stage: int = 3
    grads_stage: int = 2


@dataclass(frozen=True)
class FrameworkFacts:
    """One framework's memory constants beside the states, and where they come from.

    `base_bytes`: allocated beside tensors of the model (library workspaces, small buffers).
    `outside_bytes`: memory outside the allocator (driver context, communicators).
    `slack`: reserved but unused share of the allocator, of activations in flight.
    `state_slack`: the same, of states (buckets, flattened copies).
    `logit_bytes`: bytes a logit at the peak of the loss, beside the logits themselves.
    `prefetch_blocks`: blocks whose gathered 16-bit weights or gradients are there at once with
    fully sharded weights. `logit_peak_bytes`: bytes a logit more for a moment after the forward
    pass. `parallel_buffers`: buffers of a full 16-bit t h that sequence parallelism keeps.
    `bound_*`: what the upper bound adds: shares of moving parts and of states, fixed bytes inside
    and outside of the allocator.
    """

    name: Framework
    base_bytes: float
    outside_bytes: float
    slack: float
    state_slack: float
    logit_bytes: float
    bound_moving: float
    bound_states: float
    bound_bytes: float
    bound_outside: float
    source: str
    prefetch_blocks: int = 3
    logit_peak_bytes: float = 0.0
    parallel_buffers: int = 0


_MEMORY: Mapping[Framework, FrameworkFacts] = {
    facts.name: facts
    for facts in (
        FrameworkFacts(
            "megatron-lm", base_bytes=0.066 * GIB, outside_bytes=3.0e9, slack=0.10,
            state_slack=0.0, logit_bytes=4.0, bound_moving=0.08, bound_states=0.06,
            bound_bytes=0.25 * GIB, bound_outside=1e9,
            source="Megatron-LM's functional tests (allocated, last rank); reserve and context "
            "as observed of PyTorch",
        ),
        FrameworkFacts(
            "megatron-deepspeed", base_bytes=0.066 * GIB, outside_bytes=4.0e9, slack=0.20,
            state_slack=0.06, logit_bytes=4.0, bound_moving=0.15, bound_states=0.10,
            bound_bytes=0.20 * GIB, bound_outside=2.5e9,
            source="BLOOM's prequel chronicles (nvidia-smi)",
        ),
        FrameworkFacts(
            "torchtitan", base_bytes=0.10 * GIB, outside_bytes=3.0e9, slack=0.15,
            state_slack=0.0, logit_bytes=8.0, bound_moving=0.15, bound_states=0.10,
            bound_bytes=0.20 * GIB, bound_outside=1e9,
            source="PyTorch FSDP2's scheme",
        ),
        FrameworkFacts(
            "llm-foundry", base_bytes=0.10 * GIB, outside_bytes=3.0e9, slack=0.15,
            state_slack=0.0, logit_bytes=8.0, bound_moving=0.15, bound_states=0.10,
            bound_bytes=0.20 * GIB, bound_outside=1e9,
            source="PyTorch FSDP's scheme; microbatches that MosaicML's runs fitted",
        ),
        FrameworkFacts(
            "internevo", base_bytes=0.10 * GIB, outside_bytes=3.0e9, slack=0.50,
            state_slack=0.60, logit_bytes=12.0, bound_moving=0.15, bound_states=0.10,
            bound_bytes=0.20 * GIB, bound_outside=1e9,
            source="InternEvo's memory table: its optimizer step holds copies of flattened states",
        ),
        FrameworkFacts(
            "nanotron", base_bytes=0.10 * GIB, outside_bytes=1.0e9, slack=0.40,
            state_slack=0.0, logit_bytes=2.0, bound_moving=0.50, bound_states=0.50,
            bound_bytes=0.20 * GIB, bound_outside=2e9,
            source="nanotron's benchmark figure",
        ),
        FrameworkFacts(
            "galvatron", base_bytes=20 * MIB, outside_bytes=3.0e9, slack=0.10,
            state_slack=0.0, logit_bytes=2.0, bound_moving=0.10, bound_states=0.06,
            bound_bytes=0.20 * GIB, bound_outside=1e9, prefetch_blocks=1, logit_peak_bytes=5.4,
            parallel_buffers=2,
            source="Galvatron's memory profiles",
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class FrameworkTimes:
    """One framework's time constants and where they come from.

    `launch_s`: host time to launch a block's forward kernels; with tensor parallelism
    `launch_parallel_s` more and `launch_tp_s` for each doubling of tp, with experts
    `launch_experts_s`; the backward pass takes `launch_back` times that. `microbatch_s`: host time
    of a microbatch on every stage; `step_s` and `step_block_s`: of an optimizer step, and a block
    more. `grad_sync_bytes`: bytes a gradient on the wire; `grad_overlap`: share of that traffic
    which the backward pass hides where the option is on (or `always_overlaps`); `tp_overlap`: of
    tensor-parallel traffic. `optimizer_bytes`: memory traffic of a step a parameter;
    `accumulate_bytes` (and the same in bf16): of adding a microbatch's gradients to those before.
    For fully sharded weights: `gather_power`, p of (compute^p + gather^p)^(1/p); `gather_share`,
    of the bandwidth that gathers reach; `gather_rank_s`, of a block's gather for each rank.
    `shard_rank_s`: time of sending a sharded optimizer's weights, for each rank.
    """

    name: Framework
    source: str
    launch_s: float = 1.3e-3
    launch_parallel_s: float = 0.0
    launch_tp_s: float = 0.11e-3
    launch_experts_s: float = 3.0e-3
    launch_back: float = 1.2
    microbatch_s: float = 3e-3
    step_s: float = 8e-3
    step_block_s: float = 0.19e-3
    grad_sync_bytes: float = 2.0
    grad_overlap: float = 0.8
    always_overlaps: bool = False
    tp_overlap: float = 0.9
    optimizer_bytes: float = 48.0
    accumulate_bytes: float = 4.0
    accumulate_bf16_bytes: float = 4.0
    gather_power: float = 2.0
    gather_share: float = 1.0
    gather_rank_s: float = 0.0
    shard_rank_s: float = 0.0


_TIMES: Mapping[Framework, FrameworkTimes] = {
    times.name: times
    for times in (
        FrameworkTimes(
            "megatron-lm", launch_s=2.6e-3, grad_sync_bytes=4.0, microbatch_s=2.5e-3,
            optimizer_bytes=41.0, accumulate_bytes=2.9,
            source="functional tests (launches), SC21, the tables of 2020, Korthikanti et al. 2022",
        ),
        FrameworkTimes(
            "megatron-deepspeed", launch_s=1.44e-3, launch_tp_s=0.078e-3, microbatch_s=1.25e-3,
            step_s=1e-3, step_block_s=0.0, optimizer_bytes=28.0, accumulate_bytes=6.0,
            accumulate_bf16_bytes=12.4, gather_power=1.0, gather_share=0.25, gather_rank_s=61e-6,
            source="vTrain's and BLOOM's tables; gathers: SC21 table 2's ZeRO-3 rows",
        ),
        FrameworkTimes(
            "torchtitan",
            source="no public row of it was used: Megatron-LM's host times, its attention's speed",
        ),
        FrameworkTimes(
            "llm-foundry", gather_power=1.0,
            source="MosaicML's tables (Triton's flash attention of 2023)",
        ),
        FrameworkTimes(
            "internevo", grad_overlap=0.55, always_overlaps=True,
            shard_rank_s=2.4e-3, source="InternEvo's throughput tables",
        ),
        FrameworkTimes(
            "nanotron", launch_s=1.43e-3, launch_parallel_s=7.3e-3, launch_tp_s=0.16e-3,
            microbatch_s=1.3e-3, step_s=6.7e-3, optimizer_bytes=32.0,
            source="nanotron's benchmark figure",
        ),
        FrameworkTimes("galvatron", source="no public row of it was used: Megatron-LM's figures"),
    )
}  # fmt: skip


def framework_names() -> tuple[Framework, ...]:
    """Return the frameworks with constants."""
    return tuple(_TIMES)


def framework_times(name: Framework) -> FrameworkTimes:
    """Return a framework's time constants."""
    return _TIMES[name]


def framework_facts(name: Framework) -> FrameworkFacts:
    """Return a framework's memory constants."""
    return _MEMORY[name]


def gradient_wire_bytes(execution: Execution) -> float:
    """Return the bytes of a gradient on the wire: whole in fp32, else as the framework sends it."""
    if execution.precision == "fp32":
        return 4.0
    return framework_times(execution.framework).grad_sync_bytes


def optimizer_traffic_bytes(execution: Execution) -> float:
    """Return the bytes a parameter that an optimizer step moves.

    In fp32 Adam reads parameter, gradient and two moments and writes all but the gradient; plain
    SGD moves no moments. In mixed precision the framework's fitted figure counts.
    """
    times = framework_times(execution.framework)
    moved = _FP32_ADAM_BYTES if execution.precision == "fp32" else times.optimizer_bytes
    return moved - (_MOMENT_TRAFFIC_BYTES if execution.optimizer == "sgd" else 0.0)


def state_bytes(execution: Execution) -> StateBytes:
    """Return the bytes a parameter of a framework's mixed-precision scheme."""
    moments = 8.0 if execution.optimizer == "adam" else 0.0
    if execution.precision == "fp32":
        return StateBytes(weights=4.0, grads=4.0, master=0.0, moments=moments)
    sharded = execution.framework == "internevo" and execution.zero == 3
    if sharded or execution.framework in ("torchtitan", "llm-foundry"):
        # The fp32 shard is weight and master copy in one.
        return StateBytes(weights=4.0, grads=4.0, master=0.0, moments=moments)
    if execution.framework in ("megatron-deepspeed", "internevo"):
        if execution.precision == "fp16":
            # The optimizer's share of the gradients in fp32 lies beside its master copy.
            return StateBytes(2.0, 2.0, 8.0, moments)
        return StateBytes(2.0, 6.0, 4.0, moments)
    if execution.framework == "galvatron":
        return StateBytes(2.0, 2.0, 4.0, moments)
    return StateBytes(2.0, 4.0, 4.0, moments)
