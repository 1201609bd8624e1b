"""The cost models by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sailor.errors import UnknownNameError
from sailor.sim.native import SailorModel
from sailor.sim.published import PublishedModel
from sailor.sim.tables import CostModel

COST_MODELS: Mapping[str, CostModel] = MappingProxyType(
    {model.name: model for model in (SailorModel(), PublishedModel())}
)


def cost_model(name: str, *, where: str | None = None) -> CostModel:
    """Return a cost model by name."""
    found = COST_MODELS.get(name)
    if found is None:
        raise UnknownNameError("cost model", name, COST_MODELS, where=where)
    return found
