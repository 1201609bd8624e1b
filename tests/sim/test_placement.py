"""On which node replicas lie, and which of them send through its card."""

from __future__ import annotations

from event_problem import plan, problem

from sailor.model.problem import Problem
from sailor.sim.placement import placed


def numbers(the_problem: Problem, *stages: list[tuple[str, int]], cp: int = 1) -> list[list[int]]:
    """Return the nodes' numbers by stage; the model has six units."""
    units = [1] * (len(stages) - 1) + [7 - len(stages)]
    own = plan(*zip(units, stages, strict=True), counts=[4] * len(stages[0]))
    homes = placed(the_problem, own.model_copy(update={"cp": cp}))
    return [[node[3] for node in stage] for stage in homes.nodes]


def test_nodes_are_filled_stage_after_stage() -> None:
    """Three of 2 GPUs in two stages: 6 + 2 GPUs of the first node of 8, 4 of the second."""
    three = [("fast-8", 2)] * 3
    assert numbers(problem(), three, three) == [[0, 0, 0], [0, 1, 1]]


def test_a_replica_never_lies_on_two_nodes() -> None:
    """Nodes of 4: the second replica of 2 fits beside the first of 1, one of 4 starts a node."""
    assert numbers(problem(), [("fast-4", 1)], [("fast-4", 2)], [("fast-4", 4)]) == [[0], [0], [1]]
    # Context parallelism doubles what a replica takes.
    pair = [("fast-4", 2)] * 2
    assert numbers(problem(), pair) == [[0, 0]]
    assert numbers(problem(), pair, cp=2) == [[0, 1]]


def test_types_of_nodes_are_filled_on_their_own() -> None:
    mixed = [("fast-4", 2), ("slow-2", 2), ("fast-4", 2)]
    own = plan((6, mixed), counts=[4] * 3)
    assert placed(problem(), own).nodes == (
        (
            ("z", "fast-4", "on_demand", 0),
            ("z", "slow-2", "on_demand", 0),
            ("z", "fast-4", "on_demand", 0),
        ),
    )


def test_who_sends_and_who_reduces_through_a_card() -> None:
    """Two stages of three replicas of 2 GPUs on nodes of 8: see the first test."""
    three = [("fast-8", 2)] * 3
    own = plan((3, three), (3, three), counts=[4] * 3)
    homes = placed(problem(), own)
    first, second = (("z", "fast-8", "on_demand", number) for number in (0, 1))
    assert homes.pattern(0) == (True, True)
    assert homes.pattern(1) == homes.pattern(2) == (False, False)
    # Pipelines 1 and 2 leave the first node for the second: 2 x 2 GPUs at either end.
    assert homes.sending_gpus(own) == {first: 4, second: 4}
    # Stage 1's ring goes from its first replica (first node) to the second, and back from the last.
    assert homes.reducing_gpus(own) == {first: 2, second: 2}
