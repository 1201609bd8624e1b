"""The order of work on a pipeline rank, and the loss scale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.sim.schedule import Op, pipeline_order
from sailor_megatron.loss_scale import GROWTH_STEPS, LossScale
from sailor_megatron.schedule import ScheduleName, actions

# Of the engine and its connections, which can't be imported without torch; test_proof.py says
# that they are these.
POSTED_ACTIONS, MAX_SENDS = 3, 3


def words(schedule: ScheduleName, stage: int, pp: int, count: int, vpp: int = 1) -> str:
    found = actions(schedule, stage, pp, count, vpp)
    if vpp == 1:
        assert {a.chunk for a in found} == {0}
        return " ".join(("F" if a.forward else "B") + str(a.microbatch) for a in found)
    return " ".join(f"{'F' if a.forward else 'B'}{a.microbatch}{'ab'[a.chunk]}" for a in found)


def test_1f1b_of_three_stages_and_four_microbatches() -> None:
    assert words("1f1b", 0, 3, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert words("1f1b", 1, 3, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert words("1f1b", 2, 3, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_and_fewer_microbatches_than_stages() -> None:
    assert words("gpipe", 0, 2, 3) == "F0 F1 F2 B0 B1 B2"
    assert words("1f1b", 0, 4, 2) == "F0 F1 B0 B1"


def test_two_ranks_of_two_chunks_interleave_four_microbatches() -> None:
    """Two groups of two; rank 0 runs four forwards ahead, rank 1 two."""
    assert words("interleaved", 0, 2, 4, 2) == (
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a"
    )
    assert words("interleaved", 1, 2, 4, 2) == (
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a"
    )


@st.composite
def schedules(draw: st.DrawFn) -> tuple[ScheduleName, int, int, int]:
    """Return schedule, pp, microbatches, vpp."""
    schedule: ScheduleName = draw(st.sampled_from(["1f1b", "gpipe", "interleaved"]))
    pp = draw(st.integers(1, 6))
    if schedule == "interleaved":
        return schedule, pp, pp * draw(st.integers(1, 5)), draw(st.integers(2, 4))
    return schedule, pp, draw(st.integers(1, 20)), 1


@given(schedules())
def test_the_orders_are_those_that_the_simulator_times(
    case: tuple[ScheduleName, int, int, int],
) -> None:
    schedule, pp, count, vpp = case
    simulated = pipeline_order(schedule, pp, count, num_chunks=vpp)
    for stage, order in enumerate(simulated.stages):
        computes = order.computes()
        wanted = zip(computes.op == Op.FORWARD, computes.microbatch, computes.chunk, strict=True)
        found = actions(schedule, stage, pp, count, vpp)
        assert [(a.forward, a.microbatch, a.chunk) for a in found] == list(wanted)


@given(schedules())
def test_every_microbatch_goes_through_every_chunk_both_ways_once(
    case: tuple[ScheduleName, int, int, int],
) -> None:
    schedule, pp, count, vpp = case
    for stage in range(pp):
        found = actions(schedule, stage, pp, count, vpp)
        wanted = [(m, c) for m in range(count) for c in range(vpp)]
        for forward in (True, False):
            assert sorted((a.microbatch, a.chunk) for a in found if a.forward == forward) == wanted
        kept = most = 0
        for action in found:
            kept += 1 if action.forward else -1
            assert kept >= 0
            most = max(most, kept)
        if schedule != "interleaved":
            assert most == (count if schedule == "gpipe" else min(pp - stage, count))


class Player:
    """One rank as the engine runs it: posts receives ahead, waits for arrivals and old sends."""

    def __init__(self, case: tuple[ScheduleName, int, int, int], rank: int) -> None:
        schedule, self.pp, count, self.vpp = case
        self.rank = rank
        self.work = actions(schedule, rank, self.pp, count, self.vpp)
        self.done = 0
        self.sent: dict[tuple[bool, int], list[tuple[bool, int, int]]] = {}

    def virtual(self, index: int) -> int:
        return self.work[index].chunk * self.pp + self.rank

    def arrival(self, index: int) -> tuple[bool, int, int] | None:
        """Return what an action waits for: direction, the chunk that takes it, microbatch."""
        action, here = self.work[index], self.virtual(index)
        alone = here == 0 if action.forward else here == self.pp * self.vpp - 1
        return None if alone else (action.forward, here, action.microbatch)

    def posted(self) -> set[tuple[bool, int, int]]:
        upto = min(self.done + POSTED_ACTIONS, len(self.work))
        return {found for index in range(upto) if (found := self.arrival(index))}

    def step(self, sent: set[tuple[bool, int, int]], posted: set[tuple[bool, int, int]]) -> bool:
        """Run one action if nothing holds it up."""
        waits = self.arrival(self.done)
        if waits is not None and waits not in sent:
            return False
        action, here = self.work[self.done], self.virtual(self.done)
        target = here + 1 if action.forward else here - 1
        if 0 <= target < self.pp * self.vpp:
            outlet = self.sent.setdefault((action.forward, target), [])
            message = (action.forward, target, action.microbatch)
            sent.add(message)
            if message not in outlet:
                outlet.append(message)
            if len(outlet) > MAX_SENDS and outlet[-MAX_SENDS - 1] not in posted:
                return False
        self.done += 1
        return True


@given(schedules())
def test_no_rank_waits_for_itself(case: tuple[ScheduleName, int, int, int]) -> None:
    """Sends wait for the one MAX_SENDS before, which waits until its receive is posted."""
    players = [Player(case, rank) for rank in range(case[1])]
    sent: set[tuple[bool, int, int]] = set()
    while any(player.done < len(player.work) for player in players):
        posted = set().union(*(player.posted() for player in players))
        moved = [player.step(sent, posted) for player in players if player.done < len(player.work)]
        assert any(moved), [(player.rank, player.done) for player in players]


def test_messages_between_two_ranks_arrive_in_the_order_in_which_they_were_sent() -> None:
    """NCCL has no tags: what is received in another order would be taken for something else."""
    for pp, count, vpp in ((2, 4, 2), (3, 6, 2), (4, 8, 3)):
        orders = [actions("interleaved", rank, pp, count, vpp) for rank in range(pp)]
        for src in range(pp):
            dst = (src + 1) % pp
            wrap = dst == 0
            last = vpp - 1
            out = [
                (a.microbatch, a.chunk + wrap)
                for a in orders[src] if a.forward and not (wrap and a.chunk == last)
            ]  # fmt: skip
            into = [
                (a.microbatch, a.chunk)
                for a in orders[dst] if a.forward and not (wrap and a.chunk == 0)
            ]  # fmt: skip
            assert out == into


def test_the_loss_scale_falls_at_once_and_rises_slowly() -> None:
    scale = LossScale(1024.0, dynamic=True)
    scale.update(overflowed=True)
    assert scale.value == 512.0
    for _ in range(GROWTH_STEPS):
        scale.update(overflowed=False)
    assert scale.value == pytest.approx(1024.0)
    fixed = LossScale(1024.0, dynamic=False)
    fixed.update(overflowed=True)
    assert fixed.value == 1.0
