"""The plug-in tutorial, done as it says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/plugin-tutorial.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"^```\w+ title=(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = re.findall(r"^```sh\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def run(command: list[str], folder: Path, **env: str) -> str:
    scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PATH": scripts, **env},
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_has_its_files_and_commands() -> None:
    assert sorted(FILES) == ["acme.py", "job.yaml", "pyproject.toml", "test_acme.py"]
    assert COMMANDS == ["sailor --plugin acme.py plan job.yaml", "python -m pytest test_acme.py"]


def test_one_file_gives_a_plan_with_its_prices(folder: Path) -> None:
    result = json.loads(run([*COMMANDS[0].split(), "--format", "json"], folder))
    (rented,) = result["estimate"]["nodes"]
    assert rented["usd_per_hour"] == 12.0 * rented["count"]
    assert rented["price_source"] == "Acme price list, 2026-11-01"
    assert "Acme price list" in run(COMMANDS[0].split(), folder)


def test_its_contract_holds(folder: Path) -> None:
    output = run([*COMMANDS[1].split(), "-p", "no:cacheprovider", "-q"], folder)
    assert re.search(r"^5 passed", output, re.MULTILINE), output


def test_the_package_is_found(folder: Path) -> None:
    site = folder / "site"
    run(
        [
            sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
            "--no-build-isolation", "--disable-pip-version-check", "--target", str(site), ".",
        ],
        folder,
    )  # fmt: skip
    listed = json.loads(
        run(["sailor", "plugins", "--format", "json"], folder, PYTHONPATH=str(site))
    )
    acme = next(info for info in listed["plugins"] if info["name"] == "acme")
    assert acme["origin"] == "sailor-acme 0.1.0"
    assert acme["error"] is None
    assert "acme" in listed["provided"]["sources.prices"]
