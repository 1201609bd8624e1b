"""Job and registry to problem: the only place that asks plug-ins."""

from __future__ import annotations

from sailor.resolve.problem import resolve

__all__ = ["resolve"]
