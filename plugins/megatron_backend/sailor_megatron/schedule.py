"""The order of forwards and backwards on one pipeline rank: plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ScheduleName = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True)
class Action:
    """Run one microbatch forward or backward through one of the rank's model chunks."""

    forward: bool
    microbatch: int
    chunk: int = 0


def actions(
    schedule: ScheduleName, stage: int, pp: int, num_microbatches: int, vpp: int = 1
) -> list[Action]:
    """Return what a pipeline rank does, in order.

    1F1B: as many forwards as there are stages after this one, then one forward and one backward
    in turn, then the backwards that are left; at most pp - stage microbatches are kept. GPipe:
    all forwards, then all backwards. Interleaved (Narayanan et al. 2021): groups of pp
    microbatches pass chunk after chunk, with as many forwards ahead as Megatron-LM's warm-up has;
    the microbatches are a multiple of pp.
    """
    total = num_microbatches * vpp
    ahead = {
        "1f1b": pp - 1 - stage,
        "gpipe": total,
        "interleaved": 2 * (pp - 1 - stage) + (vpp - 1) * pp,
    }[schedule]
    group = min(pp, num_microbatches) if vpp > 1 else 1
    ahead = min(ahead, total)
    found = [_action(True, index, group, vpp) for index in range(ahead)]
    for index in range(total):
        if ahead + index < total:
            found.append(_action(True, ahead + index, group, vpp))
        found.append(_action(False, index, group, vpp))
    return found


def _action(forward: bool, index: int, group: int, vpp: int) -> Action:
    """Return the index-th action of one direction: groups pass chunk after chunk."""
    before, rest = divmod(index, group * vpp)
    chunk, inside = divmod(rest, group)
    return Action(forward, before * group + inside, chunk if forward else vpp - 1 - chunk)
