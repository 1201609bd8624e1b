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
    found = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in found if name == language][index]


def test_it_is_short_and_has_the_two_commands_that_ci_runs() -> None:
    assert len(README.splitlines()) < 120
    assert block("sh").strip() == f'pip install ".[fast]" && sailor plan {JOB}'
    assert re.fullmatch(r'pip install .*-e "\.\[dev\]" && pytest', block("sh", 1).strip())
    ci = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert "readme 1" in ci
    assert "readme 2" in ci
    assert 'step "tests" pytest\n' in ci


def test_the_shown_job_is_the_example(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(block("yaml"), encoding="utf-8")
    assert sailor.load_job(path) == sailor.load_job(ROOT / JOB)


def test_the_shown_plan_is_what_the_command_prints() -> None:
    done = subprocess.run(
        # What `auto` finds beyond the first planner depends on the machine's speed.
        [Path(sys.executable).with_name("sailor"), "plan", JOB, "--planner", "dynamic"],
        cwd=ROOT, env={**os.environ, "COLUMNS": "100"},
        capture_output=True, text=True, timeout=100, check=True,
    )  # fmt: skip
    printed = done.stdout.splitlines()
    shown = [line for line in block("").splitlines() if line]
    assert len(shown) >= 2
    assert [line for line in shown if line not in printed] == []


def test_the_python_example_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    exec(block("python"), {})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("opt-350m-a100-v100: pp ")
    assert len(lines) > 2
