"""Compare the planners with exhaustive search on generated small problems.

usage: python benchmarks/exactness.py [--problems N] [--first SEED] [--cpu-s S]
           [--processes N] [--out FILE.md]

At most 16 GPUs of two or three types in one to three zones, both objectives and cost models, half
of them with limits. Ends with 1 if any bound, plan or proof contradicts the oracle.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "solve")]
from small_problems import (  # noqa: E402
    Outcome,
    best_value,
    dearer,
    faults,
    larger,
    renamed,
    small_problem,
)

from sailor.model.job import Objective  # noqa: E402
from sailor.model.problem import Problem  # noqa: E402

PLANNERS = ("dynamic", "cpsat", "auto")
METAMORPHIC_EVERY = 5
CHUNK = 20


class Tally:
    """Counts over all problems."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.gaps: dict[str, list[float]] = {name: [] for name in PLANNERS}
        self.excess: dict[str, list[float]] = {name: [] for name in PLANNERS}
        self.cpu_s: Counter[str] = Counter()
        self.faults: list[str] = []

    def add(self, seed: int, problem: Problem, cpu_s: float) -> None:
        """Solve one problem with every planner."""
        start = time.process_time()
        exact = Outcome(problem, "exhaustive")
        self.cpu_s["exhaustive"] += time.process_time() - start
        self.counts["problems"] += 1
        self.counts["infeasible"] += exact.value is None
        for name in PLANNERS:
            start = time.process_time()
            found = Outcome(problem, name, cpu_s)
            self.cpu_s[name] += time.process_time() - start
            for fault in faults(exact, found):
                self.faults.append(f"seed {seed}: {fault}")
                sys.stderr.write(self.faults[-1] + "\n")
            if exact.value is None:
                continue
            if found.value is None:
                self.counts[f"{name} missed"] += 1
                continue
            self.excess[name].append(found.value / exact.value - 1)
            self.counts[f"{name} best"] += found.value <= exact.value * (1 + 1e-9)
            self.counts[f"{name} proven"] += found.proven
            if found.bound is not None:
                self.gaps[name].append(1 - found.bound / found.value)

    def metamorphic(self, seed: int, problem: Problem) -> None:
        """Check what prices, offers and names may do to the best plan."""
        rng, goal = random.Random(seed), problem.objective
        value = best_value(problem, goal)
        if value is None:
            return
        self.counts["changed"] += 1
        sign = -1.0 if goal is Objective.MAX_THROUGHPUT else 1.0
        dear, more = (best_value(case(problem, rng), goal) for case in (dearer, larger))
        if dear is not None and sign * dear < sign * value - 1e-9 * value:
            self.faults.append(f"seed {seed}: a dearer price gives {dear}, not {value}")
        if more is None or sign * more > sign * value + 1e-9 * value:
            self.faults.append(f"seed {seed}: one more GPU gives {more}, not {value}")
        other = best_value(renamed(problem), goal)
        if other is None or abs(other - value) > 1e-9 * value:
            self.faults.append(f"seed {seed}: other zone names give {other}, not {value}")

    def merge(self, other: Tally) -> None:
        """Add what another process counted."""
        self.counts += other.counts
        self.cpu_s += other.cpu_s
        self.faults += other.faults
        for name in PLANNERS:
            self.gaps[name] += other.gaps[name]
            self.excess[name] += other.excess[name]

    def page(self, cpu_s: float) -> str:
        """Return the section of docs/benchmarks.md."""
        feasible = self.counts["problems"] - self.counts["infeasible"]
        lines = [
            f"{self.counts['problems']} problems, {self.counts['infeasible']} of them without any "
            f"plan; {cpu_s:g} CPU s a planner; sailor {version('sailor-planner')}. Bound, optimum "
            f"and plan were out of order {len(self.faults)} times. A dearer price, one more GPU "
            f"and other zone names were tried on {self.counts['changed']} of them.",
            "",
            "| planner | best plan found | missed | mean excess | largest | called proven | with a "
            "bound | mean gap | CPU s |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        for name in PLANNERS:
            excess, gaps = self.excess[name], self.gaps[name]
            gap = f"{sum(gaps) / len(gaps):.2%}" if gaps else ""
            lines.append(
                f"| {name} | {self.counts[f'{name} best']} of {feasible} | "
                f"{self.counts[f'{name} missed']} | {sum(excess) / max(len(excess), 1):.3%} | "
                f"{max(excess, default=0):.2%} | {self.counts[f'{name} proven']} | {len(gaps)} | "
                f"{gap} | {self.cpu_s[name]:.0f} |"
            )
        return "\n".join(lines)


def solve(seeds: Sequence[int], cpu_s: float) -> Tally:
    """Solve some of the problems."""
    tally = Tally()
    for seed in seeds:
        problem = small_problem(seed)
        tally.add(seed, problem, cpu_s)
        if seed % METAMORPHIC_EVERY == 0:
            tally.metamorphic(seed, problem)
    return tally


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--cpu-s", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    last = options.first + options.problems
    chunks = [range(n, min(n + CHUNK, last)) for n in range(options.first, last, CHUNK)]
    tally = Tally()
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        for some in pool.map(solve, chunks, [options.cpu_s] * len(chunks)):
            tally.merge(some)
            count = tally.counts["problems"]
            sys.stderr.write(f"{count} problems, {len(tally.faults)} faults\n")
    text = tally.page(options.cpu_s)
    sys.stdout.write(text + "\n")
    if options.out:
        options.out.write_text(text + "\n")
    sys.exit(1 if tally.faults else 0)


if __name__ == "__main__":
    main()
