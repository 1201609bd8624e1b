"""Interleaved forms of a plan: each worker holds several chunks instead of one run of units.

A worker keeps the number of its blocks, so that its work doesn't change; what changes is that the
pipeline fills and drains with chunks, that there are more messages, and how much is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator

from sailor.model.plan import Plan, Stage
from sailor.model.problem import Problem


def interleaved_forms(problem: Problem, plan: Plan) -> Iterator[Plan]:
    """Yield a plan's form for every degree above 1 of `search_space.vpp` that it can have.

    It needs more than one stage, a block for each chunk, microbatch counts that are multiples of
    the stages, and a 1F1B plan to start with.
    """
    if plan.schedule != "1f1b" or plan.pp < 2:
        return
    if any(replica.num_microbatches % plan.pp for replica in plan.stages[0].replicas):
        return
    head = plan.num_units - 1
    blocks = [min(stage.stop, head) - max(stage.start, 1) for stage in plan.stages]
    for vpp in sorted(set(problem.search_space.vpp)):
        if vpp > 1 and min(blocks) >= vpp:
            yield _interleaved(plan, blocks, vpp)


def _interleaved(plan: Plan, blocks: list[int], vpp: int) -> Plan:
    stages: list[Stage] = []
    start, last = 0, vpp * plan.pp - 1
    for chunk in range(last + 1):
        turn, rank = divmod(chunk, plan.pp)
        least, more = divmod(blocks[rank], vpp)
        size = least + (turn < more) + (chunk == 0) + (chunk == last)
        stages.append(
            Stage(start=start, stop=start + size, replicas=plan.stages[rank].replicas)
        )  # fmt: skip
        start += size
    return Plan(
        model=plan.model, num_units=plan.num_units, global_batch=plan.global_batch,
        schedule="interleaved", vpp=vpp, cp=plan.cp, zero=plan.zero, recompute=plan.recompute,
        stages=tuple(stages),
    )  # fmt: skip
