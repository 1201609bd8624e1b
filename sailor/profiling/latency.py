"""One-way latency where nobody measured the pair: by how far two zones are apart."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AssumedLatency:
    """Seconds one way, and the words for a link's `source`."""

    seconds: float
    source: str


SAME_ZONE = AssumedLatency(
    60e-6,
    "latency assumed 60 us one way within a zone (the step latency that fits published multi-node "
    "all-reduce times)",
)
SAME_REGION = AssumedLatency(
    0.5e-3,
    "latency assumed 0.5 ms one way between zones of a region (half of the 1 ms round trip that "
    "Google states as usual there)",
)
