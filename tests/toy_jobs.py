"""Small jobs for tests of the command line and of batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOY = Path(__file__).with_name("toy_plugin.py")


def toy_job(name: str = "toy", **changes: Any) -> dict[str, Any]:
    """Return a job that one A100 can train."""
    return {
        "name": name,
        "model": "opt-350m",
        "training": {"global_batch": 8, "precision": "fp32"},
        "pool": [{"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 4}],
        **changes,
    }


def write_job(folder: Path, name: str = "toy", **changes: Any) -> Path:
    """Write a job file, indented JSON, and return its path."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps(toy_job(name, **changes), indent=1))
    return path


def command(*arguments: object) -> list[str]:
    """Return the command line of sailor with the toy plug-in."""
    return [sys.executable, "-m", "sailor", "--plugin", str(TOY), *map(str, arguments)]


def start(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    """Start sailor in a process of its own, with both outputs piped."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
    )


def sailor(*arguments: object, **environment: str) -> tuple[int, str, str]:
    """Run sailor to its end and return its exit code, stdout and stderr."""
    process = start(*arguments, **environment)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err
