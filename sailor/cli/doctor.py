"""`sailor doctor`: versions and devices, to paste into a bug report."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from sailor.cli.options import table_or_json
from sailor.cli.output import data
from sailor.cli.session import Session

_DISTRIBUTIONS = (
    "sailor-planner", "click", "filelock", "numpy", "ortools", "pluggy", "pydantic", "rich",
    "ruamel.yaml", "torch",
)  # fmt: skip
_DEVICE_QUERY = (
    "nvidia-smi",
    "--query-gpu=name,memory.total,driver_version",
    "--format=csv,noheader",
)
_DEVICE_QUERY_LIMIT_S = 10.0


@click.command()
@table_or_json
@click.pass_obj
def command(session: Session, format_: str) -> None:
    """Print versions and devices, to paste into a bug report."""
    found = report(session)
    if format_ == "json":
        data(json.dumps(found, indent=2) + "\n")
        return
    from sailor.report.layout import table

    rows = [(name, text) for name, text in _flat(found)]
    data(table(("what", "found"), rows, left="ll") + "\n")


def report(session: Session) -> dict[str, Any]:
    """Return what a developer asks first."""
    from sailor.registry import Registry

    plugins = Registry.load(files=session.plugin_files).plugins(check=True)
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "packages": {name: _version(name) for name in _DISTRIBUTIONS},
        "plugins": {info.name: info.error or f"ok ({info.origin})" for info in plugins},
        "devices": _devices(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _devices() -> list[str]:
    if shutil.which(_DEVICE_QUERY[0]) is None:
        return ["no NVIDIA driver"]
    try:
        answer = subprocess.run(
            _DEVICE_QUERY, capture_output=True, text=True, timeout=_DEVICE_QUERY_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return [f"nvidia-smi fails: {type(error).__name__}"]
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _flat(found: dict[str, Any]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in found.items():
        if isinstance(value, dict):
            rows.extend((f"{name[:-1]} {key}", str(inner)) for key, inner in value.items())
        elif isinstance(value, list):
            rows.extend((name[:-1], str(inner)) for inner in value)
        else:
            rows.append((name, str(value)))
    return rows
