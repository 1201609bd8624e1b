"""A `pricing.yml` of the gcosts kind into machine prices by region.

It holds `compute: instance: MACHINE: cost: REGION: {hour: ..., hour_spot: ...}` beside much that
is not needed here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import partial

from sailor.errors import InputError
from sailor.model.catalog import Catalog
from sailor.model.document import Document, DocumentPath, dotted, shown
from sailor.model.files import document_from_text
from sailor.model.json_text import looks_like_json
from sailor.model.yaml_text import read_yaml
from sailor_gcp_pricing.snapshot import MachinePrice

_MACHINES: DocumentPath = ("compute", "instance")
_KEY = re.compile(r"( *)([^\s#:\-'\"][^:]*|'[^']*'|\"[^\"]*\") *:(?: |$)")
_SHAPE = "a gcosts pricing file has compute: instance: MACHINE: cost: REGION: {hour: 3.67}"


def read_gcosts(text: str, name: str, catalog: Catalog) -> list[MachinePrice]:
    """Return the prices of the GCP machines that `catalog` has, by region."""
    machines = {node.name: node for node in catalog.nodes.values() if node.provider == "gcp"}
    document = _document(text, name, machines)
    found: list[MachinePrice] = []
    for machine, entry in _mapping(document, _MACHINES).items():
        if machine not in machines or not isinstance(entry, Mapping) or "cost" not in entry:
            continue
        for region in _mapping(document, (*_MACHINES, machine, "cost")):
            path = (*_MACHINES, machine, "cost", region)
            if not isinstance(_at(document.data, path), Mapping):
                continue
            found.append(
                MachinePrice(
                    region=region,
                    zone=None,
                    node_type=machine,
                    num_gpus=machines[machine].num_gpus,
                    on_demand=_usd(document, (*path, "hour")),
                    spot=_usd(document, (*path, "hour_spot")),
                )
            )
    return found


def _document(text: str, name: str, machines: Collection[str]) -> Document:
    if not looks_like_json(text):
        # Megabytes of YAML take minutes; only the lines of the machines wanted are parsed.
        with suppress(InputError):
            data, lines = read_yaml(_without_other_machines(text, machines), name)
            if isinstance(data, dict) and isinstance(_at(data, _MACHINES), Mapping):
                return Document(name, data, partial(_line, lines))
    return document_from_text(text, name)  # in another layout than one key a line


def _line(lines: Mapping[DocumentPath, int], path: DocumentPath) -> int | None:
    return lines.get(path)


def _without_other_machines(text: str, machines: Collection[str]) -> str:
    """Return the text with every line blank that has no part in the wanted machines' prices."""
    kept: list[str] = []
    open_keys: list[tuple[int, str]] = []  # indentation and key of the enclosing mappings
    for line in text.splitlines():
        match = _KEY.match(line)
        if match is not None:
            indent = len(match[1])
            while open_keys and open_keys[-1][0] >= indent:
                open_keys.pop()
            open_keys.append((indent, match[2].strip("'\" ")))
        wanted = _is_wanted([key for _, key in open_keys], machines)
        kept.append(line if wanted else "")
    return "\n".join(kept)


def _is_wanted(path: list[str], machines: Collection[str]) -> bool:
    depth = len(_MACHINES)
    if tuple(path[:depth]) != _MACHINES[: len(path)]:
        return False
    return len(path) <= depth or path[depth] in machines


def _mapping(document: Document, path: DocumentPath) -> Mapping[str, object]:
    value = _at(document.data, path)
    if not isinstance(value, Mapping):
        raise document.error(f"{dotted(path)} is {shown(value)}, not a mapping", path, hint=_SHAPE)
    return value


def _at(data: object, path: DocumentPath) -> object:
    for step in path:
        data = data.get(str(step)) if isinstance(data, Mapping) else None
    return data


def _usd(document: Document, path: DocumentPath) -> float | None:
    """Return USD an hour; a missing price, NaN and 0 all mean unknown."""
    value = _at(document.data, path)
    if value is None or value != value:  # NaN is unlike itself
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e9:
        raise document.error(f"{dotted(path)} should be USD an hour, not {shown(value)}", path)
    return float(value) or None
