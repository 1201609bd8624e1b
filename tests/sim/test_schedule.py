"""Schedules against orders written out by hand, and what every order must have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sailor.errors import InputError
from sailor.sim.schedule import Op, PipelineOrder, StageOrder, max_in_flight, pipeline_order

SHORT = {
    Op.FORWARD: "F",
    Op.BACKWARD: "B",
    Op.BACKWARD_INPUT: "I",
    Op.BACKWARD_WEIGHT: "W",
    Op.RECV_ACTIVATION: "ra",
    Op.RECV_GRADIENT: "rg",
    Op.SEND_ACTIVATION: "sa",
    Op.SEND_GRADIENT: "sg",
    Op.POST_ACTIVATION: "pa",
    Op.POST_GRADIENT: "pg",
}
FIXED = ("gpipe", "1f1b", "1f1b_deepspeed", "zb_h1")


def text(order: StageOrder, *, chunks: bool = False) -> str:
    return " ".join(
        f"{SHORT[Op(op)]}{microbatch}" + ("abcd"[chunk] if chunks else "")
        for op, microbatch, chunk in zip(
            order.op.tolist(), order.microbatch.tolist(), order.chunk.tolist(), strict=True
        )
    )


def computes(order: PipelineOrder, *, chunks: bool = False) -> list[str]:
    return [text(stage.computes(), chunks=chunks) for stage in order.stages]


def test_gpipe_runs_all_forwards_first() -> None:
    order = pipeline_order("gpipe", 2, 3)
    assert computes(order) == ["F0 F1 F2 B0 B1 B2"] * 2
    assert text(order.stages[0]) == "F0 sa0 F1 sa1 F2 pa2 rg0 B0 rg1 B1 rg2 B2"
    assert text(order.stages[1]) == "ra0 F0 ra1 F1 ra2 F2 B0 sg0 B1 sg1 B2 sg2"


def test_1f1b_of_three_stages() -> None:
    order = pipeline_order("1f1b", 3, 4)
    assert computes(order) == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]
    # A send that meets the neighbour's send is an exchange (p), in warm-up and cool-down it isn't.
    assert text(order.stages[1]) == (
        "ra0 F0 sa0 ra1 F1 pa1 rg0 B0 pg0 ra2 F2 pa2 rg1 B1 pg1 ra3 F3 pa3 rg2 B2 sg2 rg3 B3 sg3"
    )


def test_deepspeed_receives_the_gradient_before_it_sends_the_activation() -> None:
    order = pipeline_order("1f1b_deepspeed", 3, 4)
    assert computes(order) == computes(pipeline_order("1f1b", 3, 4))
    assert text(order.stages[0]) == "F0 sa0 F1 sa1 F2 rg0 sa2 B0 F3 rg1 sa3 B1 rg2 B2 rg3 B3"
    assert text(order.stages[1]) == (
        "ra0 F0 sa0 ra1 F1 rg0 sa1 B0 sg0 ra2 F2 rg1 sa2 B1 sg1 ra3 F3 rg2 sa3 B2 sg2 rg3 B3 sg3"
    )
    assert text(order.stages[2]) == "ra0 F0 B0 sg0 ra1 F1 B1 sg1 ra2 F2 B2 sg2 ra3 F3 B3 sg3"


def test_zb_h1_puts_weight_gradients_off_by_the_stage_number() -> None:
    assert computes(pipeline_order("zb_h1", 3, 4)) == [
        "F0 F1 F2 I0 W0 F3 I1 W1 I2 W2 I3 W3",
        "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3",
        "F0 I0 F1 I1 F2 I2 W0 F3 I3 W1 W2 W3",
    ]


def test_interleaved_order_of_two_stages_and_two_chunks() -> None:
    """Stage 0 leads by 2 (P - 1) + (C - 1) P = 4 forwards, stage 1 by 2; then one of each."""
    order = pipeline_order("interleaved", 2, 4, num_chunks=2)
    assert computes(order, chunks=True) == [
        "F0a F1a F0b F1b F2a B0b F3a B1b F2b B0a F3b B1a B2b B3b B2a B3a",
        "F0a F1a F0b B0b F1b B1b F2a B0a F3a B1a F2b B2b F3b B3b B2a B3a",
    ]
    # The last chunk of the first stage gets its activations from the last stage: a ring.
    first = order.stages[0]
    receives = (first.op == Op.RECV_ACTIVATION) & (first.chunk == 1)
    assert first.microbatch[receives].tolist() == [0, 1, 2, 3]
    assert not np.isin(first.op, (Op.SEND_ACTIVATION, Op.SEND_GRADIENT)).any()


@given(st.sampled_from(FIXED), st.integers(1, 9), st.integers(1, 20))
def test_every_order_is_whole_and_its_tensors_pass_in_order(
    schedule: str, num_stages: int, num_microbatches: int
) -> None:
    order = pipeline_order(schedule, num_stages, num_microbatches)
    numbers = list(range(num_microbatches))
    halves = (Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT) if order.splits_backward else (Op.BACKWARD,)
    for stage in order.stages:
        for op in (Op.FORWARD, *halves):
            assert stage.microbatch[stage.op == op].tolist() == numbers
        assert np.isin(stage.computes().op, (Op.FORWARD, *halves)).all()
        for earlier, later in pairwise((Op.FORWARD, *halves)):
            before = np.flatnonzero(stage.op == earlier)
            assert (before < np.flatnonzero(stage.op == later)).all()
    for here, there in pairwise(order.stages):
        for src, sends, dst, receive in (
            (here, (Op.SEND_ACTIVATION, Op.POST_ACTIVATION), there, Op.RECV_ACTIVATION),
            (there, (Op.SEND_GRADIENT, Op.POST_GRADIENT), here, Op.RECV_GRADIENT),
        ):
            assert src.microbatch[np.isin(src.op, sends)].tolist() == numbers
            assert dst.microbatch[dst.op == receive].tolist() == numbers


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_interleaved_computes_every_chunk_of_every_microbatch_once(
    num_stages: int, groups: int, num_chunks: int
) -> None:
    order = pipeline_order("interleaved", num_stages, groups * num_stages, num_chunks=num_chunks)
    wanted = {(m, c) for m in range(groups * num_stages) for c in range(num_chunks)}
    for stage in order.stages:
        for op in (Op.FORWARD, Op.BACKWARD):
            mine = stage.op == op
            found = list(
                zip(stage.microbatch[mine].tolist(), stage.chunk[mine].tolist(), strict=True)
            )
            assert len(found) == len(wanted)
            assert set(found) == wanted


@given(st.integers(1, 9), st.integers(1, 20))
def test_microbatches_in_flight(num_stages: int, num_microbatches: int) -> None:
    """GPipe keeps all, 1F1B min(M, P - i), ZB-H1 on no stage more than 1F1B on its first."""

    def kept(schedule: str) -> list[int]:
        order = pipeline_order(schedule, num_stages, num_microbatches)
        return [max_in_flight(stage) for stage in order.stages]

    from_end = [min(num_microbatches, num_stages - stage) for stage in range(num_stages)]
    assert kept("gpipe") == [num_microbatches] * num_stages
    assert kept("1f1b") == from_end
    assert kept("1f1b_deepspeed") == from_end
    assert max(kept("zb_h1")) == from_end[0]


def test_interleaved_keeps_the_chunks_that_megatron_lm_does() -> None:
    """(2 (P - i - 1) + (C - 1) P + 1) chunks: for P 4, C 2 that is 11, 9, 7, 5."""
    order = pipeline_order("interleaved", 4, 16, num_chunks=2)
    assert [max_in_flight(stage) for stage in order.stages] == [11, 9, 7, 5]


def test_a_million_instructions_are_made_in_order() -> None:
    stage = pipeline_order("1f1b", 2, 200_000).stages[0]
    assert len(stage) == 4 * 200_000
    assert stage.microbatch[-1] == 199_999


@pytest.mark.parametrize(
    ("schedule", "stages", "microbatches", "options", "sentence"),
    [
        ("1f1bb", 2, 2, {}, "unknown schedule '1f1bb'; did you mean '1f1b'"),
        ("1f1b", 0, 2, {}, "num_stages is 0; take at least 1"),
        ("1f1b", 2, 0, {}, "num_microbatches is 0; take at least 1"),
        ("1f1b", 2, 2, {"num_chunks": 2}, "'1f1b' has one chunk a stage, not 2"),
        ("interleaved", 4, 6, {"num_chunks": 2}, "6 microbatches don't divide by 4 stages"),
        ("forward_first", 2, 4, {}, "'forward_first' needs windows"),
        ("1f1b", 2, 4, {"windows": [2, 1]}, "'1f1b' has a fixed order and takes no windows"),
        ("forward_first", 2, 4, {"windows": [2]}, r"windows are \[2\] for 2 stages"),
        ("backward_first", 2, 4, {"windows": [2, 0]}, r"windows are \[2, 0\] for 2 stages"),
    ],
)
def test_what_can_not_be_is_refused(
    schedule: str, stages: int, microbatches: int, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        pipeline_order(schedule, stages, microbatches, **options)  # type: ignore[arg-type]
