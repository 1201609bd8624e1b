"""The README's commands and code, run; its output, compared."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import sailor

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
JOB = "examples/jobs/opt-350m-a100-v100.yaml"


def block(language: str, index: int = 0) -> str:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)[index]


def test_it_is_short_and_its_commands_are_those_of_ci() -> None:
    assert len(README.splitlines()) <= 120
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    install, plan = block("sh").strip().split(" && ")
    assert (install, plan) == ("pip install .", f"sailor plan {JOB}")
    assert f"    {install.replace('install', 'install --quiet')}\n    {plan}\n" in ci
    develop, test = block("sh", 1).strip().split(" && ")
    assert (develop, test) == ('pip install -e ".[dev]"', "pytest")
    assert f"  {develop.replace('install', 'install --quiet')}\n" in ci
    assert f'step "tests" {test}\n' in ci


def test_the_shown_job_is_the_example(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(block("yaml"), encoding="utf-8")
    example = sailor.load_job(ROOT / JOB)
    # The file names its sources; the README leaves them to the defaults.
    same_wishes = example.model_copy(update={"sources": sailor.Job.model_fields["sources"].default})
    assert sailor.load_job(path) == same_wishes


def test_the_shown_plan_is_what_the_command_prints() -> None:
    done = subprocess.run(
        [Path(sys.executable).with_name("sailor"), "plan", JOB],
        cwd=ROOT, env={**os.environ, "COLUMNS": "100"},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    printed = done.stdout.splitlines()
    shown = [line for line in block("text").splitlines() if line]
    assert len(shown) > 8
    assert [line for line in shown if line not in printed] == []


def test_the_python_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(block("python"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("opt-350m-a100-v100: pp ")
    assert len(lines) == 3
