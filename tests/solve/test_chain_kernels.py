"""The bound's programme in compiled code and in numpy: the same numbers, bit by bit."""

from __future__ import annotations

import importlib
import importlib.util
import pickle
from collections.abc import Iterator
from dataclasses import fields

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.registry import Registry
from sailor.solve.bounds.lagrange_ahead import ahead_by_place
from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Chains, Furthest, Reach, Rows
from sailor.solve.certificate import Certificate, Part
from sailor.solve.kernels import compiled

REGISTRY = Registry.load(entry_points=False)
SWITCH = "SAILOR_NO_NUMBA"

needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="numba (extra `fast`) isn't installed"
)


def parts() -> Iterator[Part]:
    """Yield the programmes of some jobs of twelve units: one GPU type and two, one zone and two."""
    for a100, v100, zones, model in (
        (2, 2, 1, "published"), (3, 2, 2, "sailor"), (8, 0, 1, "published"),
    ):  # fmt: skip
        job = tiny_job(a100=a100, v100=v100, zones=zones, batch=12, objective="max_throughput",
                       cost_model=model)  # fmt: skip
        job["model"] = job["model"] | {"num_layers": 10}
        problem = build_problem(job, registry=REGISTRY)
        yield from Certificate(problem, 24).parts


def random_rows(part: Part, size: int, rng: np.random.Generator) -> Rows:
    """Return rows of a part's cells: some without limits, some without prices, some impossible."""
    tables = part.tables
    seconds = tables.compute_s[np.isfinite(tables.compute_s)]
    low, high = np.log(seconds.min() / 2), np.log(seconds.max() * 4)
    ceiling_s = np.exp(rng.uniform(low, high, size))
    ceiling_s[::7] = np.inf
    cell = rng.integers(0, len(part.cells), size)
    sync_s = np.stack([one.sync_s for one in part.cells])
    high_g = np.quantile(sync_s[np.isfinite(sync_s)], rng.uniform(0, 1, size))
    prices = rng.uniform(0, 3, (size, tables.num_kinds)) * seconds.mean()
    prices[rng.random(prices.shape) < 0.2] = 0.0
    prices[::11, 0] = np.inf  # a kind that isn't there
    # Equal prices make ties, of which the first counts.
    prices[::5] = seconds.mean()
    count = np.array([one.num_microbatches for one in part.cells], dtype=np.int64)[cell]
    return Rows(ceiling_s, Furthest(sync_s).within(cell, high_g), prices, count)


def equal(one: Chains | Reach, other: Chains | Reach) -> bool:
    return all(
        np.array_equal(getattr(one, field.name), getattr(other, field.name))
        for field in fields(one)
    )


@needs_numba
@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("pinned", [None, 1, 2, 5])
def test_kernels_and_numpy_give_the_same_numbers(
    pinned: int | None, capped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    finite = closed = 0
    for part in parts():
        monkeypatch.delenv(SWITCH, raising=False)
        rows = random_rows(part, 40, rng)
        fast = ChainProgramme(part.tables, part.programme.max_stages, pinned)
        slow = ChainProgramme(part.tables, part.programme.max_stages, pinned)
        fast.capped = slow.capped = capped
        assert fast.fast is not None
        monkeypatch.setenv(SWITCH, "1")
        assert slow.fast is None
        reach = slow.ceilings(rows)
        monkeypatch.delenv(SWITCH)
        assert equal(reach, fast.ceilings(rows))
        relaxed = slow.relaxed(rows, reach)
        assert equal(relaxed, fast.relaxed(rows, reach))
        exact = slow.solve(rows, reach)
        assert equal(exact, fast.solve(rows, reach))
        enough = np.where(np.isfinite(exact.cost_s), exact.cost_s, 1.0) * rng.uniform(0.9, 1.1, 40)
        cut_short = slow.solve(rows, reach, enough)
        assert equal(cut_short, fast.solve(rows, reach, enough))
        for one, other in zip(
            ahead_by_place(slow, rows, reach), ahead_by_place(fast, rows, reach), strict=True
        ):
            assert np.array_equal(one, other)
        finite += int(np.isfinite(exact.cost_s).sum())
        closed += int((cut_short.stages.sum(axis=1) < exact.stages.sum(axis=1)).sum())
    assert finite >= 30
    assert closed >= 10  # rows that `enough` decides


@needs_numba
def test_how_far_a_stage_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = np.array([[[[np.inf, 1.0, 3.0, 2.0], [np.inf, np.inf, 5.0, np.nan]]]])
    limits = np.array([0.5, 1.0, 2.0, 2.5, 5.0, np.inf])
    # By hand: the last cut whose seconds are within the limit, though a nearer one isn't.
    wanted = [[0, 0], [1, 0], [3, 0], [3, 0], [3, 2], [3, 2]]
    table = np.zeros(len(limits), dtype=np.int64)
    for switch in ("", "1"):
        monkeypatch.setenv(SWITCH, switch)
        assert Furthest(seconds).within(table, limits)[:, 0].tolist() == wanted


def test_a_switch_turns_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    assert not compiled.compiled()
    assert compiled.kernels("chain_kernels") is None


def test_a_numba_that_cannot_be_imported_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> object:
        raise ImportError(name)

    compiled.loaded.cache_clear()
    try:
        monkeypatch.setattr(importlib, "import_module", broken)
        assert compiled.loaded("chain_kernels") is None
    finally:
        compiled.loaded.cache_clear()


@needs_numba
def test_a_kernel_needs_no_folder_for_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    numba = pytest.importorskip("numba")
    plain = numba.njit

    def without_cache(signature: str, **options: object) -> object:
        if options.get("cache"):
            raise RuntimeError("no locator available")
        return plain(signature, **options)

    monkeypatch.setattr(numba, "njit", without_cache)

    def twice(value: float) -> float:
        return 2.0 * value

    assert compiled.kernel("f8(f8)")(twice)(1.5) == 3.0


@needs_numba
def test_a_programme_with_kernels_can_be_sent_to_another_process() -> None:
    part = next(parts())
    rows = random_rows(part, 8, np.random.default_rng(1))
    programme = part.programme
    reach = programme.ceilings(rows)
    here = programme.solve(rows, reach)
    there = pickle.loads(pickle.dumps(part)).programme
    assert equal(here, there.solve(rows, there.ceilings(rows)))
