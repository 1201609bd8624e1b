"""Peak memory of each pipeline rank from formulas: named parts, a best estimate and a bound.

Every figure is bytes on one GPU. t = microbatch * seq_len / cp tokens, h the hidden size. The
activations of a block are those of Korthikanti et al. 2022 (arXiv 2205.05198), extended to grouped
keys, gated feed-forward, fused attention and context parallelism. A rank's own chunks count, never
an average: the first rank holds most microbatches, the last one the logits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sailor.model.arch import ModelSpec
from sailor.model.execution import Chunk, Execution, Layout
from sailor.sim.device import GpuFacts
from sailor.sim.frameworks import FrameworkFacts, StateBytes, framework_facts, state_bytes
from sailor.sim.interleaved import interleaved_peak, warmup_passes
from sailor.sim.layers import (
    block_params,
    block_saved_bytes,
    element_bytes,
    expert_params,
    ffn_columns,
)

# A weight gradient of the head that waits for the end of the pass keeps its logits' gradient.
DEFERRED_LOGIT_BYTES = 4.0


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one rank at its peak.

    `parameters` to `communication` are there all the time; `activations` are those of the
    microbatches in flight; `logits` the last stage's logits and loss; `temporary` what a backward
    pass, a gather or an optimizer step allocates for a moment; `workspace` the libraries' buffers
    inside the allocator; `reserve` what the allocator holds without use; `outside` the driver's
    context and communicators.
    """

    parameters: float
    gradients: float
    master: float
    optimizer: float
    communication: float
    activations: float
    logits: float
    temporary: float
    workspace: float
    reserve: float
    outside: float

    @property
    def states(self) -> float:
        """Return parameters, gradients, master copies and optimizer states."""
        return self.parameters + self.gradients + self.master + self.optimizer

    @property
    def allocated(self) -> float:
        """Return the allocator's peak of memory in use (`torch.cuda.max_memory_allocated`)."""
        return (
            self.states
            + self.communication
            + self.activations
            + self.logits
            + self.temporary
            + self.workspace
        )

    @property
    def reserved(self) -> float:
        """Return the allocator's peak of memory taken from the device."""
        return self.allocated + self.reserve

    @property
    def device(self) -> float:
        """Return what the driver's tools show for the process: the figure that must fit."""
        return self.reserved + self.outside


@dataclass(frozen=True)
class RankMemory:
    """The memory of one pipeline rank: parts of the best estimate, and the bound for verdicts.

    `bound_allocated` and `bound_device` are above every measured row of the validation tables.
    """

    rank: int
    parts: MemoryParts
    bound_allocated: float
    bound_device: float


def rank_memory(
    model: ModelSpec, execution: Execution, layout: Layout, rank: int, gpu: GpuFacts
) -> RankMemory:
    """Return the memory of a pipeline rank on a GPU type."""
    facts = framework_facts(execution.framework)
    chunks = layout.rank_chunks(rank)
    states = _states(model, execution, layout, chunks)
    activations = _in_flight_bytes(model, execution, layout, rank)
    at = (model, execution, layout.tp, layout.microbatch, facts)
    head, peak, buffers = head_bytes(*at, gpu), block_peak_bytes(*at), parallel_buffer_bytes(*at)
    has_head = any(chunk.head for chunk in chunks)
    logits, temporary = (head.kept, head.transient) if has_head else (0.0, 0.0)
    if any(chunk.blocks for chunk in chunks):
        # By then the backward pass has freed the logits.
        temporary = max(temporary, peak.inside - logits)
    moving = activations + logits + temporary
    reserve = facts.slack * moving + facts.state_slack * sum(states[:4])
    parts = MemoryParts(
        parameters=states[0],
        gradients=states[1],
        master=states[2],
        optimizer=states[3],
        communication=states[4] + buffers,
        activations=activations,
        logits=logits,
        temporary=temporary,
        workspace=facts.base_bytes + gpu.base_bytes,
        reserve=reserve,
        outside=facts.outside_bytes,
    )
    over = facts.bound_moving * moving + facts.bound_states * parts.states
    over += facts.bound_bytes + parts.communication
    # A second set of gathered blocks, where a framework keeps two buffers.
    over += peak.gathered
    return RankMemory(
        rank,
        parts,
        bound_allocated=parts.allocated + over,
        bound_device=parts.device + over + facts.bound_outside,
    )


def peak_memory(
    model: ModelSpec, execution: Execution, layout: Layout, gpu: GpuFacts
) -> RankMemory:
    """Return the fullest rank by its bound."""
    ranks = (rank_memory(model, execution, layout, rank, gpu) for rank in range(layout.pp))
    return max(ranks, key=lambda memory: memory.bound_device)


def static_bytes(
    memory: RankMemory, model: ModelSpec, execution: Execution, layout: Layout
) -> float:
    """Return what a rank holds before its first pass: states, buffers, the libraries' base."""
    buffers = parallel_buffer_bytes(
        model, execution, layout.tp, layout.microbatch, framework_facts(execution.framework)
    )
    return memory.parts.states + memory.parts.workspace + buffers


def rank_params(
    model: ModelSpec, execution: Execution, layout: Layout, chunks: Sequence[Chunk]
) -> tuple[float, float]:
    """Return the parameters of a rank's GPU: those shared by tensor parallelism, and experts'."""
    dense, experts = 0.0, 0.0
    table = padded_vocab(model, execution, layout.tp) / layout.tp * model.hidden
    norm = model.hidden * (2 if model.norm == "layernorm" else 1)
    has_table = False
    for chunk in chunks:
        dense += chunk.blocks * block_params(model, layout.tp)
        experts += chunk.blocks * expert_params(model, execution, layout.tp)
        if chunk.embedding:
            dense += table + model.max_positions * model.hidden
            has_table = True
        if chunk.head:
            dense += norm + (0.0 if model.tied_embeddings and has_table else table)
    return dense, experts


def padded_vocab(model: ModelSpec, execution: Execution, tp: int) -> int:
    """Return the vocabulary rows after padding to a multiple of the framework's divisor and tp."""
    return model.padded_vocab(tp, execution.vocab_divisor)


def shard_ranks(execution: Execution, layout: Layout) -> tuple[int, int]:
    """Return over how many ranks ZeRO shares states: of dense parameters, and of experts'."""
    group = execution.zero_group or layout.dp * execution.cp
    dense = min(group, layout.dp * execution.cp)
    replicas = max(1, layout.dp * execution.cp // dense)
    ranks = layout.dp * execution.cp * layout.tp // replicas
    expert_tp = execution.expert_tp or layout.tp
    return dense, max(1, ranks // (execution.ep * expert_tp))


def _states(
    model: ModelSpec, execution: Execution, layout: Layout, chunks: Sequence[Chunk]
) -> tuple[float, ...]:
    """Return parameters, gradients, master copies, moments and gathered weights."""
    each = state_bytes(execution)
    totals = [0.0] * 5
    for params, ranks in zip(
        rank_params(model, execution, layout, chunks), shard_ranks(execution, layout), strict=True
    ):
        shares = _shares(each, execution.zero, ranks)
        for index, (size, share) in enumerate(shares):
            totals[index] += params * size / share
    if any(chunk.embedding or chunk.head for chunk in chunks):
        totals[4] = gathered_table_bytes(model, execution, layout.tp)
    return tuple(totals)


def _shares(each: StateBytes, zero: int, ranks: int) -> tuple[tuple[float, int], ...]:
    def over(stage: int) -> int:
        return ranks if zero >= stage else 1

    return (
        (each.weights, over(each.weights_stage)),
        (each.grads, over(each.grads_stage)),
        (each.master, over(1)),
        (each.moments, over(1)),
    )


def gathered_table_bytes(model: ModelSpec, execution: Execution, tp: int) -> float:
    """Return a gathered table of the vocabulary, which ends of the model need."""
    if execution.zero < 3:
        return 0.0
    split = tp if execution.vocab_parallel else 1
    size = element_bytes(execution.precision)
    return size * padded_vocab(model, execution, tp) / split * model.hidden


def parallel_buffer_bytes(
    model: ModelSpec, execution: Execution, tp: int, microbatch: int, facts: FrameworkFacts
) -> float:
    """Return the buffers into which sequence parallelism gathers its activations."""
    if not execution.sequence_parallel or tp == 1:
        return 0.0
    tokens = microbatch * model.seq_len / execution.cp
    size = element_bytes(execution.precision)
    return facts.parallel_buffers * size * tokens * model.hidden


def _in_flight_bytes(model: ModelSpec, execution: Execution, layout: Layout, rank: int) -> float:
    """Return the most bytes of kept activations at any time of the (interleaved) 1F1B schedule."""
    kept = [
        chunk_saved_bytes(model, execution, layout, chunk) for chunk in layout.rank_chunks(rank)
    ]
    pp, vpp, count = layout.pp, layout.vpp, layout.num_microbatches
    if vpp == 1:
        return kept[0] * min(pp - rank, count)
    warmup = warmup_passes(pp, vpp, rank, overlaps=execution.overlap_warmup)
    counts = interleaved_peak(kept, pp, count, warmup)
    return sum(number * size for number, size in zip(counts, kept, strict=True))


def chunk_saved_bytes(
    model: ModelSpec, execution: Execution, layout: Layout, chunk: Chunk
) -> float:
    """Return the bytes that a chunk keeps of one microbatch until its backward pass."""
    tokens = layout.microbatch * model.seq_len / execution.cp
    spread = layout.tp if execution.sequence_parallel else 1
    scale = 2 if execution.precision == "fp32" else 1
    if execution.recompute == "full":
        kept = chunk.blocks * 2 * tokens * model.hidden * scale
        if execution.sequence_parallel:
            kept /= spread
    else:
        kept = chunk.blocks * block_saved_bytes(model, execution, layout.tp, layout.microbatch)
    if chunk.embedding and execution.dropout:
        kept += tokens * model.hidden / spread
    if not execution.fused_norms:
        # Copies of the table's output, and of what a stage receives and sends.
        ends = int(chunk.embedding) + (layout.pp > 1)
        kept += 4 * ends * tokens * model.hidden / spread
    return kept


@dataclass(frozen=True)
class HeadBytes:
    """Logits, their softmax and the inputs of norm and head; what comes for a moment beside."""

    kept: float
    transient: float


def head_bytes(
    model: ModelSpec,
    execution: Execution,
    tp: int,
    microbatch: int,
    facts: FrameworkFacts,
    gpu: GpuFacts,
) -> HeadBytes:
    """Return what the rank with the head holds of one microbatch."""
    tokens = microbatch * model.seq_len / execution.cp
    size = element_bytes(execution.precision)
    each = size + facts.logit_bytes
    if execution.fused_loss:
        each += gpu.fused_loss_bytes
    if execution.deferred_head_grad:
        each += DEFERRED_LOGIT_BYTES
    rows = padded_vocab(model, execution, tp) / tp
    spread = tp if execution.sequence_parallel and not execution.fused_norms else 1
    return HeadBytes(
        kept=each * tokens * rows + 2 * size * tokens * model.hidden / spread,
        transient=facts.logit_peak_bytes * tokens * rows,
    )


@dataclass(frozen=True)
class BlockPeak:
    """What a backward pass needs inside one block; `gathered` of it are fully sharded weights."""

    inside: float
    gathered: float


def block_peak_bytes(
    model: ModelSpec, execution: Execution, tp: int, microbatch: int, facts: FrameworkFacts
) -> BlockPeak:
    """Return the gradients inside one block, for one microbatch.

    Two of hidden width, those of the feed-forward, and of an eager score matrix. With full
    recomputation one block's activations as well, with fully sharded weights gathered blocks.
    """
    tokens = microbatch * model.seq_len / execution.cp
    size = element_bytes(execution.precision)
    ffn = ffn_columns(model, tp)
    up = ffn * (2 if model.gated_mlp else 1)
    inside = 2 * size * tokens * model.hidden + size * tokens * (up + ffn)
    if execution.attention == "eager":
        scores = microbatch * model.seq_len**2 / execution.cp * model.num_heads / tp
        inside += 2 * size * scores
    if execution.recompute == "full":
        inside += block_saved_bytes(model, execution, tp, microbatch)
    gathered = 0.0
    if execution.zero == 3:
        whole = block_params(model, tp) + expert_params(model, execution, tp)
        gathered = size * facts.prefetch_blocks * whole
    return BlockPeak(inside + gathered, gathered)
