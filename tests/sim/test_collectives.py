"""Rings over links and shared NICs, by hand."""

from __future__ import annotations

import pytest

from sailor.sim.collectives import Wires, allreduce_s, exchange_s, gather_s, group_of, send_s

WIRES = Wires(link=200e9, node_nics=50e9, link_step_s=15e-6)


def test_all_reduce_inside_a_node() -> None:
    # 8 ranks: 2 * 7/8 of 1 GB at 200 GB/s, and three doublings of 15 us.
    group = group_of(8, 1, 8)
    assert allreduce_s(1e9, group, WIRES) == pytest.approx(1.75 * 1e9 / 200e9 + 45e-6)
    assert gather_s(1e9, group, WIRES) == pytest.approx(0.875 * 1e9 / 200e9 + 45e-6)


def test_one_rank_sends_nothing() -> None:
    assert allreduce_s(1e9, group_of(1, 1, 8), WIRES) == 0.0
    assert allreduce_s(0.0, group_of(8, 1, 8), WIRES) == 0.0


def test_tensor_parallel_group_over_two_nodes_is_bound_by_the_nics() -> None:
    group = group_of(16, 1, 8)
    assert (group.ranks_in_node, group.groups_per_node) == (8, 1)
    expected = 2 * 15 / 16 * 1e9 / 50e9 + 60e-6
    assert allreduce_s(1e9, group, WIRES) == pytest.approx(expected)


def test_data_parallel_groups_of_a_node_share_its_nics() -> None:
    # tp 8: every GPU of a node belongs to another data-parallel group over 16 nodes.
    group = group_of(16, 8, 8)
    assert (group.ranks_in_node, group.groups_per_node) == (1, 8)
    expected = 2 * 15 / 16 * 1e9 * 8 / 50e9 + 4 * 60e-6
    assert allreduce_s(1e9, group, WIRES) == pytest.approx(expected)


def test_with_tp_2_four_groups_share() -> None:
    group = group_of(16, 2, 8)
    assert (group.ranks_in_node, group.groups_per_node) == (4, 2)


def test_a_group_of_four_single_gpu_nodes_is_between_nodes() -> None:
    group = group_of(4, 1, 1)
    assert group.ranks_in_node == 1
    assert allreduce_s(1e9, group, WIRES) > 2 * 3 / 4 * 1e9 / 50e9


def test_an_exchange_leaves_its_own_share_at_home() -> None:
    # 4 ranks of a node: 3/4 of what each sends. 16 ranks over two nodes: half leaves the node, and
    # its 8 GPUs send at once.
    inside = exchange_s(1e9, group_of(4, 1, 8), WIRES)
    assert inside == pytest.approx(0.75 * 1e9 / 200e9 + 30e-6)
    across = exchange_s(1e9, group_of(16, 1, 8), WIRES)
    assert across == pytest.approx(0.5 * 1e9 * 8 / 50e9 + 60e-6)
    assert exchange_s(1e9, group_of(1, 1, 8), WIRES) == 0.0


def test_sends_share_the_nics() -> None:
    assert send_s(1e9, 8, WIRES, across=True) == pytest.approx(1e-4 + 8 * 1e9 / 50e9)
    assert send_s(1e9, 8, WIRES, across=False) == pytest.approx(1e-4 + 1e9 / 200e9)
