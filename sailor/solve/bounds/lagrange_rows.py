"""Rows of the bound's dynamic programme: many chains that are looked for in one call."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import kernels

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """B chains to find: limits and prices.

    `ceiling_s` [B] on a stage's time, `reach` [B, K, U] furthest cut by gradient sync, `prices`
    [B, K] of one stage of the kind, `num_microbatches` [B].
    """

    ceiling_s: Floats
    reach: Ints
    prices: Floats
    num_microbatches: Ints

    def take(self, rows: Ints) -> Rows:
        """Return some of the rows."""
        return Rows(
            self.ceiling_s[rows], self.reach[rows], self.prices[rows], self.num_microbatches[rows]
        )


@dataclass(frozen=True)
class Chains:
    """The cheapest chain of every row: its cost (infinite: none) and stages by kind [B, K]."""

    cost_s: Floats
    stages: Ints


@dataclass(frozen=True)
class Reach:
    """Furthest cuts within the ceilings: [B, P, U], twice [B, P], and whether to the end."""

    middle: Ints
    short_first: Ints
    long_first: Ints
    last: NDArray[np.bool_]  # [B, K, U]
    single: NDArray[np.bool_]  # [B, K]

    def first(self, factor: float) -> Ints:
        """Return [B, P] for first stages whose transfer counts so often."""
        return self.long_first if factor == 2.0 else self.short_first

    def take(self, rows: Ints) -> Reach:
        """Return some of the rows."""
        return Reach(
            self.middle[rows],
            self.short_first[rows],
            self.long_first[rows],
            self.last[rows],
            self.single[rows],
        )


class Furthest:
    """How far stages reach within a limit, by tables [N, X, V, U + 1] of seconds up to a cut."""

    def __init__(self, seconds: Floats) -> None:
        # The least over all cuts from one on ascends, and is within a limit up to the last that is.
        turned = np.fmin.accumulate(seconds[..., ::-1], axis=-1)
        self.ascending: Floats = np.ascontiguousarray(turned[..., ::-1])

    def within(self, table: Ints, limit: Floats) -> Ints:
        """Return [B, X, V]: the last cut within the limit [B] in each row's table; 0: none."""
        fast = kernels("chain_kernels")
        if fast is not None:
            found: Ints = fast.furthest(self.ascending, table, limit)
            return found
        inside = self.ascending[table] <= limit[:, None, None, None]
        last: Ints = np.maximum(np.count_nonzero(inside, axis=3) - 1, 0)
        return last
