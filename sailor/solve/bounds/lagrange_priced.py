"""The Lagrangian of a batch of boxes: its objective, and the rows that are priced.

Every row i says f_i F + sum_k a_ik stages_k + c_i K <= r_i, with K the pipelines that cross
between zones; rows are scaled, r_i is 1 for most. The order of rows: GPUs of each group, all GPUs,
seconds, dollars, R <= Rb, R >= Ra, K >= 1, and GPUs of each group in the home zone, which only
pipelines that don't cross take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_dp import ChainProgramme
from sailor.solve.bounds.lagrange_rows import Chains, Reach, Rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sailor.solve.bounds.lagrange import BoxSearch
    from sailor.solve.bounds.lagrange_boxes import Box, Home

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

PIPELINE_SHARE = 0.02  # of a plan's time that is the mean over its pipelines, at their own pace


class Priced:
    """The rows of some boxes of a search, `least_s` the least time of plans in each."""

    def __init__(
        self, search: BoxSearch, boxes: Sequence[Box], fixed: Floats, least_s: Floats
    ) -> None:
        tables, groups = search.programme.tables, search.num_groups
        cell = np.array([box.cell for box in boxes])
        low_r, high_r = np.array([b.low_r for b in boxes]), np.array([b.high_r for b in boxes])
        size, kinds = len(fixed), tables.num_kinds
        dp = search.dp[cell].astype(float)
        self.rate = dp[:, None] * tables.usd_per_s  # [B, K] dollars a second of one stage
        self.cutoff = search.cutoff
        # T >= fixed + share * F, where F is the mean of the pipelines' sums of stage times.
        self.fixed, share = fixed, 1.0
        if not tables.coupled:
            share = PIPELINE_SHARE
            floor = search.further[cell] * search.least_stage_s + np.array(search.least_g)[cell]
            self.fixed = (1 - share) * np.where(np.isfinite(least_s), least_s, 0.0) + share * floor
        cost = search.money.cost
        safe_s = np.where(np.isfinite(least_s), least_s, 0.0)
        # Objective: time_weight * (fixed + F) + rate_weight * R + constant + crossing K.
        self.weight = low_r if cost else np.ones(size)
        self.time_weight = share * self.weight
        self.rate_weight = safe_s if cost else np.zeros(size)
        self.constant = search.egress_usd[cell] - low_r * safe_s if cost else np.zeros(size)
        crossing = search.crossing_usd[cell]
        self.crossing = crossing if cost else np.zeros(size)
        self.dp, self.home = dp, search.home
        rows = search.num_rows
        self.on_time, self.on_crossing = np.zeros((size, rows)), np.zeros((size, rows))
        self.on_stage, self.at_home = (np.zeros((size, rows, kinds)) for _ in range(2))
        self.right = np.ones((size, rows))
        self.most = np.full((size, rows), np.inf)  # of a price
        self.on_stage[:, :groups] = dp[:, None, None] * search.usage
        gpus = np.maximum(search.gpus_left[cell], 1e-9)
        self.on_stage[:, groups] = dp[:, None] * tables.tp / gpus[:, None]
        if np.isfinite(search.rates.max_s):
            left = np.maximum(search.rates.max_s - self.fixed, 1e-12)
            self.on_time[:, groups + 1] = share / left
        if np.isfinite(search.max_usd):
            left = search.max_usd - search.egress_usd[cell] + low_r * (safe_s - self.fixed)
            left = np.maximum(left, 1e-12)
            self.on_time[:, groups + 2] = share * low_r / left
            self.on_stage[:, groups + 2] = (safe_s / left)[:, None] * self.rate
            self.on_crossing[:, groups + 2] = search.crossing_usd[cell] / left
        if search.money.counts:
            self._rates(groups + 3, low_r, high_r, safe_s if cost else None)
        self.crossings_row = groups + 5
        if self.home is not None:
            self._crossings(self.home, search, cell)
        self.active = (self.on_time > 0) | (self.on_stage != 0).any(axis=2)
        self.active |= (self.on_crossing != 0) | (self.at_home != 0).any(axis=2)

    def _rates(self, row: int, low_r: Floats, high_r: Floats, least_s: Floats | None) -> None:
        """Fill the rows R <= Rb and, where dollars are minimised, R >= Ra."""
        self.on_stage[:, row] = self.rate / high_r[:, None]
        if least_s is not None:
            # The objective has Ta R; with this row at its highest price it has none of it.
            self.on_stage[:, row + 1] = -self.rate / low_r[:, None]
            self.right[:, row + 1] = -1.0
            self.most[:, row + 1] = least_s * low_r

    def _crossings(self, home: Home, search: BoxSearch, cell: Ints) -> None:
        """Fill the row K >= 1, as a share of the pipelines, and those of the home zone's GPUs."""
        row = self.crossings_row
        self.on_crossing[:, row] = -1.0 / self.dp
        self.right[:, row] = -search.least_crossing[cell]
        tables = search.programme.tables
        usage = np.zeros(search.usage.shape)
        usage[tables.group, np.arange(tables.num_kinds)] = tables.tp
        usage /= np.maximum(home.room, 1)[:, None]
        self.at_home[:, row + 1 :] = self.dp[:, None, None] * usage

    def capped(self, prices: Floats, some: Ints) -> Floats:
        """Return prices of some boxes within what they may be; `prices` has those rows."""
        price = np.minimum(np.where(self.active[some], prices, 0.0), self.most[some])
        if self.home is not None:
            row, dp = self.crossings_row, self.dp[some]
            others = (price * self.on_crossing[some]).sum(axis=1) + price[:, row] / dp
            price[:, row] = np.minimum(price[:, row], (self.crossing[some] + others) * dp)
        found: Floats = price
        return found

    def value(
        self,
        programme: ChainProgramme,
        rows: Rows,
        reach: Reach,
        prices: Floats,
        some: Ints,
        *,
        exact: bool,
    ) -> tuple[Floats, Floats]:
        """Return the bound of some boxes at their prices, and its slope in the prices."""
        price = self.capped(prices[some], some)
        on_time, on_stage = self.on_time[some], self.on_stage[some]
        right = self.right[some]
        weight = self.time_weight[some] + (price * on_time).sum(axis=1)
        stage = np.einsum("br,brk->bk", price, on_stage)
        stage += self.rate_weight[some][:, None] * self.rate[some]
        paid = (price * right).sum(axis=1)
        # A chain of this cost closes the box; what is beyond needn't be known.
        base = self.weight[some] * self.fixed[some] + self.constant[some]
        enough = self.cutoff + paid - base
        part, within = rows.take(some), reach.take(some)

        def chains_at(stage: Floats, enough: Floats) -> tuple[Chains, Floats, Floats]:
            """Return the cheapest chains, what they cost, and their seconds."""
            priced = Rows(
                part.ceiling_s, part.reach, stage / weight[:, None], part.num_microbatches
            )
            if exact:
                chains = programme.solve(priced, within, enough / weight * (1 + 1e-12))
            else:
                chains = programme.relaxed(priced, within)
            known = np.isfinite(chains.cost_s)
            total = np.where(known, chains.cost_s * weight, np.inf)
            used = np.multiply(
                chains.stages, stage, out=np.zeros(stage.shape), where=chains.stages > 0
            ).sum(axis=1)
            return chains, total, np.where(known, chains.cost_s - used / weight, 0.0)

        if self.home is None:
            chains, total, seconds = chains_at(stage, enough)
            slope = on_time * seconds[:, None] - right
            slope += np.einsum("brk,bk->br", on_stage, chains.stages.astype(float))
            return base + total - paid, self._free(slope, price, some)
        extra = self.crossing[some] + (price * self.on_crossing[some]).sum(axis=1)
        extra *= self.dp[some]
        chains, total, seconds = chains_at(stage, enough - extra)
        at_home = self.at_home[some]
        inside = stage + np.einsum("br,brk->bk", price, at_home)
        inside[:, ~self.home.kinds] = np.inf
        chains_in, total_in, seconds_in = chains_at(inside, enough)
        stays = total_in < total + extra
        stages = np.where(stays[:, None], chains_in.stages, chains.stages).astype(float)
        slope = on_time * np.where(stays, seconds_in, seconds)[:, None] - right
        slope += np.einsum("brk,bk->br", on_stage, stages)
        slope += np.where(
            stays[:, None],
            np.einsum("brk,bk->br", at_home, stages),
            self.dp[some][:, None] * self.on_crossing[some],
        )
        value = base + np.where(stays, total_in, total + extra) - paid
        return value, self._free(slope, price, some)

    def _free(self, slope: Floats, price: Floats, some: Ints) -> Floats:
        """Return the slope without what leads beyond the limits of the prices."""
        stuck = ~self.active[some] | ((price <= 0.0) & (slope < 0.0))
        stuck |= (price >= self.most[some]) & (slope > 0.0)
        found: Floats = np.where(stuck, 0.0, slope)
        return found
