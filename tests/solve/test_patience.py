"""Giving up a search that gains nothing."""

from __future__ import annotations

from sailor.interfaces import Progress
from sailor.solve.patience import Patience


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def watched(clock: Clock, *, told: bool = False) -> tuple[Patience, list[Progress]]:
    seen: list[Progress] = []
    return Patience(seen.append, lambda: told, least_s=2.0, share=1.0, clock=clock), seen


def test_it_waits_for_a_bound_and_then_as_long_as_the_last_gain_took() -> None:
    clock = Clock()
    watch, seen = watched(clock)
    watch.on_progress(Progress("plan", 1.0))
    clock.now_s += 50
    assert not watch.should_stop()  # no bound yet: something to wait for
    watch.on_progress(Progress("first", 1.0, bound=2.0, gap=0.5))
    clock.now_s += 49
    assert not watch.should_stop()
    clock.now_s += 2
    assert watch.should_stop()
    assert watch.stalled
    assert [p.message for p in seen] == ["plan", "first"]


def test_a_better_plan_or_a_smaller_gap_is_a_gain_and_a_trifle_is_not() -> None:
    clock = Clock()
    watch, _ = watched(clock)
    watch.on_progress(Progress("a", 1.0, bound=2.0, gap=0.5))
    for report, gained in (
        (Progress("same", 1.0, gap=0.5), False),
        (Progress("trifle", 1.0005, gap=0.49), False),
        (Progress("closer", 1.0, gap=0.4), True),
        (Progress("better", 1.1, gap=0.4), True),
        (Progress("first count", 1.1, gap=0.4, cells_left=9), True),
        (Progress("no cell less", 1.1, gap=0.4, cells_left=9), False),
        (Progress("a cell less", 1.1, gap=0.4, cells_left=8), True),
    ):
        clock.now_s += 1.5
        before = watch.patience_s
        watch.on_progress(report)
        assert (watch.patience_s > before) is gained, report
        assert not watch.stalled
    assert watch.gap == 0.4
    assert watch.patience_s == 10.5  # seven times 1.5 s up to the last gain


def test_the_caller_s_wish_is_no_stall() -> None:
    watch, _ = watched(Clock(), told=True)
    assert watch.should_stop()
    assert not watch.stalled


def test_a_rough_first_bound_is_waited_for_three_times_as_long() -> None:
    clock = Clock()
    watch, _ = watched(clock)
    clock.now_s += 4
    watch.on_progress(Progress("first bounds", 1.0, bound=20.0, gap=0.95))
    assert watch.patience_s == 12.0
    clock.now_s += 11
    assert not watch.should_stop()
    watch.on_progress(Progress("bounds", 1.0, bound=1.25, gap=0.2))
    assert watch.patience_s == 15.0
