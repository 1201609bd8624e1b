"""Iteration time, memory and money of many plans at once, in closed form for 1F1B.

A plan is a set of *columns*: runs of pipelines that are alike. Column c stands for `width[c]`
pipelines; stage i of each of them is held by kind `kinds[i, c]`. The arrays of B plans with P
stages and C columns are stacked in front. The equations are those of docs/cost-model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.sim.tables import StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PlanBatch:
    """B plans with P stages and C columns, all of one microbatch size.

    `cuts` [B, P + 1] are unit boundaries, `kinds` [B, P, C] indices into the tables' kinds,
    `width` [B, C] pipelines a column (0: the column is unused), `num_microbatches` [B, C].
    """

    cuts: Ints
    kinds: Ints
    width: Ints
    num_microbatches: Ints

    @property
    def dp(self) -> Ints:
        """Return the number of pipelines of each plan, [B]."""
        total: Ints = self.width.sum(axis=1)
        return total


@dataclass(frozen=True)
class StageTerms:
    """Seconds by stage; [B, P, C], or [B, P, 1] for a coupled model."""

    compute_s: Floats
    p2p_s: Floats
    num_microbatches: Ints  # [B, C] or [B, 1]


@dataclass(frozen=True)
class Evaluation:
    """What the closed form says of B plans."""

    iteration_s: Floats  # [B]; infinite where a profile or link is unknown
    pipeline_s: Floats
    sync_s: Floats
    update_s: Floats
    fits: NDArray[np.bool_]  # every worker has room
    usd_per_hour: Floats  # of the GPUs that compute; rented nodes may hold more
    egress_usd: Floats
    usd_per_iteration: Floats


def stage_terms(tables: StageTables, batch: PlanBatch) -> StageTerms:
    """Return compute and transfer seconds of every stage for one microbatch."""
    start, stop = batch.cuts[:, :-1, None], batch.cuts[:, 1:, None]
    kinds = batch.kinds
    num_stages = kinds.shape[1]
    compute = tables.compute_prefix_s[kinds, stop] - tables.compute_prefix_s[kinds, start]
    unused = batch.width[:, None, :] == 0
    compute = np.where(tables.usable[kinds], compute, np.inf)
    compute[np.broadcast_to(unused, compute.shape)] = 0.0
    forward = np.zeros_like(compute)  # activations to the next stage
    backward = np.zeros_like(compute)  # gradients to the stage before
    if num_stages > 1:
        inner_cut = batch.cuts[:, 1:-1, None]
        forward[:, :-1] = tables.send_s[
            tables.forward_size[inner_cut - 1], kinds[:, :-1], kinds[:, 1:]
        ]
        backward[:, 1:] = tables.send_s[
            tables.backward_size[inner_cut], kinds[:, 1:], kinds[:, :-1]
        ]
        hidden = np.broadcast_to(unused, compute.shape)
        forward[hidden] = 0.0
        backward[hidden] = 0.0
    counts = np.where(batch.width > 0, batch.num_microbatches, 0)
    if tables.coupled:
        compute, forward, backward = (
            part.max(axis=2, keepdims=True) for part in (compute, forward, backward)
        )
        counts = counts.max(axis=1, keepdims=True)
    p2p = forward + backward
    if num_stages > 2 and tables.blocked_s is not None:
        p2p += _blocked_seconds(tables, batch)
    if num_stages > 1:
        p2p[:, 0] = tables.first_send_factor(num_stages) * forward[:, 0]
        p2p[:, -1] = 2.0 * backward[:, -1]
    return StageTerms(compute_s=compute, p2p_s=p2p, num_microbatches=counts)


def _blocked_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B, P, C]: what inner stages wait for messages that arrive without a buffer.

    The ends have one neighbour; their factor of 2 already stands for both directions.
    """
    if tables.blocked_s is None:
        return np.zeros(batch.kinds.shape)
    kinds, cut = batch.kinds, batch.cuts[:, 1:-1, None]
    blocked = np.zeros(kinds.shape)
    activation = tables.blocked_s[tables.forward_size[cut - 1], kinds[:, :-1], kinds[:, 1:]]
    gradient = tables.blocked_s[tables.backward_size[cut], kinds[:, 1:], kinds[:, :-1]]
    blocked[:, 1:-1] = activation[:, :-1] + gradient[:, 1:]
    return np.where(batch.width[:, None, :] > 0, blocked, 0.0)


def pipeline_seconds(terms: StageTerms) -> Floats:
    """Return [B, C]: fill and drain once, then the slowest stage for every further microbatch."""
    stage = terms.compute_s + terms.p2p_s
    further = np.maximum(terms.num_microbatches - 1, 0)
    total: Floats = stage.sum(axis=1) + further * stage.max(axis=1)
    return total


def sync_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B, P]: each stage's all-reduce over the ring of its replicas in plan order."""
    start, stop = batch.cuts[:, :-1], batch.cuts[:, 1:]
    kinds, used = batch.kinds, batch.width > 0
    tp = np.where(used[:, None, :], tables.tp[kinds], np.iinfo(np.int64).max)
    min_tp = tp.min(axis=2)
    dp = batch.dp[:, None]
    slowest = np.zeros(start.shape)
    num_columns = kinds.shape[2]
    for src in range(num_columns):
        for dst in range(src, num_columns):
            # Neighbours in the ring: within a column, or from a column to the next used one.
            if src == dst:
                present = batch.width[:, src] > 1
            else:
                between = used[:, src + 1 : dst].any(axis=1)
                present = used[:, src] & used[:, dst] & ~between
            if not present.any():
                continue
            hop = tables.sync.seconds(start, stop, min_tp, dp, kinds[:, :, src], kinds[:, :, dst])
            slowest = np.where(present[:, None], np.maximum(slowest, hop), slowest)
    return slowest


def update_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B]: the slowest optimizer step."""
    start, stop = batch.cuts[:, :-1, None], batch.cuts[:, 1:, None]
    kinds = batch.kinds
    step = (
        tables.update_s[kinds]
        + tables.update_prefix_s[kinds, stop]
        - tables.update_prefix_s[kinds, start]
    )
    step = np.where(batch.width[:, None, :] > 0, step, 0.0)
    slowest: Floats = step.max(axis=(1, 2))
    return slowest


def memory_fits(
    tables: StageTables, batch: PlanBatch, headroom_bytes: int = 0
) -> NDArray[np.bool_]:
    """Return [B]: whether every worker has `headroom_bytes` left."""
    start, stop = batch.cuts[:, :-1, None], batch.cuts[:, 1:, None]
    num_stages = batch.kinds.shape[1]
    from_end = np.arange(num_stages, 0, -1)[None, :, None]
    in_flight = tables.memory.in_flight(from_end, batch.num_microbatches[:, None, :])
    dp = np.maximum(batch.dp, 1)[:, None, None]
    need = tables.memory.bound_bytes(batch.kinds, start, stop, in_flight, num_stages, dp)
    room = tables.memory.capacity_bytes[batch.kinds] - headroom_bytes
    ok = (need <= room) | (batch.width[:, None, :] == 0)
    fits: NDArray[np.bool_] = ok.all(axis=(1, 2))
    return fits


def transfer_dollars(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B]: egress of activations and gradients between stages.

    NaN where bytes cross a pair of zones whose price is unknown.
    """
    rate, kinds, width = tables.egress_usd_per_byte, batch.kinds, batch.width
    if kinds.shape[1] == 1 or not np.any(rate != 0):
        return np.zeros(len(kinds))
    counts = np.where(width > 0, batch.num_microbatches, 0)
    if tables.coupled:
        counts = np.broadcast_to(counts.max(axis=1, keepdims=True), counts.shape)
    sizes = tables.size_bytes[tables.forward_size[batch.cuts[:, 1:-1, None] - 1]]
    both_ways = rate[kinds[:, :-1], kinds[:, 1:]] + rate[kinds[:, 1:], kinds[:, :-1]]
    messages = (width * counts)[:, None, :]
    paid = np.where(messages > 0, messages * sizes * both_ways, 0.0)
    total: Floats = paid.sum(axis=(1, 2))
    return total


def ring_dollars(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B]: egress of the gradient all-reduce.

    The ring runs over the columns in order: each column's inner hops, then one hop to the next
    used column, the last one back to the first. Each hop carries 2 (D - 1) / D of the gradients.
    """
    rate, kinds, width = tables.egress_usd_per_byte, batch.kinds, batch.width
    total = np.zeros(len(kinds))
    if not np.any(rate != 0):
        return total
    dp = np.maximum(batch.dp, 1)
    gradients = (
        tables.gradient_prefix_bytes[batch.cuts[:, 1:]]
        - tables.gradient_prefix_bytes[batch.cuts[:, :-1]]
    ) * (2.0 * (dp - 1) / dp)[:, None]
    used = width > 0
    num_columns = width.shape[1]
    for c in range(num_columns):
        here = kinds[:, :, c]
        following = (c + 1 + np.arange(num_columns)) % num_columns
        onward = following[np.argmax(used[:, following], axis=1)]
        there = np.take_along_axis(kinds, onward[:, None, None], axis=2)[:, :, 0]
        inner_hops = np.maximum(width[:, c] - 1, 0)[:, None]
        inner = np.where(inner_hops > 0, rate[here, here] * inner_hops, 0.0)
        outer = np.where(used[:, c][:, None], rate[here, there], 0.0)
        paid = np.where(gradients > 0, (inner + outer) * gradients, 0.0)
        total = total + paid.sum(axis=1)
    return total


def evaluate(tables: StageTables, batch: PlanBatch, headroom_bytes: int = 0) -> Evaluation:
    """Return time, memory verdict and dollars of every plan of the batch."""
    pipeline = pipeline_seconds(stage_terms(tables, batch)).max(axis=1)
    sync = sync_seconds(tables, batch).max(axis=1)
    update = update_seconds(tables, batch)
    iteration = pipeline + sync + update
    gpus = tables.tp[batch.kinds] * batch.width[:, None, :]
    usd_per_hour = (gpus * tables.usd_per_gpu_hour[batch.kinds]).sum(axis=(1, 2))
    egress = transfer_dollars(tables, batch) + ring_dollars(tables, batch)
    return Evaluation(
        iteration_s=iteration,
        pipeline_s=pipeline,
        sync_s=sync,
        update_s=update,
        fits=memory_fits(tables, batch, headroom_bytes),
        usd_per_hour=usd_per_hour,
        egress_usd=egress,
        usd_per_iteration=usd_per_hour / 3600.0 * iteration + egress,
    )
