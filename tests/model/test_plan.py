"""Plans: schedules, chunks, degrees, and what can't be."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from sailor.model.plan import Plan


def stage(start: int, stop: int, *zones: str, count: int = 4) -> dict[str, Any]:
    each = {"gpu": "g", "node_type": "n", "tp": 2, "microbatch": 1, "num_microbatches": count}
    return {"start": start, "stop": stop, "replicas": [{**each, "zone": zone} for zone in zones]}


def plan(*stages: dict[str, Any], **fields: Any) -> Plan:
    return Plan.model_validate(
        {"model": "m", "num_units": 8, "global_batch": 4, "stages": stages, **fields}
    )


def test_a_plain_plan_is_1f1b_with_a_rank_for_every_stage() -> None:
    own = plan(stage(0, 5, "a", "b"), stage(5, 8, "a", "b"))
    assert (own.schedule, own.vpp, own.cp, own.zero, own.recompute) == ("1f1b", 1, 1, None, None)
    assert (own.pp, own.dp, own.ranks) == (2, 2, own.stages)
    assert (own.num_gpus, own.samples) == (8, 8)


def test_chunks_of_a_rank_are_on_its_workers_and_count_once() -> None:
    """Four chunks on two ranks: chunk 2 is on the workers of chunk 0, chunk 3 on those of 1."""
    ends = ((0, 2), (2, 4), (4, 6), (6, 8))
    chunks = [stage(*span, zone) for span, zone in zip(ends, "abab", strict=True)]
    own = plan(*chunks, schedule="interleaved", vpp=2, cp=2)
    assert (own.pp, own.dp) == (2, 1)
    assert own.ranks == own.stages[:2]
    assert own.num_gpus == 2 * 2 * 2  # two ranks of tp 2 x cp 2
    assert own.samples == 4


@pytest.mark.parametrize(
    ("zones", "fields", "sentence"),
    [
        ("ab", {"vpp": 2}, "schedule 1f1b with vpp 2: an interleaved pipeline has vpp above 1"),
        ("ab", {"schedule": "interleaved"}, "schedule interleaved with vpp 1"),
        ("ab", {"schedule": "gpipe", "vpp": 2}, "schedule gpipe with vpp 2"),
        ("abc", {"schedule": "interleaved", "vpp": 2}, "3 chunks don't divide over vpp 2"),
        (
            "abba", {"schedule": "interleaved", "vpp": 2},
            "chunk 2 lies on the workers of chunk 0, but names other replicas",
        ),
        ("ab", {"schedule": "zb_h1"}, "Input should be '1f1b', 'gpipe' or 'interleaved'"),
        ("ab", {"cp": 0}, "greater than or equal to 1"),
        ("ab", {"zero": 4}, "Input should be 0, 1, 2 or 3"),
        ("ab", {"recompute": "half"}, "Input should be 'none', 'selective', 'operators' or 'full'"),
    ],
)  # fmt: skip
def test_what_can_not_be_is_refused(zones: str, fields: dict[str, Any], sentence: str) -> None:
    last = len(zones) - 1
    stages = [
        stage(2 * place, 8 if place == last else 2 * place + 2, zone)
        for place, zone in enumerate(zones)
    ]
    with pytest.raises(ValidationError, match=re.escape(sentence)):
        plan(*stages, **fields)


def test_interleaving_takes_multiples_of_the_ranks() -> None:
    chunks = [stage(2 * place, 2 * place + 2, zone, count=3) for place, zone in enumerate("abab")]
    with pytest.raises(ValidationError, match="2 ranks needs microbatch counts that are"):
        plan(*chunks, schedule="interleaved", vpp=2)
    # gpipe takes any.
    assert plan(*chunks, schedule="gpipe").pp == 4
