"""The event engine: figures worked out by hand, and what must hold of every run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.errors import InputError
from sailor.sim.closed_form import StageTerms, pipeline_seconds
from sailor.sim.engine import PipelineWork, Route, simulate
from sailor.sim.schedule import NUM_COMPUTE_OPS, Op, PipelineOrder, StageOrder, pipeline_order
from sailor.sim.timeline import Timeline

FIXED = ("gpipe", "1f1b", "1f1b_deepspeed", "zb_h1")


def seconds(
    forward: list[float], backward: list[float], weight_share: float = 0.5
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    table = np.zeros((NUM_COMPUTE_OPS, len(forward)))
    table[Op.FORWARD], table[Op.BACKWARD] = forward, backward
    table[Op.BACKWARD_WEIGHT] = weight_share * table[Op.BACKWARD]
    table[Op.BACKWARD_INPUT] = table[Op.BACKWARD] - table[Op.BACKWARD_WEIGHT]
    return table


def uniform(
    schedule: str,
    num_stages: int,
    num_microbatches: int,
    route: Route | None = None,
    *,
    forward_s: float = 1.0,
    backward_s: float = 2.0,
    first_lane: int = 0,
    num_chunks: int = 1,
    windows: list[int] | None = None,
) -> PipelineWork:
    """A pipeline of like stages; stage i sends on lane 2i and receives on lane 2i + 1."""
    way = route or Route(0.0)
    stages = num_stages * num_chunks

    def lanes(src: int, dst: int) -> tuple[int, ...]:
        src, dst = src % num_stages, dst % num_stages
        return (first_lane + 2 * src, first_lane + 2 * dst + 1) if route else ()

    return PipelineWork(
        order=pipeline_order(
            schedule, num_stages, num_microbatches, num_chunks=num_chunks, windows=windows
        ),
        compute_s=seconds([forward_s] * stages, [backward_s] * stages),
        activation_routes=tuple(replace(way, lanes=lanes(v, v + 1)) for v in range(stages - 1)),
        gradient_routes=tuple(replace(way, lanes=lanes(v + 1, v)) for v in range(stages - 1)),
    )


def run(work: PipelineWork) -> Timeline:
    return simulate([work], [f"lane {n}" for n in range(2 * work.order.num_stages)])


# Known values.


def test_a_pipeline_of_one_stage_takes_its_work() -> None:
    assert run(uniform("1f1b", 1, 5)).makespan_s == 15.0


def test_two_microbatches_on_two_stages_by_hand() -> None:
    """1F1B, forward 1, backward 2, transfer 0.5.

    Stage 1: F0 1.5..2.5, B0 ..4.5, F1 (arrived at 2.5) ..5.5, B1 ..7.5. Stage 0: F0 0..1, F1 1..2,
    B0 from 5 to 7, B1 from 8 to 10.
    """
    line = run(uniform("1f1b", 2, 2, Route(0.5)))
    assert [(s.op, s.microbatch, s.start_s, s.stop_s) for s in line.spans_of(0)] == [
        (Op.FORWARD, 0, 0, 1),
        (Op.FORWARD, 1, 1, 2),
        (Op.BACKWARD, 0, 5, 7),
        (Op.BACKWARD, 1, 8, 10),
    ]
    assert [(s.op, s.microbatch, s.start_s, s.stop_s) for s in line.spans_of(1)] == [
        (Op.FORWARD, 0, 1.5, 2.5),
        (Op.BACKWARD, 0, 2.5, 4.5),
        (Op.FORWARD, 1, 4.5, 5.5),
        (Op.BACKWARD, 1, 5.5, 7.5),
    ]
    assert line.bubbles(0).tolist() == [[2, 5], [7, 8]]
    assert line.bubbles(1).tolist() == [[0, 1.5], [7.5, 10]]
    assert line.bubble_fraction.tolist() == pytest.approx([0.4, 0.4])
    times, counts = line.in_flight(0)
    assert times.tolist() == [0, 1, 7, 10]
    assert counts.tolist() == [1, 2, 1, 0]
    assert line.lane_busy_s.tolist() == [1, 1, 1, 1]
    assert [t.start_s for t in line.transfers_of_lane(0)] == [1, 2]
    assert line.pipeline_finish_s.tolist() == [10]


def test_latency_and_own_work_come_on_top_of_the_transfer() -> None:
    line = run(uniform("1f1b", 2, 1, Route(0.5, latency_s=0.25, receive_s=0.125)))
    assert line.makespan_s == 3 + 3 + 2 * (0.5 + 0.25 + 0.125)
    assert line.receive_s.tolist() == [0.125, 0.125]
    assert line.compute_s.tolist() == [3, 3]
    assert [s.op for s in line.spans_of(1)] == [Op.RECV_ACTIVATION, Op.FORWARD, Op.BACKWARD]


@pytest.mark.parametrize(
    ("schedule", "microbatches", "pipelines", "transfer_s", "apart_s", "shared_s"),
    [
        ("gpipe", 8, 2, 2, 45.0, 42.0),
        ("1f1b", 16, 2, 1, 78.0, 66.5),
        ("1f1b", 16, 2, 2, 102.0, 79.0),
        ("1f1b", 16, 2, 4, 150.0, 104.0),
        ("1f1b", 16, 4, 2, 102.0, 67.5),
        ("1f1b", 16, 4, 3, 126.0, 74.25),
        ("1f1b", 16, 4, 4, 150.0, 81.0),
    ],
)
def test_pipelines_that_share_a_link_in_turn(
    schedule: str,
    microbatches: int,
    pipelines: int,
    transfer_s: float,
    apart_s: float,
    shared_s: float,
) -> None:
    """Three stages, K pipelines, each on 1/K of a link, or on the whole of it in turn.

    Figures of an independent simulator (the GPipe one also by hand: first forward at the last
    stage at 6, one every 2 s, last one done at 21, backwards until 37, two hops back until 45).
    """

    def works(shared: bool) -> list[PipelineWork]:
        found = []
        for number in range(pipelines):
            base = 0 if shared else 4 * number
            each_s = transfer_s / pipelines if shared else transfer_s
            found.append(
                PipelineWork(
                    order=pipeline_order(schedule, 3, microbatches),
                    compute_s=seconds([1.0] * 3, [2.0] * 3),
                    activation_routes=tuple(Route(each_s, (base + i,)) for i in (0, 1)),
                    gradient_routes=tuple(Route(each_s, (base + i,)) for i in (2, 3)),
                )
            )
        return found

    assert simulate(works(False), [""] * 4 * pipelines).makespan_s == apart_s
    assert simulate(works(True), [""] * 4).makespan_s == shared_s


@given(st.integers(1, 8), st.integers(1, 30), st.integers(1, 5), st.integers(1, 5))
def test_uniform_stages_without_transfers(p: int, m: int, forward: int, backward: int) -> None:
    """(M + P - 1)(f + b) for GPipe and 1F1B: fill, work, drain."""
    for schedule in ("gpipe", "1f1b", "1f1b_deepspeed"):
        line = run(uniform(schedule, p, m, forward_s=forward, backward_s=backward))
        assert line.makespan_s == (m + p - 1) * (forward + backward)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_interleaving_divides_the_bubble(p: int, groups: int, chunks: int) -> None:
    """Fill and drain take 1 / C of what whole stages take (Narayanan et al. 2021)."""
    work = uniform("interleaved", p, groups * p, num_chunks=chunks)
    assert run(work).makespan_s == groups * p * chunks * 3 + (p - 1) * 3


@given(st.integers(2, 8), st.integers(1, 3))
def test_zb_h1_fills_two_thirds_of_the_bubble(p: int, more: int) -> None:
    """Forward, input and weight gradient alike: 3 M + P - 1 (Qi et al. 2023), a third of 1F1B's."""
    work = uniform("zb_h1", p, p * more + p, backward_s=2.0)
    assert run(work).makespan_s == 3 * (p * more + p) + (p - 1)


def test_deepspeeds_order_can_not_hide_transfers() -> None:
    """With two stages the period is f + b + 2 x: an activation leaves after a gradient came."""
    for buffered in (True, False):
        times = [
            run(uniform("1f1b_deepspeed", 2, m, Route(0.5, buffered=buffered))).makespan_s
            for m in (20, 30)
        ]
        assert times[1] - times[0] == 10 * (3 + 2 * 0.5)
        textbook = [run(uniform("1f1b", 2, m, Route(0.5))).makespan_s for m in (20, 30)]
        assert textbook[1] - textbook[0] == 10 * (3 + 0.5)


@pytest.mark.parametrize(
    ("window", "apart_s", "shared_s"), [(3, 150.0, 81.0), (6, 91.0, 76.0), (9, 87.0, 76.0)]
)
def test_a_wider_window_hides_slow_links(window: int, apart_s: float, shared_s: float) -> None:
    """Four pipelines over three stages, 16 microbatches, transfers of 4 s, backwards first.

    The figures for windows 3 and 6 are those of an independent simulator; window 3 equals 1F1B.
    """
    for shared, wanted in ((False, apart_s), (True, shared_s)):
        works = [
            PipelineWork(
                order=pipeline_order("backward_first", 3, 16, windows=[window] * 3),
                compute_s=seconds([1.0] * 3, [2.0] * 3),
                activation_routes=tuple(
                    Route(1.0 if shared else 4.0, (i if shared else 4 * k + i,)) for i in (0, 1)
                ),
                gradient_routes=tuple(
                    Route(1.0 if shared else 4.0, (i if shared else 4 * k + i,)) for i in (2, 3)
                ),
            )
            for k in range(4)
        ]
        assert simulate(works, [""] * 16).makespan_s == wanted


def test_pipelines_of_unlike_speed_and_count_keep_their_own_time() -> None:
    def quick(first_lane: int) -> PipelineWork:
        return uniform(
            "1f1b", 2, 7, Route(0.25), forward_s=0.5, backward_s=0.5, first_lane=first_lane
        )

    slow = uniform("1f1b", 2, 4, Route(0.25))
    together = simulate([slow, quick(4)], [""] * 8)
    assert together.pipeline_finish_s.tolist() == [
        run(slow).makespan_s,
        run(quick(0)).makespan_s,
    ]
    assert together.worker_pipeline.tolist() == [0, 0, 1, 1]


# What must hold of every run.

_SECONDS = st.floats(0.0, 4.0).map(lambda value: round(value, 3))
_WORK_SECONDS = st.floats(0.001, 4.0).map(lambda value: round(value, 3))


@st.composite
def _works(draw: st.DrawFn) -> tuple[list[PipelineWork], int]:
    """One to three pipelines of unlike stages, whose transfers share a few lanes."""
    num_lanes = draw(st.integers(1, 5))
    rule = draw(st.booleans())
    schedules = ("forward_first", "backward_first") if rule else FIXED
    buffered = True if rule else draw(st.booleans())
    works = []
    for _ in range(draw(st.integers(1, 3))):
        stages, count = draw(st.integers(1, 5)), draw(st.integers(1, 7))
        windows = draw(st.lists(st.integers(1, 4), min_size=stages, max_size=stages))
        order = pipeline_order(
            draw(st.sampled_from(schedules)), stages, count, windows=windows if rule else None
        )
        times = st.lists(_WORK_SECONDS, min_size=stages, max_size=stages)
        route = st.builds(
            Route,
            transfer_s=_SECONDS,
            lanes=st.lists(st.integers(0, num_lanes - 1), unique=True, max_size=3).map(tuple),
            latency_s=_SECONDS,
            receive_s=_SECONDS,
            buffered=st.just(buffered),
        )
        routes = st.lists(route, min_size=stages - 1, max_size=stages - 1).map(tuple)
        works.append(
            PipelineWork(
                order,
                seconds(draw(times), draw(times), draw(st.sampled_from([0.25, 0.5]))),
                draw(routes),
                draw(routes),
            )
        )
    return works, num_lanes


@settings(max_examples=100)
@given(_works())
def test_every_run_obeys_the_rules(case: tuple[list[PipelineWork], int]) -> None:
    """Nothing overlaps, nothing is early, lanes serve by readiness, and nothing idles in vain."""
    works, num_lanes = case
    line = simulate(works, [f"lane {n}" for n in range(num_lanes)])
    close = 1e-9
    rows = [line.transfer(row) for row in range(len(line.transfers))]
    counts = [w.order.num_microbatches * w.order.num_stages for w in works]
    forwards = line.spans.op == Op.FORWARD
    assert int(forwards.sum()) == sum(counts)
    # Workers are serial.
    for worker in range(line.num_workers):
        for before, after in pairwise(line.spans_of(worker)):
            assert after.start_s >= before.stop_s
    # Lanes carry one transfer at a time, in the order in which they became ready.
    ends = defaultdict(list)
    for lane in range(num_lanes):
        for before, after in pairwise(line.transfers_of_lane(lane)):
            assert after.start_s >= before.stop_s
            assert after.ready_s >= before.ready_s or after.start_s == before.start_s
        for transfer in line.transfers_of_lane(lane):
            ends[lane].append(transfer.stop_s)
    at = {
        (w, s.op, s.microbatch, s.stage): s
        for w in range(line.num_workers)
        for s in line.spans_of(w)
    }
    for transfer in rows:
        assert transfer.start_s >= transfer.ready_s
        # A transfer waits for nothing but its lanes.
        if transfer.start_s > transfer.ready_s:
            assert any(transfer.start_s in ends[lane] for lane in transfer.lanes)
        forward = transfer.op == Op.SEND_ACTIVATION
        there = transfer.stage + (1 if forward else -1)
        ops = (Op.FORWARD,) if forward else (Op.BACKWARD, Op.BACKWARD_INPUT)
        made = next(
            at[key]
            for op in ops
            if (key := (transfer.src, op, transfer.microbatch, transfer.stage)) in at
        )
        used = next(
            at[key] for op in ops if (key := (transfer.dst, op, transfer.microbatch, there)) in at
        )
        assert transfer.ready_s >= made.stop_s
        assert used.start_s >= transfer.arrival_s - close
    # A computation starts when its worker is free and its tensor there: it is on time.
    assert line.makespan_s >= float(line.compute_s.max()) - close
    assert line.makespan_s >= _critical_path_s(works) - close


def _critical_path_s(works: list[PipelineWork]) -> float:
    """The longest chain of one microbatch: forward through all stages, and back."""
    longest = 0.0
    for work in works:
        split = work.order.splits_backward
        backward = work.compute_s[Op.BACKWARD_INPUT if split else Op.BACKWARD]
        chain = float(work.compute_s[Op.FORWARD].sum() + backward.sum())
        chain += sum(r.transfer_s + r.latency_s + r.receive_s for r in work.routes)
        longest = max(longest, chain)
    return longest


def _longest_path_s(work: PipelineWork) -> float:
    """The makespan of buffered sends that share nothing, by relaxation over all dependencies."""
    order, done = work.order, dict[tuple[int, int, int], float]()
    waiting = [list(zip(s.op.tolist(), s.microbatch.tolist(), strict=True)) for s in order.stages]
    free = [0.0] * order.num_stages
    moved = True
    while moved:
        moved = False
        for stage, instructions in enumerate(waiting):
            while instructions:
                op, m = instructions[0]
                if op < NUM_COMPUTE_OPS:
                    free[stage] += float(work.compute_s[op, stage])
                elif op in (Op.RECV_ACTIVATION, Op.RECV_GRADIENT):
                    forward = op == Op.RECV_ACTIVATION
                    routes = work.activation_routes if forward else work.gradient_routes
                    key = (int(forward), stage - 1 if forward else stage + 1, m)
                    if key not in done:
                        break
                    route = routes[stage - 1 if forward else stage]
                    arrival = done[key] + route.transfer_s + route.latency_s
                    free[stage] = max(free[stage], arrival) + route.receive_s
                else:
                    forward = op in (Op.SEND_ACTIVATION, Op.POST_ACTIVATION)
                    done[int(forward), stage, m] = free[stage]
                instructions.pop(0)
                moved = True
    return max(free)


@settings(max_examples=100)
@given(_works())
def test_without_shared_lanes_the_longest_path_is_the_time(
    case: tuple[list[PipelineWork], int],
) -> None:
    for work in case[0]:
        if work.order.windows:
            continue
        private = replace(
            work,
            activation_routes=tuple(
                replace(r, lanes=(), buffered=True) for r in work.activation_routes
            ),
            gradient_routes=tuple(
                replace(r, lanes=(), buffered=True) for r in work.gradient_routes
            ),
        )
        assert simulate([private]).makespan_s == pytest.approx(_longest_path_s(private), rel=1e-9)


@settings(max_examples=100)
@given(_works())
def test_memory_in_flight_is_that_of_the_schedule(case: tuple[list[PipelineWork], int]) -> None:
    works, num_lanes = case
    line = simulate(works, [""] * num_lanes)
    for worker in range(line.num_workers):
        order = works[int(line.worker_pipeline[worker])].order
        stage, count = int(line.worker_stage[worker]), order.num_microbatches
        kept = line.max_in_flight(worker)
        assert line.in_flight(worker)[1][-1] == 0
        if order.windows:
            assert kept <= min(count, order.windows[stage])
        elif order.schedule == "gpipe":
            assert kept == count
        elif order.schedule.startswith("1f1b"):
            assert kept == min(count, order.num_stages - stage)
        else:
            assert kept <= min(count, order.num_stages)


@given(
    st.integers(1, 7), st.integers(1, 20),
    st.floats(0.01, 10), st.floats(0.01, 10), st.floats(0.01, 10), st.sampled_from([0.0, 0.1, 1.0]),
)  # fmt: skip
def test_zb_h1_is_never_worse_than_1f1b_on_equal_stages(
    p: int, m: int, forward: float, inputs: float, weights: float, transfer_s: float
) -> None:
    def makespan_s(schedule: str) -> float:
        work = uniform(schedule, p, m, Route(transfer_s))
        table = work.compute_s.copy()
        table[Op.FORWARD], table[Op.BACKWARD] = forward, inputs + weights
        table[Op.BACKWARD_INPUT], table[Op.BACKWARD_WEIGHT] = inputs, weights
        return run(replace(work, compute_s=table)).makespan_s

    assert makespan_s("zb_h1") <= makespan_s("1f1b") * (1 + 1e-9)


# The closed form of the planners against the engine.


def closed_form_s(
    compute_s: list[float], p2p_s: list[float], num_microbatches: int, vpp: int = 1
) -> float:
    terms = StageTerms(
        compute_s=np.array(compute_s)[None, :, None],
        p2p_s=np.array(p2p_s)[None, :, None],
        num_microbatches=np.array([[num_microbatches]]),
        vpp=vpp,
    )
    return float(pipeline_seconds(terms)[0, 0])


@given(
    st.integers(1, 8), st.integers(1, 24), st.floats(0.01, 10), st.floats(0.01, 10),
    st.floats(0, 1),
)  # fmt: skip
def test_the_closed_form_is_the_engine_for_uniform_stages(
    p: int, m: int, forward_s: float, backward_s: float, share: float
) -> None:
    """Sum of (c + q) and (N - 1) slowest: exact up to one transfer each way.

    DeepSpeed's order, buffered sends, transfers no longer than a forward or backward: the closed
    form charges the first and last stage for neighbours on both sides, which is 2 x too much.
    """
    transfer_s = share * min(forward_s, backward_s)
    work = uniform(
        "1f1b_deepspeed", p, m, Route(transfer_s), forward_s=forward_s, backward_s=backward_s
    )
    found = run(work).makespan_s
    p2p_s = 2 * transfer_s if p > 1 else 0.0
    wanted = closed_form_s([forward_s + backward_s] * p, [p2p_s] * p, m)
    assert found == pytest.approx(wanted - p2p_s, rel=1e-9)


@given(
    st.integers(2, 6), st.integers(1, 6), st.integers(2, 4), st.floats(0.01, 10),
    st.floats(0.01, 10),
)  # fmt: skip
def test_the_closed_form_is_the_engine_for_uniform_chunks(
    p: int, groups: int, vpp: int, forward_s: float, backward_s: float
) -> None:
    """Interleaved, free transfers: ranks of vpp chunks fill and drain in a vpp-th of their time."""
    work = uniform(
        "interleaved", p, groups * p, num_chunks=vpp, forward_s=forward_s, backward_s=backward_s
    )
    rank_s = vpp * (forward_s + backward_s)
    wanted = closed_form_s([rank_s] * p, [0.0] * p, groups * p, vpp)
    assert run(work).makespan_s == pytest.approx(wanted, rel=1e-9)


@given(
    st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 24),
    st.floats(0.3, 5), st.sampled_from(["1f1b", "1f1b_deepspeed"]),
)  # fmt: skip
def test_unlike_stages_are_never_slower_than_the_closed_form(
    forward_s: list[float], m: int, ratio: float, schedule: str
) -> None:
    """Stages whose backwards take `ratio` times their forwards, free transfers.

    What the closed form has too much is at most the work of the stages behind the slowest one
    (they fill while it already drains): T + sum of those >= closed form >= T.
    """
    work = uniform(schedule, len(forward_s), m)
    backward_s = [ratio * value for value in forward_s]
    found = run(replace(work, compute_s=seconds(forward_s, backward_s))).makespan_s
    stage_s = [f + b for f, b in zip(forward_s, backward_s, strict=True)]
    wanted = closed_form_s(stage_s, [0.0] * len(stage_s), m)
    behind = sum(stage_s[len(stage_s) - stage_s[::-1].index(max(stage_s)) :])
    assert found <= wanted * (1 + 1e-9)
    assert found >= (wanted - behind) * (1 - 1e-9)


# Exactness, refusals.


def test_additions_are_exact() -> None:
    """A tenth of a second has no exact double; 30,000 of them still end together."""
    works = [
        uniform("1f1b", 1, 30_000, forward_s=0.1, backward_s=0.2),
        uniform("1f1b", 1, 60_000, forward_s=0.05, backward_s=0.1),
    ]
    line = simulate(works)
    assert line.pipeline_finish_s[0] == pytest.approx(9000.0, rel=1e-9)
    spans = line.spans
    mine = spans.worker == 0
    assert (spans.start_s[mine][1:] == spans.stop_s[mine][:-1]).all()
    whole = float((spans.stop_s[mine] - spans.start_s[mine]).sum())
    assert whole == line.pipeline_finish_s[0]


DIGEST = "from test_engine import digest; print(digest())"


def digest() -> str:
    works = [
        uniform(schedule, 4, 9, Route(0.3, latency_s=0.01, receive_s=0.02)) for schedule in FIXED
    ]
    line = simulate(works, [""] * 8)
    rows = np.concatenate((line.spans.start_s, line.spans.stop_s, line.transfers.start_s))
    return hashlib.sha256(rows.tobytes()).hexdigest()


def test_runs_are_repeatable_whatever_the_hash_seed() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", DIGEST],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1")
    }
    assert found == {digest() + "\n"}


def test_a_rendezvous_that_waits_for_itself_is_refused() -> None:
    """Both stages send before they receive."""
    stages = (
        ([Op.FORWARD, Op.SEND_ACTIVATION, Op.RECV_GRADIENT, Op.BACKWARD]),
        ([Op.SEND_GRADIENT, Op.RECV_ACTIVATION, Op.FORWARD, Op.BACKWARD]),
    )
    order = PipelineOrder(
        "by hand", 2, 1, 1,
        tuple(
            StageOrder(np.array(ops), np.zeros(4, np.int64), np.zeros(4, np.int64))
            for ops in stages
        ),
    )  # fmt: skip
    work = replace(uniform("1f1b", 2, 1, Route(1.0, buffered=False)), order=order)
    with pytest.raises(InputError, match="2 of 2 workers wait for one another"):
        run(work)
    assert run(replace(work, activation_routes=(Route(1.0),), gradient_routes=(Route(1.0),)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"compute_s": np.full((4, 2), np.nan)}, "not finite"),
        ({"compute_s": np.full((4, 2), -1.0)}, "negative"),
        ({"compute_s": np.zeros((4, 3))}, r"compute_s has shape \(4, 3\)"),
        ({"activation_routes": ()}, "need 1 routes each way"),
        ({"activation_routes": (Route(float("inf")),)}, "not finite"),
        ({"activation_routes": (Route(0.0, (9,)),)}, "a lane outside 0..3"),
    ],
)
def test_durations_that_can_not_be_are_refused(change: dict[str, object], sentence: str) -> None:
    work = replace(uniform("1f1b", 2, 2), **change)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=sentence):
        run(work)


def test_nothing_to_simulate_is_refused() -> None:
    with pytest.raises(InputError, match="no pipeline"):
        simulate([])


def test_long_runs_settle_on_the_period_of_the_round_trip() -> None:
    """P stages keep P microbatches at the first: one round trip, 8 x 3 + 14 / 4 s, serves 8."""
    times = []
    for count in (1600, 3200):
        line = run(uniform("1f1b", 8, count, Route(0.25)))
        assert len(line.spans) + len(line.transfers) == 30 * count
        times.append(line.makespan_s)
    assert times[1] - times[0] == pytest.approx(1600 * 27.5 / 8, rel=1e-9)
