"""Memory tables of cost model `sailor`: measured layers as they are, modelled ones by framework.

Measured footprints say what each unit held under the SOSP'25 artifact's engine; what they leave
out is added. Modelled (and counted) ones follow `sailor.sim.analytic_memory`, part by part: a test
holds both equal for uniform replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.arch import ModelSpec
from sailor.model.execution import Execution
from sailor.model.problem import Problem
from sailor.model.profile import LayerFootprint, Provenance
from sailor.sim.analytic_memory import (
    BlockPeak,
    block_peak_bytes,
    gathered_table_bytes,
    head_bytes,
    parallel_buffer_bytes,
)
from sailor.sim.device import gpu_facts
from sailor.sim.frameworks import FrameworkFacts, StateBytes, framework_facts, state_bytes
from sailor.sim.kinds import WorkerKind
from sailor.sim.layers import block_saved_bytes, element_bytes, expert_params
from sailor.sim.memory_tables import Margin, MemoryTables, Sharing, Slack, StateTable
from sailor.sim.platforms import platform_of
from sailor.sim.profiles import ProfileIndex, blocks_prefix, unit_prefix

Floats = NDArray[np.float64]

_PARTS = ("parameters", "gradients", "optimizer", "communication")
# The SOSP'25 engine's flat fp32 copy of all gradients for the all-reduce.
_FLAT_COPY_BYTES = 4.0
# Two measuring campaigns of the same SOSP'25 plans differ by so much.
_CAMPAIGN_SPREAD_BYTES = 0.8e9
# The worst row of the measured SOSP'25 runs is 4.6 % off.
_MEASURED_MARGIN = 0.05
# The backward pass of the loss holds logits, their fp32 softmax and the gradient at once.
_LOGITS_COPIES = 3.0
# That of unfused attention holds the softmax's output, its gradient, the gradient of the scores.
_SCORE_MATRICES = 3.0


@dataclass(frozen=True)
class _Worker:
    """One kind's row of the tables; prefix arrays are [U + 1], of one microbatch."""

    parts_bytes: tuple[float, float, float, float]  # a parameter, in the order of _PARTS
    dense: Floats
    experts: Floats
    activations: Floats
    received: float = 0.0
    block_transient: float = 0.0
    head_transient: float = 0.0
    head_freed: float = 0.0
    boundary: float = 0.0
    ends: float = 0.0
    reserve: float = 0.0
    tied_share: float = 0.0
    slack: tuple[float, float] = (0.0, 0.0)  # of states, of moving parts
    margin: tuple[float, float, float] = (0.0, 0.0, 0.0)  # and fixed bytes


def native_memory(
    problem: Problem, index: ProfileIndex, kinds: Sequence[WorkerKind], microbatch: int
) -> MemoryTables:
    """Return the memory tables of these kinds."""
    rows = [_worker(problem, index, kind, microbatch) for kind in kinds]
    training = problem.training
    stages = _shared_parts(training)

    def column(name: str) -> Floats:
        return np.array([getattr(row, name) for row in rows], dtype=np.float64)

    def prefix(name: str) -> Floats:
        return column(name).reshape(len(kinds), problem.arch.num_units + 1)

    each = column("parts_bytes").reshape(len(kinds), len(_PARTS))
    dense, experts = prefix("dense"), prefix("experts")
    slack = column("slack").reshape(len(kinds), 2)
    margin = column("margin").reshape(len(kinds), 3)
    return MemoryTables(
        states=tuple(
            StateTable(
                name,
                dense * each[:, place, None],
                experts * each[:, place, None],
                shared=name in stages,
            )
            for place, name in enumerate(_PARTS)
        ),
        sharing=Sharing(
            cp=training.cp,
            group=training.zero_group,
            experts_factor=np.array(
                [kind.tp / (training.ep * (training.expert_tp or kind.tp)) for kind in kinds]
            ),
        ),
        activations_prefix_bytes=prefix("activations"),
        received_bytes=column("received"),
        block_transient_bytes=column("block_transient"),
        head_transient_bytes=column("head_transient"),
        head_freed_bytes=column("head_freed"),
        boundary_bytes=column("boundary"),
        ends_bytes=column("ends"),
        reserve_bytes=column("reserve"),
        capacity_bytes=np.array([float(problem.gpu(kind.gpu).memory_bytes) for kind in kinds]),
        tied_share=column("tied_share"),
        in_flight_capped=True,
        slack=Slack(slack[:, 0], slack[:, 1]),
        margin=Margin(margin[:, 0], margin[:, 1], margin[:, 2]),
    )


def _shared_parts(training: Execution) -> frozenset[str]:
    """Return the parts that replicas share out: ZeRO-1 the optimizer's, 2 gradients, 3 weights."""
    each = state_bytes(training)
    found = set()
    if training.zero >= 1:
        found.add("optimizer")
    if training.zero >= each.grads_stage:
        found.add("gradients")
    if training.zero >= each.weights_stage:
        found.add("parameters")
    return frozenset(found)


def _worker(problem: Problem, index: ProfileIndex, kind: WorkerKind, microbatch: int) -> _Worker:
    footprint = index.footprint(kind.tp)
    if footprint is None:
        nothing = np.zeros(problem.arch.num_units + 1)
        return _Worker((0.0, 0.0, 0.0, 0.0), nothing, nothing, nothing)
    if footprint.provenance is Provenance.MEASURED:
        return _measured(problem, footprint, kind, microbatch)
    return _modelled(problem, footprint, kind, microbatch)


def _measured(
    problem: Problem, footprint: LayerFootprint, kind: WorkerKind, microbatch: int
) -> _Worker:
    """Return a worker whose layers were measured: bytes of each unit as the artifact counted."""
    arch, training = problem.arch, problem.training
    each = state_bytes(training.model_copy(update={"framework": "megatron-lm"}))
    flat = _FLAT_COPY_BYTES if training.precision == "fp32" else 0.0
    scores = arch.num_heads / kind.tp * float(arch.seq_len) ** 2
    scores *= element_bytes(training.precision)
    # A layer that keeps less than one score matrix ran fused attention.
    unfused = footprint.block.activation_bytes >= scores
    base = platform_of(kind.gpu).base_memory_bytes
    fixed = _CAMPAIGN_SPREAD_BYTES
    fixed += framework_facts("megatron-lm").bound_outside if base.assumed else 0.0
    return _Worker(
        parts_bytes=(each.weights, each.grads, each.master + _moments(training, each), flat),
        dense=unit_prefix(arch, lambda unit: footprint.unit(unit).params),
        experts=np.zeros(arch.num_units + 1),
        activations=microbatch
        * unit_prefix(arch, lambda unit: footprint.unit(unit).activation_bytes),
        block_transient=microbatch * _SCORE_MATRICES * scores if unfused else 0.0,
        head_transient=microbatch * _LOGITS_COPIES * footprint.head.output_bytes,
        boundary=microbatch * footprint.block.output_bytes,
        reserve=base.value,
        margin=(_MEASURED_MARGIN, _MEASURED_MARGIN, fixed),
    )


def _moments(training: Execution, each: StateBytes) -> float:
    # The SOSP'25 engine keeps SGD's momentum; plain SGD has none to keep.
    return each.moments or 4.0


def _modelled(
    problem: Problem, footprint: LayerFootprint, kind: WorkerKind, microbatch: int
) -> _Worker:
    """Return a worker whose layers follow from shapes, under the job's framework."""
    arch, gpu = problem.arch, gpu_facts(problem.gpu(kind.gpu))
    execution = problem.training.on(problem.gpu(kind.gpu))
    facts = framework_facts(execution.framework)
    each = state_bytes(execution)
    experts = expert_params(arch, execution, kind.tp)
    head = head_bytes(arch, execution, kind.tp, microbatch, facts, gpu)
    peak = block_peak_bytes(arch, execution, kind.tp, microbatch, facts)
    buffers = parallel_buffer_bytes(arch, execution, kind.tp, microbatch, facts)
    prefix = unit_prefix(arch, lambda unit: footprint.unit(unit).activation_bytes)
    blocks = blocks_prefix(arch)
    kept = microbatch * (prefix + _unfused_scores(problem, execution, kind) * blocks)
    # The head's part is that of the framework and GPU type, which a footprint doesn't know.
    kept[-1] = kept[-2] + head.kept
    received = 0.0
    if not execution.fused_norms:
        spread = kind.tp if execution.sequence_parallel else 1
        received = 4.0 * microbatch * arch.seq_len / execution.cp * arch.hidden / spread
    return _Worker(
        parts_bytes=(each.weights, each.grads, each.master + each.moments, 0.0),
        dense=unit_prefix(arch, lambda unit: footprint.unit(unit).params) - experts * blocks,
        experts=experts * blocks,
        activations=kept,
        received=received,
        block_transient=peak.inside,
        head_transient=head.transient,
        head_freed=head.kept,
        ends=gathered_table_bytes(arch, execution, kind.tp),
        reserve=facts.base_bytes + gpu.base_bytes + facts.outside_bytes + buffers,
        tied_share=_tied_share(arch, execution, footprint),
        slack=(facts.state_slack, facts.slack),
        margin=(facts.bound_states, facts.bound_moving, _fixed_margin(facts, peak, buffers)),
    )


def _fixed_margin(facts: FrameworkFacts, peak: BlockPeak, buffers: float) -> float:
    """Return what the bound adds beside shares: buffers once more, and a second set of weights."""
    return facts.bound_bytes + facts.bound_outside + buffers + peak.gathered


def _unfused_scores(problem: Problem, execution: Execution, kind: WorkerKind) -> float:
    """Return what a block keeps of one sample beyond its footprint, which is that of any GPU type.

    Footprints without a named kernel are those of fused attention, which needs bf16; on other
    types scores, their mask and their dropout are kept, unless recomputed.
    """
    asked = problem.training.attention
    if asked is not None or execution.attention != "eager" or execution.recompute != "none":
        return 0.0
    fused = execution.model_copy(update={"attention": "flash"})
    return block_saved_bytes(problem.arch, execution, kind.tp, 1) - block_saved_bytes(
        problem.arch, fused, kind.tp, 1
    )


def _tied_share(arch: ModelSpec, execution: Execution, footprint: LayerFootprint) -> float:
    """Return the part of the whole model's parameters that tied embedding and head count twice."""
    if not arch.tied_embeddings:
        return 0.0
    units = [footprint.unit(arch.unit_kind(unit)).params for unit in range(arch.num_units)]
    rows = arch.padded_vocab(footprint.tp, execution.vocab_divisor) / footprint.tp
    return rows * arch.hidden / sum(units)
