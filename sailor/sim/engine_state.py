"""What the workers of a running simulation share."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class WorkerSpans:
    """What one worker did, as columns in time order."""

    op: NDArray[np.int64]
    microbatch: NDArray[np.int64]
    stage: NDArray[np.int64]  # virtual stage
    start_s: NDArray[np.float64]
    stop_s: NDArray[np.float64]


@dataclass
class RunState:
    """Lists are indexed by message; -1 s means "not yet".

    The queue holds transfers as (when ready, message), and decisions of work-conserving workers
    as (when, number of messages + worker): at one time transfers come first.
    """

    num_messages: int
    arrival_s: list[float] = field(default_factory=list)
    stop_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    queue: list[tuple[float, int]] = field(default_factory=list)
    met: dict[int, float] = field(default_factory=dict)  # rendezvous: when the first side came
    receivers: dict[int, int] = field(default_factory=dict)  # the worker that waits for a message
    senders: dict[int, int] = field(default_factory=dict)  # the worker that waits for its end

    def __post_init__(self) -> None:
        for times in (self.arrival_s, self.stop_s, self.ready_s):
            times.extend([-1.0] * self.num_messages)
