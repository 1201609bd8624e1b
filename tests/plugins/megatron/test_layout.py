"""Layout, sync groups, routes and transfers: every element once, the same on every rank."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan, Stage
from sailor_megatron.layout import PlanLayout, Shard, cuts, unit_tensors
from sailor_megatron.routes import routes
from sailor_megatron.sync_groups import sync_groups
from sailor_megatron.transfer import transfers

sys.path.insert(0, str(Path(__file__).parent))
from layout_strategies import layouts, replica, small_model, two_plans

GPT = ModelSpec(
    name="gpt", num_layers=2, hidden=12, ffn=48, num_heads=6, num_kv_heads=6, head_dim=2,
    vocab=40, seq_len=8, max_positions=8,
)  # fmt: skip


def two_stages(first: list[int], second: list[int], spec: ModelSpec = GPT) -> Plan:
    rows = [(0, 2, first), (2, 4, second)]
    return Plan(
        model=spec.name, num_units=4, global_batch=len(first),
        stages=tuple(
            Stage(start=a, stop=b, replicas=tuple(replica(tp, 1, 1) for tp in tps))
            for a, b, tps in rows
        ),
    )  # fmt: skip


def test_seven_granules_over_three_ranks_are_three_two_two() -> None:
    assert cuts(14, 2, 3) == (0, 6, 10, 14)


def test_a_block_has_the_parameters_that_the_model_record_counts() -> None:
    for spec in (GPT, GPT.model_copy(update={"gated_mlp": True, "norm": "rmsnorm"})):
        sizes = [tensor.extent * tensor.row_elements for tensor in unit_tensors(spec, 1)]
        assert sum(sizes) == spec.unit_params("block")


def test_tp_2_and_tp_3_meet_at_the_union_of_their_boundaries() -> None:
    """6 heads of 2 columns: tp 2 cuts at 6, tp 3 at 4 and 8; ranks 0, 1 and 2, 3, 4."""
    layout = PlanLayout(GPT, two_stages([2, 3], [1, 1]))
    name = "blocks.0.attention.query.weight"
    found = {
        (atom.lo, atom.hi): group.ranks
        for group in sync_groups(layout)
        for atom in group.atoms
        if atom.name == name
    }
    assert found == {(0, 4): (0, 2), (4, 6): (0, 3), (6, 8): (1, 3), (8, 12): (1, 4)}


def test_whole_tensors_are_summed_once_by_all_their_holders() -> None:
    layout = PlanLayout(GPT, two_stages([2, 1], [1, 1]))
    norm = Shard("blocks.0.attention_norm.weight", 0, 12)
    (group,) = [group for group in sync_groups(layout) if norm in group.atoms]
    assert (group.ranks, group.whole) == ((0, 1, 2), True)


def test_a_tied_table_is_summed_over_first_and_last_stage() -> None:
    spec = GPT.model_copy(update={"tied_embeddings": True})
    layout = PlanLayout(spec, two_stages([1, 1], [2, 1], spec))
    found = {
        (atom.lo, atom.hi): group.ranks
        for group in sync_groups(layout)
        for atom in group.atoms
        if atom.name == "embedding.weight"
    }
    assert found == {(0, 20): (0, 1, 2, 4), (20, 40): (0, 1, 3, 4)}


@given(layouts())
@settings(max_examples=150)
def test_shards_tile_every_tensor_in_every_replica(case: tuple[ModelSpec, Plan]) -> None:
    layout = PlanLayout(*case)
    assert [worker.rank for worker in layout.workers] == list(range(layout.plan.num_gpus))
    for tensor in layout.tensors.values():
        for holder in layout.holders[tensor.name]:
            shards = [layout.shard(tensor, layout.workers[rank]) for rank in holder.ranks]
            if tensor.dim is None:
                assert {(shard.lo, shard.hi) for shard in shards} == {(0, tensor.extent)}
                continue
            edges = [shards[0].lo, *(shard.hi for shard in shards)]
            if tensor.readers == 1 or len(holder.ranks) <= tensor.extent // tensor.granule:
                assert [shard.lo for shard in shards] == edges[:-1]
            else:  # more ranks than key-value heads: neighbours share some
                assert all(a.lo <= b.lo <= a.hi <= b.hi for a, b in pairwise(shards))
            assert (edges[0], edges[-1]) == (0, tensor.extent)
            assert all(shard.hi > shard.lo for shard in shards)
            whole = tensor.parts == 1 or len(holder.ranks) <= tensor.extent // tensor.granule
            fine = tensor.granule if whole else tensor.granule // tensor.parts
            assert all(edge % fine == 0 for edge in edges)


@given(layouts())
@settings(max_examples=150)
def test_every_element_is_summed_once_over_one_rank_of_each_replica(
    case: tuple[ModelSpec, Plan],
) -> None:
    layout = PlanLayout(*case)
    covered: Counter[tuple[str, int]] = Counter()
    for group in sync_groups(layout):
        assert list(group.ranks) == sorted(set(group.ranks))
        for atom in group.atoms:
            tensor = layout.tensors[atom.name]
            covered.update((atom.name, index) for index in range(atom.lo, atom.hi))
            weight = Counter[tuple[int, int]]()
            for rank in group.ranks:
                worker = layout.workers[rank]
                held = layout.shard(tensor, worker)
                assert held.lo <= atom.lo
                assert atom.hi <= held.hi
                parts = 12 // worker.tp if group.whole else 12
                weight[worker.stage, worker.replica] += parts
            holders = {(h.stage, h.replica): len(h.ranks) for h in layout.holders[atom.name]}
            if tensor.readers == 1:
                assert weight == dict.fromkeys(holders, 12)  # in twelfths: exactly one each
                continue
            # Of a replica every rank that holds the head adds the gradient of its own queries.
            assert weight == {
                key: 12 * sum(lo <= atom.lo < hi for lo, hi in tensor.pieces(tp))
                for key, tp in holders.items()
            }
    assert set(covered.values()) == {1}
    assert len(covered) == sum(tensor.extent for tensor in layout.tensors.values())


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 50))
def test_routes_bring_each_element_once(senders: int, receivers: int, num_elements: int) -> None:
    found = routes(range(senders), range(10, 10 + receivers), num_elements)
    elements = [index for route in found for index in range(route.lo, route.hi)]
    assert sorted(elements) == list(range(num_elements))
    size = -(-num_elements // receivers)
    for route in found:
        assert size * (route.dst - 10) <= route.lo
        assert route.hi <= size * (route.dst - 10 + 1)


def test_routes_of_equal_degrees_go_straight() -> None:
    assert [(r.src, r.dst) for r in routes((0, 1), (2, 3), 8)] == [(0, 2), (1, 3)]


@given(two_plans())
@settings(max_examples=150)
def test_transfers_fill_every_new_shard_from_who_has_it(
    case: tuple[ModelSpec, Plan, Plan, list[int | None]],
) -> None:
    spec, old_plan, new_plan, was = case
    old, new = PlanLayout(spec, old_plan), PlanLayout(spec, new_plan)
    found = transfers(old, new, was)
    assert found == transfers(old, new, dict(enumerate(was)))
    got: Counter[tuple[int, str, int]] = Counter()
    for move in found.moves:
        assert move.src in was
        held = old.shard(old.tensors[move.piece.name], old.workers[move.src])
        assert move.piece.name in {shard.name for shard in old.shards(move.src)}
        assert held.lo <= move.piece.lo
        assert move.piece.hi <= held.hi
        assert move.local == (was[move.dst] == move.src)
        got.update((move.dst, move.piece.name, i) for i in range(move.piece.lo, move.piece.hi))
    survivors = {rank for rank in was if rank is not None}
    for lost in found.lost:
        for rank in survivors:
            for shard in old.shards(rank):
                apart = shard.hi <= lost.piece.lo or lost.piece.hi <= shard.lo
                assert shard.name != lost.piece.name or apart
        got.update((lost.dst, lost.piece.name, i) for i in range(lost.piece.lo, lost.piece.hi))
    wanted = {
        (worker.rank, shard.name, index)
        for worker in new.workers
        for shard in new.shards(worker.rank)
        for index in range(shard.lo, shard.hi)
    }
    assert set(got) == wanted
    assert set(got.values()) == {1}


def test_the_same_plan_moves_nothing() -> None:
    layout = PlanLayout(GPT, two_stages([2, 3], [1, 4]))
    found = transfers(layout, layout, list(range(layout.plan.num_gpus)))
    assert all(move.local for move in found.moves)
    assert found.lost == ()


def test_a_dead_stage_is_lost_and_a_dead_replica_is_not() -> None:
    layout = PlanLayout(GPT, two_stages([1, 1], [1, 1]))
    one_replica = PlanLayout(GPT, two_stages([1], [1]))
    assert transfers(layout, one_replica, [1, 3]).lost == ()
    names = {lost.piece.name for lost in transfers(layout, one_replica, [0, 1]).lost}
    assert names == {tensor.name for tensor in layout.stage_tensors(1)}


def test_four_ranks_share_two_key_value_heads_of_three_queries_each() -> None:
    """Six query heads over four ranks are 2, 2, 1, 1: the second rank's are of both groups."""
    spec = GPT.model_copy(update={"num_kv_heads": 2})
    query, key = (
        next(t for t in unit_tensors(spec, 1) if t.name == f"blocks.0.attention.{kind}.weight")
        for kind in ("query", "key")
    )
    assert query.pieces(4) == ((0, 4), (4, 8), (8, 10), (10, 12))
    assert key.pieces(4) == ((0, 2), (0, 4), (2, 4), (2, 4))
    assert query.pieces(2) == ((0, 6), (6, 12))
    assert key.pieces(2) == ((0, 2), (2, 4))


def test_chunks_of_an_interleaved_plan_lie_on_the_same_workers() -> None:
    row = (replica(2, 1, 2), replica(1, 1, 2)), (replica(1, 1, 2), replica(3, 1, 2))
    plan = Plan(
        model="gpt", num_units=4, global_batch=4, schedule="interleaved", vpp=2,
        stages=tuple(Stage(start=i, stop=i + 1, replicas=row[i % 2]) for i in range(4)),
    )  # fmt: skip
    layout = PlanLayout(GPT, plan)
    assert [(w.stage, w.replica, w.tp_rank) for w in layout.workers] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 1, 2),
    ]  # fmt: skip
    assert layout.chunks(1) == (1, 3)
    held = {name for name, holders in layout.holders.items() if {h.stage for h in holders} == {0}}
    assert "embedding.weight" in held
    assert "blocks.1.mlp.up.weight" in held
    assert "blocks.0.mlp.up.weight" not in held


def test_what_this_runtime_does_not_run_is_refused() -> None:
    plan = two_stages([1], [1])
    for changes, sentence in (
        ({"cp": 2}, r"splits sequences \(cp 2\), which this runtime does not run"),
        ({"zero": 3}, "has zero 3"),
    ):
        with pytest.raises(InputError, match=sentence):
            PlanLayout(GPT, plan.model_copy(update=changes))


def test_a_tp_with_more_ranks_than_heads_is_refused() -> None:
    with pytest.raises(InputError, match="tp 7 is more than gpt can be cut into"):
        PlanLayout(GPT, two_stages([7], [1]))
    with pytest.raises(InputError, match="4 units and gpt has 5"):
        PlanLayout(GPT.model_copy(update={"num_layers": 3}), two_stages([1], [1]))


def test_small_models_are_valid() -> None:
    import random

    assert {small_model(random.Random(seed)).name for seed in range(20)} == {"gpt", "opt", "llama"}
