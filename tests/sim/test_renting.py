"""Packing replicas into nodes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sailor.sim.renting import _nodes_of_counts, nodes_needed


@given(
    tps=st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=40),
    gpus=st.sampled_from([8, 16]),
)
def test_powers_of_two_pack_without_loss(tps: list[int], gpus: int) -> None:
    assert nodes_needed(tps, gpus) == -(-sum(tps) // gpus) == _nodes_of_counts(Counter(tps), gpus)


def test_three_and_six_in_nodes_of_eight() -> None:
    """6 + 6 + 3 + 3: the threes fit beside nothing of six, so they share a third node."""
    assert nodes_needed([6, 6, 3, 3], 8) == 3
    assert _nodes_of_counts(Counter({6: 2, 3: 2}), 8) == 3
