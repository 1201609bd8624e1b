"""Worker kinds: the distinct ways in which one replica of a stage can be held."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sailor.model.hardware import Market
from sailor.model.plan import Plan, Replica
from sailor.model.problem import Problem


@dataclass(frozen=True, order=True)
class WorkerKind:
    """`tp` GPUs, `cp` times, of one node of `node_type` in `zone`, rented on `market`."""

    gpu: str
    zone: str
    market: Market
    node_type: str
    tp: int
    cp: int = 1

    @classmethod
    def of(cls, replica: Replica, cp: int = 1) -> WorkerKind:
        """Return the kind of a plan's replica."""
        return cls(replica.gpu, replica.zone, replica.market, replica.node_type, replica.tp, cp)

    @property
    def gpus(self) -> int:
        """Return the GPUs that one replica takes."""
        return self.tp * self.cp


def kinds_of_plan(plan: Plan) -> tuple[WorkerKind, ...]:
    """Return the distinct kinds of a plan, sorted."""
    return tuple(
        sorted({WorkerKind.of(r, plan.cp) for stage in plan.ranks for r in stage.replicas})
    )


def tp_degrees(problem: Problem, gpu: str) -> tuple[int, ...]:
    """Return the tensor-parallel degrees that a GPU type is profiled for."""
    return tuple(sorted({profile.tp for profile in problem.profiles if profile.gpu == gpu}))


def rentable_kinds(problem: Problem) -> tuple[WorkerKind, ...]:
    """Return every kind that the problem's placements and profiles allow, sorted."""
    found: list[WorkerKind] = []
    cp = problem.training.cp
    for placement in problem.placements:
        node = problem.node(placement.node_type)
        found.extend(
            WorkerKind(node.gpu, placement.zone, placement.market, node.name, tp, cp)
            for tp in tp_degrees(problem, node.gpu)
            if tp * cp <= node.num_gpus
        )
    return tuple(sorted(found))


def best_fitting_kinds(problem: Problem, kinds: Iterable[WorkerKind]) -> Sequence[WorkerKind]:
    """Keep, for each (GPU type, zone, market, tp, capacity), the smallest node shape.

    Shapes that draw on one quota differ for a replica in how many others share the node and its
    network card, and a little in price. The smallest shape that holds the replica shares with
    nobody; of equal ones the cheapest stays. Shapes with a node count of their own are separate
    resources and all stay.
    """
    price = {(p.zone, p.node_type, p.market): p for p in problem.placements}
    index = {key: i for i, key in enumerate(price)}
    groups: dict[tuple[object, ...], tuple[tuple[int, float, str], WorkerKind]] = {}
    for kind in kinds:
        key = (kind.zone, kind.node_type, kind.market)
        node = problem.node(kind.node_type)
        shared = tuple(
            number
            for number, capacity in enumerate(problem.capacities)
            if index[key] in capacity.placements
        )
        rank = (node.num_gpus, price[key].usd_per_hour, node.name)
        group = (kind.gpu, kind.zone, kind.market, kind.tp, shared)
        if group not in groups or rank < groups[group][0]:
            groups[group] = (rank, kind)
    return sorted(kind for _, kind in groups.values())
