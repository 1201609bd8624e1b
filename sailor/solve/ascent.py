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
