"""Splits of a tiny model with all their chains, for the tests of unlike pipelines."""

from __future__ import annotations

from itertools import product

import numpy as np
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.registry import Registry
from sailor.solve.cell import Cell
from sailor.solve.exhaustive import _cells
from sailor.solve.heuristics.split_value import Pipes, SplitTables

REGISTRY = Registry.load(entry_points=False)


def cell_of(dp: int, batch: int = 24) -> Cell:
    job = tiny_job(a100=4, v100=6, zones=1, batch=batch, objective="max_throughput")
    problem = build_problem(job, registry=REGISTRY)
    return next(one for one in _cells(problem) if one.dp == dp)


def tables_of(cell: Cell, depth: int, **limits: int | None) -> SplitTables:
    kinds = np.flatnonzero(cell.search.tables.usable)
    given: dict[str, int | None] = {"max_gpus": None, "pinned_dp": None, **limits}
    return SplitTables(cell.search, depth, cell.dp, kinds, 0, given["max_gpus"], given["pinned_dp"])


CUTS = {1: [0, 4], 2: [0, 2, 4], 3: [0, 1, 3, 4], 4: [0, 1, 2, 3, 4]}


def chains_of(tables: SplitTables, pipes: Pipes) -> list[tuple[tuple[int, ...], float, float]]:
    """Return every chain with F and S, added up stage by stage."""
    found = []
    for chain in product(range(len(tables.kinds)), repeat=tables.depth):
        stage = [float(pipes.cost_s[i, k]) for i, k in enumerate(chain)]
        for i in range(tables.depth - 1):
            stage[i] += float(pipes.left_s[i, chain[i], chain[i + 1]])
            stage[i + 1] += float(pipes.right_s[i, chain[i], chain[i + 1]])
        found.append((chain, sum(stage), max(stage)))
    return found
