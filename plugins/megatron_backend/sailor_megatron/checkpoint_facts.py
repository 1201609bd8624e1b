"""What a checkpoint says about itself, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor_megatron.options import RunOptions

INDEX_FILE = "index.json"
FORMAT_VERSION = 2  # 1 did not say what is computed

# What a model computes besides its shape: a checkpoint goes on with its own.
COMPUTATION = ("activation", "norm_epsilon", "rope_theta", "rope_scaling", "position_offset")


def facts_of(spec: ModelSpec, options: RunOptions) -> dict[str, Any]:
    """Return what a checkpoint says about the model in it."""
    return {
        "model": spec.model_dump(mode="json"),
        "optimizer": options.optimizer,
        "computation": options.model_dump(mode="json", include=set(COMPUTATION)),
    }


def computation_of(folder: Path) -> dict[str, Any]:
    """Return the run options that a checkpoint fixes."""
    found: dict[str, Any] = read_index(folder)["computation"]
    return found


def read_index(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's index; one sentence where it is none, or pieces of it are missing."""
    path = folder / INDEX_FILE
    try:
        index: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = {
            piece["file"]: 0 for entry in index["tensors"].values() for piece in entry["pieces"]
        }
    except FileNotFoundError:
        raise PluginError(
            f"is no checkpoint: it has no {INDEX_FILE}",
            where=str(folder),
            hint="name a folder step-N in a run's checkpoints",
        ) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PluginError(f"is not the index of a checkpoint ({error})", where=str(path)) from None
    if index.get("format_version") != FORMAT_VERSION:
        raise PluginError(
            f"has format {index.get('format_version')}, not {FORMAT_VERSION}", where=str(path)
        )
    missing = sorted(name for name in files if not (folder / name).is_file())
    if missing:
        raise PluginError(
            f"the checkpoint lacks {', '.join(missing[:3])}",
            where=str(folder),
            hint="copy the whole folder, or go on from an earlier one",
        )
    return index


def check_same_model(index: dict[str, Any], spec: ModelSpec, optimizer: str, folder: Path) -> None:
    """Refuse a checkpoint of another model or optimizer."""
    model = spec.model_dump(mode="json")
    saved = index["model"]
    for key, value in model.items():
        if key not in ("name", "source") and saved.get(key) != value:
            raise PluginError(
                f"is a checkpoint of another model: {key} is {saved.get(key)}, not {value}",
                where=str(folder),
                hint="go on with the model that was saved",
            )
    if index["optimizer"] != optimizer:
        raise PluginError(
            f"was saved by optimizer {index['optimizer']}, not {optimizer}",
            where=str(folder),
            hint="go on with the optimizer that was used",
        )
