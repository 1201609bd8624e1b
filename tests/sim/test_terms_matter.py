"""Every term of the `sailor` model matters: broken by 1 % or left out, a hand-made sum is missed.

`pencil_sums.CHECKS` compare estimates with figures that were added up by hand; each breakage must
make the check that is named beside it fail.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from pencil_sums import CHECKS

from sailor.errors import InputError
from sailor.sim.memory_tables import Margin, MemoryTables, Sharing, Slack, StateTable
from sailor.sim.native import SailorModel
from sailor.sim.native_sync import FullyShardedGather, NodeSharedSync
from sailor.sim.network import LinkTable
from sailor.sim.tables import SharedUpdate, StageTables


@pytest.mark.parametrize("name", CHECKS)
def test_the_unbroken_model_gives_the_hand_made_sums(name: str) -> None:
    CHECKS[name]()


Change = Callable[[StageTables], StageTables]

# Fields by the record that holds them: which check misses the field times 0 and times 1.01.
SCALED: dict[type, dict[str, str]] = {
    StageTables: {
        "compute_prefix_s": "measured", "host_prefix_s": "modelled", "stage_s": "modelled",
        "update_s": "modelled", "update_prefix_s": "modelled", "size_bytes": "measured",
        "send_s": "measured", "blocked_s": "measured", "egress_usd_per_byte": "measured",
        "tied_send_s": "tied", "tied_update_s": "tied",
    },
    SharedUpdate: {"dense_prefix_s": "sharded", "experts_prefix_s": "experts"},
    MemoryTables: {
        "activations_prefix_bytes": "measured", "received_bytes": "frameworks",
        "block_transient_bytes": "modelled", "head_transient_bytes": "measured",
        "head_freed_bytes": "fully_sharded", "boundary_bytes": "measured",
        "ends_bytes": "fully_sharded",
        "reserve_bytes": "measured", "capacity_bytes": "measured", "tied_share": "tied",
    },
    NodeSharedSync: {
        "gradient_prefix_bytes": "measured", "experts_prefix_bytes": "experts",
        "tied_bytes": "tied", "node_bytes_per_s": "cluster", "step_s": "cluster",
        "rank_s": "frameworks", "weights_share": "sharded",
    },
    LinkTable: {"latency_s": "measured"},
    FullyShardedGather: {
        "unit_bytes_prefix": "fully_sharded", "blocks_prefix": "fully_sharded",
        "link": "fully_sharded", "node_nics": "fully_sharded", "step_s": "fully_sharded",
        "block_rank_s": "fully_sharded", "power": "fully_sharded",
    },
}  # fmt: skip
ALLOWANCES = {
    "slack states": "deepspeed", "slack moving": "modelled", "margin states": "measured",
    "margin moving": "measured", "margin fixed_bytes": "measured",
}  # fmt: skip
STATES = {  # (part, field)
    ("parameters", "dense_prefix_bytes"): "modelled",
    ("gradients", "dense_prefix_bytes"): "modelled",
    ("optimizer", "dense_prefix_bytes"): "modelled",
    ("communication", "dense_prefix_bytes"): "measured",
    ("parameters", "experts_prefix_bytes"): "experts",
    ("gradients", "experts_prefix_bytes"): "experts",
    ("optimizer", "experts_prefix_bytes"): "experts",
}
# Fields that OTHER_TABLES below breaks in ways of their own: counts, groups, switches.
OTHERWISE: dict[type, set[str]] = {
    StageTables: {
        "memory", "sync", "gather", "shared_update", "forward_size", "backward_size",
        "short_pipeline_factor", "gradient_prefix_bytes",
    },
    MemoryTables: {"states", "sharing", "in_flight_capped", "slack", "margin"},
    Sharing: {"cp", "group", "experts_factor"},
    StateTable: {"dense_prefix_bytes", "experts_prefix_bytes", "shared"},
    Slack: {"states", "moving"},
    Margin: {"states", "moving", "fixed_bytes"},
    NodeSharedSync: {"links", "experts_spread", "experts_by_rank", "cp", "replicas_in_node",
                     "weights_group"},
    LinkTable: {"coefficients", "peak", "known"},
    FullyShardedGather: {"stride", "gpus_per_node", "passes", "cp", "group"},
}  # fmt: skip
# No terms, and why not.
NO_TERM: dict[type, dict[str, str]] = {
    StageTables: {
        "kinds": "what the rows are about",
        "microbatch": "what the tables are about",
        "num_units": "the length of the prefix arrays",
        "usable": "whether a row is known at all; tests/solve says what planners do with it",
        "tp": "says how a message is cut, which `sync` and `send_s` are broken for; GPUs that are "
        "rented are counted from the plan",
        "usd_per_gpu_hour": "ranks plans; an estimate's rent is that of whole nodes",
        "coupled": "cost model `published`, held by its judge's figures",
    },
    MemoryTables: {
        "_kept": "sums of `states`", "_dense": "sums of `states`", "_experts": "sums of `states`",
    },
    StateTable: {"name": "a label"},
    LinkTable: {
        "min_bytes": "the range of a measured curve: tests/sim/test_network_tables.py",
        "max_bytes": "the range of a measured curve: tests/sim/test_network_tables.py",
        "assumed": "of shared cards: tests/sim/test_network_tables.py",
    },
}  # fmt: skip


def test_every_field_of_the_tables_is_broken_or_named_as_no_term() -> None:
    records = (
        StageTables, SharedUpdate, MemoryTables, Sharing, Slack, Margin, StateTable,
        NodeSharedSync, LinkTable, FullyShardedGather,
    )  # fmt: skip
    for record in records:
        scaled, other, none = (
            set(known.get(record, {})) for known in (SCALED, OTHERWISE, NO_TERM)
        )  # fmt: skip
        assert not scaled & other, record
        assert not (scaled | other) & none, record
        assert {field.name for field in fields(record)} == scaled | other | none, record
    parts = {"slack": fields(Slack), "margin": fields(Margin)}
    assert {f"{kind} {field.name}" for kind, own in parts.items() for field in own} == set(
        ALLOWANCES
    )


def _inner(tables: StageTables, record: type) -> Any:
    """Return the part of the tables that is a record of this type, None where there is none."""
    memory = tables.memory
    for part in (tables, memory, memory.sharing, tables.sync, tables.gather, tables.shared_update):
        if type(part) is record:
            return part
    return tables.sync.links if record is LinkTable else None  # type: ignore[attr-defined]


def _with(tables: StageTables, **changes: Any) -> StageTables:
    return replace(tables, **changes)


def _put(tables: StageTables, part: Any) -> StageTables:
    """Return the tables with another record in the place of its type."""
    match part:
        case StageTables():
            return part
        case MemoryTables():
            return _with(tables, memory=part)
        case Sharing():
            return _with(tables, memory=replace(tables.memory, sharing=part))
        case NodeSharedSync():
            return _with(tables, sync=part)
        case LinkTable():
            return _with(tables, sync=replace(tables.sync, links=part))  # type: ignore[type-var]
        case FullyShardedGather():
            return _with(tables, gather=part)
        case _:
            return _with(tables, shared_update=part)


def _changed(record: type, name: str, change: Callable[[Any], Any]) -> Change:
    """Return the tables with one field changed, wherever the record is there."""

    def broken(tables: StageTables) -> StageTables:
        part = _inner(tables, record)
        old = None if part is None else getattr(part, name)
        return tables if old is None else _put(tables, replace(part, **{name: change(old)}))

    return broken


def _times(factor: float) -> Callable[[Any], Any]:
    return lambda value: factor * value


def _allowance(which: str, name: str, change: Callable[[Any], Any]) -> Change:
    return _changed(
        MemoryTables, which, lambda own: replace(own, **{name: change(getattr(own, name))})
    )


def _state(part: str, name: str, change: Callable[[Any], Any]) -> Change:
    def broken(states: tuple[StateTable, ...]) -> tuple[StateTable, ...]:
        return tuple(
            replace(own, **{name: change(getattr(own, name))}) if own.name == part else own
            for own in states
        )

    return _changed(MemoryTables, "states", broken)


class _StepsMissed:
    """An all-reduce that forgets half of its steps: it scatters and never gathers."""

    def __init__(self, whole: Any) -> None:
        self.whole = whole

    def seconds(self, *arguments: Any) -> Any:
        return 0.5 * self.whole.seconds(*arguments)


def _largest(sizes: Any) -> Any:
    return np.full_like(sizes, sizes.max() if sizes.max() > 0 else 1)


def _other_way(send_s: Any) -> Any:
    return send_s.transpose(0, 2, 1)


OTHER_TABLES: dict[str, tuple[Change, str]] = {
    "all-reduce bandwidth": (
        lambda tables: _changed(LinkTable, "peak", _times(1.01))(
            _changed(LinkTable, "coefficients", _times(1.01))(tables)
        ),
        "measured",
    ),
    "all-reduce over no link": (_changed(LinkTable, "known", np.zeros_like), "measured"),
    "all-reduce steps": (_changed(StageTables, "sync", _StepsMissed), "measured"),
    "one ring for all experts": (
        _changed(NodeSharedSync, "experts_spread", lambda _: 1.0), "experts",
    ),
    "weights are not gathered apart": (
        _changed(NodeSharedSync, "weights_group", lambda _: None), "sharded",
    ),
    "weights are gathered one by one": (
        _changed(NodeSharedSync, "weights_group", lambda _: 1), "sharded",
    ),
    "experts are split as their replicas": (
        _changed(NodeSharedSync, "experts_by_rank", lambda _: False), "whole_experts",
    ),
    "sequences reduce nothing": (_changed(NodeSharedSync, "cp", lambda _: 1), "context"),
    "no replicas side by side": (
        _changed(NodeSharedSync, "replicas_in_node", lambda held: held // 4), "cluster",
    ),
    "any number side by side": (
        _changed(NodeSharedSync, "replicas_in_node", lambda held: 3 * held), "cluster",
    ),
    "egress of gradients": (
        _changed(StageTables, "gradient_prefix_bytes", _times(1.01)), "across_zones",
    ),
    "receivers never wait": (_changed(StageTables, "blocked_s", lambda _: None), "measured"),
    "forward message": (_changed(StageTables, "forward_size", _largest), "measured"),
    "backward message": (_changed(StageTables, "backward_size", _largest), "measured"),
    "sends go the other way": (_changed(StageTables, "send_s", _other_way), "measured"),
    "waits are for the other way": (_changed(StageTables, "blocked_s", _other_way), "measured"),
    "the first stage sends once": (
        _changed(StageTables, "short_pipeline_factor", lambda _: (4, 1.0)), "measured",
    ),
    "in flight without a cap": (
        _changed(MemoryTables, "in_flight_capped", lambda _: False), "measured",
    ),
    "sequences share no states": (_changed(Sharing, "cp", lambda _: 1), "context"),
    "all ranks share an expert": (_changed(Sharing, "experts_factor", _times(2)), "experts"),
    "no ranks share an expert": (_changed(Sharing, "experts_factor", _times(0)), "experts"),
    "no group shares": (_changed(Sharing, "group", lambda _: 1), "sharded"),
    "no weights gathered": (_changed(StageTables, "gather", lambda _: None), "fully_sharded"),
    "no step shared": (_changed(StageTables, "shared_update", lambda _: None), "sharded"),
    "gather with a stride": (_changed(FullyShardedGather, "stride", _times(2)), "fully_sharded"),
    "gather on larger nodes": (
        _changed(FullyShardedGather, "gpus_per_node", _times(2)), "fully_sharded",
    ),
    "a gather less": (_changed(FullyShardedGather, "passes", lambda n: n - 1), "fully_sharded"),
    "gather without sequences": (_changed(FullyShardedGather, "cp", lambda _: 1), "fully_sharded"),
    "gather over all": (_changed(FullyShardedGather, "group", lambda _: None), "fully_sharded"),
    "parameters are whole": (_state("parameters", "shared", lambda _: False), "fully_sharded"),
    "gradients are whole": (_state("gradients", "shared", lambda _: False), "sharded"),
    "moments are whole": (_state("optimizer", "shared", lambda _: False), "sharded"),
    "the flat copy is shared": (_state("communication", "shared", lambda _: True), "measured"),
}  # fmt: skip
BROKEN_TABLES: dict[str, tuple[Change, str]] = {
    **{
        f"{record.__name__}.{name} x {factor}": (_changed(record, name, _times(factor)), check)
        for record, names in SCALED.items()
        for name, check in names.items()
        for factor in (0.0, 1.01)
        if (name, factor) != ("power", 0.0)  # no power at all is no number
    },
    **{
        f"{name} x {factor}": (_allowance(*name.split(), _times(factor)), check)
        for name, check in ALLOWANCES.items()
        for factor in (0.0, 1.01)
    },
    **{
        f"{part} {name} x {factor}": (_state(part, name, _times(factor)), check)
        for (part, name), check in STATES.items()
        for factor in (0.0, 1.01)
    },
    **OTHER_TABLES,
}


@pytest.mark.parametrize("name", BROKEN_TABLES)
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_a_broken_table_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, (change, check) = SailorModel.tables, BROKEN_TABLES[name]
    monkeypatch.setattr(
        SailorModel, "tables", lambda self, *arguments: change(whole(self, *arguments))
    )
    with pytest.raises((AssertionError, InputError)):
        CHECKS[check]()
