"""What a plan's schedule changes in its estimate, worked out by hand for the pencil problem."""

from __future__ import annotations

import pytest
from pencil import MODELLED, Run, bytes_are, near, planned, problem, run
from pencil_sums import MS, PEAK, accumulated, mixed

from sailor.sim.event_estimate import event_time

CHUNKS = Run("abab", width=3, count=4, schedule="interleaved", vpp=2)


def test_an_interleaved_rank_has_the_time_of_its_chunks() -> None:
    """Rank 0 holds units [0, 2) and [3, 4), rank 1 [2, 3) and [4, 6)."""
    found = run(problem(MODELLED), CHUNKS)
    first, last = found.stages
    # Hosts launch two blocks; a microbatch's 2.5 ms pass once for both chunks.
    compute = [
        mixed(layers + accumulated(millions), 50) + 2.5
        for layers, millions in ((34 + 30, 200), (30 + 45, 190))
    ]
    near(first.compute_s, compute[0] * MS)
    near(last.compute_s, compute[1] * MS)
    # Sends there 6 ms, back 12: the first chunk's twice, then of the others one each way.
    near(first.p2p_s, (2 * 6 + 6 + 6) * MS)
    near(last.p2p_s, (12 + 12 + 2 * 12) * MS)
    stages = [compute[0] + 24, compute[1] + 48]
    # Filling and draining goes chunk by chunk: half of the time.
    pipeline = sum(stages) / 2 + (4 - 1 / 2) * max(stages)
    near(found.time.bubble_s, stages[0] / 2 * MS)
    near(found.time.compute_s + found.time.p2p_s, 4 * stages[1] * MS)
    # Chunks are reduced one after the other.
    sync = [sum(4 * (2 * m * 4 / 3 / 2 + 1) for m in own) for own in ((120, 80), (80, 110))]
    near(first.dp_sync_s, sync[0] * MS)
    near(last.dp_sync_s, sync[1] * MS)
    # 8 ms of a step once, two blocks, 40 ps a parameter of 200 M.
    update = 8 + 2 * 0.19 + 8
    near(found.time.update_s, update * MS)
    near(found.time.total_s, (pipeline + max(sync) + update) * MS)


def test_an_interleaved_rank_keeps_what_its_schedule_has_begun() -> None:
    """Rank 0 begins four passes, two of each chunk, then one for one.

    By then it has begun 3 + 2, 4 + 1, 4 + 1, 3 + 2: 4 of 420 MB and 1 of 400 are the most. Rank 1
    begins two: 2 + 1 or 3 + 0 of 400 MB each.
    """
    first, last = run(problem(MODELLED), CHUNKS).memory
    assert (first.in_flight, first.stage, last.stage) == (4, 0, 1)
    bytes_are(
        first, parameters=2 * 200e6, activations=4 * 420e6 + 400e6, transient=PEAK,
    )  # fmt: skip
    # Logits are gone when a block's backward pass needs its own: they are more.
    logits = 6 * 512 * 512 + 4 * 512 * 256
    bytes_are(last, parameters=2 * 190e6, activations=3 * 400e6 + logits, transient=0)


def test_a_gpipe_stage_keeps_every_microbatch() -> None:
    shape = Run("ab", (0, 3, 6), 3, 4)
    plain = run(problem(MODELLED), shape)
    found = run(problem(MODELLED), Run("ab", (0, 3, 6), 3, 4, schedule="gpipe"))
    assert found.time == plain.time
    first, last = found.memory
    assert (first.in_flight, last.in_flight) == (4, 4)
    bytes_are(first, activations=4 * 820e6, transient=PEAK)
    # No backward pass begins before the last forward pass is done: four microbatches' logits.
    logits = 6 * 512 * 512 + 4 * 512 * 256
    bytes_are(last, activations=4 * (800e6 + logits), transient=0)
    assert [worker.in_flight for worker in plain.memory] == [2, 1]


@pytest.mark.parametrize("framework", ["megatron-lm", "megatron-deepspeed"])
def test_the_engine_runs_the_plans_schedule(framework: str) -> None:
    own = problem(MODELLED, framework=framework)
    waits = "1f1b_deepspeed" if framework == "megatron-deepspeed" else "1f1b"
    for shape, name in (
        (Run("abab", count=4), waits),
        (Run("abab", count=4, schedule="gpipe"), "gpipe"),
        (CHUNKS, "interleaved"),
    ):
        found = event_time(own, planned(own, shape))
        assert found.schedule == name
        assert len(found.stages) == (2 if name == "interleaved" else 4)


def test_the_engine_gives_a_ranks_chunks_one_step_and_one_host_time() -> None:
    own = problem(MODELLED)
    found, closed = event_time(own, planned(own, CHUNKS)), run(own, CHUNKS)
    # A chunk's own mix of device and host: 34 and 30 ms with 25 of launches each, and 1.25 ms.
    chunks = [mixed(34 + accumulated(120), 25), mixed(30 + accumulated(80), 25)]
    busiest = [mixed(30 + accumulated(80), 25), mixed(45 + accumulated(110), 25)]
    assert found.pipelines[0].busiest_stage == 1
    assert sum(busiest) > sum(chunks)
    near(found.compute_s, 4 * (sum(busiest) + 2.5) * MS)
    near(found.update_s, closed.time.update_s)
