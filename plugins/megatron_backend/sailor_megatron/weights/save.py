"""Writes the weights of a run into a folder in the Hugging Face format."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from sailor.errors import PluginError
from sailor_megatron.engine import Engine
from sailor_megatron.layout import Shard
from sailor_megatron.sync_groups import sync_groups
from sailor_megatron.weights.huggingface_config import config_of, family_of
from sailor_megatron.weights.huggingface_names import (
    Family,
    Place,
    Stored,
    places,
    root_of,
    stored_tensors,
)
from sailor_megatron.weights.load import INDEX_FILE, SINGLE_FILE
from sailor_megatron.weights.safetensors_file import Planned, write_file

FILE_BYTES = 5_000_000_000  # the most in one file, unless a tensor is larger
_DTYPES = {"fp64": "F64", "fp32": "F32", "bf16": "BF16", "fp16": "F16"}


def export(engine: Engine, folder: Path, *, file_bytes: int = FILE_BYTES) -> None:
    """Save an engine's weights; every rank calls this, rank 0 writes.

    Each tensor is brought together from the ranks that lead its pieces, one at a time. The folder
    gets its name when everything is in it.
    """
    spec, options = engine.layout.spec, engine.options
    family = family_of(spec, options.activation)
    where = places(family, spec, root=root_of(family), position_offset=options.position_offset)
    stored = stored_tensors(spec, where)
    collected = _collected(engine, stored, where)
    if engine.worker.rank != 0:
        for _ in collected:
            pass
        return
    try:
        _write_folder(engine, folder, family, stored, collected, file_bytes)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PluginError(
            f"the weights can't be written: {reason}",
            where=str(folder),
            hint="name a folder with room for them, and go on from the last checkpoint",
        ) from None


def _write_folder(
    engine: Engine,
    folder: Path,
    family: Family,
    stored: Mapping[str, Stored],
    collected: Iterator[tuple[str, Tensor]],
    file_bytes: int,
) -> None:
    options = engine.options
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    _write_files(draft, stored, _DTYPES[options.precision], collected, file_bytes)
    text = json.dumps(config_of(family, engine.layout.spec, options), indent=2) + "\n"
    (draft / "config.json").write_text(text, encoding="utf-8")
    draft.rename(folder)
    descriptor = os.open(folder.parent, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def _write_files(
    folder: Path,
    stored: Mapping[str, Stored],
    dtype: str,
    tensors: Iterator[tuple[str, Tensor]],
    file_bytes: int,
) -> None:
    groups: list[dict[str, Planned]] = [{}]
    for name, entry in stored.items():
        planned = Planned(dtype, entry.shape)
        held = sum(other.num_bytes for other in groups[-1].values())
        if groups[-1] and held + planned.num_bytes > file_bytes:
            groups.append({})
        groups[-1][name] = planned
    if len(groups) == 1:
        write_file(folder / SINGLE_FILE, groups[0], tensors)
        return
    weight_map: dict[str, str] = {}
    for number, group in enumerate(groups, 1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        # Not islice: it would take a tensor too many from the ranks that send them.
        write_file(folder / file, group, (next(tensors) for _ in range(len(group))))
        weight_map |= dict.fromkeys(group, file)
    total = sum(planned.num_bytes for group in groups for planned in group.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _collected(
    engine: Engine, stored: Mapping[str, Stored], where: Mapping[str, Place]
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor of the checkpoint, whole on rank 0 and empty elsewhere."""
    led: dict[str, list[tuple[Shard, int]]] = {}
    for group in sync_groups(engine.layout):
        for atom in group.atoms:
            led.setdefault(atom.name, []).append((atom, group.ranks[0]))
    for name, entry in stored.items():
        writes = engine.worker.rank == 0
        whole = torch.zeros(entry.shape if writes else 0, dtype=engine.params.master_dtype)
        for part in entry.holds:
            into = _rows(whole, where[part], engine.layout.tensors[part].shape) if writes else None
            _collect(engine, led[part], into)
        yield name, whole


def _rows(whole: Tensor, place: Place, shape: Sequence[int]) -> Tensor:
    return (whole.T if place.transposed else whole).narrow(0, place.start, shape[0])


def _collect(engine: Engine, led: Sequence[tuple[Shard, int]], into: Tensor | None) -> None:
    """Bring the pieces of one tensor to rank 0."""
    params, rank = engine.params, engine.worker.rank
    for atom, leader in led:
        if rank == leader and into is None:
            piece = params.piece(params.master, atom)
            dist.send(piece.contiguous().to(engine.groups.place.messages), 0)
        elif into is not None:
            dim = engine.layout.tensors[atom.name].dim or 0
            target = into.narrow(dim, atom.lo, atom.hi - atom.lo)
            if rank == leader:
                target.copy_(params.piece(params.master, atom))
                continue
            where = engine.groups.place.messages
            received = torch.empty(target.shape, dtype=target.dtype, device=where)
            dist.recv(received, leader)
            target.copy_(received)
