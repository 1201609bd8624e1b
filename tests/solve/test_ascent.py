"""Steps of prices: they reach the top of small functions whose top is known."""

from __future__ import annotations

import numpy as np
import pytest

from sailor.solve.kernels.ascent import Ascent, Ascents
from sailor.solve.kernels.compiled import loaded

# Pieces a + b p; the first function's top is 4 at (1, 2), the second's 3 at (0, 1).
PEAK = [(1.0, (3.0, 0.0)), (7.0, (-3.0, 0.0)), (2.0, (0.0, 1.0)), (6.0, (0.0, -1.0))]
EDGE = [(3.0, (-1.0, 0.0)), (2.0, (-1.0, 1.0)), (4.0, (0.0, -1.0))]


def look(pieces: list[tuple[float, tuple[float, float]]], prices: np.ndarray) -> tuple[float, ...]:
    """Return value and slope of the least piece."""
    return min((a + b[0] * prices[0] + b[1] * prices[1], *b) for a, b in pieces)


@pytest.mark.parametrize("cutoff", [4.5, 50.0, 5000.0])
@pytest.mark.parametrize("start", [(0.0, 0.0), (40.0, 0.0), (0.0, 300.0)])
def test_the_top_is_reached_wherever_the_steps_begin_and_aim(
    start: tuple[float, float], cutoff: float
) -> None:
    for pieces, top in ((PEAK, 4.0), (EDGE, 3.0)):
        ascent = Ascent(np.array(start), cutoff)
        for _ in range(200):
            value, *slope = look(pieces, ascent.prices)
            ascent.advance(value, np.array(slope))
            if ascent.done:
                break
        assert top - 0.05 <= ascent.best <= top
        assert look(pieces, ascent.best_prices)[0] == ascent.best


def test_it_is_done_at_the_cutoff_and_where_no_price_can_be_moved() -> None:
    ascent = Ascent(np.zeros(2), 0.5)
    ascent.advance(1.0, np.array([3.0, 0.0]))
    assert ascent.done
    assert ascent.best == 1.0
    ascent = Ascent(np.zeros(2), 9.0)
    ascent.advance(1.0, np.array([-3.0, 0.0]))
    assert ascent.done
    assert ascent.best_prices.tolist() == [0.0, 0.0]


def test_compiled_steps_are_the_same() -> None:
    kernels = loaded("set_kernels")
    if kernels is None:
        pytest.skip("numba isn't installed")
    for pieces in (PEAK, EDGE):
        ascent = Ascent(np.array([40.0, 3.0]), 50.0)
        known, prices = np.array([-np.inf, np.inf, 0.0]), np.array([40.0, 3.0])
        best_prices, move = prices.copy(), np.zeros(2)
        for _ in range(60):
            value, *slope = look(pieces, ascent.prices)
            ascent.advance(value, np.array(slope))
            went_on = kernels.advance(
                known, prices, best_prices, move, np.array(slope), value, 50.0
            )
            assert went_on == (not ascent.done)
            assert prices.tolist() == ascent.prices.tolist()
            assert (known[0], best_prices.tolist()) == (ascent.best, ascent.best_prices.tolist())
            if ascent.done:
                break


def test_ascents_side_by_side_are_those_one_by_one() -> None:
    starts = np.array([[40.0, 3.0], [0.0, 0.0], [0.0, 300.0]])
    functions = (PEAK, EDGE, PEAK)
    alone = [Ascent(start, 50.0) for start in starts]
    together = Ascents(starts.shape, 50.0)
    prices, best_prices = starts.copy(), starts.copy()
    for turn in range(60):
        some = np.array([0, 1, 2] if turn % 3 else [0, 2])  # the second one rests now and then
        seen = [look(functions[row], prices[row]) for row in some]
        value, slope = np.array([one[0] for one in seen]), np.array([one[1:] for one in seen])
        prices[some] = together.advance(value, slope, prices, best_prices, some)
        for row, one in zip(some, seen, strict=True):
            alone[row].advance(one[0], np.array(one[1:]))
            assert prices[row] == pytest.approx(alone[row].prices, rel=1e-12)
            assert together.best[row] == pytest.approx(alone[row].best, rel=1e-12)
    assert together.best[[0, 2]] == pytest.approx([4.0, 4.0], abs=0.1)
    # Where there is no chain at all, nothing moves.
    some = np.array([1])
    still = together.advance(np.array([np.inf]), np.zeros((1, 2)), prices, best_prices, some)
    assert np.isfinite(still).all()
