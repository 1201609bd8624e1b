"""Measure planner `cpsat` (plan, bound, gap, time) and write the table into docs/solver.md.

usage: python benchmarks/bench_solve.py [--wall-s N] [--only TEXT] [--model NAME] [--write]
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path

from sailor.api import build_problem, plan_problem
from sailor.interfaces import Limits, Planner
from sailor.model.problem import Problem
from sailor.model.result import Result
from sailor.registry import Registry
from sailor.solve.cpsat import CpSatPlanner
from sailor.solve.dynamic import DynamicPlanner

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "examples" / "jobs" / "sosp25"
PAGE = ROOT / "docs" / "solver.md"
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
CASES = (
    "opt350-fig7-128", "gptneo27-fig7-128",
    "opt350-fig8b-32+96", "opt350-fig8b-80+240", "opt350-fig8b-128+384",
    "gptneo27-fig8b-32+96", "gptneo27-fig8b-80+240", "gptneo27-fig8b-128+384",
    "opt350-fig10-5x128", "opt350-fig11",
)  # fmt: skip


def solve(problem: Problem, planner: Planner, registry: Registry, wall_s: float) -> Result:
    """Plan once."""
    return plan_problem(
        problem,
        planner,
        registry,
        limits=Limits(wall_s=wall_s),
        on_progress=lambda progress: None,
        should_stop=lambda: False,
    )


def row(name: str, model: str, registry: Registry, wall_s: float) -> str:
    """Return the table row of one job and cost model."""
    problem = build_problem(JOBS / f"{name}.yaml", registry=registry)
    problem = problem.model_copy(update={"cost_model": model})
    plain = solve(problem, DynamicPlanner(), registry, wall_s)
    wall = time.perf_counter()
    found = solve(problem, CpSatPlanner(), registry, wall_s)
    wall = time.perf_counter() - wall
    if plain.objective_value is None or found.objective_value is None or found.gap is None:
        return f"| {name} | {model} | no plan | | | | | |"
    unit = "USD/it" if problem.objective.value == "min_cost" else "it/s"
    return (
        f"| {name} | {model} | {plain.objective_value:.5f} {unit} | "
        f"{found.objective_value:.5f} | {found.bound:.5f} | {found.gap:.2%} | "
        f"{found.search_cpu_s:.1f} | {wall:.1f} |"
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--wall-s", type=float, default=30.0)
    parser.add_argument("--only", default="")
    parser.add_argument("--model", choices=("published", "sailor"), action="append")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    registry = Registry.load()
    lines = [
        "| job | cost model | dynamic | cpsat | bound | gap | CPU s | wall s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in CASES:
        for model in options.model or ("published", "sailor"):
            if options.only in name:
                lines.append(row(name, model, registry, options.wall_s))
                sys.stderr.write(lines[-1] + "\n")
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines += ["", f"Time limit {options.wall_s:g} s a job; {peak_mb:.0f} MB at most."]
    text = "\n".join(lines)
    sys.stdout.write(text + "\n")
    if options.write:
        page = PAGE.read_text()
        before, rest = page.split(BEGIN, 1)
        after = rest.split(END, 1)[1]
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


if __name__ == "__main__":
    main()
