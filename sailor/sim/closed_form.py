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

MANY = np.iinfo(np.int64).max  # replicas, more than a node holds


@dataclass(frozen=True)
class PlanBatch:
    """B plans with P stages and C columns, all of one microbatch size.

    `cuts` [B, P + 1] are unit boundaries, `kinds` [B, P, C] indices into the tables' kinds,
    `width` [B, C] pipelines a column (0: the column is unused), `num_microbatches` [B, C]. In an
    interleaved pipeline the P stages are chunks, and chunk i lies on rank i mod (P / vpp).
    """

    cuts: Ints
    kinds: Ints
    width: Ints
    num_microbatches: Ints
    vpp: int = 1

    def ranks(self, by_chunk: Floats) -> Floats:
        """Return [B, P / vpp, ...]: what ranks have of their chunks' [B, P, ...] together."""
        if self.vpp == 1:
            return by_chunk
        num_plans, num_chunks = by_chunk.shape[:2]
        shape = (num_plans, self.vpp, num_chunks // self.vpp, *by_chunk.shape[2:])
        total: Floats = by_chunk.reshape(shape).sum(axis=1)
        return total

    @property
    def dp(self) -> Ints:
        """Return the number of pipelines of each plan, [B]."""
        total: Ints = self.width.sum(axis=1)
        return total


@dataclass(frozen=True)
class StageTerms:
    """Seconds by rank; [B, P, C], or [B, P, 1] for a coupled model."""

    compute_s: Floats
    p2p_s: Floats
    num_microbatches: Ints  # [B, C] or [B, 1]
    vpp: int


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
    kinds = batch.kinds
    num_stages = kinds.shape[1]
    compute = _compute_seconds(tables, batch)
    unused = batch.width[:, None, :] == 0
    lead = kinds[:, : num_stages // batch.vpp]
    compute = np.where(tables.usable[lead], compute, np.inf)
    compute[np.broadcast_to(unused, compute.shape)] = 0.0
    forward = np.zeros(kinds.shape)  # activations to the next stage
    backward = np.zeros(kinds.shape)  # gradients to the stage before
    if num_stages > 1:
        inner_cut = batch.cuts[:, 1:-1, None]
        forward[:, :-1] = tables.send_s[
            tables.forward_size[inner_cut - 1], kinds[:, :-1], kinds[:, 1:]
        ]
        backward[:, 1:] = tables.send_s[
            tables.backward_size[inner_cut], kinds[:, 1:], kinds[:, :-1]
        ]
        hidden = np.broadcast_to(unused, kinds.shape)
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
    return StageTerms(compute, batch.ranks(p2p), counts, batch.vpp)


def _compute_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B, P, C] of the ranks' chunks together."""
    start, stop = batch.cuts[:, :-1, None], batch.cuts[:, 1:, None]
    dp, vpp = batch.dp[:, None, None], batch.vpp
    if vpp == 1:
        return tables.compute_s(batch.kinds, start, stop, dp)
    shape = (len(start), vpp, -1)
    return tables.compute_s(
        batch.kinds.reshape(*shape, batch.kinds.shape[2]),
        start.reshape(*shape, 1),
        stop.reshape(*shape, 1),
        dp,
        over=1,
    )


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
    """Return [B, C]: fill and drain once, then the slowest stage for every further microbatch.

    An interleaved pipeline fills and drains with chunks, `vpp` times as fast.
    """
    stage = terms.compute_s + terms.p2p_s
    slowest = stage.max(axis=1)
    further = np.maximum(terms.num_microbatches - 1 / terms.vpp, 0)
    total: Floats = stage.sum(axis=1) / terms.vpp + further * slowest
    return total


def sync_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B, P]: each rank's all-reduce over the ring of its replicas in plan order."""
    start, stop = batch.cuts[:, :-1], batch.cuts[:, 1:]
    kinds, used = batch.kinds, batch.width > 0
    tp = np.where(used[:, None, :], tables.tp[kinds], np.iinfo(np.int64).max)
    min_tp = tp.min(axis=2)
    dp = batch.dp[:, None]
    slowest = np.zeros(start.shape)
    run = np.where(_one_kind(kinds, used), dp, MANY)
    cp = tables.kinds[0].cp  # one replica of several context-parallel ranks is a ring too
    num_columns = kinds.shape[2]
    for src in range(num_columns):
        for dst in range(src, num_columns):
            # Neighbours in the ring: within a column, or from a column to the next used one.
            if src == dst:
                present = batch.width[:, src] * cp > 1
            else:
                between = used[:, src + 1 : dst].any(axis=1)
                present = used[:, src] & used[:, dst] & ~between
            if not present.any():
                continue
            hop = tables.sync.seconds(
                start, stop, min_tp, dp, kinds[:, :, src], kinds[:, :, dst], run
            )
            slowest = np.where(present[:, None], np.maximum(slowest, hop), slowest)
    return batch.ranks(slowest + _tied_seconds(tables, batch))


def _one_kind(kinds: Ints, used: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return [B, P]: whether all replicas of a stage are of one kind, so that they may share nodes.

    Beside replicas of another kind a ring leaves the node.
    """
    first = np.take_along_axis(kinds, np.argmax(used, axis=1)[:, None, None], axis=2)
    same: NDArray[np.bool_] = ((kinds == first) | ~used[:, None, :]).all(axis=2)
    return same


def _tied_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B, P]: first and last stage add up the gradients of the table they both hold."""
    seconds = np.zeros(batch.kinds.shape[:2])
    if tables.tied_send_s is None or batch.kinds.shape[1] == 1:
        return seconds
    first, last = batch.kinds[:, 0], batch.kinds[:, -1]
    exchange = np.where(batch.width > 0, tables.tied_send_s[first, last], 0.0).max(axis=1)
    seconds[:, 0] = seconds[:, -1] = exchange
    return seconds


def update_seconds(tables: StageTables, batch: PlanBatch) -> Floats:
    """Return [B]: the slowest optimizer step."""
    start, stop = batch.cuts[:, :-1, None], batch.cuts[:, 1:, None]
    kinds = batch.kinds
    step = tables.update_seconds(kinds, start, stop, np.maximum(batch.dp, 1)[:, None, None])
    # A step's fixed time passes once for all chunks of a rank.
    fixed = tables.update_s[kinds[:, : kinds.shape[1] // batch.vpp]] * (batch.vpp - 1)
    step = np.where(batch.width[:, None, :] > 0, step, 0.0)
    step = batch.ranks(step) - np.where(batch.width[:, None, :] > 0, fixed, 0.0)
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
    messages = tables.kinds[0].cp * (width * counts)[:, None, :]
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
    ranks = np.maximum(batch.dp, 1) * tables.kinds[0].cp
    gradients = (
        tables.gradient_prefix_bytes[batch.cuts[:, 1:]]
        - tables.gradient_prefix_bytes[batch.cuts[:, :-1]]
    ) * (2.0 * (ranks - 1) / ranks)[:, None]
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
