"""What importing loads, and which layer may import which."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEAVY = ("torch", "ortools", "pandas", "numba")

IMPORT = "import sailor"
HELP = """
import sys
sys.argv = ["sailor", "--help"]
from sailor.cli import main
try:
    main()
except SystemExit as stop:
    assert not stop.code, stop.code
"""
PLUGINS = HELP.replace("--help", "plugins")


def loaded_by(code: str) -> tuple[set[str], str]:
    """Return the top-level modules that a fresh interpreter has loaded, and its output."""
    tail = (
        "\nimport json, sys\nprint(json.dumps(sorted({m.partition('.')[0] for m in sys.modules})))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code + tail],
        capture_output=True, text=True, timeout=60, cwd=ROOT, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    *output, names = run.stdout.strip().splitlines()
    return set(json.loads(names)), "\n".join(output)


def test_import_sailor_is_light() -> None:
    modules, _ = loaded_by(IMPORT)
    assert "sailor" in modules
    assert modules.isdisjoint({*HEAVY, "numpy", "pydantic", "click", "rich"})


@pytest.mark.parametrize(("code", "shown"), [(HELP, "Usage:"), (PLUGINS, "gcp_pricing")])
def test_help_and_the_list_of_plugins_load_no_solver(code: str, shown: str) -> None:
    modules, output = loaded_by(code)
    assert shown in output
    assert modules.isdisjoint(HEAVY)


def test_every_layer_keeps_to_its_contracts() -> None:
    run = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True, text=True, timeout=100, cwd=ROOT, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert "Contracts: 5 kept, 0 broken." in run.stdout
