"""Whole pipelines over a split, against all ways to choose them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from split_chains import CUTS, cell_of, chains_of, tables_of

from sailor.sim.closed_form import PlanBatch, evaluate
from sailor.solve.heuristics.mixing import _knapsack, _packing, mixed
from sailor.solve.heuristics.shares import shared


@pytest.mark.parametrize("seed", range(12))
def test_a_knapsack_is_the_best_of_all(seed: int) -> None:
    random = np.random.default_rng(seed)
    room = random.integers(2, 9, size=2)
    use = random.integers(0, 5, size=(4, 2))
    count = random.integers(1, 30, size=4)
    width = _knapsack(use, count, room)
    assert (width @ use <= room).all()
    most = max(
        sum(n * int(c) for n, c in zip(some, count, strict=True))
        for some in product(range(9), repeat=4)
        if (np.array(some) @ use <= room).all() and not np.array(some)[~use.any(axis=1)].any()
    )
    assert int(width @ count) == most


def test_a_packing_by_hand() -> None:
    most, share, prices = _packing(np.array([[1.0, 0.25], [0.25, 1.0]]))
    assert most == pytest.approx(1.6)
    assert share == pytest.approx([0.8, 0.8])
    assert prices == pytest.approx([0.8, 0.8])
    most, share, prices = _packing(np.array([[0.5, 0.1], [1.0, 0.3]]))
    assert (most, share.tolist(), prices.tolist()) == (2.0, [2.0, 0.0], [2.0, 0.0])


@pytest.mark.parametrize(("depth", "total"), [(1, 24), (2, 24), (2, 40), (3, 31)])
def test_whole_pipelines_are_nearly_the_best_of_all(depth: int, total: int) -> None:
    cell = cell_of(3)
    tables = tables_of(cell, depth)
    pipes = tables.pipes(np.array(CUTS[depth]))
    worth = tables.worth(pipes, total, np.array([0.5, 0.5]), np.inf)
    assert worth is not None
    level = worth.sync_s
    mix = mixed(tables, pipes, worth, total, 3 * worth.seconds)
    assert mix is not None
    # By hand: every number of every chain within the level of G, at the time of the mix.
    chains = [
        (np.array(kinds), fill, pace)
        for kinds, fill, pace in chains_of(tables, pipes)
        if np.isfinite(fill) and all(pipes.sync_s[i, k] <= level for i, k in enumerate(kinds))
    ]
    best = np.inf
    for one, two in product(range(len(chains)), repeat=2):
        pair = [chains[one], chains[two]]
        use = np.stack([tables.use[:, kinds].sum(axis=1) for kinds, _, _ in pair])
        for width in product(range(8), repeat=2):
            if not any(width) or (np.array(width) @ use > tables.limits).any():
                continue
            best = min(best, _ends(pair, width, level, total))
    assert mix.seconds <= best * 1.02  # of one or two kinds; a mix may have more
    assert mix.seconds >= worth.seconds


def _ends(
    pair: list[tuple[np.ndarray, float, float]], width: tuple[int, ...], level: float, total: int
) -> float:
    used = [(fill, pace, n) for (_, fill, pace), n in zip(pair, width, strict=True) if n]
    times = sorted({level + fill + k * pace for fill, pace, _ in used for k in range(total)})
    for seconds in times:
        passed = sum(
            n * max(int(np.floor((seconds - level - fill) / pace * (1 + 1e-12))) + 1, 0)
            for fill, pace, n in used
        )
        if passed >= total:
            return seconds
    return np.inf


def test_a_mix_fits_the_pools_and_ends_in_time() -> None:
    cell = cell_of(3)
    tables = tables_of(cell, 2)
    pipes = tables.pipes(np.array([0, 2, 4]))
    worth = tables.worth(pipes, 24, np.array([0.5, 0.5]), np.inf)
    assert worth is not None
    mix = mixed(tables, pipes, worth, 24, 3 * worth.seconds)
    assert mix is not None
    search = cell.search
    for pool, room in enumerate(search.room):
        gpus = np.where(search.pool[mix.chains] == pool, search.tables.tp[mix.chains], 0)
        assert int(gpus.sum(axis=1) @ mix.width) <= room
    batch = PlanBatch(
        np.array([[0, 2, 4]]),
        np.ascontiguousarray(mix.chains.T[None]),
        mix.width[None],
        np.full((1, len(mix.width)), 1),
    )
    found = evaluate(search.tables, shared(search.tables, batch, 24))
    assert float(found.pipeline_s[0]) <= (mix.seconds - worth.sync_s) * (1 + 1e-5)
    assert mixed(tables, pipes, worth, 24, worth.seconds) is None
