"""The SOSP'25 artifact's names, and its tables of tables with counts as keys."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sailor.errors import InputError, UnknownNameError
from sailor.model.arch import ModelSpec
from sailor.model.execution import Precision

MODEL_NAMES: Mapping[str, str] = {
    "OPT-350": "opt-350m",
    "GPT-Neo-2.7": "gpt-neo-2.7b",
    "OPT-30": "opt-30b",
    "LLAMA-3-8": "llama-3-8b-sosp25",
}
GPU_NAMES: Mapping[str, str] = {
    "A100-40": "A100-40GB",
    "A100-80": "A100-80GB",
    "V100-16": "V100-16GB",
    "GH-96": "GH200-96GB",
    "RTX-3090": "RTX3090-24GB",
    "RTX-2080": "RTX2080Ti-11GB",
    "Titan-RTX": "TitanRTX-24GB",
}
PRECISION: Precision = "fp32"
TRAILING_UNITS = {"llama-3-8b-sosp25": 2}  # layers of the file that make up our head


def layer_rows(layers: object, model: ModelSpec, where: str) -> Sequence[tuple[int, Any]]:
    """Return (layer number, value) in order; every layer of the model exactly once."""
    rows = [(count(key, where, least=0), value) for key, value in items(layers, where)]
    rows.sort(key=lambda row: row[0])
    wanted = model.num_units - 1 + TRAILING_UNITS.get(model.name, 1)
    if [number for number, _ in rows] != list(range(wanted)):
        raise bad(
            f"has {len(rows)} layers where {model.name} has {wanted}: is it another model's file?",
            where,
        )
    return rows


def items(value: object, where: str) -> Sequence[tuple[str, Any]]:
    """Return the entries of a table."""
    if not isinstance(value, dict):
        raise bad("is not a table of named entries", where)
    return list(value.items())


def count(text: str, where: str, *, least: int = 1) -> int:
    """Return a key that is a count."""
    if not text.isdecimal() or int(text) < least:
        raise bad(f"{text!r} is not a count", where)
    return int(text)


def model_name(name: str, where: str) -> str:
    """Return our name of a model of the artifact."""
    if name not in MODEL_NAMES:
        raise UnknownNameError("model of the artifact", name, MODEL_NAMES, where=where)
    return MODEL_NAMES[name]


def gpu_name(name: str, where: str) -> str:
    """Return our name of a GPU type of the artifact."""
    if name not in GPU_NAMES:
        raise UnknownNameError("GPU type of the artifact", name, GPU_NAMES, where=where)
    return GPU_NAMES[name]


def load(file: Path) -> Any:
    """Return what a JSON file holds."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise bad(f"can't be read ({error.strerror})", str(file)) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise bad(f"is not JSON ({error})", str(file)) from error


def bad(message: str, where: str) -> InputError:
    """Return the error for a file that isn't as the artifact's are."""
    return InputError(message, where=where, hint="compare with the artifact's own file")
