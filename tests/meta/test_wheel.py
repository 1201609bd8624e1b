"""The wheel holds the three packages with their data, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "sailor": ROOT / "sailor",
    "sailor_gcp_pricing": ROOT / "plugins/gcp_pricing/sailor_gcp_pricing",
    "sailor_megatron": ROOT / "plugins/megatron_backend/sailor_megatron",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder],
        cwd=ROOT, check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    (built,) = folder.glob("sailor_planner-*.whl")
    return zipfile.ZipFile(built)


def test_the_wheel_holds_every_file_of_the_packages(wheel: zipfile.ZipFile) -> None:
    wanted = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in PACKAGES.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    held = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert held == wanted
    assert "sailor/model/data/gpus.json" in held
    assert any(name.startswith("sailor_gcp_pricing/data/") for name in held)


def test_the_wheel_has_its_entry_points(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("entry_points.txt"))
    parser = ConfigParser()
    parser.read_string(wheel.read(name).decode())
    assert dict(parser["sailor"]) == {
        "gcp_pricing": "sailor_gcp_pricing",
        "megatron_backend": "sailor_megatron",
    }
    assert dict(parser["console_scripts"]) == {"sailor": "sailor.cli:main"}


def test_planning_needs_neither_torch_nor_a_compiler(wheel: zipfile.ZipFile) -> None:
    (name,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    lines = wheel.read(name).decode().splitlines()
    needed = {
        line.removeprefix("Requires-Dist: ").split(">")[0]
        for line in lines
        if line.startswith("Requires-Dist: ") and "extra ==" not in line
    }
    assert needed == {
        "click", "filelock", "numpy", "ortools", "pluggy", "pydantic", "rich", "ruamel-yaml",
    }  # fmt: skip
    assert "Requires-Python: >=3.11" in lines
