"""What varies by cluster and no data sheet says: shares of bandwidths, and the host's speed."""

from __future__ import annotations

from typing import Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from sailor.model.base import Record
from sailor.model.hardware import Name

_SHARES = ("link_share", "nic_share", "host_factor", "link_step_s")


class ClusterRef(Record):
    """What a job says of its cluster: one that is known by name, or figures that were measured.

    Figures that are given replace those of the named cluster; `sailor profile cluster` measures
    them. What is not given is assumed, and the estimate says so.
    """

    name: Name = "unknown"
    link_share: float | None = Field(default=None, gt=0, le=1)
    nic_share: float | None = Field(default=None, gt=0, le=1)
    host_factor: float | None = Field(default=None, gt=0, le=100)
    link_step_s: float | None = Field(default=None, ge=0, le=1)

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [handler(core_schema), {"type": "string"}]}

    def given(self) -> dict[str, float]:
        """Return the figures that the job states."""
        stated = {name: getattr(self, name) for name in _SHARES}
        return {name: value for name, value in stated.items() if value is not None}


class Cluster(Record):
    """The figures that a problem's estimates use.

    `link_share`: bus bandwidth of an all-reduce inside a node over the link's one-way bandwidth.
    `nic_share`: of a node's network cards' bandwidth that a collective reaches. `host_factor`:
    time of the host to launch kernels, against the framework's usual one. `link_step_s`: time of a
    collective inside a node for each doubling of its ranks, whatever its size. `error_pct`: mean
    error of iteration times with these figures.
    """

    name: Name = "unknown"
    link_share: float = Field(default=0.80, gt=0, le=1)
    nic_share: float = Field(default=0.80, gt=0, le=1)
    host_factor: float = Field(default=1.0, gt=0)
    link_step_s: float = Field(default=15e-6, ge=0)
    error_pct: float = Field(default=7.6, ge=0)
    source: str = "defaults: the middle of the clusters that were measured"
