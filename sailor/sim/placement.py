"""On which node each replica of a plan lies: stage after stage, nodes filled one after another.

That is the order in which training frameworks number their ranks (tensor parallelism innermost,
then data parallelism, then the pipeline), and what the renting check counts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from sailor.model.plan import Plan
from sailor.model.problem import Problem

Node = tuple[str, str, str, int]  # zone, node type, market, number


@dataclass(frozen=True)
class Placed:
    """Nodes by pipeline rank and pipeline."""

    nodes: tuple[tuple[Node, ...], ...]

    def together(self, pipeline: int, rank: int) -> bool:
        """Return whether a pipeline's rank and the next one (the last's is the first) share one."""
        following = (rank + 1) % len(self.nodes)
        return self.nodes[rank][pipeline] == self.nodes[following][pipeline]

    def pattern(self, pipeline: int) -> tuple[bool, ...]:
        """Return `together` for every rank: pipelines with one pattern are alike."""
        return tuple(self.together(pipeline, rank) for rank in range(len(self.nodes)))

    def sending_gpus(self, plan: Plan) -> Counter[Node]:
        """Return the GPUs of each node whose pipeline goes on (or comes from) elsewhere."""
        found: Counter[Node] = Counter()
        for rank in range(plan.pp - 1):
            for pipeline, replica in enumerate(plan.stages[rank].replicas):
                if not self.together(pipeline, rank):
                    found[self.nodes[rank][pipeline]] += replica.tp * plan.cp
        last = plan.pp - 1
        for pipeline, replica in enumerate(plan.stages[last].replicas):
            if last and not self.together(pipeline, last - 1):
                found[self.nodes[last][pipeline]] += replica.tp * plan.cp
        return found

    def reducing_gpus(self, plan: Plan) -> Counter[Node]:
        """Return the GPUs of each node that pass gradients on to another, all rings together."""
        found: Counter[Node] = Counter()
        for stage, nodes in zip(plan.ranks, self.nodes, strict=True):
            for replica, here, there in zip(
                stage.replicas, nodes, (*nodes[1:], nodes[0]), strict=True
            ):
                if here != there:
                    found[here] += replica.tp
        return found


def placed(problem: Problem, plan: Plan) -> Placed:
    """Return the nodes of a plan's replicas. A replica never lies on two nodes."""
    free: dict[tuple[str, str, str], tuple[int, int]] = {}  # node in use, GPUs left on it
    stages: list[tuple[Node, ...]] = []
    for stage in plan.ranks:
        found: list[Node] = []
        for replica in stage.replicas:
            place = (replica.zone, replica.node_type, str(replica.market))
            need = replica.tp * plan.cp
            number, left = free.get(place, (-1, 0))
            if left < need:
                number, left = number + 1, problem.node(replica.node_type).num_gpus
            free[place] = (number, left - need)
            found.append((*place, number))
        stages.append(tuple(found))
    return Placed(tuple(stages))
