"""Pipelines with whole GPUs: chains by enumeration, sharing by hand, compiled against numpy."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.registry import Registry
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Rows
from sailor.solve.bounds.lagrange_tables import bound_tables, groups_of
from sailor.solve.bounds.told_apart import told_apart
from sailor.solve.bounds.whole_chains import WholeChains
from sailor.solve.bounds.whole_prices import Sharing, Times, packed
from sailor.solve.bounds.whole_uses import TooManyUsesError, Uses
from sailor.solve.kernels.compiled import kernels

REGISTRY = Registry.load(entry_points=False)


def programme_of(a100: int, v100: int, stages: int | None = None) -> ChainProgramme:
    job = tiny_job(a100=a100, v100=v100, zones=1, batch=8, objective="max_throughput")
    problem = build_problem(job, registry=REGISTRY)
    tables = bound_tables(problem, groups_of(problem), 1)
    assert tables is not None
    return ChainProgramme(tables, 4, stages)


def rows_of(programme: ChainProgramme, ceilings: list[float]) -> Rows:
    size = len(ceilings)
    return Rows(
        ceiling_s=np.array(ceilings),
        reach=np.full((size, programme.kinds, programme.units), programme.units, dtype=np.int64),
        prices=np.zeros((size, programme.kinds)),
        num_microbatches=np.full(size, 8),
    )


def times(
    programme: ChainProgramme, ceilings: list[float], most_s: float = np.inf
) -> tuple[Uses, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    uses = Uses(programme.tables, np.array([0.5, 0.5]), 2.0, 1000)
    most = np.full(len(ceilings), most_s)
    rows = rows_of(programme, ceilings)
    return uses, WholeChains(programme).least_times(rows, uses, most, 1.0, 8)


def test_a_pipeline_takes_the_least_time_for_what_it_uses() -> None:
    programme = programme_of(3, 4)
    tables, units = programme.tables, programme.units
    uses, found = times(programme, [np.inf])
    expected: dict[tuple[int, ...], float] = {}
    for a, b, cut in product(range(programme.kinds), range(programme.kinds), range(1, units)):
        use = [0, 0]
        use[tables.group[a]] += int(tables.tp[a])
        use[tables.group[b]] += int(tables.tp[b])
        # Of two stages the first sends once and the last one's gradient counts twice.
        seconds = (
            tables.compute_s[a, 0, cut] + tables.compute_s[b, cut, units]
            + tables.forward_s[a, b, cut] + 2 * tables.backward_s[a, b, cut]
            + (tables.real.first_send_factor(2) - 1) * tables.forward_s[a, b, cut]
        )  # fmt: skip
        expected[tuple(use)] = min(expected.get(tuple(use), np.inf), float(seconds))
    assert len(expected) >= 8
    seen = 0
    for number, use_of in enumerate(map(tuple, uses.points.tolist())):
        if use_of in expected:
            assert found[0, 2, number] == pytest.approx(expected[use_of], rel=1e-12)
            seen += 1
        elif sum(use_of) > 4 or sum(use_of) < 2:
            assert np.isinf(found[0, 2, number])  # two stages have two to four GPUs
    room = tables.room.tolist()
    assert seen == sum(u[0] <= room[0] and u[1] <= room[1] for u in expected)


def test_ceilings_and_the_time_that_is_of_interest_only_leave_out() -> None:
    programme = programme_of(2, 3)
    _, free = times(programme, [np.inf])
    least = float(free.min())
    slowest = float(programme.tables.compute_s[:, 0, 1].max())
    _, tight = times(programme, [slowest, np.inf], most_s=1.5 * least)
    assert np.isfinite(tight).any()
    assert (tight[0] >= tight[1]).all()
    kept = free[0] < 1.5 * least
    # Nothing is known of what lies above, and what lies below is as it was.
    assert np.array_equal(np.isfinite(tight[1]), kept)
    assert (tight[1][kept] == free[0][kept]).all()


def test_a_ceiling_counts_what_a_stage_sends_to_both_neighbours() -> None:
    """Three stages, all kinds and boundaries; a middle stage sends gradients to a slow link too."""
    programme = programme_of(3, 4)
    tables, units = programme.tables, programme.units
    compute, forth, back = tables.compute_s, tables.forward_s, tables.backward_s
    factor = tables.real.first_send_factor(3)
    chains: list[tuple[float, float, tuple[int, int]]] = []
    for a, b, c in product(range(programme.kinds), repeat=3):
        use = [0, 0]
        for kind in (a, b, c):
            use[tables.group[kind]] += int(tables.tp[kind])
        for i, j in combinations(range(1, units), 2):
            stages = (
                compute[a, 0, i] + factor * forth[a, b, i],
                compute[b, i, j] + back[a, b, i] + forth[b, c, j],
                compute[c, j, units] + 2 * back[b, c, j],
            )
            chains.append((float(max(stages)), float(sum(stages)), (use[0], use[1])))
    slowest = sorted(chain[0] for chain in chains)
    ceilings = [slowest[len(slowest) * part // 20] for part in (1, 2, 4, 8, 16)]
    uses, found = times(programme, ceilings)
    exact = 0
    for row, ceiling in enumerate(ceilings):
        for number, use_of in enumerate(map(tuple, uses.points.tolist())):
            under = [f for s, f, u in chains if u == use_of and s <= ceiling]
            best = min(under, default=np.inf)
            assert found[row, 3, number] == pytest.approx(best, rel=1e-12)
            exact += bool(under)
    assert exact >= 20
    # Whatever stands in front, a stage would send no less than the fastest link takes: with that
    # alone some ceilings let chains through that break them.
    kinds, of = told_apart(tables)
    assert kinds.num_kinds > tables.num_kinds
    assert (np.bincount(of) <= 3).all()


@pytest.mark.parametrize("stages", [None, 3])
def test_compiled_code_gives_the_same_numbers(
    stages: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kernels("whole_kernels") is None:
        pytest.skip("numba isn't installed")
    programme = programme_of(3, 3, stages)
    ceilings = np.quantile(
        programme.tables.compute_s[np.isfinite(programme.tables.compute_s)], [0.3, 0.6, 1.0]
    ).tolist()
    compared = [times(programme, ceilings, most_s) for most_s in (np.inf, 0.2, 0.05)]
    monkeypatch.setenv("SAILOR_NO_NUMBA", "1")
    plain = programme_of(3, 3, stages)
    for most_s, (_, fast) in zip((np.inf, 0.2, 0.05), compared, strict=True):
        assert np.array_equal(times(plain, ceilings, most_s)[1], fast)
    assert np.isfinite(compared[0][1]).any()


def test_uses_are_the_points_within_the_budget() -> None:
    tables = programme_of(2, 4).tables
    uses = Uses(tables, np.array([0.5, 0.5]), 0.5, 100)
    # An A100 costs 1/4, a V100 1/8 of the whole, and a half may be spent.
    assert sorted(map(tuple, uses.points.tolist())) == [
        (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2), (2, 0),
    ]  # fmt: skip
    for kind in range(tables.num_kinds):
        group, tp = int(tables.group[kind]), int(tables.tp[kind])
        for number, point in enumerate([[0, 0], *uses.points.tolist()]):
            after = list(point)
            after[group] += tp
            place = int(uses.onward[kind, number])
            assert (uses.points[place].tolist() == after) if place >= 0 else True
            assert (place >= 0) == (after in uses.points.tolist())
    with pytest.raises(TooManyUsesError):
        Uses(tables, np.array([0.5, 0.5]), 1.0, 4)


def test_a_packing_by_hand() -> None:
    most, prices = packed(np.array([[1.0, 0.25], [0.25, 1.0]]))
    assert most == pytest.approx(1.6)  # 0.8 of each
    assert prices == pytest.approx([0.5, 0.5])
    most, prices = packed(np.array([[0.5, 0.1]]))
    assert most == pytest.approx(2.0)
    assert prices == pytest.approx([1.0, 0.0])


def test_pipelines_share_a_pool_from_some_time_on() -> None:
    """Two pipelines and 8 + 8 GPUs: one within 2 s takes 6 + 0, one within 3 s 0 + 6."""
    use = np.array([[6 / 8, 0.0], [0.0, 6 / 8], [1 / 8, 1 / 8]])
    use = np.column_stack((use, use.sum(axis=1) / 2))
    seconds = np.array([2.0, 3.0, 9.0])
    sharing = Sharing(2, 0, np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.5]), 4.0)
    found, _ = sharing.best(Times(seconds, seconds, use), sharing.centre, 10.0, 10.0)
    assert found == 3.0  # two of the first kind would take 12 of 8
    # With a smaller count the second pipeline may be the first kind only; the room decides.
    mixed = Sharing(1, 1, np.array([0.5, 0.5, 0.0]), np.array([0.5, 0.5]), 4.0)
    found, _ = mixed.best(Times(seconds, seconds - 1, use), mixed.centre, 10.0, 10.0)
    assert found == 2.0


def test_what_lies_outside_the_region_counts_as_fast() -> None:
    """A region of half the budget knows nothing of the pipelines that are needed."""
    use = np.array([[0.9, 0.45]])
    sharing = Sharing(1, 0, np.array([1.0, 0.0]), np.array([1.0]), 0.8)
    seconds = np.array([5.0])
    assert sharing.least(Times(seconds, seconds, use), sharing.centre, 10.0) == (0.0, None)
