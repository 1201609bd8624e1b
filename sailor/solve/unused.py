"""What a plan leaves of the pool: offers that it rents nothing of, or not all of."""

from __future__ import annotations

from sailor.model.estimate import Estimate
from sailor.model.problem import Problem


def left_unused(problem: Problem, found: Estimate) -> tuple[str, ...]:
    """Return a sentence for each offer of which nodes or GPUs are left.

    Of offers that share a machine shape the rented nodes count for each.
    """
    rented: dict[tuple[str, str, str], tuple[int, int]] = {}
    for node in found.nodes:
        key = (node.zone, node.node_type, str(node.market))
        nodes, gpus = rented.get(key, (0, 0))
        rented[key] = (nodes + node.count, gpus + node.gpus_rented)
    sentences: list[str] = []
    for capacity in problem.capacities:
        places = [problem.placements[number] for number in capacity.placements]
        used = [
            rented.get((place.zone, place.node_type, str(place.market)), (0, 0)) for place in places
        ]
        for what, have, taken in (
            ("nodes", capacity.max_nodes, sum(nodes for nodes, _ in used)),
            ("GPUs", capacity.max_gpus, sum(gpus for _, gpus in used)),
        ):
            if have is not None and taken < have:
                sentences.append(f"{capacity.label}: {have - taken} of {have} {what}")
    return tuple(sentences)
