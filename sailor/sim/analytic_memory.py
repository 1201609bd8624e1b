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
from sailor.sim.layers import block_params, block_saved_bytes, expert_params

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
    logits = _logits_bytes(model, execution, layout, chunks, facts.logit_bytes, gpu)
    temporary = _temporary_bytes(model, execution, layout, chunks, logits, facts)
    moving = activations + logits + temporary
    reserve = facts.slack * moving + facts.state_slack * sum(states[:4])
    parts = MemoryParts(
        parameters=states[0],
        gradients=states[1],
        master=states[2],
        optimizer=states[3],
        communication=states[4] + _parallel_buffers(model, execution, layout, facts),
        activations=activations,
        logits=logits,
        temporary=temporary,
        workspace=facts.base_bytes + gpu.base_bytes,
        reserve=reserve,
        outside=facts.outside_bytes,
    )
    over = facts.bound_moving * moving + facts.bound_states * parts.states
    over += facts.bound_bytes + parts.communication
    if execution.zero == 3:
        # A second set of gathered blocks, where a framework keeps two buffers.
        over += 2.0 * facts.prefetch_blocks * _largest_block(model, execution, layout)
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
    facts = framework_facts(execution.framework)
    buffers = _parallel_buffers(model, execution, layout, facts)
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
        dense += chunk.blocks * block_params(model, execution, layout.tp)
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
    if execution.zero == 3:
        totals[4] = _gathered_table(model, execution, layout, chunks)
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


def _gathered_table(
    model: ModelSpec, execution: Execution, layout: Layout, chunks: Sequence[Chunk]
) -> float:
    """Return a gathered table of the vocabulary in 16-bit, on ranks with embedding or head."""
    if not any(chunk.embedding or chunk.head for chunk in chunks):
        return 0.0
    split = layout.tp if execution.vocab_parallel else 1
    return 2.0 * padded_vocab(model, execution, layout.tp) / split * model.hidden


def _largest_block(model: ModelSpec, execution: Execution, layout: Layout) -> float:
    """Return the parameters of a whole block on one tensor-parallel rank."""
    return block_params(model, execution, layout.tp) + expert_params(model, execution, layout.tp)


def _parallel_buffers(
    model: ModelSpec, execution: Execution, layout: Layout, facts: FrameworkFacts
) -> float:
    """Return the buffers into which sequence parallelism gathers its activations."""
    if not execution.sequence_parallel or layout.tp == 1:
        return 0.0
    tokens = layout.microbatch * model.seq_len / execution.cp
    return facts.parallel_buffers * 2.0 * tokens * model.hidden


def _in_flight_bytes(model: ModelSpec, execution: Execution, layout: Layout, rank: int) -> float:
    """Return the most bytes of kept activations at any time of the (interleaved) 1F1B schedule."""
    kept = [
        chunk_saved_bytes(model, execution, layout, chunk) for chunk in layout.rank_chunks(rank)
    ]
    pp, vpp, count = layout.pp, layout.vpp, layout.num_microbatches
    if vpp == 1:
        return kept[0] * min(pp - rank, count)
    warmup = (pp - rank - 1) * 2 + (vpp - 1) * pp + (2 if execution.overlap_warmup else 0)
    return _interleaved_peak(kept, pp, count, warmup)


def _interleaved_peak(kept: Sequence[float], pp: int, count: int, warmup: int) -> float:
    """Step through Megatron-LM's interleaved order: `warmup` forward passes, then one for one.

    Forward pass k belongs to chunk (k mod (pp vpp)) / pp, backward passes go through the chunks
    in reverse. The pattern repeats after pp vpp passes.
    """
    vpp = len(kept)
    steps = count * vpp
    held = peak = 0.0
    for step in range(min(steps, warmup + 2 * pp * vpp)):
        held += kept[(step % (pp * vpp)) // pp]
        peak = max(peak, held)
        if step >= warmup:
            held -= kept[vpp - 1 - ((step - warmup) % (pp * vpp)) // pp]
    return peak


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


def _logits_bytes(
    model: ModelSpec,
    execution: Execution,
    layout: Layout,
    chunks: Sequence[Chunk],
    logit_bytes: float,
    gpu: GpuFacts,
) -> float:
    """Return logits, their softmax and the inputs of norm and head, on the rank with the head."""
    if not any(chunk.head for chunk in chunks):
        return 0.0
    tokens = layout.microbatch * model.seq_len / execution.cp
    each = (4.0 if execution.precision == "fp32" else 2.0) + logit_bytes
    if execution.fused_loss:
        each += gpu.fused_loss_bytes
    if execution.deferred_head_grad:
        each += DEFERRED_LOGIT_BYTES
    rows = padded_vocab(model, execution, layout.tp) / layout.tp
    spread = layout.tp if execution.sequence_parallel and not execution.fused_norms else 1
    return each * tokens * rows + 4 * tokens * model.hidden / spread


def _temporary_bytes(
    model: ModelSpec,
    execution: Execution,
    layout: Layout,
    chunks: Sequence[Chunk],
    logits: float,
    facts: FrameworkFacts,
) -> float:
    """Return what the backward pass needs beyond the logits, which it has freed by then.

    The gradients inside one block: two of hidden width, those of the feed-forward, and of an
    eager score matrix. With full recomputation one block's activations as well, with fully sharded
    weights gathered blocks.
    """
    extra = 0.0
    if any(chunk.head for chunk in chunks):
        rows = padded_vocab(model, execution, layout.tp) / layout.tp
        tokens = layout.microbatch * model.seq_len / execution.cp
        extra = facts.logit_peak_bytes * tokens * rows
    if not any(chunk.blocks for chunk in chunks):
        return extra
    tokens = layout.microbatch * model.seq_len / execution.cp
    up = model.ffn / layout.tp * (2 if model.gated_mlp else 1)
    inside = 4 * tokens * model.hidden + 2 * tokens * (up + model.ffn / layout.tp)
    if execution.attention == "eager":
        scores = layout.microbatch * model.seq_len**2 / execution.cp * model.num_heads / layout.tp
        inside += 4 * scores
    if execution.recompute == "full":
        inside += block_saved_bytes(model, execution, layout.tp, layout.microbatch)
    if execution.zero == 3:
        inside += 2 * facts.prefetch_blocks * _largest_block(model, execution, layout)
    return max(extra, inside - logits)
