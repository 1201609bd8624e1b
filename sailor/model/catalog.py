"""The catalogue: GPU types, node types and zones by name, with suggestions for misspelt ones."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Self, TypeVar

from sailor.errors import InputError, UnknownNameError
from sailor.model.hardware import GpuType, NodeType, Zone
from sailor.model.job import CatalogAdditions

_Named = TypeVar("_Named", GpuType, NodeType, Zone)


@dataclass(frozen=True)
class Catalog:
    """Hardware by name. Immutable: `with_additions` returns another one."""

    gpus: Mapping[str, GpuType]
    nodes: Mapping[str, NodeType]
    zones: Mapping[str, Zone]
    gpu_aliases: Mapping[str, str]

    @classmethod
    @cache
    def builtin(cls) -> Catalog:
        """Return the catalogue that ships with sailor (`sailor/model/data/*.json`)."""
        gpu_rows = _rows("gpus")
        aliases = {alias: row["name"] for row in gpu_rows for alias in row.pop("aliases", ())}
        return cls(
            gpus=_by_name(GpuType.model_validate(row) for row in gpu_rows),
            nodes=_by_name(NodeType.model_validate(row) for row in _rows("nodes")),
            zones=_by_name(Zone.model_validate(row) for row in _rows("zones")),
            gpu_aliases=aliases,
        )

    def with_additions(self, additions: CatalogAdditions) -> Self:
        """Return a catalogue in which the job's own entries come before the built-in ones."""
        for what, rows in (
            ("gpus", additions.gpus),
            ("nodes", additions.nodes),
            ("zones", additions.zones),
        ):
            _refuse_duplicates(what, [row.name for row in rows])
        return type(self)(
            gpus={**self.gpus, **_by_name(additions.gpus)},
            nodes={**self.nodes, **_by_name(additions.nodes)},
            zones={**self.zones, **_by_name(additions.zones)},
            gpu_aliases=self.gpu_aliases,
        )

    def only_nodes(self, names: Iterable[str]) -> Self:
        """Return a catalogue with these node types and no others."""
        return type(self)(
            gpus=self.gpus,
            nodes={name: self.node(name) for name in names},
            zones=self.zones,
            gpu_aliases=self.gpu_aliases,
        )

    def gpu(self, name: str, *, where: str | None = None) -> GpuType:
        """Return a GPU type by name or alias."""
        found = self.gpus.get(self.gpu_aliases.get(name, name))
        if found is None:
            raise UnknownNameError("GPU type", name, self.gpus, where=where)
        return found

    def node(self, name: str, *, where: str | None = None) -> NodeType:
        """Return a node type by name."""
        found = self.nodes.get(name)
        if found is None:
            raise UnknownNameError("node type", name, self.nodes, where=where)
        return found

    def zone(self, name: str, *, where: str | None = None) -> Zone:
        """Return a zone by name."""
        found = self.zones.get(name)
        if found is None:
            raise UnknownNameError("zone", name, self.zones, where=where)
        return found

    def zones_of_region(self, region: str, *, where: str | None = None) -> Sequence[Zone]:
        """Return the zones of a region, by name."""
        found = [zone for zone in self.zones.values() if zone.region == region]
        if not found:
            known = {zone.region for zone in self.zones.values()}
            raise UnknownNameError("region", region, known, where=where)
        return sorted(found, key=lambda zone: zone.name)

    def nodes_with_gpu(self, gpu: str, provider: str) -> Sequence[NodeType]:
        """Return a provider's node types that hold a GPU type, small ones first."""
        found = [
            node for node in self.nodes.values() if (node.gpu, node.provider) == (gpu, provider)
        ]
        return sorted(found, key=lambda node: (node.num_gpus, node.name))


def _rows(name: str) -> list[dict[str, Any]]:
    text = files("sailor.model").joinpath("data", f"{name}.json").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def _by_name(rows: Iterable[_Named]) -> dict[str, _Named]:
    return {row.name: row for row in rows}


def _refuse_duplicates(what: str, names: Sequence[str]) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(
                f"{name!r} is defined twice",
                where=f"catalog.{what}[{index}]",
                hint="give each entry its own name",
            )
