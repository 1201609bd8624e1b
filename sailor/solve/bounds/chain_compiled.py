"""A chain programme's tables as the compiled kernels take them, and the calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor.solve.bounds.lagrange_rows import Chains, Reach, Rows
from sailor.solve.kernels.compiled import loaded

if TYPE_CHECKING:
    from sailor.solve.bounds.lagrange_dp import ChainProgramme

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KERNELS, EXACT_KERNELS = "chain_kernels", "chain_suffix_kernels"  # modules


class CompiledChains:
    """What `ChainProgramme` computes with numpy, by kernels; the numbers are the same."""

    def __init__(self, programme: ChainProgramme) -> None:
        self.programme = programme
        tables, units = programme.tables, programme.units
        self.capped, self.pinned = programme.capped, programme.pinned or 0
        self.compute = floats(tables.compute_s)
        self.forward, self.backward = floats(tables.forward_s), floats(tables.backward_s)
        forth, back = tables.forward_s[:, :, :units], tables.backward_s[:, :, :units]
        self.by_kind, self.end_by_kind = floats(forth + back), floats(forth + 2.0 * back)
        self.edge = floats(self.by_kind.transpose(2, 0, 1))
        self.edge_end = floats(self.end_by_kind.transpose(2, 0, 1))
        self.pair_kind, self.level = ints(programme.pair_kind), ints(programme.level)
        self.whole = bools(programme.reach_single[:, 0] >= units)
        places = range(programme.max_stages + 1)
        self.factors = floats([tables.real.first_send_factor(place) for place in places])
        self.firsts = floats([programme.first_s(float(factor)) for factor in self.factors])
        self._memory: Ints | None = None

    @property
    def memory(self) -> Ints:
        """Return [F + 1, K, U]: the furthest cut by memory, by the number of microbatches kept."""
        if self._memory is None:
            programme = self.programme
            found = [programme.reach_at(place) for place in range(1, programme.max_stages + 1)]
            # A place after the first two is not looked at where pipelines have one stage.
            found = [found[0], *found, *([programme.reach_at(2)] if len(found) == 1 else [])]
            self._memory = ints(found)
        return self._memory

    def relaxed(self, rows: Rows, reach: Reach) -> Chains:
        """Return the cheapest chains of the relaxed programme."""
        return self._relaxed(rows, reach, traced=True)[0]

    def _relaxed(
        self, rows: Rows, reach: Reach, *, traced: bool
    ) -> tuple[Chains, Sequence[object], Floats]:
        """Return the cheapest chains, the limits of rows, and what is in front of a stage."""
        size, kinds, units = len(rows.prices), self.programme.kinds, self.programme.units
        alone = np.where(reach.single & self.whole, self.compute[:, 0, units] + rows.prices, np.inf)
        limits = (*_limits(rows, reach), bools(reach.last), floats(alone))
        found = Chains(np.empty(size), np.zeros((size, kinds), dtype=np.int64))
        joined = np.empty((size, units, kinds))
        loaded(KERNELS).relaxed(
            *limits, self.memory, self.capped, self.pinned, self.pair_kind, self.compute,
            self.edge, self.edge_end, traced, joined, found.cost_s, found.stages,
        )  # fmt: skip
        return found, limits, joined

    def solve(self, rows: Rows, reach: Reach, enough: Floats) -> Chains:
        """Return the cheapest chains of the exact programme, as far as they cost less."""
        found, limits, joined = self._relaxed(rows, reach, traced=False)
        loaded(EXACT_KERNELS).solve(
            *limits, floats(enough), joined, self.memory, self.capped, self.pinned,
            self.factors, self.pair_kind, self.level, self.compute, self.forward, self.backward,
            self.by_kind, self.end_by_kind, self.firsts, found.cost_s, found.stages,
        )  # fmt: skip
        return found

    def ahead_by_place(self, rows: Rows, reach: Reach) -> list[Floats]:
        """Return, by place, [B, K, U]: the least cost of the units in front of a stage."""
        programme = self.programme
        shape = (programme.max_stages + 1, len(rows.prices), programme.kinds, programme.units)
        out = np.empty(shape)
        loaded(KERNELS).ahead(
            *_limits(rows, reach), self.memory, self.capped, self.pair_kind, self.compute,
            self.edge, out,
        )  # fmt: skip
        return list(out)


def _limits(rows: Rows, reach: Reach) -> Sequence[object]:
    """Return prices and limits of the rows in the order of the kernels."""
    return (
        floats(rows.prices), ints(rows.num_microbatches), ints(reach.middle),
        ints(reach.short_first), ints(reach.long_first),
    )  # fmt: skip


def floats(values: ArrayLike) -> Floats:
    """Return the values as kernels take them: contiguous and writable."""
    return np.require(values, np.float64, ["C", "W"])


def ints(values: ArrayLike) -> Ints:
    """Return whole numbers as kernels take them."""
    return np.require(values, np.int64, ["C", "W"])


def bools(values: ArrayLike) -> NDArray[np.bool_]:
    """Return truth values as kernels take them."""
    return np.require(values, np.bool_, ["C", "W"])
