"""Labels of the positional programme: compiled and in numpy, packed uses, prices of their own."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator

import numpy as np
import pytest
from tiny_jobs import tiny_job

from sailor.api import build_problem
from sailor.registry import Registry
from sailor.solve.certificate import Certificate
from sailor.solve.positional import prices as positional_prices
from sailor.solve.positional import programme as positional
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.positional.packed import Packed
from sailor.solve.positional.prices import PriceVectors, Rest
from sailor.solve.positional.programme import Found, Limits, PositionalProgramme, TooManyLabelsError
from sailor.solve.positional.set_bound import Ranges, SetProgramme

REGISTRY = Registry.load(entry_points=False)
SWITCH = "SAILOR_NO_NUMBA"

needs_numba = pytest.mark.skipif(
    importlib.util.find_spec("numba") is None, reason="numba (extra `fast`) isn't installed"
)


def never() -> bool:
    return False


def spaces(a100: int, v100: int, zones: int, batch: int, layers: int = 8) -> Iterator[KindSets]:
    job = tiny_job(a100=a100, v100=v100, zones=zones, batch=batch, objective="max_throughput",
                   cost_model="published")  # fmt: skip
    job["model"] = job["model"] | {"num_layers": layers}
    certificate = Certificate(build_problem(job, registry=REGISTRY), 24)
    certificate.first_look(1e6, never)
    for part in certificate.parts:
        for cell in part.cells:
            space = KindSets(part.programme, cell, None)
            if space.usable:
                yield space


def best_of(
    space: KindSets, box: Ranges, cutoff_s: float, prices: np.ndarray | None = None
) -> Found | None:
    bounds = SetProgramme(space)
    vectors = PriceVectors(bounds, box, np.zeros(len(bounds.room)) if prices is None else prices)
    limits = Limits(box.low_s, box.high_s, box.low_g, box.high_g, cutoff_s)
    return PositionalProgramme(space).run(limits, vectors, 300_000, never)


def boxes(space: KindSets, rng: random.Random) -> Iterator[tuple[Ranges, float]]:
    """Yield boxes with cutoffs: everything, and ranges in which something lies or nothing does."""
    everything = Ranges(0.0, np.inf, 0.0, np.inf)
    found = best_of(space, everything, 1e6)
    if found is None:
        return
    yield everything, found.seconds * 1.2
    pace = found.seconds / max(space.cell.num_microbatches, 1)
    for _ in range(3):
        low_s, low_g = rng.uniform(0.0, 0.6) * pace, rng.uniform(0.0, 0.2) * found.seconds
        high_s, high_g = low_s + rng.uniform(0.1, 1.0) * pace, low_g + found.seconds / 4
        yield Ranges(low_s, high_s, low_g, high_g), found.seconds * rng.uniform(0.98, 1.5)


@needs_numba
@pytest.mark.parametrize(
    ("a100", "v100", "zones", "batch"), [(2, 3, 1, 12), (5, 7, 1, 24), (4, 4, 2, 16), (6, 0, 2, 24)]
)
def test_compiled_labels_find_what_numpy_finds(
    a100: int, v100: int, zones: int, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Prices for labels of their own from the second label on.
    monkeypatch.setattr(positional, "_MANY", 1)
    monkeypatch.setattr(positional_prices, "_FEW", 1)
    rng = random.Random(a100 * 100 + v100 * 10 + zones)
    somewhere = nowhere = 0
    for space in spaces(a100, v100, zones, batch):
        for box, cutoff_s in boxes(space, rng):
            rows = len(SetProgramme(space).room)
            prices = np.array([rng.uniform(0.0, 0.05) * cutoff_s for _ in range(rows)])
            monkeypatch.delenv(SWITCH, raising=False)
            fast = best_of(space, box, cutoff_s, prices)
            monkeypatch.setenv(SWITCH, "1")
            slow = best_of(space, box, cutoff_s)
            assert (fast is None) == (slow is None)
            if fast is None or slow is None:
                nowhere += 1
                continue
            somewhere += 1
            assert fast.seconds == pytest.approx(slow.seconds, rel=1e-12)
            assert fast.stages[0].start == 0
            assert fast.stages[-1].stop == space.units
    assert somewhere >= 5
    assert nowhere >= 1


def test_packed_uses_compare_like_the_rows_they_hold() -> None:
    space = max(spaces(5, 7, 1, 24), key=lambda one: int(one.room.max()))
    packed = Packed(space)
    sets = np.flatnonzero(packed.usable)
    rng = np.random.default_rng(5)
    seen = set()
    for _ in range(300):
        stages = rng.choice(sets, rng.integers(1, 4))
        use = space.use[stages].sum(axis=0)
        extra = sum(len(space.sets[j]) - 1 for j in stages)
        if (use > space.room).any() or extra > space.extra:
            continue
        words = packed.first_use[stages[0]][None]
        for j in stages[1:]:
            words = packed.with_stage(words, np.array([j]))
        rows = packed.unpacked(words)[0]
        wanted = use.tolist() if space.paired else [*use.tolist(), extra]
        assert rows.tolist() == wanted
        other = int(rng.choice(sets))
        more = len(space.sets[other]) - 1
        fits = bool((use + space.use[other] <= space.room).all()) and (
            space.paired or extra + more <= space.extra
        )
        assert bool(packed.within(words, packed.left[other][None])[0]) == fits
        seen.add(fits)
    assert seen == {True, False}


def test_a_flag_counts_once_and_is_needed() -> None:
    space = next(spaces(2, 3, 1, 12))
    space.flagged = np.arange(len(space.sets)) == 1
    space.need_flag = True
    packed = Packed(space)
    plain, flagged = packed.first_use[0][None], packed.first_use[1][None]
    assert packed.unpacked(plain)[0, -1] == 0
    assert packed.unpacked(flagged)[0, -1] == -1
    both = packed.with_stage(plain, np.array([1]))
    assert packed.unpacked(both)[0, -1] == -1
    assert packed.unpacked(packed.with_stage(both, np.array([0])))[0, -1] == -1
    # A pipeline may only be completed with a flag, from the label or from its first stage.
    nothing = np.zeros_like(plain)
    lacking = plain & ~packed.use[0][None]  # only that there is no flag yet
    assert not packed.within(lacking, packed.done[0][None])[0]
    assert packed.within(lacking, packed.done[1][None])[0]
    assert packed.within(nothing, packed.done[0][None])[0]
    # One with a flag beats one without, and not the other way round.
    assert packed.within(nothing, lacking)[0]
    assert not packed.within(lacking, nothing)[0]


@needs_numba
def test_learnt_prices_drop_no_label_that_can_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The suffixes of the best pipeline stay, whatever prices are made for them."""
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(positional_prices, "_FEW", 1)
    space = max(spaces(5, 7, 1, 24), key=lambda one: one.cell.num_microbatches)
    everything = Ranges(0.0, np.inf, 0.0, np.inf)
    found = best_of(space, everything, 1e6)
    assert found is not None
    assert len(found.stages) > 2
    bounds = SetProgramme(space)
    vectors = PriceVectors(bounds, everything, np.zeros(len(bounds.room)))
    number = {kinds: place for place, kinds in enumerate(space.sets)}
    taken, cost_s, slowest_s, sync_s = np.zeros(len(bounds.room)), 0.0, 0.0, 0.0
    for place, stage in enumerate(reversed(found.stages[1:]), start=1):
        j, cut = number[stage.kinds], (stage.start, stage.stop)
        taken = taken + bounds.use[j]
        # Without transfers, so no more than the label's own seconds.
        cost_s += float(space.compute_s[j][cut])
        slowest_s = max(slowest_s, float(space.compute_s[j][cut]))
        sync_s = max(sync_s, float(space.sync_s[j][cut]))
        least_s = (space.cell.num_microbatches - 1) * slowest_s + cost_s + sync_s
        rest = Rest(np.array([stage.start]), np.array([j]), np.array([least_s]), taken[None])
        before = len(vectors.prices)
        assert vectors.learn(rest, place, found.seconds * (1 + 1e-9)).all()
        assert len(vectors.prices) > before
        # The same label with far too many seconds is dropped.
        late = Rest(rest.unit, rest.kinds, rest.seconds + found.seconds, rest.use)
        assert not vectors.learn(late, place, found.seconds).any()


def test_it_gives_up_on_too_many_labels() -> None:
    space = max(spaces(5, 7, 1, 24), key=lambda one: one.cell.num_microbatches)
    everything = Ranges(0.0, np.inf, 0.0, np.inf)
    bounds = SetProgramme(space)
    prices = PriceVectors(bounds, everything, np.zeros(len(bounds.room)))
    with pytest.raises(TooManyLabelsError):
        PositionalProgramme(space).run(Limits(0.0, np.inf, 0.0, np.inf, 1e6), prices, 2, never)
