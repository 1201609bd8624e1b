"""The dynamic programme over stages: units of the model against GPUs of the pools.

For a ceiling S on the time of a stage it finds, for every number of stages and every use of the
pools, the pipeline of least total stage time; with (N - 1) * S that is the iteration time of the
closed form up to the transfers between unlike neighbours and the gradient sync, which the exact
evaluation of the finished pipelines adds. Stages are laid from the last one backwards, since the
activations that a stage keeps depend on how far it is from the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.cell import Cell

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Number = TypeVar("_Number", np.float64, np.int64)

# Resource states beyond this are merged by letting a pool's unit stand for several GPUs a
# pipeline; it bounds time and memory of one cell.
_MAX_STATES = 600


@dataclass(frozen=True)
class Pipeline:
    """A pipeline of stages, each of one kind: unit boundaries and kinds by stage."""

    cuts: tuple[int, ...]
    kinds: tuple[int, ...]


@dataclass(frozen=True)
class StageRules:
    """What the programme may vary."""

    max_stages: int
    stages: int | None = None  # pinned number
    even: bool = False  # stage sizes differ by at most one
    kinds: tuple[int, ...] | None = None  # only these
    min_cost: bool = False  # rank by dollars, not seconds
    max_s: float | None = None
    max_usd: float | None = None


class StageProgramme:
    """The programme of one cell."""

    def __init__(self, cell: Cell, rules: StageRules) -> None:
        self.cell = cell
        self.rules = rules
        search, tables = cell.search, cell.search.tables
        units = tables.num_units
        self.units = units
        kinds = range(search.num_kinds) if rules.kinds is None else rules.kinds
        self.kinds = [
            kind for kind in kinds if tables.usable[kind] and search.num_replicas[kind] >= cell.dp
        ]
        # Room in GPUs a pipeline: a stage of kind k takes tp_k of its pool's.
        self.room = [
            max(
                (
                    int(search.num_replicas[k]) // cell.dp * int(tables.tp[k])
                    for k in self.kinds
                    if search.pool[k] == pool
                ),
                default=0,
            )
            for pool in range(len(search.room))
        ]
        cap = rules.max_stages * max((int(tables.tp[k]) for k in self.kinds), default=1)
        self.room = [min(room, cap) for room in self.room]
        while np.prod([room + 1 for room in self.room], dtype=float) > _MAX_STATES:
            widest = int(np.argmax(self.room))
            self.room[widest] = max(1, self.room[widest] * 3 // 4)
        self.start = np.arange(units)[:, None]
        self._segments()

    def _segments(self) -> None:
        """Precompute, for every kind and segment [u, u + m), compute, state and activations."""
        tables = self.cell.search.tables
        units = self.units
        stop = np.minimum(self.start + np.arange(1, units + 1)[None, :], units)
        self.legal = self.start + np.arange(1, units + 1)[None, :] <= units
        self.stop = stop
        every = np.arange(self.cell.search.num_kinds)[:, None, None]
        self.compute = tables.compute_s(every, self.start[None], stop[None], self.cell.dp)
        self.block_bytes_class = int(tables.forward_size[min(1, units - 1)])
        grid = np.arange(self.cell.search.num_kinds)
        own = tables.send_s[self.block_bytes_class, grid, grid]
        blocked = (
            0.0
            if tables.blocked_s is None
            else tables.blocked_s[self.block_bytes_class, grid, grid]
        )
        # An inner stage between two of its kind: it sends both ways, and may wait for both.
        self.transfers_s = 2.0 * (own + blocked)

    def attainable(self, low: float, high: float, most: int) -> Floats:
        """Return up to `most` stage times in [low, high] that some kind and size has."""
        found = [self.compute[kind][self.legal] + self.transfers_s[kind] for kind in self.kinds]
        times = np.unique(np.round(np.concatenate(found), 9)) if found else np.zeros(0)
        times = times[(times >= low) & (times <= high)]
        if len(times) > most:
            times = times[np.unique(np.linspace(0, len(times) - 1, most).astype(int))]
        return times

    def run(self, ceilings: Floats, most: int) -> list[Pipeline]:
        """Return up to `most` promising pipelines under the given ceilings on stage time."""
        if not self.kinds or len(ceilings) == 0:
            return []
        if not self.rules.even:
            return self._run(ceilings, most, self.rules.stages, None)
        found: list[Pipeline] = []
        low = self.rules.stages or 2
        high = self.rules.stages or self.rules.max_stages
        for stages in range(low, high + 1):
            size = self.units // stages
            found.extend(self._run(ceilings, most, stages, (size, size + 1)))
        return found

    def _run(
        self, ceilings: Floats, most: int, stages: int | None, sizes: tuple[int, ...] | None
    ) -> list[Pipeline]:
        num_ceilings = len(ceilings)
        shape = tuple(room + 1 for room in self.room)
        last = stages or self.rules.max_stages
        longest = self._longest(float(ceilings.max()), sizes)
        if longest == 0:
            return []
        best = np.full((num_ceilings, self.units + 1, *shape), np.inf)
        best[:, self.units].reshape(num_ceilings, -1)[:, 0] = 0.0
        history: list[tuple[Ints, Ints, Floats]] = []
        for from_end in range(1, last + 1):
            best, kind, size = self._add_stage(best, from_end, longest, ceilings, sizes)
            history.append((kind, size, best[:, 0]))
            if not np.isfinite(best).any():
                break
        return self._finish(history, ceilings, most, stages)

    def _longest(self, ceiling: float, sizes: tuple[int, ...] | None) -> int:
        if sizes is not None:
            return max(sizes)
        fastest = self.compute[self.kinds].min(axis=0)
        within = (fastest <= ceiling) & self.legal
        return int(within.sum(axis=1).max()) if within.any() else 0

    def _allowed(self, kind: int, from_end: int, longest: int) -> NDArray[np.bool_]:
        """Return [U, M]: segments whose worker has room at this distance from the end."""
        tables = self.cell.search.tables
        memory = tables.memory
        stop = self.stop[:, :longest]
        start = np.broadcast_to(self.start, stop.shape)
        in_flight = memory.in_flight(from_end, self.cell.num_microbatches)
        need = memory.bound_bytes(
            np.full(stop.shape, kind), start, stop, in_flight, 2, self.cell.dp
        )
        fits: NDArray[np.bool_] = (need <= memory.capacity_bytes[kind]) & self.legal[:, :longest]
        return fits

    def _add_stage(
        self,
        best: Floats,
        from_end: int,
        longest: int,
        ceilings: Floats,
        sizes: tuple[int, ...] | None,
    ) -> tuple[Floats, Ints, Ints]:
        """Put one more stage in front of every suffix; returns totals and the choices."""
        work.add(work.SPLIT_S * best.size * longest * len(self.kinds))
        new = np.full_like(best, np.inf)
        chosen_kind = np.full(best[:, : self.units].shape, -1, dtype=np.int64)
        chosen_size = np.zeros(chosen_kind.shape, dtype=np.int64)
        tables = self.cell.search.tables
        for kind in self.kinds:
            pool = int(self.cell.search.pool[kind])
            tp = int(tables.tp[kind])
            if tp > self.room[pool]:
                continue
            axis = 2 + pool
            before = _along(best, axis, slice(0, self.room[pool] + 1 - tp))
            if not np.isfinite(before).any():
                continue
            seconds = self.compute[kind][:, :longest] + self.transfers_s[kind]
            allowed = self._allowed(kind, from_end, longest)
            if sizes is not None:
                lengths = np.arange(1, longest + 1)
                allowed = allowed & np.isin(lengths, sizes)[None, :]
            cost = np.where(
                allowed[None] & (seconds[None] <= ceilings[:, None, None] * (1 + 1e-9)),
                seconds[None],
                np.inf,
            )
            if not np.isfinite(cost).any():
                continue
            # Before a stage of m units, the suffix starts m units later. One pass for each m over
            # contiguous memory is faster than one reduction over a strided window.
            target = _along(new[:, : self.units], axis, slice(tp, None))
            kind_of = _along(chosen_kind, axis, slice(tp, None))
            size_of = _along(chosen_size, axis, slice(tp, None))
            ones = (1,) * len(self.room)
            for size in np.flatnonzero(np.isfinite(cost).any(axis=(0, 1))) + 1:
                last = self.units + 1 - size
                step = cost[:, :last, size - 1].reshape((len(ceilings), last, *ones))
                value = before[:, size : size + last] + step
                better = value < target[:, :last]
                np.copyto(target[:, :last], value, where=better)
                np.copyto(kind_of[:, :last], kind, where=better)
                np.copyto(size_of[:, :last], size, where=better)
        return new, chosen_kind, chosen_size

    def _finish(
        self,
        history: list[tuple[Ints, Ints, Floats]],
        ceilings: Floats,
        most: int,
        stages: int | None,
    ) -> list[Pipeline]:
        """Trace the best complete pipelines back, over all ceilings and uses of the pools."""
        weight = self.cell.num_microbatches - 1
        ends: list[tuple[float, int, tuple[int, ...]]] = []
        for from_end, (_, _, complete) in enumerate(history, start=1):
            if stages is not None and from_end != stages:
                continue
            seconds = complete + weight * ceilings.reshape((-1,) + (1,) * len(self.room))
            score = self._rank(seconds)
            flat = score.ravel()
            if not np.isfinite(flat).any():
                continue
            keep = min(most, flat.size)
            for position in np.argpartition(flat, keep - 1)[:keep]:
                if np.isfinite(flat[position]):
                    where = tuple(int(x) for x in np.unravel_index(position, score.shape))
                    ends.append((float(flat[position]), from_end, where))
        ends.sort()
        found: dict[Pipeline, None] = {}
        for _, from_end, where in ends:
            found[self._trace(history, from_end, where)] = None
            if len(found) >= most:
                break
        return list(found)

    def _rank(self, seconds: Floats) -> Floats:
        """Return what to minimise; infinite beyond the limits (sync and egress only add)."""
        rules = self.rules
        if not rules.min_cost and rules.max_usd is None and rules.max_s is None:
            return seconds
        usd_per_s = np.zeros((1,) * (1 + len(self.room)))
        price = self.cell.search.tables.usd_per_gpu_hour / 3600.0
        for pool, room in enumerate(self.room):
            cheapest = price[self.cell.search.pool == pool].min(initial=np.inf)
            gpus = np.arange(room + 1, dtype=float) * self.cell.dp
            shape = [1] * (1 + len(self.room))
            shape[1 + pool] = room + 1
            rent = np.where(gpus > 0, gpus * (cheapest if np.isfinite(cheapest) else 0.0), 0.0)
            usd_per_s = usd_per_s + rent.reshape(shape)
        usd = np.where(
            np.isfinite(seconds), np.where(np.isfinite(seconds), seconds, 0.0) * usd_per_s, np.inf
        )
        score = usd if rules.min_cost else seconds
        if rules.max_s is not None:
            score = np.where(seconds <= rules.max_s, score, np.inf)
        if rules.max_usd is not None:
            score = np.where(usd <= rules.max_usd, score, np.inf)
        return score

    def _trace(
        self, history: list[tuple[Ints, Ints, Floats]], from_end: int, where: tuple[int, ...]
    ) -> Pipeline:
        ceiling, used = where[0], list(where[1:])
        tables = self.cell.search.tables
        unit, cuts, kinds = 0, [0], []
        for stage in range(from_end, 0, -1):
            chosen_kind, chosen_size, _ = history[stage - 1]
            kind = int(chosen_kind[(ceiling, unit, *used)])
            unit += int(chosen_size[(ceiling, unit, *used)])
            used[int(self.cell.search.pool[kind])] -= int(tables.tp[kind])
            kinds.append(kind)
            cuts.append(unit)
        return Pipeline(tuple(cuts), tuple(kinds))


def _along(array: NDArray[_Number], axis: int, part: slice) -> NDArray[_Number]:
    """Return a view of the array with `part` taken along one axis."""
    index: list[slice] = [slice(None)] * array.ndim
    index[axis] = part
    return array[tuple(index)]
