"""Plan the 22 jobs of the SOSP'25 figures and score the plans with an independent judge.

usage: python benchmarks/sosp25.py [--planner NAME] [--only TEXT] [--repeats N] [--out FILE.md]

Needs the reference data (judge.py and the reference planner's results) beside the checkout in
../shared. Prints a table of ratios against the reference planner and their geometric means.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import math
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from sailor.api import optimize
from sailor.model.result import Result
from sailor.registry import Registry

HEADER = """# How good the plans are

Written by `python benchmarks/sosp25.py --repeats 3 --out docs/benchmarks.md` (sailor {version}).

The 22 jobs of the SOSP'25 figures (`examples/jobs/sosp25/`) under cost model `published`, planned
by `dynamic` and scored by an independent implementation of the published closed form. `ratio` is
how many times better the plan is than that of the paper's own planner, run from its public
artifact on the same figures; above 1 is better, for throughput and for cost. A reference marked
"over its pool" uses more GPUs of a zone than the job offers; it counts all the same. `CPU s` is
the search alone, the least of the repeats, beside the reference's CPU seconds (a compiled
planner, without its start-up); `times` is their quotient.

"""

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "examples" / "jobs" / "sosp25"
SHARED = ROOT.parent / "shared"
MODELS = {"opt350": "OPT-350", "gptneo27": "GPT-Neo-2.7"}


@dataclass(frozen=True)
class Row:
    """One job: our plan and the reference's, both as the judge sees them."""

    job: str
    case: str
    objective: str
    ours: float
    reference: float | None
    reference_note: str
    violations: tuple[str, ...]
    search_cpu_s: float
    search_wall_s: float
    reference_cpu_s: float | None
    shape: str

    @property
    def ratio(self) -> float | None:
        """How many times better ours is; above 1 is better for both objectives."""
        if self.reference is None:
            return None
        return (
            self.ours / self.reference
            if self.objective != "min_cost"
            else (self.reference / self.ours)
        )


def case_of(job: str) -> tuple[str, str]:
    """Return the judge's model and case names of a job file."""
    short, _, figure = job.partition("-")
    names = {
        "fig11": "fig11/min0.2" if short == "opt350" else "fig11x/min0.05",
        "fig12": "fig12/max1.2" if short == "opt350" else "fig12x/max2.5",
    }
    return MODELS[short], names.get(figure, figure.replace("-", "/", 1))


def load_judge() -> ModuleType:
    """Import judge.py from the reference data."""
    path = SHARED / "tools" / "judge.py"
    if not path.exists():
        sys.exit(f"{path} is missing: the reference data must lie beside the checkout")
    spec = importlib.util.spec_from_file_location("judge", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} can't be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference_rows() -> dict[tuple[str, str], dict[str, str]]:
    """Return the reference planner's rows by (model, case)."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    folder = SHARED / "reference" / "results"
    with (folder / "reference_planner.csv").open() as file:
        for row in csv.DictReader(file):
            if row["plan_found"] == "True":
                found[row["model"], row["case"]] = row
    with (folder / "reference_planner_extra.csv").open() as file:
        for row in csv.DictReader(file):
            if row["note"] == "constraint not in the artifact":
                found[row["model"], row["case"]] = row
    return found


def reference_score(row: dict[str, str], objective: str) -> tuple[float, str]:
    """Return the reference's score; where its plan broke a rule, still that plan's score."""
    if objective == "min_cost":
        if "total_usd_iter" in row:
            return float(row["total_usd_iter"]), row["violations"]
        return float(row["picked_compute_usd"]) + float(row["picked_egress_usd"]), ""
    if "throughput_it_s" in row:
        return float(row["throughput_it_s"]), row["violations"]
    return float(row["picked_it_s"]), row["picked_violations"]


def run(job: Path, planner: str, repeats: int, judge: ModuleType, reference: dict[str, str]) -> Row:
    """Plan one job `repeats` times (the least time counts) and judge the plan."""
    registry = Registry.load()
    results = [optimize(job, planner=planner, registry=registry) for _ in range(repeats)]
    result: Result = results[0]
    model, case = case_of(job.stem)
    if result.plan is None:
        sys.exit(f"{job.stem}: no plan: {result.reasons}")
    document: dict[str, Any] = json.loads(result.model_dump_json())
    mbs, stages = judge.stages_of(document)
    score = judge.Judge(model).score(mbs, stages, case)
    objective = result.objective.value
    theirs, note = reference_score(reference, objective)
    cpu = reference.get("search_cpu_s_min") or reference.get("search_cpu_s")
    return Row(
        job=job.stem,
        case=case,
        objective=objective,
        ours=score["total_usd"] if objective == "min_cost" else score["throughput_it_s"],
        reference=theirs,
        reference_note=note,
        violations=tuple(score["violations"]),
        search_cpu_s=min(found.search_cpu_s for found in results),
        search_wall_s=min(found.search_wall_s for found in results),
        reference_cpu_s=float(cpu) if cpu else None,
        shape=f"pp {result.plan.pp} dp {result.plan.dp} mb {mbs} gpus {result.plan.num_gpus}",
    )


def geometric_mean(values: list[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(math.log(value) for value in values) / len(values))


def table(rows: list[Row]) -> str:
    """Return the Markdown table and the means."""
    lines = [
        "| job | plan | ours | reference | ratio | CPU s | reference CPU s | times | violations |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        unit = "USD/it" if row.objective == "min_cost" else "it/s"
        slower = row.search_cpu_s / row.reference_cpu_s if row.reference_cpu_s else math.nan
        over = " (over its pool)" if row.reference_note else ""
        lines.append(
            f"| {row.job} | {row.shape} | {row.ours:.5f} {unit} | {row.reference:.5f}{over} | "
            f"{row.ratio:.4f} | {row.search_cpu_s:.2f} | {row.reference_cpu_s:.2f} | "
            f"{slower:.1f} | {'; '.join(row.violations) or 'none'} |"
        )
    groups = {
        "all": rows,
        "homogeneous (fig7)": [row for row in rows if "fig7" in row.job],
        "mixed, one zone (fig8b)": [row for row in rows if "fig8b" in row.job],
        "five zones (fig10)": [row for row in rows if "fig10" in row.job],
        "money (fig11, fig12)": [row for row in rows if "fig11" in row.job or "fig12" in row.job],
    }
    lines.append("")
    lines += ["| group | jobs | geometric mean of the ratios | least |", "|---|---|---|---|"]
    for name, members in groups.items():
        ratios = [row.ratio for row in members if row.ratio is not None]
        if ratios:
            lines.append(
                f"| {name} | {len(ratios)} | {geometric_mean(ratios):.4f} | {min(ratios):.4f} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--planner", default="dynamic")
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    judge, reference = load_judge(), reference_rows()
    rows = []
    for job in sorted(JOBS.glob("*-fig*.yaml")):
        if options.only in job.stem:
            row = run(job, options.planner, options.repeats, judge, reference[case_of(job.stem)])
            sys.stderr.write(f"{row.job}: {row.ratio:.4f} in {row.search_cpu_s:.2f} s CPU\n")
            rows.append(row)
    text = table(rows)
    sys.stdout.write(text + "\n")
    if options.out:
        options.out.write_text(HEADER.format(version=version("sailor-planner")) + text + "\n")
    if any(row.violations or (row.ratio or 0) < 1 for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
