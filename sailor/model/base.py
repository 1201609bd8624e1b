"""The base of every record: frozen, closed, identified by its content."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Immutable value object: unknown keys, NaN and infinities are errors; equality is by value."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    def digest(self) -> str:
        """Return the sha256 of the canonical JSON: the identity for resuming and provenance."""
        return hashlib.sha256(self.model_dump_json(exclude_none=True).encode()).hexdigest()
