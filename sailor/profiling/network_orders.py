"""What the network probe tells its two processes, and what the first of them answers."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

MIN_BYTES = 2**16
MAX_BYTES = 2**30

_TIMED_BYTES = 2**28  # that a size sends at most, where three messages aren't more


@dataclass(frozen=True)
class Orders:
    """A process's part: its rank, how to find the other one, what to send, where to write."""

    rank: int
    init: str
    backend: str
    sizes: tuple[int, ...]  # bytes
    time_limit_s: float
    result: str

    def to_text(self) -> str:
        """Return the orders as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> Orders:
        """Return the orders in JSON."""
        fields = json.loads(text)
        return cls(**{**fields, "sizes": tuple(fields["sizes"])})


@dataclass(frozen=True)
class Findings:
    """Medians of both directions, first the one from rank 0 to rank 1.

    `round_trip_s` is a byte and its answer, `seconds` a message of each size and its answer.
    """

    torch_version: str
    round_trip_s: tuple[float, float]
    seconds: tuple[tuple[float, ...], tuple[float, ...]]

    @classmethod
    def from_text(cls, text: str) -> Findings:
        """Return the findings in JSON."""
        fields = json.loads(text)
        first, second = fields["seconds"]
        return cls(
            torch_version=fields["torch_version"],
            round_trip_s=tuple(fields["round_trip_s"]),
            seconds=(tuple(first), tuple(second)),
        )


def message_sizes(max_bytes: int) -> tuple[int, ...]:
    """Return the powers of two from 64 KiB to `max_bytes`."""
    sizes = []
    size = MIN_BYTES
    while size <= max_bytes:
        sizes.append(size)
        size *= 2
    return tuple(sizes)


def repeats_of(num_bytes: int) -> int:
    """Return how often a message of this size is timed: both processes must agree."""
    return max(3, min(20, _TIMED_BYTES // num_bytes))
