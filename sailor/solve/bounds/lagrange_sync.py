"""The least gradient sync of a stage, as the bound counts it.

A ring is as slow as its slowest hop, and a kind that takes part has a neighbour, so the ring is no
faster than the fastest hop with that kind at one end. Pairs of kinds whose hops take equally long
are evaluated once: most pairs of zones have links alike.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.sim.closed_form import MANY
from sailor.sim.tables import StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_DEGREES_AT_ONCE = 64  # of data parallelism, each evaluated exactly
Segments = tuple[Ints, Ints]  # first units and ends


def alike_segments(real: StageTables) -> tuple[Ints, Ints, Segments, Ints]:
    """Return start and stop of all segments, one for each kind of segment, and each one's index.

    Segments with the same number of units and the same ends are alike when all blocks have
    the same gradients.
    """
    units = real.num_units
    legal = np.arange(units + 1)[None, :] > np.arange(units)[:, None]
    first, second = np.nonzero(legal)
    steps = np.diff(real.gradient_prefix_bytes)
    if len(steps) > 3 and not np.all(steps[1:-1] == steps[1]):
        return first, second, (first, second), np.arange(len(first))
    key = (second - first) * 4 + (first == 0) * 2 + (second == units)
    _, index, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, second, (first[index], second[index]), inverse


class LeastSync:
    """Rings over the replicas of stages of K kinds, whose `members` are kinds of `real`."""

    def __init__(
        self,
        real: StageTables,
        members: Sequence[Ints],
        group: Ints,
        tp: Ints,
        zone_of: Sequence[str],
        largest_zone: int,
    ) -> None:
        self.real, self.members, self.group, self.tp = real, members, group, tp
        self.largest_zone = largest_zone
        self.first, self.second, self.segments, self.inverse = alike_segments(real)
        self._classes(zone_of)
        self._latest: tuple[tuple[int, ...], dict[int, Floats]] = ((), {})

    def _classes(self, zone_of: Sequence[str]) -> None:
        """Number the pairs of real kinds so that hops of one number take equally long."""
        count = len(self.real.tp)
        src, dst = (side.ravel() for side in np.indices((count, count)))
        zone = np.unique(np.array(zone_of), return_inverse=True)[1]
        rows = np.stack((self.real.sync.alike(src, dst), src == dst, zone[src] != zone[dst]))
        found, index, inverse = np.unique(rows, axis=1, return_index=True, return_inverse=True)
        self.src, self.dst = src[index], dst[index]  # [C] one of each class
        self.across: Bools = found[2].astype(np.bool_)  # [C] between zones
        of_pair = inverse.reshape(count, count)
        # [K, K, C] whether a member of the one kind may send to one of the other.
        self.between = np.zeros((len(self.members), len(self.members), len(index)), dtype=np.bool_)
        for a, mine in enumerate(self.members):
            for b, theirs in enumerate(self.members):
                self.between[a, b, of_pair[mine[:, None], theirs[None]].ravel()] = True

    def of_kinds_s(self, degrees: Sequence[int], most_tp: int | None = None) -> Floats:
        """Return [K, U, U + 1]: least all-reduce of a stage in which the kind takes part.

        With `most_tp`, of a stage whose smallest degree is no larger.

        The kind has a neighbour in the ring, of any kind, so the ring is no faster than its
        fastest hop with the kind at one end; the smallest degree of the stage is at most the
        kind's own. Where no zone has room for the replicas the ring has a hop between zones.
        The least over all `degrees` of data parallelism is returned, each evaluated exactly, so
        nothing is assumed of the link's curve.
        """
        units = self.real.num_units
        out = np.full((len(self.tp), units, units + 1), np.inf)
        least: dict[tuple[int, bytes], Floats] = {}
        for kind in range(len(self.tp)):
            most = min(int(self.tp[kind]), most_tp or int(self.tp[kind]))
            found = np.full(len(self.segments[0]), np.inf)
            for tp in sorted({int(t) for t in self.tp if t <= most}):
                # With a smallest degree below the kind's own the neighbour may still be any kind.
                may = self.tp >= tp
                usable = (self.between[kind, may] | self.between[may, kind]).any(axis=0)
                key = tp, usable.tobytes()
                if key not in least:
                    least[key] = self._least_s(degrees, tp, usable)
                found = np.minimum(found, least[key])
            out[kind, self.first, self.second] = found[self.inverse]
        return out

    def _least_s(self, degrees: Sequence[int], tp: int, usable: Bools) -> Floats:
        """Return [N]: the least ring with a usable hop of every segment, over all degrees."""
        least = np.full(len(self.segments[0]), np.inf)
        crossing = self._crossing()
        for at in range(0, len(degrees), _DEGREES_AT_ONCE):
            some = tuple(degrees[at : at + _DEGREES_AT_ONCE])
            seconds = self._hops_s(some, tp)
            inside = seconds[:, :, usable].min(axis=2)
            # A ring over several zones has a hop between two of them, whoever its ends are.
            several = np.array(some, dtype=np.int64) * tp > self.largest_zone
            if several.any() and self.across[usable].any():
                across = seconds[:, :, crossing].min(axis=2)
                inside = np.where(several[None], np.maximum(inside, across), inside)
            least = np.minimum(least, inside.min(axis=1))
        return least

    def _crossing(self, between: Sequence[int] = ()) -> Bools:
        """Return [C]: classes of hops between zones; of those, hops between two of the groups."""
        ends = np.ones(self.between.shape[:2], dtype=np.bool_)
        if between:
            some = np.isin(self.group, between)
            ends = some[:, None] & some[None] & (self.group[:, None] != self.group[None])
        found: Bools = self.between[ends].any(axis=0) & self.across
        return found

    def _hops_s(self, degrees: tuple[int, ...], tp: int) -> Floats:
        """Return [N, D, C]: the ring of every segment and degree if its slowest hop is of a class.

        Kept for the latest degrees.
        """
        if self._latest[0] != degrees:
            self._latest = degrees, {}
        kept = self._latest[1]
        if tp not in kept:
            kept[tp] = self._evaluated_s(self.segments, tp, degrees)
        return kept[tp]

    def _evaluated_s(
        self, segments: Segments, tp: int, degrees: Sequence[int], some: Bools | None = None
    ) -> Floats:
        start, stop = segments
        src, dst = (self.src, self.dst) if some is None else (self.src[some], self.dst[some])
        each = np.array(degrees, dtype=np.int64)
        seconds: Floats = self.real.sync.seconds(
            start[:, None, None],
            stop[:, None, None],
            np.asarray(tp),
            each[None, :, None],
            src[None, None, :],
            dst[None, None, :],
            np.where(src == dst, each[:, None], MANY)[None],
        )
        return seconds

    def of_set_s(self, kinds: Sequence[int], degrees: Sequence[int]) -> Floats:
        """Return [U, U + 1]: least all-reduce of a stage held by exactly these kinds.

        Every kind has a neighbour of the set in the ring, and the smallest degree is the set's.
        """
        own = list(kinds)
        seconds = self._hops_s(tuple(degrees), int(self.tp[own].min()))
        slowest = np.zeros(seconds.shape[:2])
        for kind in own:
            usable = (self.between[kind, own] | self.between[own, kind]).any(axis=0)
            slowest = np.maximum(slowest, seconds[:, :, usable].min(axis=2))
        out = np.full((self.real.num_units, self.real.num_units + 1), np.inf)
        out[self.first, self.second] = slowest.min(axis=1)[self.inverse]
        return out

    def crossing_s(
        self, segments: Segments, tp: int, degrees: Ints, between: Sequence[int] = ()
    ) -> Floats:
        """Return [N, D]: the least ring with a hop between zones, of every segment and degree.

        With groups `between`, of all rings with a hop between two of those.
        """
        seconds = self._evaluated_s(segments, tp, degrees.tolist(), self._crossing(between))
        least: Floats = seconds.min(axis=2)
        return least
