"""`sailor validate`: the simulator against measurements."""

from __future__ import annotations

from sailor.validation.command import validate as command

__all__ = ["command"]
