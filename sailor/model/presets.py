"""Models by name: the shapes that ship with sailor (`sailor/model/data/models.json`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType

from sailor.errors import UnknownNameError
from sailor.model.arch import ModelSpec


@cache
def presets() -> Mapping[str, ModelSpec]:
    """Return every preset by name."""
    text = files("sailor.model").joinpath("data", "models.json").read_text(encoding="utf-8")
    models = [ModelSpec.model_validate(row) for row in json.loads(text)]
    return MappingProxyType({model.name: model for model in models})


def preset(name: str, *, where: str | None = None) -> ModelSpec:
    """Return the preset of that name; `where` is the place in the job that names it."""
    found = presets().get(name)
    if found is None:
        raise UnknownNameError("model", name, presets(), where=where)
    return found
