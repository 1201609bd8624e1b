"""Moments on the device that computes: the processor's clock, or events on the GPU's stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks moments, and says later how far two of them were apart."""

    def mark(self) -> Any: ...

    def seconds(self, begin: Any, end: Any) -> float: ...

    def settle(self) -> None: ...


class HostClock:
    """For the CPU, where work is done when the call returns."""

    def mark(self) -> float:
        """Return this moment."""
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds from one moment to another."""
        return end - begin

    def settle(self) -> None:
        """Wait for nothing: all work is done."""


class CudaClock:
    """For a GPU: nothing waits while work is under way."""

    def mark(self) -> torch.cuda.Event:
        """Return the moment at which the stream comes to this point."""
        make: Callable[..., torch.cuda.Event] = torch.cuda.Event  # torch declares no types
        event = make(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the seconds between two moments that have passed."""
        return float(begin.elapsed_time(end)) / 1e3

    def settle(self) -> None:
        """Wait until all marked moments have passed."""
        torch.cuda.synchronize()


def clock_of(device: torch.device) -> Clock:
    """Return the clock of a device."""
    return CudaClock() if device.type == "cuda" else HostClock()
