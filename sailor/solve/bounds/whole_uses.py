"""What one pipeline may take of the pools, in whole GPUs: the points of a region, numbered."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.bounds.lagrange_tables import BoundTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLACK = 1e-9


class TooManyUsesError(Exception):
    """The region has more points than are wanted."""


class Uses:
    """GPUs of each group that a pipeline takes, where they cost less than `budget` at a direction.

    `direction` [G] has the price of all GPUs of each group. The points [N, G] are not zero;
    `onward` [K, N + 1] is the point after one more stage of a kind, first from nothing, then from
    every point; -1 where that is outside.
    """

    def __init__(self, tables: BoundTables, direction: Floats, budget: float, most: int) -> None:
        room = tables.room
        price = direction / np.maximum(room, 1)
        # No GPU may be free, or there would be no end to what a pipeline takes of it.
        limit = np.minimum(room, budget * (1 + _SLACK) / np.maximum(price, 1e-12)).astype(np.int64)
        points = np.zeros((1, 0), dtype=np.int64)
        spent = np.zeros(1)
        for group in range(len(room)):
            each = np.arange(int(limit[group]) + 1)
            total = spent[:, None] + each * price[group]
            row, count = np.nonzero(total <= budget * (1 + _SLACK))
            if len(row) > most + 1:
                raise TooManyUsesError
            points = np.column_stack((points[row], each[count]))
            spent = total[row, count]
        # The first point is nothing; points are in lexical order.
        code = np.zeros(len(points), dtype=np.int64)
        base = np.ones(len(room), dtype=np.int64)
        base[:-1] = np.cumprod((limit + 1)[:0:-1])[::-1]
        code = (points * base).sum(axis=1)
        self.points = points[1:]
        self.cost = spent[1:] / budget  # [N] in parts of the budget
        self.stage_cost = price[tables.group] * tables.tp / budget  # [K]
        self.onward = np.full((tables.num_kinds, len(points)), -1, dtype=np.int64)
        for kind in range(tables.num_kinds):
            group = int(tables.group[kind])
            inside = points[:, group] + tables.tp[kind] <= limit[group]
            after = code + tables.tp[kind] * base[group]
            place = np.minimum(np.searchsorted(code, after), len(code) - 1)
            found = inside & (code[place] == after)
            self.onward[kind] = np.where(found, place - 1, -1)

    def __len__(self) -> int:
        return len(self.points)
