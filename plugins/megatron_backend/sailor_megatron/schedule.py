"""The order of forwards and backwards on one stage: plain Python."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_megatron.options import ScheduleName


@dataclass(frozen=True)
class Action:
    """Run one microbatch forward or backward."""

    forward: bool
    microbatch: int


def actions(schedule: ScheduleName, stage: int, pp: int, num_microbatches: int) -> list[Action]:
    """Return what a stage does, in order.

    1F1B: as many forwards as there are stages after this one, then one forward and one backward
    in turn, then the backwards that are left; at most pp - stage microbatches are kept. GPipe:
    all forwards, then all backwards.
    """
    ahead = num_microbatches if schedule == "gpipe" else min(pp - 1 - stage, num_microbatches)
    found = [Action(True, index) for index in range(ahead)]
    for index in range(num_microbatches):
        if ahead + index < num_microbatches:
            found.append(Action(True, ahead + index))
        found.append(Action(False, index))
    return found
