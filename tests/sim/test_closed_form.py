"""The closed form against a plain-Python evaluation of the same equations, plan by plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.api import build_problem
from sailor.model.hardware import Market
from sailor.model.problem import Problem
from sailor.sim.closed_form import PlanBatch, evaluate
from sailor.sim.columns import Column, batch_of_one, columns_of, plan_of, split_microbatches
from sailor.sim.estimate import estimate
from sailor.sim.kinds import WorkerKind
from sailor.sim.models import cost_model
from sailor.sim.network import LinkIndex

ROOT = Path(__file__).resolve().parents[2]
MIXED = ROOT / "examples" / "jobs" / "opt-350m-a100-v100.yaml"
FIVE_ZONES = ROOT / "examples" / "jobs" / "sosp25" / "opt350-fig10-5x128.yaml"


PARTS = {
    "parameters_bytes",
    "gradients_bytes",
    "optimizer_bytes",
    "communication_bytes",
    "activations_bytes",
    "transient_bytes",
    "reserve_bytes",
}


def a100(tp: int, zone: str = "us-central1-a", node_gpus: int | None = None) -> WorkerKind:
    """A replica on a node of its own, or on one of `node_gpus`."""
    return WorkerKind("A100-40GB", zone, Market.ON_DEMAND, f"a2-highgpu-{node_gpus or tp}g", tp)


def v100(tp: int) -> WorkerKind:
    return WorkerKind("V100-16GB", "us-central1-a", Market.ON_DEMAND, f"n1-v100-{tp}", tp)


@pytest.fixture(scope="module")
def mixed() -> Problem:
    return build_problem(MIXED)


def under(problem: Problem, framework: str) -> Problem:
    training = problem.training.model_copy(update={"framework": framework})
    return problem.model_copy(update={"training": training})


class ByHand:
    """The `sailor` model of one problem, one replica and message at a time."""

    def __init__(self, problem: Problem) -> None:
        self.arch = problem.arch
        self.blocks = problem.training.framework == "megatron-deepspeed"
        self.nodes = {node.name: node for node in problem.nodes}
        self.cluster = problem.cluster
        self.profiles = {(p.gpu, p.tp, p.microbatch): p for p in problem.profiles}
        self.footprints = {f.tp: f for f in problem.footprints}
        self.links = LinkIndex(problem.links)

    def compute_s(self, kind: WorkerKind, start: int, stop: int, size: int) -> float:
        profile = self.profiles[kind.gpu, kind.tp, size]
        times = [profile.unit(self.arch.unit_kind(unit)) for unit in range(start, stop)]
        return sum(time.forward_s + time.backward_s for time in times)

    def send_s(self, src: WorkerKind, dst: WorkerKind, unit: int, size: int) -> float:
        link = self.links.find(src, dst, src.tp, dst.tp)
        assert link is not None
        message = self.footprints[1].unit(self.arch.unit_kind(unit)).output_bytes * size
        # A replica that shares its node has its part of the card.
        slowest = message / min(self.card_share(src), self.card_share(dst))
        return max(link.transfer_s(message), link.latency_s + slowest)

    def card_share(self, kind: WorkerKind) -> float:
        node = self.nodes[kind.node_type]
        return node.nic_bandwidth * kind.tp / node.num_gpus if kind.tp < node.num_gpus else math.inf

    def blocked_s(self, src: WorkerKind, dst: WorkerKind, unit: int, size: int) -> float:
        message = self.footprints[1].unit(self.arch.unit_kind(unit)).output_bytes * size
        part = message / min(src.tp, dst.tp)
        if not self.blocks:
            return 0.0
        return self.send_s(src, dst, unit, size) if part > 4 * 2**20 else 0.0

    def params(self, tp: int, start: int, stop: int) -> int:
        return sum(
            self.footprints[tp].unit(self.arch.unit_kind(unit)).params
            for unit in range(start, stop)
        )

    def pipeline_s(self, cuts: Sequence[int], column: Column) -> float:
        stage_s, last, size = [], len(cuts) - 2, column.microbatch
        for i, here in enumerate(column.kinds):
            busy = self.compute_s(here, cuts[i], cuts[i + 1], size)
            onward = back = 0.0
            if i < last:
                onward = self.send_s(here, column.kinds[i + 1], cuts[i + 1] - 1, size)
            if i > 0:
                back = self.send_s(here, column.kinds[i - 1], cuts[i] - 1, size)
            waits = 0.0
            if 0 < i < last:
                # An inner stage stands still while a message beyond the buffer comes in.
                waits += self.blocked_s(column.kinds[i - 1], here, cuts[i] - 1, size)
                waits += self.blocked_s(column.kinds[i + 1], here, cuts[i + 1] - 1, size)
            stage_s.append(
                waits + busy + onward * (2 if i == 0 else 1) + back * (2 if i == last else 1)
            )
        return sum(stage_s) + (column.num_microbatches - 1) * max(stage_s)

    def sync_s(self, start: int, stop: int, ring: Sequence[WorkerKind]) -> float:
        dp, min_tp, slowest = len(ring), min(kind.tp for kind in ring), 0.0
        chunk = 4.0 * self.params(1, start, stop) / dp
        node = self.nodes[ring[0].node_type]
        if dp > 1 and (node.num_gpus // min_tp) % dp == 0 and len(set(ring)) == 1:
            # Rings that divide a node lie side by side on it: its links, and a step by doubling.
            rate = node.intra_node_bandwidth * self.cluster.link_share
            launch = self.cluster.link_step_s * math.log2(dp)
            return 2 * (dp - 1) * chunk / min_tp / rate + launch
        for a, b in pairwise(ring):
            link = self.links.find(a, b, a.tp, b.tp)
            assert link is not None
            hop = link.latency_s + min_tp * (link.transfer_s(chunk / min_tp) - link.latency_s)
            slowest = max(slowest, 2 * (dp - 1) * hop)
        return slowest

    def update_s(self, start: int, stop: int, column: Column, kind: WorkerKind) -> float:
        profile = self.profiles[kind.gpu, kind.tp, column.microbatch]
        own = self.params(kind.tp, start, stop)
        return profile.optimizer_s / profile.optimizer_params * own

    def iteration_s(self, cuts: Sequence[int], columns: Sequence[Column]) -> float:
        stages = list(enumerate(pairwise(cuts)))
        return (
            max(self.pipeline_s(cuts, column) for column in columns)
            + max(
                self.sync_s(start, stop, [c.kinds[i] for c in columns for _ in range(c.width)])
                for i, (start, stop) in stages
            )
            + max(
                self.update_s(start, stop, column, column.kinds[i])
                for i, (start, stop) in stages
                for column in columns
            )
        )


KINDS = st.sampled_from(
    [
        a100(1),
        a100(2),
        a100(4),
        a100(1, node_gpus=8),
        a100(4, node_gpus=8),
        v100(1),
        v100(2),
        v100(4),
    ]
)


@st.composite
def plans(draw: st.DrawFn) -> tuple[list[int], list[Column]]:
    depth = draw(st.integers(1, 6))
    inner = draw(st.lists(st.integers(1, 25), min_size=depth - 1, max_size=depth - 1, unique=True))
    cuts = [0, *sorted(inner), 26]
    columns = draw(
        st.lists(
            st.builds(
                Column,
                kinds=st.tuples(*[KINDS] * depth),
                width=st.integers(1, 4),
                microbatch=st.sampled_from([1, 2, 4]),
                num_microbatches=st.integers(1, 40),
            ),
            min_size=1,
            max_size=4,
        )
    )
    return cuts, columns


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-deepspeed"])
@settings(max_examples=100, deadline=None)
@given(plan=plans())
def test_the_estimate_is_the_plain_equations(
    mixed: Problem, framework: str, plan: tuple[list[int], list[Column]]
) -> None:
    cuts, columns = plan
    own = under(mixed, framework)
    found = estimate(own, plan_of("opt-350m", cuts, columns, 1024))
    assert found.iteration_s == pytest.approx(ByHand(own).iteration_s(cuts, columns), rel=1e-10)
    parts = found.time.model_dump(exclude={"total_s"})
    assert math.isclose(sum(parts.values()), found.time.total_s, rel_tol=1e-12)
    for worker in found.memory:
        named = worker.model_dump(include=PARTS)
        assert sum(named.values()) == pytest.approx(worker.total_bytes, abs=4)
        assert worker.headroom_bytes == worker.capacity_bytes - worker.bound_bytes
        assert worker.bound_bytes > worker.total_bytes
        deepest = len(cuts) - 1 - worker.stage
        assert 1 <= worker.in_flight <= deepest


@pytest.mark.parametrize("counts", [(3, 3), (4, 3)])
def test_replicas_of_one_node_reduce_there_however_many_microbatches_they_have(
    mixed: Problem, counts: tuple[int, int]
) -> None:
    kind = a100(4, node_gpus=8)
    columns = [Column((kind,), 1, 1, count) for count in counts]
    found = estimate(mixed, plan_of("opt-350m", (0, 26), columns, sum(counts)))
    params = ByHand(mixed).params(1, 0, 26) / 4
    # Each half of 4 bytes there and back over 0.8 of a GPU's 300 GB/s; one step of 15 us.
    assert found.time.dp_sync_s == pytest.approx(4 * params / (0.8 * 300e9) + 15e-6)


@settings(max_examples=60, deadline=None)
@given(plan=plans(), data=st.data())
def test_a_batch_says_what_each_plan_alone_says(
    mixed: Problem, plan: tuple[list[int], list[Column]], data: st.DataObject
) -> None:
    cuts, columns = plan
    columns = [Column(c.kinds, c.width, 2, c.num_microbatches) for c in columns]
    model = data.draw(st.sampled_from(["sailor", "published"]))
    shared = {a100(1, node_gpus=8), a100(4, node_gpus=8)}
    kinds = tuple(sorted(shared | {a100(t) for t in (1, 2, 4)} | {v100(t) for t in (1, 2, 4)}))
    tables = cost_model(model).tables(mixed, kinds, 2)
    one = batch_of_one(cuts, columns, kinds)
    # The same plan among others, and with an unused column in front and behind.
    many = PlanBatch(
        cuts=np.repeat(one.cuts, 3, axis=0),
        kinds=np.concatenate(
            [np.pad(one.kinds, ((0, 0), (0, 0), (1, 1)), mode="edge")] * 3, axis=0
        ),
        width=np.concatenate([np.pad(one.width, ((0, 0), (1, 1)))] * 3, axis=0),
        num_microbatches=np.concatenate(
            [np.pad(one.num_microbatches, ((0, 0), (1, 1)), constant_values=7)] * 3, axis=0
        ),
    )
    alone, together = evaluate(tables, one), evaluate(tables, many)
    for name in ("iteration_s", "sync_s", "update_s", "usd_per_hour", "egress_usd"):
        expected = getattr(alone, name)[0]
        assert getattr(together, name) == pytest.approx([expected] * 3, rel=1e-12), name
    assert (together.fits == alone.fits[0]).all()
    problem = mixed.model_copy(update={"cost_model": model})
    exact = estimate(problem, plan_of("opt-350m", cuts, columns, 1024))
    assert alone.iteration_s[0] == pytest.approx(exact.iteration_s, rel=1e-12)
    assert bool(alone.fits[0]) is exact.fits


@settings(max_examples=60, deadline=None)
@given(plan=plans())
def test_columns_and_plans_are_two_forms_of_one_thing(plan: tuple[list[int], list[Column]]) -> None:
    cuts, columns = plan
    made = plan_of("opt-350m", cuts, columns, 1024)
    again = columns_of(made)
    assert plan_of("opt-350m", cuts, again, 1024) == made
    assert sum(column.width for column in again) == made.dp == sum(c.width for c in columns)


def test_egress_is_paid_for_every_byte_that_leaves_a_zone() -> None:
    """Two stages in two zones, dp 1: activations out and gradients back, nothing else."""
    problem = build_problem(FIVE_ZONES).model_copy(update={"cost_model": "sailor"})
    columns = [Column((a100(4), a100(4, "us-central1-b")), 1, 8, 128)]
    found = estimate(problem, plan_of("opt-350m", (0, 13, 26), columns, 1024))
    block_bytes = 2048 * 1024 * 4 * 8
    assert found.cost[1].name == "egress"
    assert found.cost[1].usd_per_iteration == pytest.approx(128 * 2 * block_bytes * 0.01e-9)
    # dp 2 over two zones: each of the two hops of the ring carries half the gradients twice.
    pair = [Column((a100(4),), 1, 8, 64), Column((a100(4, "us-central1-b"),), 1, 8, 64)]
    ring = estimate(problem, plan_of("opt-350m", (0, 26), pair, 1024))
    parameters = 53608448 + 24 * 12596224 + 51513344
    assert ring.cost[1].usd_per_iteration == pytest.approx(2 * 4 * parameters * 0.01e-9)


def test_rent_is_of_whole_nodes(mixed: Problem) -> None:
    """Three replicas of tp 1 on nodes of 2: two nodes are rented for them."""
    kind = WorkerKind("A100-40GB", "us-central1-a", Market.ON_DEMAND, "a2-highgpu-2g", 1)
    found = estimate(mixed, plan_of("opt-350m", (0, 26), [Column((kind,), 3, 1, 4)], 12))
    (node,) = found.nodes
    assert (node.count, node.gpus_used, node.gpus_rented) == (2, 3, 4)
    price = next(p for p in mixed.placements if p.node_type == "a2-highgpu-2g").usd_per_hour
    assert found.cost[0].usd_per_iteration == pytest.approx(
        2 * price / 3600 * found.iteration_s, rel=1e-12
    )


@given(
    batch=st.integers(1, 3000),
    size=st.integers(1, 9),
    widths=st.lists(st.integers(1, 30), min_size=1),
)
def test_microbatches_are_spread_exactly(batch: int, size: int, widths: list[int]) -> None:
    parts = split_microbatches(batch, size, widths)
    total = max(1, round(batch / size))
    if total < sum(widths):
        assert parts == []
        return
    assert sum(width * count for _, width, count in parts) == total
    counts = {count for _, _, count in parts}
    assert max(counts) - min(counts) <= 1
    for column, width in enumerate(widths):
        assert sum(share for index, share, _ in parts if index == column) == width


def test_27_pipelines_of_2_serve_1024_samples() -> None:
    assert split_microbatches(1024, 2, [27]) == [(0, 26, 19), (0, 1, 18)]
