"""Prices of worker kinds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.sim.kinds import WorkerKind


def usd_per_gpu_hour(problem: Problem, kinds: Sequence[WorkerKind]) -> NDArray[np.float64]:
    """Return [K]: the node's price over its GPUs; NaN for a kind that nobody offers."""
    price = {(p.zone, p.node_type, p.market): p.usd_per_hour for p in problem.placements}
    return np.array(
        [
            price.get((kind.zone, kind.node_type, kind.market), np.nan)
            / problem.node(kind.node_type).num_gpus
            for kind in kinds
        ]
    )
