"""What a split is worth to unlike pipelines: against all chains, and compiled against plain."""

from __future__ import annotations

import numpy as np
import pytest
from split_chains import CUTS, cell_of, chains_of, tables_of

from sailor.sim.closed_form import PlanBatch, evaluate, stage_terms
from sailor.solve.kernels.compiled import kernels


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_stages_take_what_the_closed_form_says(depth: int) -> None:
    cell = cell_of(2)
    tables = tables_of(cell, depth)
    cuts = np.array(CUTS[depth])
    chains = chains_of(tables, tables.pipes(cuts))
    kinds = tables.kinds[np.array([chain for chain, _, _ in chains])]
    count = np.full((len(chains), 1), 5)
    batch = PlanBatch(
        np.repeat(cuts[None], len(chains), axis=0), kinds[:, :, None], np.full_like(count, 2), count
    )
    terms = stage_terms(cell.search.tables, batch)
    stage = (terms.compute_s + terms.p2p_s)[:, :, 0]
    fits = evaluate(cell.search.tables, batch).fits
    for row, (_, fill, pace) in enumerate(chains):
        if fits[row]:
            assert fill == pytest.approx(float(stage[row].sum()), rel=1e-12)
            assert pace == pytest.approx(float(stage[row].max()), rel=1e-12)
        else:
            assert np.isinf(fill)
    assert fits.any()


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("share", [0.2, 0.6, 0.9])
def test_the_cheapest_chain_is_that_of_all(depth: int, share: float) -> None:
    cell = cell_of(2)
    tables = tables_of(cell, depth)
    pipes = tables.pipes(np.array(CUTS[depth]))
    prices, total = np.array([share, 1 - share]), 120  # so that no chain passes less than one
    for level in pipes.levels():
        allowed = pipes.sync_s <= level
        seconds, chain = tables.cheapest(pipes, allowed, pipes.ceilings(), total, prices)
        exact, rounded = np.inf, np.inf
        for kinds, fill, pace in chains_of(tables, pipes):
            if all(allowed[i, k] for i, k in enumerate(kinds)) and np.isfinite(fill):
                paid = float((prices[:, None] * tables.part)[:, list(kinds)].sum())
                exact = min(exact, fill + (total * paid - 1) * pace)
                # Paces are rounded up by 0.8 % at most.
                rounded = min(rounded, fill + (total * paid - 1) * pace * 1.00804)
                if kinds == tuple(chain.tolist()):
                    assert fill + (total * paid - 1) * pace <= seconds * (1 + 1e-9)
        assert exact <= seconds * (1 + 1e-9)
        assert seconds <= rounded * (1 + 1e-9)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_compiled_code_gives_the_same_numbers(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if kernels("split_kernels") is None:
        pytest.skip("numba isn't installed")
    tables = tables_of(cell_of(2), depth, max_gpus=8, pinned_dp=2)
    pipes = tables.pipes(np.array(CUTS[depth]))
    even = np.full(4, 0.25)
    worths = list(tables.worths(pipes, 24, even, np.inf, falling=False))
    chains = [
        tables.cheapest(pipes, pipes.sync_s <= level, pipes.ceilings(), 24, even)
        for level in pipes.levels()
    ]
    monkeypatch.setenv("SAILOR_NO_NUMBA", "1")
    plain = list(tables.worths(pipes, 24, even, np.inf, falling=False))
    assert [(w.seconds, w.sync_s, w.prices.tolist()) for w in worths] == [
        (w.seconds, w.sync_s, w.prices.tolist()) for w in plain
    ]
    for level, (seconds, chain) in zip(pipes.levels(), chains, strict=True):
        other = tables.cheapest(pipes, pipes.sync_s <= level, pipes.ceilings(), 24, even)
        assert (seconds, chain.tolist()) == (other[0], other[1].tolist())
    assert len(worths) >= 1


def test_a_value_is_below_the_cutoff_and_the_least_of_its_levels() -> None:
    tables = tables_of(cell_of(2), 2)
    pipes = tables.pipes(np.array([0, 2, 4]))
    prices = np.array([0.5, 0.5])
    worths = list(tables.worths(pipes, 24, prices, np.inf, falling=False))
    best = tables.worth(pipes, 24, prices, np.inf)
    assert best is not None
    assert best.seconds == min(one.seconds for one in worths)
    assert tables.worth(pipes, 24, prices, best.seconds) is None
    assert best.prices.sum() == pytest.approx(1.0)
