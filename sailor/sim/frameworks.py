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
    """One framework.

    `base_bytes`: allocated beside tensors of the model (library workspaces, small buffers).
    `outside_bytes`: memory outside the allocator (driver context, communicators).
    `slack`: reserved but unused share of the allocator, of activations in flight.
    `state_slack`: the same, of states (buckets, flattened copies).
    `launch_s`: host time to launch a block's forward kernels; `launch_tp_s` more a doubling of tp.
    `grad_sync_bytes`: bytes a gradient on the wire; `grad_overlap`: share hidden by the backward
    pass. `logit_bytes`: bytes a logit kept or copied at the peak of the loss, beside the 16-bit
    logits. `microbatch_s`: host time a microbatch on every stage; `step_s`: a step.
    `fsdp_power`: p of (compute^p + gather^p)^(1/p).
    """

    name: Framework
    base_bytes: float
    outside_bytes: float
    slack: float
    state_slack: float
    logit_bytes: float
    launch_s: float
    launch_tp_s: float
    microbatch_s: float
    step_s: float
    grad_sync_bytes: float
    grad_overlap: float
    fsdp_power: float
    source: str


_MEGATRON_LM = FrameworkFacts(
    name="megatron-lm",
    base_bytes=0.066 * GIB,
    outside_bytes=3.0e9,
    slack=0.10,
    state_slack=0.0,
    logit_bytes=4.0,
    launch_s=1.30e-3,
    launch_tp_s=0.11e-3,
    microbatch_s=3e-3,
    step_s=8e-3,
    grad_sync_bytes=4.0,
    grad_overlap=0.0,
    fsdp_power=1.0,
    source="Megatron-LM functional tests (memory), SC21 and Korthikanti et al. 2022 (time)",
)
