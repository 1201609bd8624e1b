"""What the processes of the cluster probe are told and what they find, in JSON. Needs no torch."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

REPEATS = 7  # samples of a message size; their median counts
_BATCH_BYTES = 2**24  # messages up to here are sent several times in a sample


@dataclass(frozen=True)
class ClusterOrders:
    """One process's part.

    `rank` counts over all machines, `local_ranks` are those of this one. `sizes`: bytes of the
    messages. `host`: whether the host's launches are timed too.
    """

    rank: int
    world: int
    local_ranks: tuple[int, ...]
    init: str
    device: str
    sizes: tuple[int, ...]
    host: bool
    time_limit_s: float
    result: str

    @classmethod
    def from_text(cls, text: str) -> ClusterOrders:
        """Return the orders in JSON."""
        found: dict[str, Any] = json.loads(text)
        lists = {"local_ranks": tuple(found["local_ranks"]), "sizes": tuple(found["sizes"])}
        return cls(**{**found, **lists})


@dataclass(frozen=True)
class ClusterFindings:
    """Seconds of all-reduces by message size (samples; the slowest rank's count), of launches.

    `inside`: among the processes of rank 0's machine; `across`: among those of both machines;
    `launches`: of a block's kernels, a median for each of the machine's processes, and `spread`
    the largest interquartile range over its median. Empty: not measured.
    """

    device: str
    inside: tuple[tuple[float, ...], ...] = ()
    across: tuple[tuple[float, ...], ...] = ()
    launches: tuple[float, ...] = ()
    spread: float = 0.0

    @classmethod
    def from_text(cls, text: str) -> ClusterFindings:
        """Return the findings in JSON."""
        found: dict[str, Any] = json.loads(text)
        return cls(
            device=found["device"],
            inside=tuple(tuple(samples) for samples in found["inside"]),
            across=tuple(tuple(samples) for samples in found["across"]),
            launches=tuple(found["launches"]),
            spread=found["spread"],
        )


def to_text(record: ClusterOrders | ClusterFindings) -> str:
    """Return orders or findings as JSON."""
    return json.dumps({field.name: getattr(record, field.name) for field in fields(record)})


def batch_of(num_bytes: int) -> int:
    """Return how many all-reduces of this size follow one another in one sample.

    Small ones are launched ahead of the device, as in training: their sample holds no wait for the
    host, and little of the moment at which the ranks come together.
    """
    return max(1, min(20, _BATCH_BYTES // num_bytes))
