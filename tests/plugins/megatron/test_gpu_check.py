"""`benchmarks/gpu_check.py` on the CPU: the steps that it does on a GPU, with a small model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

from sailor.model.plan import Plan

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"


def run(*arguments: str, limit_s: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "gpu_check.py"), *arguments],
        capture_output=True, text=True, timeout=limit_s, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_every_step_is_done_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    done = run("--device", "cpu", "--out", str(out), limit_s=230)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(out.read_text())
    assert found["failures"] == []
    assert {(row["tp"], row["microbatch"]) for row in found["layers"]} == {(1, 2), (2, 2)}
    (one,) = found["torch stages, one"]
    mixed = found["torch stages, mixed"]
    assert [rank["rank"] for rank in mixed] == [0, 1, 2, 3, 4, 5]
    assert one["losses"][0] == pytest.approx(6.93, abs=0.1)  # untrained: ln 1024 nats a word
    assert mixed[0]["losses"] == pytest.approx(one["losses"], rel=0.02)
    assert mixed[0]["losses"] != one["losses"]  # bf16 sums in another order: two runs, not one
    assert all(rank["model_bytes"] > 0 for rank in mixed)
    # Two tp ranks hold less than the whole: rank 0 is one of two, rank 2 alone.
    assert mixed[0]["model_bytes"] < mixed[2]["model_bytes"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.timeout(60)
def test_without_a_gpu_it_says_so() -> None:
    done = run(limit_s=50)
    assert done.returncode == 1
    assert done.stdout == "torch sees no GPU here; --device cpu runs a small model on the CPU\n"


def test_both_plans_take_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from gpu_check_plans import plan_of, spec_of

    spec = spec_of(torch.device("cpu"))
    one, mixed = plan_of(spec, "one"), plan_of(spec, "mixed")
    assert (one.samples, mixed.samples) == (16, 16)
    assert (one.num_gpus, mixed.num_gpus) == (1, 6)
    assert isinstance(mixed, Plan)
    assert [[r.tp for r in stage.replicas] for stage in mixed.stages] == [[2, 1], [1, 2]]
