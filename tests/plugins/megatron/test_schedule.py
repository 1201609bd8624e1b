"""The order of work on a stage, and the loss scale."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor_megatron.loss_scale import GROWTH_STEPS, LossScale
from sailor_megatron.options import ScheduleName
from sailor_megatron.schedule import actions


def words(schedule: ScheduleName, stage: int, pp: int, count: int) -> str:
    found = actions(schedule, stage, pp, count)
    return " ".join(("F" if a.forward else "B") + str(a.microbatch) for a in found)


def test_1f1b_of_three_stages_and_four_microbatches() -> None:
    assert words("1f1b", 0, 3, 4) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert words("1f1b", 1, 3, 4) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert words("1f1b", 2, 3, 4) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_gpipe_and_fewer_microbatches_than_stages() -> None:
    assert words("gpipe", 0, 2, 3) == "F0 F1 F2 B0 B1 B2"
    assert words("1f1b", 0, 4, 2) == "F0 F1 B0 B1"


@given(st.sampled_from(["1f1b", "gpipe"]), st.integers(1, 6), st.integers(1, 20), st.data())
def test_every_microbatch_goes_forward_then_backward_once(
    schedule: ScheduleName, pp: int, count: int, data: st.DataObject
) -> None:
    stage = data.draw(st.integers(0, pp - 1))
    found = actions(schedule, stage, pp, count)
    forwards = [a.microbatch for a in found if a.forward]
    backwards = [a.microbatch for a in found if not a.forward]
    assert forwards == backwards == list(range(count))
    kept = most = 0
    for action in found:
        kept += 1 if action.forward else -1
        assert kept >= 0
        most = max(most, kept)
    assert most == (count if schedule == "gpipe" else min(pp - stage, count))


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
