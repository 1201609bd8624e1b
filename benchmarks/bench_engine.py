"""How fast the event engine runs: operations are computations and transfers.

usage: pytest benchmarks/bench_engine.py --benchmark-enable --benchmark-only -s

Times are processor seconds of one core, and include compiling the orders and building the
timeline. The bar is one million operations in under 2 s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sailor.sim.engine import PipelineWork, Route, simulate
from sailor.sim.schedule import NUM_COMPUTE_OPS, Op, pipeline_order

MILLION = 1_000_000
BAR_S = 2.0


def pipeline(
    schedule: str,
    num_stages: int,
    num_microbatches: int,
    *,
    buffered: bool = True,
    first_lane: int = 0,
    speed: float = 1.0,
    num_chunks: int = 1,
    windows: list[int] | None = None,
) -> PipelineWork:
    """Stages of 1 + 2 s over lanes of 0.3 s, each stage with a lane out and a lane in."""
    stages = num_stages * num_chunks
    seconds = np.zeros((NUM_COMPUTE_OPS, stages))
    seconds[Op.FORWARD], seconds[Op.BACKWARD] = speed, 2 * speed
    seconds[Op.BACKWARD_INPUT] = seconds[Op.BACKWARD_WEIGHT] = speed

    def route(src: int, dst: int) -> Route:
        lanes = (first_lane + 2 * (src % num_stages), first_lane + 2 * (dst % num_stages) + 1)
        return Route(0.3, lanes, latency_s=1e-3, buffered=buffered)

    return PipelineWork(
        order=pipeline_order(
            schedule, num_stages, num_microbatches, num_chunks=num_chunks, windows=windows
        ),
        compute_s=seconds,
        activation_routes=tuple(route(v, v + 1) for v in range(stages - 1)),
        gradient_routes=tuple(route(v + 1, v) for v in range(stages - 1)),
    )


CASES: dict[str, Callable[[], list[PipelineWork]]] = {
    "1f1b, 4 stages": lambda: [pipeline("1f1b", 4, 71_500)],
    "1f1b, 64 stages": lambda: [pipeline("1f1b", 64, 3_940)],
    "1f1b, 16 stages, rendezvous": lambda: [pipeline("1f1b", 16, 16_150, buffered=False)],
    "1f1b_deepspeed, 16 stages": lambda: [pipeline("1f1b_deepspeed", 16, 16_150)],
    "gpipe, 16 stages": lambda: [pipeline("gpipe", 16, 16_150)],
    "zb_h1, 16 stages": lambda: [pipeline("zb_h1", 16, 12_850)],
    "interleaved, 8 stages of 4 chunks": lambda: [pipeline("interleaved", 8, 7_944, num_chunks=4)],
    "backward_first, 16 stages": lambda: [
        pipeline("backward_first", 16, 16_150, windows=list(range(16, 0, -1)))
    ],
    "128 unlike pipelines of 8 stages": lambda: [
        pipeline("1f1b", 8, 261, first_lane=16 * number, speed=1 + number / 100)
        for number in range(128)
    ],
    "64 pipelines of 8 stages on one card a stage": lambda: [
        pipeline("1f1b", 8, 522, speed=1 + number / 100) for number in range(64)
    ],
}


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("name", CASES)
def test_a_million_operations(name: str, benchmark: Any) -> None:
    """Run each case three times; the best one counts, since caches may be shared."""
    works = CASES[name]()
    lanes = [""] * (1 + max(lane for w in works for r in w.routes for lane in r.lanes))
    line = benchmark.pedantic(simulate, args=(works, lanes), rounds=3, iterations=1)
    operations = len(line.spans) + len(line.transfers)
    assert operations >= MILLION
    if benchmark.enabled:
        best_s = benchmark.stats.stats.min
        sys.stdout.write(f"{name}: {operations} operations, {best_s:.2f} s\n")
        assert best_s < BAR_S
