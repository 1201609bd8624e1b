"""The cells to search: microbatch sizes and data-parallel degrees, with the rules that cut them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sailor.model.problem import Problem
from sailor.solve.cell import Cell, SearchTables, search_tables
from sailor.solve.pools import Pool
from sailor.solve.rules import H2, H3, H5


def microbatches(problem: Problem) -> list[int]:
    """Return the profiled microbatch sizes with which the global batch can be served."""
    batch, within = problem.training.global_batch, problem.batch.within
    sizes = sorted({profile.microbatch for profile in problem.profiles})
    return [
        size
        for size in sizes
        if abs(max(1, round(batch / size)) * size - batch) <= within * batch + 1e-9
    ]


def cells(problem: Problem, pools: Sequence[Pool], rules: frozenset[str]) -> list[Cell]:
    """Return every cell that can hold at least one pipeline, in order of microbatch and dp."""
    found: list[Cell] = []
    for size in microbatches(problem):
        search = search_tables(problem, pools, size, stage_in_region=H5 in rules)
        if search is None:
            continue
        if H2 in rules:
            search = without_useless_degrees(search)
        total = max(1, round(problem.training.global_batch / size))
        most = min(total, int(_most_replicas(search)))
        found.extend(
            Cell(search, dp, total) for dp in _degrees(problem, total, most, steps=H3 in rules)
        )
    return found


def _most_replicas(search: SearchTables) -> int:
    """Return the most replicas that a stage can have, over all pools."""
    return sum(
        int(search.num_replicas[search.pool == pool].max(initial=0))
        for pool in range(len(search.room))
    )


def _degrees(problem: Problem, total: int, most: int, *, steps: bool) -> list[int]:
    pinned = problem.constraints.dp
    if pinned is not None:
        return [pinned] if pinned <= most else []
    if not steps:
        return list(range(1, most + 1))
    # The smallest dp of each microbatch count: a larger one rents more for the same time.
    degrees = {-(-total // count) for count in range(1, total + 1)}
    return sorted(dp for dp in degrees if dp <= most)


def without_useless_degrees(search: SearchTables) -> SearchTables:
    """Leave out a kind when a smaller degree of its pool is as fast on a block (rule H2)."""
    tables = search.tables
    block = tables.compute_prefix_s[:, 3] - tables.compute_prefix_s[:, 2]
    if tables.num_units < 4:
        block = tables.compute_prefix_s[:, 2] - tables.compute_prefix_s[:, 1]
    usable = tables.usable.copy()
    for kind in range(search.num_kinds):
        for other in range(search.num_kinds):
            same_pool = search.pool[kind] == search.pool[other]
            if same_pool and tables.tp[other] < tables.tp[kind] and block[other] <= block[kind]:
                usable[kind] = usable[kind] and not usable[other]
    return replace(search, tables=replace(tables, usable=usable))
