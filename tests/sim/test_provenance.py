"""Every estimate says where its figures come from, with the band of their regime."""

from __future__ import annotations

from pathlib import Path

from sailor.api import optimize, simulate

ROOT = Path(__file__).resolve().parents[2]
JOB = ROOT / "examples" / "jobs" / "opt-350m-a100-v100.yaml"


def test_measured_layers_and_the_engines_smaller_band() -> None:
    result = optimize(JOB, planner="dynamic")
    assert result.estimate is not None
    assert result.plan is not None
    bands = {figure.name: figure for figure in result.estimate.figures}
    time = bands["time of layers on A100-40GB, V100-16GB"]
    assert (time.provenance, time.error_pct) == ("measured", 10.6)
    assert "SOSP'25" in time.source
    assert bands["memory of a worker"].provenance == "measured"
    events = simulate(JOB, result.plan, fidelity="event")
    assert events.fidelity == "event"
    assert next(f for f in events.figures if f.name == time.name).error_pct == 3.2


def test_modelled_layers_say_so() -> None:
    job = {
        "name": "modelled",
        "model": "llama-3-8b",
        "training": {"global_batch": 32, "precision": "bf16"},
        "pool": [{"zone": "us-central1-a", "node_type": "a3-highgpu-8g", "count": 1}],
    }
    result = optimize(job)
    assert result.estimate is not None
    time, memory, *_ = result.estimate.figures
    assert (time.provenance, time.error_pct) == ("modelled", 7.6)
    assert memory.provenance == "modelled"


def test_the_published_model_claims_no_band() -> None:
    result = optimize(ROOT / "examples" / "jobs" / "sosp25" / "opt350-fig7-32.yaml")
    assert result.estimate is not None
    assert {figure.error_pct for figure in result.estimate.figures} == {None}
