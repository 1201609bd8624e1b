"""Steps up a concave function of prices >= 0, whose value and slope are known where one looks.

A step aims at a level: the best value so far and a part of what is missing to the cutoff. Steps
that aimed at the cutoff itself would be far too long where it can't be reached, and to shorten
them step by step would end them far from the best prices. `set_kernels.advance` does the same in
compiled code.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BEYOND = 1.002  # of the cutoff, that steps aim at
# After so many steps without a gain they go on from the best prices and aim at less; a gain of
# enough of what they aimed at makes it more.
PATIENCE, LESS, ENOUGH, MORE = 4, 0.5, 0.5, 1.3
MOMENTUM = 0.5  # of the last step, kept in the next: it damps their zigzag


class Ascent:
    """The best value and prices so far, and where to look next; `done` where there is no more."""

    def __init__(self, prices: Floats, cutoff: float) -> None:
        self.prices, self.best_prices, self.cutoff = prices, prices, cutoff
        self.best, self.missing, self.fails = float("-inf"), float("inf"), 0
        self.move = np.zeros(len(prices))
        self.done = False

    def advance(self, value: float, slope: Floats) -> None:
        """Take the value and slope at `prices`, and move them."""
        most = self.cutoff * BEYOND - value
        self.missing = min(self.missing, most)
        if value > self.best:
            if value - self.best >= ENOUGH * self.missing:
                self.missing = min(self.missing * MORE, most)
            self.best, self.best_prices, self.fails = value, self.prices, 0
        else:
            self.fails += 1
            if self.fails == PATIENCE:
                self.missing, self.fails = self.missing * LESS, 0
                self.prices, self.move = self.best_prices, np.zeros(len(slope))
        move = slope + MOMENTUM * self.move
        self.move = move = np.where((self.prices <= 0.0) & (move < 0.0), 0.0, move)
        steepness = 0.0
        for part in move.tolist():
            steepness += part * part
        self.done = value >= self.cutoff or steepness == 0.0
        if not self.done:
            length = (self.best + self.missing - value) / steepness
            self.prices = np.maximum(self.prices + length * move, 0.0)


class Ascents:
    """Many ascents side by side, each like `Ascent`, one for each row of the prices [B, Q]."""

    def __init__(self, shape: tuple[int, int], cutoff: float) -> None:
        self.cutoff = cutoff
        self.best = np.full(shape[0], -np.inf)
        self.missing = np.full(shape[0], np.inf)
        self.fails = np.zeros(shape[0], dtype=np.int64)
        self.move = np.zeros(shape)

    def advance(
        self, value: Floats, slope: Floats, prices: Floats, best_prices: Floats, some: Ints
    ) -> Floats:
        """Return where to look next, for `some` of the rows; their best prices are noted.

        A value that isn't finite leaves the prices where they are.
        """
        with np.errstate(invalid="ignore"):
            return self._moved(value, slope, prices, best_prices, some)

    def _moved(
        self, value: Floats, slope: Floats, prices: Floats, best_prices: Floats, some: Ints
    ) -> Floats:
        most = self.cutoff * BEYOND - value
        missing = np.minimum(self.missing[some], most)
        best, own = self.best[some], prices[some]
        gained = value > best
        enough = gained & (value - best >= ENOUGH * missing)
        missing = np.where(enough, np.minimum(missing * MORE, most), missing)
        best_prices[some[gained]] = own[gained]
        fails = np.where(gained, 0, self.fails[some] + 1)
        again = fails == PATIENCE
        missing = np.where(again, missing * LESS, missing)
        own = np.where(again[:, None], best_prices[some], own)
        move = slope + MOMENTUM * np.where(again[:, None], 0.0, self.move[some])
        move = np.where((own <= 0.0) & (move < 0.0), 0.0, move)
        steepness = (move**2).sum(axis=1)
        best = np.maximum(best, value)
        short = np.where(np.isfinite(value), np.maximum(best + missing - value, 0.0), 0.0)
        length = np.divide(short, steepness, out=np.zeros_like(short), where=steepness > 0)
        self.best[some], self.missing[some], self.move[some] = best, missing, move
        self.fails[some] = np.where(again, 0, fails)
        found: Floats = np.maximum(own + length[:, None] * move, 0.0)
        return found
