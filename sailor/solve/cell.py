"""A cell of the search: one microbatch size and one data-parallel degree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.job import Objective
from sailor.model.problem import Problem
from sailor.sim.closed_form import Evaluation, PlanBatch, evaluate
from sailor.sim.models import cost_model
from sailor.sim.tables import StageTables
from sailor.solve import work
from sailor.solve.heuristics.shares import shared
from sailor.solve.pools import Pool, most_gpus

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Added to the score of a plan that breaks a limit, so that any legal plan beats it and a smaller
# breach beats a larger one. Scores are seconds or dollars an iteration, far below it.
BREACH = 1e12
_SOFT = 3.0  # a limit that is missed by x makes a soft score 1 + 3 x times as high


@dataclass(frozen=True)
class SearchTables:
    """Tables of one microbatch size over the leads of the pools.

    `pool` [K] and `tp` [K] say what a kind takes; `room` [R] is the GPUs of each pool.
    """

    tables: StageTables
    pool: Ints
    room: Ints
    num_replicas: Ints  # [K] replicas of the kind that its pool can hold
    mixable: NDArray[np.bool_]  # [K, K] whether two kinds may hold replicas of one stage
    shape: Ints  # [K] which of the rented node shapes the kind lies in
    shape_gpus: Ints  # [N] GPUs of that shape
    shape_pool: Ints  # [N]
    shape_usd_per_gpu_hour: Floats  # [N]

    @property
    def num_kinds(self) -> int:
        """Return K."""
        return len(self.tables.kinds)


def search_tables(
    problem: Problem, pools: Sequence[Pool], microbatch: int, *, stage_in_region: bool
) -> SearchTables | None:
    """Build the tables over every (pool, tp) that is profiled; None when there is none."""
    usable = {(p.gpu, p.tp) for p in problem.profiles if p.microbatch == microbatch}
    chosen = [
        (number, pool.lead(tp))
        for number, pool in enumerate(pools)
        for tp in pool.tp_degrees()
        if (pool.gpu, tp) in usable and pool.replicas(tp) > 0
    ]
    if not chosen:
        return None
    kinds = tuple(kind for _, kind in chosen)
    tables = cost_model(problem.cost_model).tables(problem, kinds, microbatch)
    shapes = sorted({(number, kind.node_type) for number, kind in chosen})
    shape = [shapes.index((number, kind.node_type)) for number, kind in chosen]
    region = np.array([problem.zone(kind.zone).region for kind in kinds])
    return SearchTables(
        tables=tables,
        pool=np.array([number for number, _ in chosen], dtype=np.int64),
        room=np.array([pool.num_gpus for pool in pools], dtype=np.int64),
        num_replicas=np.array(
            [pools[number].replicas(kind.tp) for number, kind in chosen], dtype=np.int64
        ),
        mixable=(region[:, None] == region[None, :]) | (not stage_in_region),
        shape=np.array(shape, dtype=np.int64),
        shape_gpus=np.array(
            [problem.node(name).num_gpus // problem.training.cp for _, name in shapes],
            dtype=np.int64,
        ),
        shape_pool=np.array([number for number, _ in shapes], dtype=np.int64),
        shape_usd_per_gpu_hour=np.array(
            [tables.usd_per_gpu_hour[shape.index(n)] for n in range(len(shapes))]
        ),
    )


@dataclass(frozen=True)
class Cell:
    """`dp` pipelines that share `total` microbatches of one size."""

    search: SearchTables
    dp: int
    total: int  # microbatches of all pipelines

    @property
    def num_microbatches(self) -> int:
        """Return the microbatches of the pipelines that have the most."""
        return -(-self.total // self.dp)

    def bound_s(self) -> float:
        """Return a lower bound on the iteration time of every plan of the cell.

        A replica of kind k passes at most S / t_k blocks a microbatch when no stage takes longer
        than S, so all replicas together must have sum n_k / t_k >= dp * L / S. In each pool the
        best kind is taken for all of its GPUs. Fill and drain take at least the fastest kind's
        pass through the whole model.
        """
        tables = self.search.tables
        whole = np.where(tables.usable, tables.compute_prefix_s[:, -1], np.inf)
        blocks = tables.compute_prefix_s[:, -2] - tables.compute_prefix_s[:, 1]
        rate = np.divide(
            self.search.num_replicas,
            blocks,
            out=np.zeros(len(blocks)),
            where=tables.usable & (blocks > 0),
        )
        total_rate = sum(
            float(rate[self.search.pool == pool].max(initial=0.0))
            for pool in range(len(self.search.room))
        )
        if total_rate <= 0:
            return float("inf")
        straggler = self.dp / total_rate
        fewest = self.total // self.dp
        return (fewest - 1) * straggler + float(whole.min())


class Scorer:
    """Turns evaluations into one number to minimise, by objective and limits.

    `ring_usd_per_byte` is added for every byte of the gradient ring: what crossing the zones of
    merged pools costs, which their one lead doesn't show. With `shares` unlike pipelines of a plan
    are scored with the microbatches that end soonest.
    """

    def __init__(
        self, problem: Problem, ring_usd_per_byte: float = 0.0, *, shares: bool = False
    ) -> None:
        self.shares, self.global_batch = shares, problem.training.global_batch
        self.ring_usd_per_byte = ring_usd_per_byte
        self.objective = problem.objective
        limits = problem.constraints
        self.max_usd = limits.max_usd_per_iteration
        self.max_s = (
            None if limits.min_iterations_per_s is None else 1.0 / limits.min_iterations_per_s
        )
        self.max_gpus, self.max_nodes = most_gpus(problem), limits.max_nodes
        self.headroom_bytes = limits.memory_headroom
        self.evaluations = 0

    def __call__(self, search: SearchTables, batch: PlanBatch) -> Floats:
        """Return [B]: seconds or dollars an iteration, plus BREACH for what is not allowed."""
        self.evaluations += len(batch.kinds)
        work.add(work.SCORE_S * batch.kinds.size)
        if self.shares and not search.tables.coupled and batch.width.shape[1] > 1:
            total = max(1, round(self.global_batch / search.tables.microbatch))
            batch = shared(search.tables, batch, total)
        found = evaluate(search.tables, batch, self.headroom_bytes)
        dp = batch.dp
        ring_bytes = search.tables.gradient_prefix_bytes[-1] * 2.0 * (dp - 1) / np.maximum(dp, 1)
        idle_gpus, rented, nodes = rented_gpus(search, batch)
        idle_usd = (idle_gpus * search.shape_usd_per_gpu_hour).sum(axis=1) / 3600.0
        # An unknown profile or link makes the time infinite; idle nodes then don't matter.
        idle_usd = np.multiply(
            idle_usd,
            found.iteration_s,
            out=np.zeros(len(idle_usd)),
            where=np.isfinite(found.iteration_s),
        )
        score = self.of(found, ring_bytes * self.ring_usd_per_byte + idle_usd)
        over = ((rented - search.room) / np.maximum(search.room, 1)).max(axis=1, initial=0.0)
        score = np.where(over > 0, BREACH * (2 + over), score)
        if self.max_gpus is not None:
            gpus = rented.sum(axis=1)
            score = np.where(
                gpus > self.max_gpus, BREACH * (2 + gpus / max(self.max_gpus, 1)), score
            )
        if self.max_nodes is not None:
            score = np.where(nodes > self.max_nodes, BREACH * (2 + nodes / self.max_nodes), score)
        return score

    def of(self, found: Evaluation, extra_usd: Floats) -> Floats:
        """Return [B] scores of evaluations, without regard to the pool."""
        seconds, usd = found.iteration_s, found.usd_per_iteration + extra_usd
        score = seconds if self.objective is Objective.MAX_THROUGHPUT else usd
        breach = self._breach(seconds, usd)
        # Comparisons with a limit tolerate rounding, like the check of the finished plan.
        score = np.where(breach > 1e-9, BREACH * (1 + np.minimum(breach, 1e6) * 1e-6), score)
        score = np.where(found.fits, score, BREACH * 4)
        # An unknown link makes the time infinite, an unknown egress price the dollars NaN; such a
        # plan can't be estimated, whatever the objective.
        return np.where(np.isfinite(score) & np.isfinite(usd), score, BREACH * 1e6)

    def soft(self, found: Evaluation) -> tuple[Floats, NDArray[np.bool_]]:
        """Return [B] scores that grow with what a limit is missed by, and whether none is.

        For searches that pass through what isn't allowed.
        """
        seconds, usd = found.iteration_s, found.usd_per_iteration
        score = seconds if self.objective is Objective.MAX_THROUGHPUT else usd
        breach = self._breach(seconds, usd)
        known = found.fits & np.isfinite(score) & np.isfinite(usd)
        soft = np.where(known, score * (1 + _SOFT * breach), BREACH)
        return soft, known & (breach <= 1e-9)

    def _breach(self, seconds: Floats, usd: Floats) -> Floats:
        """Return [B]: by what part a limit of money or time is missed, 0 where it is met."""
        breach = np.zeros(len(seconds))
        if self.max_usd is not None:
            breach = np.maximum(breach, usd / self.max_usd - 1)
        if self.max_s is not None:
            breach = np.maximum(breach, seconds / self.max_s - 1)
        return breach


def rented_gpus(search: SearchTables, batch: PlanBatch) -> tuple[Floats, Floats, Ints]:
    """Return [B, N] rented GPUs that idle, by node shape; [B, R] rented, by pool; [B] nodes.

    Replicas are packed into nodes without loss, which degrees that divide one another allow.
    """
    gpus = search.tables.tp[batch.kinds] * batch.width[:, None, :]
    shape = search.shape[batch.kinds]
    used = np.stack(
        [np.where(shape == n, gpus, 0).sum(axis=(1, 2)) for n in range(len(search.shape_gpus))],
        axis=1,
    )
    nodes = -(-used // search.shape_gpus)
    rented = nodes * search.shape_gpus
    by_pool = np.stack(
        [rented[:, search.shape_pool == pool].sum(axis=1) for pool in range(len(search.room))],
        axis=1,
    )
    return (rented - used).astype(float), by_pool.astype(float), nodes.sum(axis=1)
