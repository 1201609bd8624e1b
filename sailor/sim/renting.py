"""Which nodes a plan rents: replicas packed into nodes, counted against the pool."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sailor.model.estimate import NodeRental
from sailor.model.hardware import Market
from sailor.model.plan import Plan
from sailor.model.problem import Problem

_Place = tuple[str, str, Market]  # zone, node type, market


def nodes_needed(tp_degrees: Sequence[int], num_gpus: int) -> int:
    """Return how many nodes of `num_gpus` hold replicas of these degrees, one node each.

    First-fit decreasing: exact for degrees that divide one another (powers of two), an upper
    bound otherwise.
    """
    free: list[int] = []
    for tp in sorted(tp_degrees, reverse=True):
        for index, room in enumerate(free):
            if room >= tp:
                free[index] -= tp
                break
        else:
            free.append(num_gpus - tp)
    return len(free)


def _nodes_of_counts(counts: Counter[int], num_gpus: int) -> int:
    degrees = sorted(counts, reverse=True)
    if all(a % b == 0 for a, b in zip([num_gpus, *degrees], degrees, strict=False)):
        return -(-sum(tp * count for tp, count in counts.items()) // num_gpus)
    return nodes_needed([tp for tp, count in counts.items() for _ in range(count)], num_gpus)


def rentals(problem: Problem, plan: Plan) -> tuple[NodeRental, ...]:
    """Return the nodes that the plan rents, sorted by zone and type."""
    used: dict[_Place, Counter[int]] = {}
    for stage in plan.ranks:
        for replica in stage.replicas:
            place = (replica.zone, replica.node_type, replica.market)
            used.setdefault(place, Counter())[replica.tp * plan.cp] += 1
    prices = {(p.zone, p.node_type, p.market): p for p in problem.placements}
    found = []
    for place, counts in sorted(used.items()):
        node = problem.node(place[1])
        count = _nodes_of_counts(counts, node.num_gpus)
        placement = prices[place]
        found.append(
            NodeRental(
                zone=place[0],
                node_type=node.name,
                market=place[2],
                gpu=node.gpu,
                count=count,
                gpus_used=sum(gpus * number for gpus, number in counts.items()),
                gpus_rented=count * node.num_gpus,
                usd_per_hour=count * placement.usd_per_hour,
                price_source=placement.price_source,
            )
        )
    return tuple(found)


def capacity_violations(problem: Problem, nodes: Sequence[NodeRental]) -> list[str]:
    """Return one sentence for every capacity that the rented nodes exceed."""
    rented = {(node.zone, node.node_type, node.market): node for node in nodes}
    found = []
    for capacity in problem.capacities:
        places = [problem.placements[index] for index in capacity.placements]
        mine = [
            rented[place.zone, place.node_type, place.market]
            for place in places
            if (place.zone, place.node_type, place.market) in rented
        ]
        num_nodes = sum(node.count for node in mine)
        num_gpus = sum(node.gpus_rented for node in mine)
        if capacity.max_nodes is not None and num_nodes > capacity.max_nodes:
            found.append(f"{capacity.label}: uses {num_nodes} nodes of {capacity.max_nodes}")
        if capacity.max_gpus is not None and num_gpus > capacity.max_gpus:
            found.append(f"{capacity.label}: uses {num_gpus} GPUs of {capacity.max_gpus}")
    return found
