"""Results as text and rows: every figure worked out by hand from a small record."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise

import pytest

from sailor.model.estimate import (
    CostTerm,
    Estimate,
    NodeRental,
    StageTime,
    TimeBreakdown,
    WorkerMemory,
)
from sailor.model.hardware import Market
from sailor.model.job import Objective
from sailor.model.plan import Plan, Replica, Stage
from sailor.model.result import Result, Status
from sailor.report.layout import Footnotes, beside, digest, lines, number, table
from sailor.report.parts import units
from sailor.report.rows import HEADINGS
from sailor.report.sinks import CsvSink, JsonSink, TableSink
from sailor.report.tables import estimate_text, result_text

GIB = 2**30


def replica(gpu: str, zone: str, tp: int, num_microbatches: int) -> Replica:
    return Replica(
        gpu=gpu, node_type=f"{gpu.lower()}-node", zone=zone, tp=tp, microbatch=2,
        num_microbatches=num_microbatches,
    )  # fmt: skip


def worker(stage: int, replicas: tuple[int, ...], gpu: str, tp: int, total: int) -> WorkerMemory:
    return WorkerMemory(
        stage=stage, replicas=replicas, gpu=gpu, tp=tp, parameters_bytes=GIB, gradients_bytes=GIB,
        optimizer_bytes=2 * GIB, communication_bytes=0, activations_bytes=total - 5 * GIB,
        transient_bytes=0, reserve_bytes=GIB, total_bytes=total, bound_bytes=total + GIB,
        capacity_bytes=40 * GIB, in_flight=2 - stage,
    )  # fmt: skip


# 3 pipelines of two stages: 4 + 4 + 3 microbatches of 2 samples, 22 samples of 128 tokens.
PLAN = Plan(
    model="m",
    num_units=6,
    global_batch=22,
    stages=(
        Stage(
            start=0,
            stop=3,
            replicas=(
                replica("A100", "z-1", 2, 4),
                replica("A100", "z-1", 2, 4),
                replica("V100", "z-2", 4, 3),
            ),
        ),
        Stage(start=3, stop=6, replicas=tuple(replica("A100", "z-1", 1, n) for n in (4, 4, 3))),
    ),
)
SOURCE = "a price list with a name that is far too long for a row of the table, 2026-11-01"
ESTIMATE = Estimate(
    cost_model="sailor",
    time=TimeBreakdown(
        compute_s=1.0, p2p_s=0.25, bubble_s=0.5, dp_sync_s=0.2, update_s=0.05, total_s=2.0
    ),
    stages=(
        StageTime(stage=0, compute_s=0.25, p2p_s=0.0625, dp_sync_s=0.2),
        StageTime(stage=1, compute_s=0.125, p2p_s=0.0, dp_sync_s=0.1),
    ),
    memory=(
        worker(0, (0, 1), "A100", 2, 10 * GIB),
        worker(0, (2,), "V100", 4, 30 * GIB),
        worker(1, (0, 1, 2), "A100", 1, 20 * GIB),
    ),
    cost=(
        CostTerm(name="compute", usd_per_iteration=0.03),
        CostTerm(name="egress", usd_per_iteration=0.01),
        CostTerm(name="carbon", usd_per_iteration=0.0, optimised=False),
    ),
    usd_per_iteration=0.04,
    nodes=(
        NodeRental(
            zone="z-1", node_type="a100-node", market=Market.ON_DEMAND, gpu="A100", count=2,
            gpus_used=7, gpus_rented=8, usd_per_hour=40.0, price_source=SOURCE,
        ),
        NodeRental(
            zone="z-2", node_type="v100-node", market=Market.SPOT, gpu="V100", count=1,
            gpus_used=4, gpus_rented=4, usd_per_hour=14.0, price_source=SOURCE,
        ),
    ),
    samples=22,
    tokens=2816,
    batch_error=0.0,
    assumptions=("latencies are assumed",),
)  # fmt: skip


def result(**changes: object) -> Result:
    values: dict[str, object] = {
        "status": Status.FEASIBLE, "job": "j", "objective": Objective.MIN_COST,
        "cost_model": "sailor", "planner": "p", "plan": PLAN, "estimate": ESTIMATE,
        "objective_value": 0.04, "bound": 0.038, "gap": 0.0526, "rules": ("h1: one rule",),
        "excluded": ("far: no price",), "problem_digest": "0" * 64, "sailor_version": "0",
        "search_wall_s": 1.5, "search_cpu_s": 1.25, "evaluations": 12345,
    }  # fmt: skip
    return Result.model_validate({**values, **changes})


EXPECTED = f"""\
j: feasible, a plan, not proven to be the best
  min_cost by p, cost model sailor; searched 1.50 s, 12,345 plans, gap to the bound 5.26%

  2.000 s/iteration   0.5000 it/s   11.00 samples/s   1408 tokens/s
  0.04000 USD/iteration   54.00 USD/h
  pp 2, dp 3, 11 GPUs of 12 rented; pipelines: 2 x 4 microbatches of 2, 1 x 3 microbatches of 2

Rent
  nodes  type       GPUs used  zone  market     USD/h  price from
      2  a100-node  7/8 A100   z-1   on_demand  40.00  [1]
      1  v100-node  4/4 V100   z-2   spot       14.00  [1]
  [1] {SOURCE}

Stages (seconds of one microbatch)
  stage  units        replicas  tp  zone  compute s    p2p s  sync s  peak/GiB  bound     of
      0  emb + 1..2   2 x A100   2  z-1      0.2500  0.06250  0.2000     10.00  11.00  40.00
                      1 x V100   4  z-2                                  30.00  31.00  40.00
      1  3..4 + head  3 x A100   1  z-1      0.1250        0  0.1000     20.00  21.00  40.00

Time of one iteration                        Cost of one iteration
  part                       s                 term                        USD
  compute                1.000   50.0 %        compute                 0.03000   75.0 %
  stage to stage        0.2500   12.5 %        egress                  0.01000   25.0 %
  pipeline bubble       0.5000   25.0 %        carbon (reported only)        0    0.0 %
  gradient all-reduce   0.2000   10.0 %        total                   0.04000  100.0 %
  update               0.05000    2.5 %
  total                  2.000  100.0 %

Assumptions
  - latencies are assumed

Not used, and remarks
  - far: no price

Rules of the search
  - h1: one rule
"""


MEMORY = """
stage replicas tp kept params grads optim comm activ trans resv total bound of
0     2 x A100 2  2    1.00   1.00  2.00  0.00 5.00  0.00  1.00 10.00 11.00 40.00
0     1 x V100 4  2    1.00   1.00  2.00  0.00 25.00 0.00  1.00 30.00 31.00 40.00
1     3 x A100 1  1    1.00   1.00  2.00  0.00 15.00 0.00  1.00 20.00 21.00 40.00
"""


def test_a_result_as_text() -> None:
    assert result_text(result()) == EXPECTED
    assert TableSink().write([result(), result()]) == EXPECTED + "\n" + EXPECTED


def test_a_result_without_a_plan_says_why() -> None:
    bare = result(
        status=Status.INFEASIBLE, plan=None, estimate=None, objective_value=None, bound=None,
        gap=None, reasons=("it fits nowhere",), excluded=(), rules=(), evaluations=0,
    )  # fmt: skip
    assert result_text(bare) == (
        "j: infeasible, no plan exists\n"
        "  min_cost by p, cost model sailor; searched 1.50 s\n\n"
        "Why\n  - it fits nowhere\n"
    )


def test_an_estimate_as_text_has_memory_by_part_and_violations() -> None:
    text = estimate_text("j", PLAN, ESTIMATE)
    assert text.startswith("j: this plan can be run (cost model sailor)\n\n  2.000 s/iteration")
    memory = text.split("Memory of one GPU (GiB)\n")[1].split("\n\n")[0]
    assert [line.split() for line in memory.split("\n")] == [
        line.split() for line in MEMORY.strip().split("\n")
    ]
    broken = ESTIMATE.model_copy(update={"violations": ("too much of z-1", "too dear")})
    text = estimate_text("j", PLAN, broken)
    assert text.startswith(
        "j: this plan can't be run (cost model sailor)\n\nViolations\n  - too mu"
    )
    assert "  - too dear\n" in text


def test_both_figures_of_a_plan_are_shown_and_what_is_left_and_decided() -> None:
    event = ESTIMATE.model_copy(
        update={"fidelity": "event",
                "time": ESTIMATE.time.model_copy(update={"total_s": 2.125})}
    )  # fmt: skip
    told = result(
        event=event, unused=("A100 on_demand in z-1: 1 of 9 GPUs",),
        stop_reason="the time limit of 3 s",
        plan=PLAN.model_copy(update={"recompute": "full", "zero": 1}),
    )  # fmt: skip
    text = result_text(told)
    assert "%; stopped: the time limit of 3 s\n" in text
    assert "\n  with every operation simulated: 2.125 s/iteration, 0.04000 USD/iteration\n" in text
    assert "1 x 3 microbatches of 2; recompute full, zero 1\n" in text
    assert "Left unused\n  - A100 on_demand in z-1: 1 of 9 GPUs\n" in text


def test_what_would_help_is_shown_below_why() -> None:
    bare = result(
        status=Status.NO_PLAN, plan=None, estimate=None, objective_value=None, bound=None,
        gap=None, reasons=("x and y are in conflict",), excluded=(), rules=(), evaluations=0,
        relaxations=("x 0.40 -> 0.47", "y 2 -> 1.8"),
    )  # fmt: skip
    assert result_text(bare).endswith(
        "Why\n  - x and y are in conflict\n\n"
        "Any one of these would help\n  - x 0.40 -> 0.47\n  - y 2 -> 1.8\n"
    )


def test_an_interleaved_plan_has_a_line_a_worker_with_its_chunks() -> None:
    ones = [replica("A100", "z-1", 1, 4) for _ in range(2)]
    cuts = (0, 2, 3, 4, 6)
    plan = Plan(
        model="m", num_units=6, global_batch=8, schedule="interleaved", vpp=2,
        stages=tuple(
            Stage(start=a, stop=b, replicas=(ones[n % 2],))
            for n, (a, b) in enumerate(pairwise(cuts))
        ),
    )  # fmt: skip
    memory = tuple(worker(stage, (0,), "A100", 1, 10 * GIB) for stage in (0, 1))
    text = estimate_text("j", plan, ESTIMATE.model_copy(update={"memory": memory}))
    assert "pp 2, dp 1, 2 GPUs of 12 rented" in text
    assert "; interleaved, 2 chunks a stage\n" in text
    rows = text.split("Stages (seconds of one microbatch)\n")[1].split("\n\n")[0].split("\n")
    assert rows[1].split("1 x")[0].split() == ["0", "emb", "+", "1,", "3"]
    assert rows[2].split("1 x")[0].split() == ["1", "2,", "4", "+", "head"]


def test_a_batch_that_is_off_says_by_how_much() -> None:
    off = ESTIMATE.model_copy(update={"batch_error": -0.0833})
    assert "microbatches of 2 (-8.33% of the batch)\n" in estimate_text("j", PLAN, off)


def test_rows_carry_the_figures_and_leave_unknown_ones_empty() -> None:
    infeasible = result(
        status=Status.INFEASIBLE, plan=None, estimate=None, objective_value=None, bound=None,
        gap=None, reasons=("a, b", "c"),
    )  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(CsvSink().write([result(), infeasible]))))
    assert [row["status"] for row in rows] == ["feasible", "infeasible"]
    assert set(rows[0]) == set(HEADINGS)
    first = rows[0]
    numbers = {key: float(first[key]) for key in (
        "iteration_s", "iterations_per_s", "samples_per_s", "tokens_per_s", "usd_per_hour",
        "pp", "dp", "gpus_used", "gpus_rented",
    )}  # fmt: skip
    assert numbers == {
        "iteration_s": 2.0, "iterations_per_s": 0.5, "samples_per_s": 11.0,
        "tokens_per_s": 1408.0, "usd_per_hour": 54.0, "pp": 2, "dp": 3, "gpus_used": 11,
        "gpus_rented": 12,
    }  # fmt: skip
    assert float(first["usd_per_iteration"]) == pytest.approx(0.04)
    assert rows[1]["iteration_s"] == rows[1]["bound"] == ""
    assert rows[1]["reasons"] == "a, b; c"


def test_json_is_the_record_or_a_list_of_them() -> None:
    one = JsonSink().write([result()])
    assert Result.model_validate_json(one) == result()
    assert one.endswith("}\n")
    both = json.loads(JsonSink().write([result(), result(job="k")]))
    assert [Result.model_validate(row).job for row in both] == ["j", "k"]
    assert JsonSink().write([]) == "[]\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (0.5, "0.5000"), (1, "1.000"), (12.3456, "12.35"), (999.96, "1000"),
        (1234.5, "1234"), (9999.6, "10,000"), (12345.6, "12,346"), (1e7, "10,000,000"),
        (0.00123456, "0.001235"), (0.0001, "0.0001000"), (0.00001234, "1.234e-05"),
        (-0.25, "-0.2500"),
    ],
)  # fmt: skip
def test_numbers_have_four_significant_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_units_in_words() -> None:
    def named(start: int, stop: int) -> str:
        stage = Stage(start=start, stop=stop, replicas=(replica("A100", "z", 1, 1),))
        return units(stage, 6)

    assert named(0, 6) == "emb + 1..4 + head"
    assert named(0, 1) == "emb"
    assert named(5, 6) == "head"
    assert named(1, 2) == "1"
    assert named(1, 5) == "1..4"


def test_wide_cells_are_folded_and_markup_is_text() -> None:
    text = table(("a", "b"), [("[bold]x[/bold]", "y" * 200)], left="ll")
    assert "[bold]x[/bold]" in text
    assert max(map(len, text.splitlines())) <= 100
    assert text.replace("\n", "").count("y") == 200
    assert lines([("a", "z" * 200), ("bb", "c")]) == f"  a   {'z' * 200}\n  bb  c"


def test_blocks_go_beside_each_other_only_where_they_fit() -> None:
    assert beside("a\nbb", "c") == "a       c\nbb"
    assert beside("x" * 60, "y" * 60) == "x" * 60 + "\n\n" + "y" * 60


def test_long_lists_are_cut_with_a_word_on_it() -> None:
    assert digest(["a", "b"]) == "  - a\n  - b"
    many = digest([f"s{n}" for n in range(40)])
    assert many.startswith("  - s0\n")
    assert many.endswith("  - s11\n  - and 28 more (--format json has all of it)")
    long = digest(["word " * 60])
    assert " ".join(long.split()).endswith("... (--format json has all of it)")
    assert digest([]) == ""


def test_footnotes_are_numbered_once() -> None:
    notes = Footnotes()
    marks = [notes.mark(text) for text in ("short", "x" * 17, "y" * 17, "x" * 17)]
    assert marks == ["short", "[1]", "[2]", "[1]"]
    assert notes.under("body") == f"body\n  [1] {'x' * 17}\n  [2] {'y' * 17}"
