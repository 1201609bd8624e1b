"""What the engine asks of a stage, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Stage(Protocol):
    """The units of one stage of a plan on one worker, as one callable.

    `kind` names who computes. Parameters are leaves of the rank's `Parameters`, to which
    gradients are added, and which the engine sums, steps and saves.
    """

    kind: str
    first: bool
    last: bool

    def __call__(self, x: Tensor, targets: Tensor | None, samples: Sequence[int]) -> Tensor:
        """Run one microbatch and return an activation, or the summed loss (nats) of the last.

        The first stage takes tokens [samples, positions], the others an activation [samples,
        positions, hidden] or, under sequence parallelism, [rows of this rank, samples, hidden].
        `samples` are the indices of its samples.
        """
        ...
