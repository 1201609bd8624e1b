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


@dataclass(frozen=True)
class StateBytes:
    """Bytes a parameter; `*_stage` is the ZeRO stage from which the data-parallel ranks share."""

    weights: float  # the copy that takes part in matrix products
    grads: float  # what the backward pass adds up into
    master: float  # the fp32 copy that the optimizer updates
    moments: float  # the optimizer's two averages
    step_grads: float = 0.0  # gradients in fp32 for the optimizer, where `grads` isn't
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
    `fused_loss_bytes`: bytes a logit more with a fused loss kernel.
    `bound_*`: what the upper bound adds: shares of moving parts and of states, fixed bytes inside
    and outside of the allocator.
    """

    name: Framework
    base_bytes: float
    outside_bytes: float
    slack: float
    state_slack: float
    logit_bytes: float
    fused_loss_bytes: float
    bound_moving: float
    bound_states: float
    bound_bytes: float
    bound_outside: float
    source: str


_MEMORY: Mapping[Framework, FrameworkFacts] = {
    facts.name: facts
    for facts in (
        FrameworkFacts(
            name="megatron-lm",
            base_bytes=0.066 * GIB,
            outside_bytes=3.0e9,
            slack=0.10,
            state_slack=0.0,
            logit_bytes=4.0,
            fused_loss_bytes=8.0,
            bound_moving=0.05,
            bound_states=0.05,
            bound_bytes=0.10 * GIB,
            bound_outside=1e9,
            source="Megatron-LM functional tests",
        ),
    )
}



@dataclass(frozen=True)
class FrameworkTimes:
    """One framework's time constants and where they come from.

    `launch_s`: host time to launch a block's forward kernels, `launch_tp_s` more for each doubling
    of tp; the backward pass takes `launch_back` times that. `microbatch_s`: host time of a
    microbatch on every stage; `step_s` and `step_block_s`: of an optimizer step, and a block more.
    `grad_sync_bytes`: bytes a gradient on the wire; `grad_overlap`: share of that traffic which
    the backward pass hides; `tp_overlap`: of tensor-parallel traffic with `overlap_tp`.
    `optimizer_bytes`: memory traffic of a step a parameter. `gather_power`: p of
    (compute^p + gather^p)^(1/p) for fully sharded weights.
    """

    name: Framework
    source: str
    launch_s: float = 1.3e-3
    launch_tp_s: float = 0.11e-3
    launch_back: float = 1.2
    microbatch_s: float = 3e-3
    step_s: float = 8e-3
    step_block_s: float = 0.19e-3
    grad_sync_bytes: float = 2.0
    grad_overlap: float = 0.0
    tp_overlap: float = 0.9
    optimizer_bytes: float = 48.0
    gather_power: float = 1.0


_TIMES: Mapping[Framework, FrameworkTimes] = {
    times.name: times
    for times in (
        FrameworkTimes("megatron-lm", "SC21", grad_sync_bytes=4.0),
        FrameworkTimes("megatron-deepspeed", "vTrain, BLOOM"),
        FrameworkTimes("fsdp", "llm-foundry"),
        FrameworkTimes("internevo", "InternEvo", grad_overlap=0.4),
        FrameworkTimes("nanotron", "nanotron"),
        FrameworkTimes("galvatron", "galvatron"),
    )
}


def framework_times(name: Framework) -> FrameworkTimes:
    """Return a framework's time constants."""
    return _TIMES[name]


def framework_facts(name: Framework) -> FrameworkFacts:
    """Return a framework's memory constants."""
    return _MEMORY[name]


def state_bytes(execution: Execution) -> StateBytes:
    """Return the bytes a parameter of a framework's mixed-precision scheme."""
    moments = 8.0 if execution.optimizer == "adam" else 0.0
    if execution.precision == "fp32":
        return StateBytes(weights=4.0, grads=4.0, master=0.0, moments=moments)
    if execution.framework == "megatron-lm":
        if execution.precision == "fp16" and not execution.full_precision_grads:
            return StateBytes(2.0, 2.0, 4.0, moments, step_grads=4.0)
        return StateBytes(2.0, 4.0, 4.0, moments)
    return StateBytes(2.0, 4.0, 4.0, moments)
