"""Reads the weights of a local Hugging Face folder into a rank's shards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.huggingface import read_config as read_spec
from sailor_megatron.options import RunOptions
from sailor_megatron.weights.huggingface_config import family_of_config, read_config
from sailor_megatron.weights.huggingface_names import (
    Place,
    first_name,
    places,
    root_of,
    stored_tensors,
)
from sailor_megatron.weights.safetensors_file import Entry, SafetensorsFile, read_header

if TYPE_CHECKING:
    from torch import Tensor

    from sailor_megatron.parameters import Parameters

SINGLE_FILE, INDEX_FILE = "model.safetensors", "model.safetensors.index.json"


@dataclass(frozen=True)
class Source:
    """A checked folder: where each tensor of the model is, and in which file."""

    places: Mapping[str, Place]
    files: Mapping[str, Path]  # by the name of a tensor there


def check_weights(folder: Path, spec: ModelSpec, options: RunOptions) -> Source:
    """Return where the weights are; one sentence where one is missing or has another shape."""
    config = read_config(folder)
    family = family_of_config(config, str(folder / "config.json"))
    _check_shape_of_model(folder, spec)
    entries = _entries(folder)
    root = root_of(family)
    if root + first_name(family) not in entries:
        root = ""
    where = places(family, spec, root=root, position_offset=options.position_offset)
    for name, stored in stored_tensors(spec, where).items():
        if name not in entries:
            raise PluginError(
                f"has no tensor {name}, which {spec.name} needs",
                where=str(folder),
                hint="name a folder with all weights of the model",
            )
        shape = entries[name][1].shape
        if shape != stored.shape:
            raise PluginError(
                f"tensor {name} is {list(shape)} and {spec.name} needs {list(stored.shape)}",
                where=str(entries[name][0]),
                hint="name the weights of the model that is trained",
            )
    return Source(where, {name: file for name, (file, _) in entries.items()})


def _check_shape_of_model(folder: Path, spec: ModelSpec) -> None:
    stored = read_spec(folder / "config.json", spec.seq_len).model_dump()
    for key, value in spec.model_dump().items():
        if key not in ("name", "source") and stored[key] != value:
            raise PluginError(
                f"holds another model: {key} is {stored[key]}, not {value}",
                where=str(folder),
                hint=f"let the job's model be huggingface: {folder / 'config.json'}",
            )


def _entries(folder: Path) -> dict[str, tuple[Path, Entry]]:
    """Return file and place of every tensor in a folder."""
    index = folder / INDEX_FILE
    if not index.exists():
        single = folder / SINGLE_FILE
        return {name: (single, entry) for name, entry in read_header(single).items()}
    try:
        listed = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = {str(file) for file in listed.values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise PluginError(f"is no index of weights ({error})", where=str(index)) from None
    found: dict[str, tuple[Path, Entry]] = {}
    for file in sorted(files):
        if Path(file).name != file:
            raise PluginError(f"names {file!r}, which is not in its folder", where=str(index))
        path = folder / file
        found |= {name: (path, entry) for name, entry in read_header(path).items()}
    return found


def load_weights(folder: Path, params: Parameters, options: RunOptions) -> None:
    """Set a rank's shards to the weights of a folder, reading no more than their pages."""
    layout = params.layout
    source = check_weights(folder, layout.spec, options)
    with ExitStack() as opened:
        files: dict[Path, SafetensorsFile] = {}
        for name, shard in params.shards.items():
            tensor, place = layout.tensors[name], source.places[name]
            path = source.files[place.name]
            if path not in files:
                files[path] = opened.enter_context(SafetensorsFile(path))
            whole = _rows(files[path].tensor(place.name), place, tensor.shape[0])
            part = whole.narrow(tensor.dim or 0, shard.lo, shard.hi - shard.lo)
            params.view(params.master, name).copy_(part)
    params.refresh_compute()


def _rows(stored: Tensor, place: Place, count: int) -> Tensor:
    return (stored.T if place.transposed else stored).narrow(0, place.start, count)
