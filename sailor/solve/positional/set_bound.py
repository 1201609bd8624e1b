"""A bound on the pipelines of a box over kind sets, with rooms rounded down.

The Lagrangian over single kinds may use three and a third GPUs of a pool a pipeline. Over kind
sets the weighted rooms of `KindSets` hold, in whole GPUs:

    sum_i use_q(K_i) <= room_q = floor(w_q R / D)   for every weight q,
    sum_i (|K_i| - 1) <= extra                      where stages are cut down,
    sum_i flagged_i >= 1                            where some transfer must cross zones,

and each of these rows has a price. So for all prices p >= 0

    T >= (M - 1) Sa + Ga + min over chains of sets ( sum_i compute_i + transfers_i + p use_i )
         - p room
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.kernels.ascent import Ascent
from sailor.solve.kernels.compiled import kernels
from sailor.solve.positional.kind_sets import KindSets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SLACK = 1e-9


@dataclass(frozen=True)
class Ranges:
    """What a box says of the slowest stage and the slowest sync, in seconds."""

    low_s: float
    high_s: float
    low_g: float
    high_g: float


@dataclass(frozen=True)
class _Reach:
    """How far stages reach in a box: [J, U] furthest cuts, last stages [J, U], single [J]."""

    middle: Ints
    last: Bools
    whole: Bools


class SetProgramme:
    """The programme over the kind sets of one cell."""

    def __init__(self, space: KindSets) -> None:
        self.space, self.units = space, space.units
        self._reached: tuple[Ranges, _Reach] | None = None  # of the last box
        self.further = max(space.cell.num_microbatches - 1, 0)
        self.compute_s = np.ascontiguousarray(space.compute_s)
        self._rows()
        self._classes()
        units = self.units
        start = np.arange(units)
        self.send_back_s = np.where(start > 0, space.least_back_s[:, :units], 0.0)  # [J, U]
        self.send_on_s = space.fore_s.min(axis=1)  # [J, U + 1]
        self.send_on_s[:, units] = 0.0
        self.kernels = kernels("set_kernels")

    def _rows(self) -> None:
        """Set what a stage of each set takes of every row [J, Q], and what there is [Q]."""
        space = self.space
        use, room = [space.use.T.astype(np.float64)], [space.room.astype(np.float64)]
        if not space.paired:
            use.append(np.array([[float(len(kinds) - 1) for kinds in space.sets]]))
            room.append(np.array([float(space.extra)]))
        if space.need_flag:
            # At least one: the row is turned round.
            use.append(-space.flagged[None].astype(np.float64))
            room.append(np.array([-1.0]))
        self.use = np.ascontiguousarray(np.concatenate(use).T)
        self.room = np.concatenate(room)

    def _classes(self) -> None:
        """Put sets with the same transfers into one class."""
        space = self.space
        both = np.concatenate([space.fore_s, space.back_s], axis=2)  # [J, J, 2 (U + 1)]
        both = np.round(both, 15)
        keys = [(both[j].tobytes(), both[:, j].tobytes()) for j in range(len(space.sets))]
        number: dict[tuple[bytes, bytes], int] = {}
        for key in keys:
            number.setdefault(key, len(number))
        self.by_class = np.array([number[key] for key in keys], dtype=np.int64)
        lead = np.array([int(np.argmax(self.by_class == c)) for c in range(len(number))])
        grid = np.ix_(lead, lead)
        once = (space.fore_s + space.back_s)[grid].transpose(2, 0, 1)
        ended = (space.fore_s + 2.0 * space.back_s)[grid].transpose(2, 0, 1)
        self.edge = np.ascontiguousarray(once[: self.units])  # [U, C, C]
        self.edge_end = np.ascontiguousarray(ended[: self.units])

    def reach(self, box: Ranges) -> _Reach:
        """Return how far stages reach within the times of a box and in memory."""
        if self._reached is None or self._reached[0] != box:
            self._reached = box, self._reach(box)
        return self._reached[1]

    def _reach(self, box: Ranges) -> _Reach:
        units, space = self.units, self.space
        ceiling_s = box.high_s * (1 + _SLACK)
        in_g = space.sync_s <= box.high_g * (1 + _SLACK) + 1e-15
        cut = np.arange(units + 1)
        factor = min(space.programme.tables.real.short_pipeline_factor[1], 2.0)
        sent_on = np.repeat(self.send_on_s[:, None], units, axis=1)
        sent_on[:, 0] *= min(factor, 1.0)
        stage = self.compute_s + self.send_back_s[:, :, None]
        within = in_g & (stage + sent_on <= ceiling_s) & (cut[None, None] < units)
        middle = np.where(within, cut, 0).max(axis=2)
        middle = np.minimum(middle, space.memory(2))
        alone = self.compute_s[:, :, units]
        last = in_g[:, :, units] & (alone + 2.0 * self.send_back_s <= ceiling_s)
        last &= space.memory(1) >= units
        last[:, 0] = False
        last &= space.ends[:, None]
        whole = in_g[:, 0, units] & (alone[:, 0] <= ceiling_s) & space.whole
        pinned = space.programme.pinned
        if pinned == 1:
            last[:] = False
        elif pinned is not None:
            whole[:] = False
        return _Reach(middle, last, whole)

    def bound(
        self, box: Ranges, prices: Floats, cutoff_s: float, steps: int
    ) -> tuple[float, Floats]:
        """Return a bound on all pipelines of the box, and the prices [Q] that gave it.

        Begins at `prices`; ends at the cutoff or after so many steps. Infinite: there are none.
        """
        work.add(work.SET_S * steps * len(self.use) * self.units**2)
        reach, fixed = self.reach(box), self.further * box.low_s + box.low_g
        if self.kernels is not None:
            found: tuple[float, Floats] = self.kernels.best_bound(
                self.compute_s, reach.middle, reach.last, reach.whole, self.by_class, self.edge,
                self.edge_end, self.use, self.room, prices, fixed, cutoff_s, steps,
            )  # fmt: skip
            return found
        ascent = Ascent(prices, cutoff_s)
        for _ in range(steps):
            value, taken = self._cheapest(reach, self.price(ascent.prices))
            if not np.isfinite(value):
                return float("inf"), ascent.best_prices
            value = float(fixed + value)
            for row, room in enumerate(self.room.tolist()):
                value -= float(ascent.prices[row]) * room
            ascent.advance(value, taken - self.room)
            if ascent.done:
                break
        return ascent.best, ascent.best_prices

    def price(self, prices: Floats) -> Floats:
        """Return [J]: what a stage of each set pays, added up row by row."""
        paid = np.zeros(len(self.use))
        for row in range(len(prices)):
            paid += self.use[:, row] * prices[row]
        return paid

    def _joined(self, before: Floats, edge: Floats) -> tuple[Floats, Ints]:
        """Return [C]: the least of [J] with the edge to a stage of each class, and its set."""
        classes = len(edge)
        leader = np.zeros(classes, dtype=np.int64)
        for number in range(classes):
            own = np.flatnonzero(self.by_class == number)
            leader[number] = own[before[own].argmin()]
        value = before[leader][:, None] + edge
        best = value.argmin(axis=0)
        return value[best, np.arange(classes)], leader[best]

    def _cheapest(self, reach: _Reach, price: Floats) -> tuple[float, Floats]:
        """Return the cheapest chain, and what it takes of every row [Q]."""
        units, sets = self.units, len(price)
        row = np.arange(sets)
        joined: list[Floats] = [np.zeros(len(self.edge[0]))]
        ended: list[Floats] = [np.zeros(0)]
        nobody = np.zeros(0, dtype=np.int64)
        partner: list[Ints] = [nobody]
        end_partner: list[Ints] = [nobody]
        starts: list[Ints] = [nobody]
        for cut in range(1, units):
            ahead = np.stack(joined, axis=1)[self.by_class] + self.compute_s[:, :cut, cut]
            ahead = np.where(reach.middle[:, :cut] >= cut, ahead, np.inf)
            start = ahead.argmin(axis=1)
            before = ahead[row, start] + price
            starts.append(start)
            for edge, values, partners in (
                (self.edge, joined, partner),
                (self.edge_end, ended, end_partner),
            ):
                least, who = self._joined(before, edge[cut])
                values.append(least)
                partners.append(who)
        total = np.full((sets, units), np.inf)
        alone = self.compute_s[:, 0, units] + price
        total[reach.whole, 0] = alone[reach.whole]
        for v in range(1, units):
            last = ended[v][self.by_class] + self.compute_s[:, v, units] + price
            total[:, v] = np.where(reach.last[:, v], last, np.inf)
        kinds, at = (int(place) for place in np.unravel_index(total.argmin(), total.shape))
        value = float(total[kinds, at])
        taken = self.use[kinds].copy()
        if at > 0 and np.isfinite(value):
            kinds = int(end_partner[at][self.by_class[kinds]])
            while True:
                taken = taken + self.use[kinds]
                at = int(starts[at][kinds])
                if at == 0:
                    break
                kinds = int(partner[at][self.by_class[kinds]])
        return value, taken

    def ahead_by_place(self, box: Ranges, prices: Floats) -> list[Floats]:
        """Return, by place, [J, U]: the least in front of a stage there, with prices [Q].

        The last stage is at place 1 (entry 0 is that of place 1 too). Transfers to the stage are
        counted; at unit 0 there is nothing in front.
        """
        reach, price = self.reach(box).middle, self.price(prices)
        found = np.full((len(price), self.units), np.inf)
        found[:, 0] = 0.0
        furthest = self.space.programme.max_stages
        deepest = min(furthest, self._most_stages())
        places = [found] * (furthest - deepest + 1)
        for place in range(deepest, 1, -1):
            found = self._step_ahead(reach, self.space.memory(place), price, found)
            places.append(found)
        places.append(found)
        work.add(work.SET_S * deepest * len(price) * self.units**2)
        return places[::-1]

    def _most_stages(self) -> int:
        """Return how many stages a pipeline has at most: each takes something of some rows."""
        least = self.use.min(axis=0)
        taking = least > 0
        room = self.room[taking] / least[taking]
        return max(1, int(room.min(initial=float(self.units)) * (1 + _SLACK)))

    def _step_ahead(self, reach: Ints, memory: Ints, price: Floats, found: Floats) -> Floats:
        if self.kernels is not None:
            stepped: Floats = self.kernels.step_ahead(
                self.compute_s, reach, memory, self.by_class, self.edge, price, found
            )
            return stepped
        out = np.zeros_like(found)
        limit = np.minimum(reach, memory)
        for cut in range(1, self.units):
            total = found[:, :cut] + self.compute_s[:, :cut, cut]
            before = np.where(limit[:, :cut] >= cut, total, np.inf).min(axis=1) + price
            out[:, cut] = self._joined(before, self.edge[cut])[0][self.by_class]
        return out
