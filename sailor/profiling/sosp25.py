"""Importer of the SOSP'25 artifact's files (eth-easl/sailor, MIT licence, ETH Zurich).

Layer times: {"MBS": {"TP": {"LAYER": [forward_s, backward_s, optimizer_step_s]}}}, one file a
(model, GPU type) or all in one under {MODEL: {GPU: ...}}. Layer 0 is the embedding, 1 the first
block, the rest of the blocks one measurement repeated, the last one the head; for LLAMA-3-8 the
last two (final norm, head) are our head unit. Bytes and bandwidth: see the modules `sosp25_bytes`
and `sosp25_links`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.catalog import Catalog
from sailor.model.hardware import Link
from sailor.model.presets import preset
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitTime
from sailor.profiling.sosp25_bytes import footprint_at, read_footprints
from sailor.profiling.sosp25_links import read_links
from sailor.profiling.sosp25_tables import (
    PRECISION,
    TRAILING_UNITS,
    bad,
    count,
    gpu_name,
    items,
    layer_rows,
    load,
    model_name,
)
from sailor.profiling.store import ProfileStore
from sailor.profiling.store_format import first_error
from sailor.sim.layers import backward_work, forward_work

SOURCE = "SOSP'25 artifact (github.com/eth-easl/sailor, commit cf2c8e3)"
LICENCE = "MIT, Copyright (c) 2023 - present ETH Zurich"
AS_OF = date(2025, 8, 14)  # of that commit

# Where the files lie: in a checkout of the artifact, or in a folder sorted by kind.
_TIMES = ("profiles/all_models_all_gpus.json", "sailor/Planner/simulations/profiles_tmp.json")
_MEMORY = (
    "profiles/memory_per_layer.json",
    "sailor/Planner/llm_info.json",
    "llm_info.json",
)
_BANDWIDTH = (
    "network/multizone_bandwidths_het.json",
    "sailor/providers/multizone_bandwidths_het.json",
    "multizone_bandwidths_het.json",
)
_ONE_PROFILE = (
    "profiles/*/*/profile.json",
    "sailor/Planner/sailor_planner/profiles/*/*/profile.json",
    "*/*/profile.json",
)


@dataclass(frozen=True)
class _Times:
    """The table of one (model, GPU type): microbatch, tp, layer to three seconds."""

    model: str
    gpu: str
    table: Mapping[str, Any]
    where: str


def import_sosp25(
    folder: Path | str,
    *,
    source: str = SOURCE,
    licence: str = LICENCE,
    as_of: date | None = AS_OF,
) -> ProfileStore:
    """Return the store that holds the measurements of an artifact folder.

    The file of all models comes first; a (model, GPU type) that only has a `profile.json` of its
    own is read from there. Without a bandwidth file the store holds no links.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("is not a folder", where=str(root), hint="name the artifact's folder")
    remarks: list[str] = []
    times = list(_all_times(root, remarks))
    if not times:
        raise InputError(
            "holds no layer times",
            where=str(root),
            hint=f"expected {' or '.join((*_TIMES, *_ONE_PROFILE))}",
        )
    memory_file = _first(root, _MEMORY)
    if memory_file is None:
        raise InputError(
            "holds no memory file", where=str(root), hint=f"expected {' or '.join(_MEMORY)}"
        )
    footprints = read_footprints(load(memory_file), str(memory_file), source)
    profiles: list[LayerProfile] = []
    for entry in times:
        measured = list(_profiles(entry, footprints, source, as_of, remarks))
        profiles.extend(_with_tf32_noted(measured, remarks))
    bandwidth_file = _first(root, _BANDWIDTH)
    links: tuple[Link, ...] = ()
    if bandwidth_file is None:
        remarks.append("no bandwidth file: the store holds no links")
    else:
        links = read_links(load(bandwidth_file), str(bandwidth_file), source, remarks)
    names = sorted({entry.model for entry in times} | {model for model, _ in footprints})
    return ProfileStore(
        source=source,
        licence=licence,
        as_of=as_of,
        remarks=tuple(remarks),
        models=tuple(preset(name) for name in names),
        profiles=tuple(sorted(profiles, key=lambda p: (p.model, p.gpu, p.tp, p.microbatch))),
        footprints=tuple(footprints[key] for key in sorted(footprints)),
        links=links,
    )


def _all_times(root: Path, remarks: list[str]) -> Iterator[_Times]:
    seen: set[tuple[str, str]] = set()
    together = _first(root, _TIMES)
    if together is not None:
        for model_key, by_gpu in items(load(together), str(together)):
            for gpu_key, table in items(by_gpu, f"{together}: {model_key}"):
                where = f"{together}: {model_key}/{gpu_key}"
                entry = _Times(model_name(model_key, where), gpu_name(gpu_key, where), table, where)
                seen.add((entry.model, entry.gpu))
                yield entry
    for pattern in _ONE_PROFILE:
        for file in sorted(root.glob(pattern)):
            where = str(file)
            model = model_name(file.parent.parent.name, where)
            gpu = gpu_name(file.parent.name, where)
            if (model, gpu) not in seen:
                seen.add((model, gpu))
                if together is not None:
                    remarks.append(
                        f"{model} on {gpu}: not in {together.name}, taken from "
                        f"{file.relative_to(root)}"
                    )
                yield _Times(model, gpu, load(file), where)


def _profiles(
    entry: _Times,
    footprints: dict[tuple[str, int], LayerFootprint],
    source: str,
    as_of: date | None,
    remarks: list[str],
) -> Iterator[LayerProfile]:
    model = preset(entry.model)
    odd: set[int] = set()
    for microbatch_text, by_tp in items(entry.table, entry.where):
        for tp_text, layers in items(by_tp, f"{entry.where}: microbatch {microbatch_text}"):
            where = f"{entry.where}: microbatch {microbatch_text}, tp {tp_text}"
            microbatch, tp = count(microbatch_text, where), count(tp_text, where)
            if tp & (tp - 1):
                odd.add(tp)
                continue
            footprint = footprint_at(model, tp, footprints, where, source)
            units, optimizer_s = _unit_times(layers, model, where)
            text = f"{source}: layer times measured in fp32; embedding backward not captured"
            if optimizer_s == 0:
                text += "; optimizer step not measured (its 0 s is a missing figure)"
            try:
                yield LayerProfile(
                    model=model.name,
                    gpu=entry.gpu,
                    tp=tp,
                    microbatch=microbatch,
                    precision=PRECISION,
                    **units,
                    optimizer_s=optimizer_s,
                    # The profiler ran a model of two blocks; its optimizer step is that model's.
                    optimizer_params=footprint.embedding.params
                    + footprint.first_block.params
                    + footprint.block.params
                    + footprint.head.params,
                    provenance=Provenance.MEASURED,
                    source=text,
                    as_of=as_of,
                )
            except ValidationError as error:
                raise bad(first_error(error), where) from error
    remarks.extend(
        f"{entry.model} on {entry.gpu}: tp {tp} left out (not a power of two, no bytes measured)"
        for tp in sorted(odd)
    )


def _with_tf32_noted(profiles: list[LayerProfile], remarks: list[str]) -> list[LayerProfile]:
    """Return the profiles of one (model, GPU type), saying so where they beat fp32's peak.

    Some of the artifact's fp32 runs let matrix products use TF32; it doesn't say which.
    """
    if not profiles:
        return profiles
    name, gpu = profiles[0].model, profiles[0].gpu
    peak = Catalog.builtin().gpu(gpu).fp32_flop_per_s
    if max(_block_flop_per_s(profile) for profile in profiles) <= peak:
        return profiles
    remarks.append(f"{name} on {gpu}: faster than fp32's peak, so TF32 must have been on")
    note = "; faster than fp32's peak, so TF32 must have been on"
    return [p.model_copy(update={"source": p.source + note}) for p in profiles]


def _block_flop_per_s(profile: LayerProfile) -> float:
    model = preset(profile.model)
    flop = sum(
        work(model, "block", profile.tp, profile.microbatch, PRECISION).flop
        for work in (forward_work, backward_work)
    )
    return flop / (profile.block.forward_s + profile.block.backward_s)


def _unit_times(layers: object, model: ModelSpec, where: str) -> tuple[dict[str, UnitTime], float]:
    """Return the times by unit kind, and the optimizer step's seconds."""
    rows = []
    for _, row in layer_rows(layers, model, where):
        if not isinstance(row, list) or len(row) != 3 or not all(_is_seconds(s) for s in row):
            raise bad(f"a layer is {row!r}, not three numbers of seconds", where)
        rows.append([float(seconds) for seconds in row])
    trailing = TRAILING_UNITS.get(model.name, 1)
    blocks, last = rows[2:-trailing], rows[-trailing:]
    if any(block[:2] != blocks[0][:2] for block in blocks):
        raise bad("blocks 2 to the last differ; they are one measurement in the artifact", where)
    steps = {row[2] for row in rows}
    if len(steps) > 1:
        raise bad("layers give different optimizer steps; each holds that of the model", where)
    kinds = {
        "embedding": rows[0],
        "first_block": rows[1],
        "block": blocks[0],
        "head": [sum(row[0] for row in last), sum(row[1] for row in last)],
    }
    return (
        {kind: UnitTime(forward_s=row[0], backward_s=row[1]) for kind, row in kinds.items()},
        steps.pop(),
    )


def _is_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 0


def _first(root: Path, candidates: Sequence[str]) -> Path | None:
    return next((root / name for name in candidates if (root / name).is_file()), None)
