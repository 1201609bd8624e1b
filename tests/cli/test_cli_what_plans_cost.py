"""`sailor pareto`, `sailor simulate --fidelity event --trace` and `sailor validate`, end to end."""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest

from sailor.cli import run

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "examples" / "jobs" / "sosp25" / "opt350-fig7-32.yaml"


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = run([*args])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_no_plan_of_the_front_beats_another(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    front = ("pareto", str(JOB), "--points", "4", "--planner", "dynamic")
    code, out, _ = call(capsys, *front, "--format", "json")
    assert code == 0
    points = [point["estimate"] for point in json.loads(out)["points"]]
    assert 2 <= len(points) <= 4
    for slow, fast in pairwise(points):
        assert slow["time"]["total_s"] > fast["time"]["total_s"]
        assert slow["usd_per_iteration"] < fast["usd_per_iteration"]
    plot = tmp_path / "front.svg"
    code, out, err = call(capsys, *front, "--out", str(plot))
    assert (code, out) == (0, "")
    assert err == f"sailor: opt350-fig7-32: {len(points)} plans; written to {plot}\n"
    assert plot.read_text().count("<circle") == len(points)


def test_a_front_with_bounds_keeps_its_time_limit(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    code, table, _ = call(capsys, "pareto", str(JOB), "--points", "3", "--time-limit", "4")
    assert code == 0
    assert time.monotonic() - start < 20
    lines = table.splitlines()
    assert lines[1].split()[-1] == "gap"
    assert 3 <= len(lines) <= 5


def test_a_trace_has_a_track_for_every_worker_and_link(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: two\nmodel: opt-350m\ntraining: {global_batch: 16, precision: fp32}\n"
        "constraints: {pp: 2, tp: 1, microbatch: 1}\n"
        "pool: [{zone: us-central1-a, gpu: A100-40GB, quota: 4}]\n"
    )
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    assert call(capsys, "plan", str(job), "--out", str(plan))[0] == 0
    code, out, _ = call(
        capsys, "simulate", str(job), str(plan), "--fidelity", "event", "--trace", str(trace)
    )
    assert code == 0
    assert "two: this plan can be run" in out
    events = json.loads(trace.read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    names = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert len(names) >= 4
    spans = [e for e in events if e["ph"] == "X"]
    assert len(spans) > 2 * 2 * 16  # forward and backward of 16 microbatches on two stages
    code, _, err = call(capsys, "simulate", str(job), str(plan), "--trace", str(trace))
    assert code == 2
    assert "--trace needs --fidelity event" in err


def test_validate_prints_the_shipped_excerpt(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "validate", "--format", "json")
    assert code == 0
    groups = json.loads(out)["groups"]
    rows = sum(group["rows"] for group in groups)
    assert rows >= 60
    errors = [g["time_mean_abs_error_pct"] for g in groups if g.get("time_mean_abs_error_pct")]
    assert errors
    assert max(errors) < 40
