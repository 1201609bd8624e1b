"""What a search has computed, counted: a clock that runs alike on every machine.

Each programme adds the states that it went through, times what one takes on a core of 2023, so a
unit is about a second. Limits in units give the same answer however fast or busy a machine is.
"""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]

# Seconds of one state with compiled kernels, with what goes on around it.
SCORE_S = 7e-7  # a stage of a plan and its column, in the closed form
TABLE_S = 1e-7  # a stage of a plan that is scored by table
SPLIT_S = 1.3e-9  # the dynamic programme over splits: a state and a size of the stage in front
MOVED_S = 4e-9  # boundaries of given kinds: a stage and two units
WHOLE_S = 1e-10  # chains of whole GPUs: two units, a kind, a use and a number of stages
CHAIN_S = 1.3e-9  # the priced programme: two units and a kind
PLACE_S = 1.6e-10  # the same at one place of the programme with places
SET_S = 8e-10  # two units and a kind set, in one step of the prices
LABEL_S = 4e-7  # a label and a kind set in front of it
PIPE_S = 8e-10  # a ceiling, a stage and three kinds in a row, over one split of the units
PIPES_S = 1e-4  # the stages of a split
ROOM_S = 1e-9  # GPUs that are left, and a pipeline that may take of them
PLAN_S = 1e-3  # a plan that is estimated in full


class _Count:
    """Counted seconds of this process."""

    done_s = 0.0


_count = _Count()


def add(seconds: float) -> None:
    """Count so many seconds."""
    _count.done_s += seconds


def counted_s() -> float:
    """Return what was counted in this process so far."""
    return _count.done_s
