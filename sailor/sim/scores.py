"""Attention score matrices: what unfused attention keeps and needs, by worker kind."""

from __future__ import annotations

from sailor.model.execution import Execution
from sailor.model.problem import Problem
from sailor.model.profile import Provenance
from sailor.sim.kinds import WorkerKind
from sailor.sim.layers import block_saved_bytes, element_bytes

# The backward pass of unfused attention holds three score matrices at once: the softmax's output,
# its gradient, and the gradient of the scores.
_SCORE_MATRICES = 3.0


def kept_score_bytes(problem: Problem, kind: WorkerKind) -> float:
    """Return what a block keeps of one sample beyond its footprint, on one rank.

    Modelled footprints are those of fused attention, which needs a GPU type with bf16; on others
    the scores, their mask and their dropout are kept (Korthikanti et al. 2022).
    """
    if not _unfused(problem, kind) or not _modelled(problem, kind.tp):
        return 0.0
    precision = problem.training.precision
    if problem.training.recompute != "none":
        return 0.0  # both kinds of recomputation compute the scores again
    eager = Execution(precision=precision, attention="eager", dropout=True)
    fused = Execution(precision=precision, attention="flash", dropout=True)
    return block_saved_bytes(problem.arch, eager, kind.tp, 1) - block_saved_bytes(
        problem.arch, fused, kind.tp, 1
    )


def transient_score_bytes(problem: Problem, kind: WorkerKind) -> float:
    """Return what one sample's backward pass through a block holds for a moment, on one rank.

    heads / tp * s^2 values for each matrix; none where attention is fused: modelled layers on a
    type with bf16, and measured ones that are too small to hold a score matrix.
    """
    arch = problem.arch
    values = arch.num_heads / kind.tp * float(arch.seq_len) ** 2
    size = element_bytes(problem.training.precision) * values
    footprint = next((f for f in problem.footprints if f.tp == kind.tp), None)
    if footprint is None:
        return 0.0
    if footprint.provenance is Provenance.MODELLED:
        return _SCORE_MATRICES * size if _unfused(problem, kind) else 0.0
    return _SCORE_MATRICES * size if footprint.block.activation_bytes >= size else 0.0


def recomputed_bytes(problem: Problem, kind: WorkerKind) -> float:
    """Return one sample's activations of the one block that is computed again, on one rank."""
    training = problem.training
    if training.recompute != "full":
        return 0.0
    execution = Execution(
        precision=training.precision,
        sequence_parallel=training.sequence_parallel,
        attention="eager" if _unfused(problem, kind) else "flash",
        dropout=True,
    )
    return block_saved_bytes(problem.arch, execution, kind.tp, 1)


def _unfused(problem: Problem, kind: WorkerKind) -> bool:
    return not problem.gpu(kind.gpu).bf16


def _modelled(problem: Problem, tp: int) -> bool:
    return any(
        footprint.tp == tp and footprint.provenance is Provenance.MODELLED
        for footprint in problem.footprints
    )
