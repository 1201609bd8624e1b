"""The positional programme: the best pipeline of a cell, with GPUs counted as they are.

The Lagrangian bound prices GPUs, so it may use two and a half stages' worth of a pool. Here the
stages are laid one by one, from the last to the first, and each partial pipeline (a label) knows
what it has taken of every pool. Labels that can't be completed below the cutoff, by the Lagrangian
programme's own prefixes, are dropped, and so are those that another one beats. Compiled code does
the same in `label_compiled.py`, and compares more labels with each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from dataclasses import fields as fields_of

import numpy as np
from numpy.typing import NDArray

from sailor.solve import work
from sailor.solve.kernels.compiled import kernels
from sailor.solve.positional.compiled_labels import KERNELS, CompiledLabels
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.positional.labels import (
    COST,
    PENDING,
    SLOWEST,
    SYNC,
    Labels,
    TooManyLabelsError,
    Trace,
)
from sailor.solve.positional.packed import Packed
from sailor.solve.positional.prices import Prices, Rest

__all__ = ["Found", "Limits", "PositionalProgramme", "StageChoice", "TooManyLabelsError"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLACK = 1e-9
_BEFORE_PRUNING = 12  # labels of a layer, to those that may be left of them
_EXPANDED_AT_ONCE = 2_000_000
_MANY = 2000  # labels of a layer, that are worth prices of their own
_ROUNDS = 2  # of comparing labels with the best one that is alike


@dataclass(frozen=True)
class Limits:
    """What pipelines of a box are: ceilings, the least fixed time, and what is of no interest."""

    low_s: float
    high_s: float
    low_g: float
    high_g: float
    cutoff_s: float


@dataclass(frozen=True)
class StageChoice:
    """One stage: its units and its kinds."""

    start: int
    stop: int
    kinds: tuple[int, ...]


@dataclass(frozen=True)
class Found:
    """The best pipeline of a box: seconds an iteration, with fractions of replicas allowed."""

    seconds: float
    stages: tuple[StageChoice, ...]


@dataclass
class _Step:
    """Pairs of a label and a kind set for the stage in front of it."""

    label: Ints
    kinds: Ints
    cut: Ints
    cost_s: Floats  # with the gradient sent back by the label's first stage
    slowest_s: Floats  # with that stage
    fore_s: Floats  # what the new stage sends on

    def take(self, rows: slice) -> _Step:
        return _Step(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class PositionalProgramme:
    """The programme over one cell."""

    def __init__(self, space: KindSets) -> None:
        self.space, self.packed = space, Packed(space)
        self.programme, self.units = space.programme, space.units
        self.further = max(space.cell.num_microbatches - 1, 0)
        possible = self.packed.usable[:, None, None] & np.isfinite(space.fore_s)
        self.most_back_s = np.where(possible, space.back_s, 0.0).max(axis=0)  # [J, U + 1]
        self.by_class, self.num_classes = _classes(space)
        fast = kernels(KERNELS) is not None
        self.fast = CompiledLabels(space, self.packed) if fast else None

    def run(
        self,
        limits: Limits,
        prices: Prices,
        most_labels: int,
        should_stop: Callable[[], bool],
    ) -> Found | None:
        """Return the best pipeline of the box that beats the cutoff; None: there is none.

        Raises TooManyLabelsError where the answer would take too long.
        """
        self.limits, self.most_labels = limits, most_labels
        self.prices = prices
        self._look_ahead(1)
        self.ceiling_s = limits.high_s * (1 + _SLACK)
        within_g = self.space.sync_s <= limits.high_g * (1 + _SLACK) + 1e-15
        start = np.arange(self.units)
        self.send_back_s = np.where(start > 0, self.space.least_back_s[:, : self.units], 0.0)
        self.fits = within_g & (
            self.space.compute_s + self.send_back_s[:, :, None] <= self.ceiling_s
        )
        # A first stage this late takes the gradient of any set in front within the ceiling.
        self.latest_s = self.ceiling_s - self.most_back_s
        self.best_s = limits.cutoff_s
        best: tuple[int, Ints] | None = None
        layers: list[Trace] = []
        labels, single = self._last()
        if single is not None:
            best = (1, np.array([single]))
        pinned = self.programme.pinned
        layers.append(labels.trace())
        for from_end in range(2, (pinned or self.programme.max_stages) + 1):
            if not len(labels):
                break
            if should_stop():
                raise TooManyLabelsError
            self._look_ahead(from_end)
            work.add(work.LABEL_S * len(labels) * len(self.space.sets))
            step = self._extended if self.fast is None else self.fast.extended
            labels, complete = step(self, labels, from_end)
            if complete is not None:
                best = (from_end, complete)
            if self.fast is not None and len(labels) > _MANY:
                labels = self._looked_at(labels, from_end)
            layers.append(labels.trace())
        return None if best is None else self._traced(best, layers)

    def _look_ahead(self, place: int) -> None:
        """Take what stages cost at the prices, and what lies in front of one at a place."""
        self.price, self.ahead = self.prices.price, self.prices.ahead(place)

    def _looked_at(self, labels: Labels, place: int) -> Labels:
        """Return the labels of a place that are left with prices made for some of them."""
        use = self.packed.unpacked(labels.use)
        rest = Rest(labels.start, labels.kinds, self._least(labels, 1.0), use)
        left = self.prices.learn(rest, place, self.best_s)
        labels = labels.take(left)
        labels.price = self.prices.of(use[left])
        return labels

    def may_end(self, from_end: int) -> bool:
        """Return whether pipelines may have so many stages."""
        return self.programme.pinned in (None, from_end)

    def fits_at(self, from_end: int) -> NDArray[np.bool_]:
        """Return [J, U, U + 1]: stages of units [v, u) that fit at a place from the end."""
        stop = np.arange(self.units + 1)
        fits: NDArray[np.bool_] = self.fits & (stop <= self.space.memory(from_end)[:, :, None])
        fits &= np.arange(self.units)[:, None] < stop
        return fits

    def _last(self) -> tuple[Labels, int | None]:
        """Return the last stages as labels, and the best pipeline of one stage (its set)."""
        units, space = self.units, self.space
        room = self.packed.usable & space.ends
        single: int | None = None
        if self.may_end(1):
            ok = space.whole & self.fits[:, 0, units] & room
            whole = np.maximum(space.compute_s[:, 0, units], self.limits.low_s)
            seconds = self.further * whole + space.compute_s[:, 0, units]
            seconds = seconds + np.maximum(space.sync_s[:, 0, units], self.limits.low_g)
            value = np.where(ok, seconds, np.inf)
            if value.min() < self.best_s:
                single = int(value.argmin())
                self.best_s = float(value[single])
        compute = space.compute_s[:, :, units]
        fits = self.fits_at(1)[:, :, units] & room[:, None]
        fits &= compute + 2.0 * self.send_back_s <= self.ceiling_s
        fits[:, 0] = False
        kinds, start = np.nonzero(fits)
        seconds = compute[kinds, start]
        slowest = np.full(len(kinds), self.limits.low_s)
        sync = np.maximum(space.sync_s[kinds, start, units], self.limits.low_g)
        labels = Labels(
            start, kinds, self.packed.first_use[kinds],
            np.stack([seconds, seconds, slowest, sync], axis=1),
            self.price[kinds], np.full(len(kinds), -1, dtype=np.int64),
        )  # fmt: skip
        return self._kept(labels, 2.0), single

    def _least(self, labels: Labels, back: float) -> Floats:
        """Return the least seconds of labels, without what is in front of them."""
        times = labels.times
        sent = back * self.send_back_s[labels.kinds, labels.start]
        slowest = np.maximum(times[:, SLOWEST], times[:, PENDING] + sent)
        seconds: Floats = self.further * slowest + times[:, SYNC] + times[:, COST]
        return seconds

    def _hopeless(self, labels: Labels, back: float) -> NDArray[np.bool_]:
        rest = self.ahead[labels.kinds, labels.start]
        rest += labels.price
        hopeless: NDArray[np.bool_] = self._least(labels, back) + rest.max(axis=1) >= self.best_s
        return hopeless

    @staticmethod
    def _extended(
        self: PositionalProgramme, labels: Labels, from_end: int
    ) -> tuple[Labels, Ints | None]:
        """Put one more stage in front; with it the first stage of the best pipeline, if better.

        That is (kind set, label behind it).
        """
        twice = 2.0 if from_end == 2 else 1.0
        back = twice * self.space.back_s[:, labels.kinds, labels.start].T  # [N, J]
        pending = labels.times[:, PENDING]
        legal = (pending[:, None] + back <= self.ceiling_s) & self.packed.usable
        legal &= self.packed.within(labels.use[:, None], self.packed.left[None])
        label, kinds = np.nonzero(legal)
        sent = back[label, kinds]
        step = _Step(
            label, kinds, labels.start[label], labels.times[label, COST] + sent,
            np.maximum(labels.times[label, SLOWEST], pending[label] + sent),
            self.space.fore_s[kinds, labels.kinds[label], labels.start[label]],
        )  # fmt: skip
        fits = self.fits_at(from_end)
        complete = self._complete(labels, step, fits, from_end) if self.may_end(from_end) else None
        fits[:, 0] = False
        ends = np.cumsum(fits.sum(axis=1)[kinds, step.cut])
        parts: list[Labels] = []
        begin = 0
        while begin < len(label):
            before = ends[begin - 1] if begin else 0
            stop = int(np.searchsorted(ends, before + _EXPANDED_AT_ONCE, side="right"))
            stop = max(stop, begin + 1)
            parts.append(self._sized(labels, step.take(slice(begin, stop)), fits))
            if sum(len(part) for part in parts) > _BEFORE_PRUNING * self.most_labels:
                raise TooManyLabelsError
            begin = stop
        if not parts:
            return labels.take(np.zeros(0, dtype=np.int64)), complete
        joined = Labels(
            *(
                np.concatenate([getattr(part, field.name) for part in parts])
                for field in fields_of(Labels)
            )
        )
        return self._kept(joined, 1.0), complete

    def _complete(
        self, labels: Labels, step: _Step, fits: NDArray[np.bool_], from_end: int
    ) -> Ints | None:
        """Return the first stage of the best complete pipeline, if it beats the best so far."""
        factor = self.programme.tables.real.first_send_factor(from_end)
        kinds, cut = step.kinds, step.cut
        stage = self.space.compute_s[kinds, 0, cut] + factor * step.fore_s
        ok = fits[kinds, 0, cut] & (stage <= self.ceiling_s)
        ok &= self.packed.within(labels.use[step.label], self.packed.done[kinds])
        sync = np.maximum(labels.times[step.label, SYNC], self.space.sync_s[kinds, 0, cut])
        seconds = self.further * np.maximum(step.slowest_s, stage) + step.cost_s + stage + sync
        seconds = np.where(ok, seconds, np.inf)
        if not len(seconds) or seconds.min() >= self.best_s:
            return None
        best = int(seconds.argmin())
        self.best_s = float(seconds[best])
        return np.array([kinds[best], step.label[best]])

    def _sized(self, labels: Labels, step: _Step, fits: NDArray[np.bool_]) -> Labels:
        """Return a label for every number of units of the new stages."""
        pair, start = np.nonzero(fits[step.kinds, :, step.cut])
        own, stop, parent = step.kinds[pair], step.cut[pair], step.label[pair]
        stage = self.space.compute_s[own, start, stop] + step.fore_s[pair]
        keep = stage + self.send_back_s[own, start] <= self.ceiling_s
        pair, start, own, stop = pair[keep], start[keep], own[keep], stop[keep]
        parent, stage = parent[keep], stage[keep]
        sync = np.maximum(labels.times[parent, SYNC], self.space.sync_s[own, start, stop])
        new = Labels(
            start, own, parent[:, None],
            np.stack([step.cost_s[pair] + stage, stage, step.slowest_s[pair], sync], axis=1),
            labels.price[parent] + self.price[own], parent,
        )  # fmt: skip
        # Most are hopeless, so the rest is filled in afterwards.
        new = new.take(np.flatnonzero(~self._hopeless(new, 1.0)))
        new.use = self.packed.with_stage(labels.use[new.parent], new.kinds)
        return new

    def _kept(self, labels: Labels, back: float) -> Labels:
        """Return the labels that none of those alike but for their times beats.

        One beats another when it is better by all that its slower stage or sync may cost it.
        """
        if len(labels) > _BEFORE_PRUNING * self.most_labels:
            raise TooManyLabelsError
        labels = labels.take(np.flatnonzero(~self._hopeless(labels, back)))
        for _ in range(_ROUNDS):
            if not len(labels):
                break
            group = labels.start * self.num_classes + self.by_class[labels.kinds]
            order = np.lexsort((self._least(labels, back), *labels.use.T, group))
            labels, group = labels.take(order), group[order]
            alike = (group[1:] == group[:-1]) & (labels.use[1:] == labels.use[:-1]).all(axis=1)
            first = np.concatenate(([True], ~alike))
            lead = np.maximum.accumulate(np.where(first, np.arange(len(group)), 0))
            beaten = self._beaten(labels, lead) & ~first
            if not beaten.any():
                break
            labels = labels.take(~beaten)
        if len(labels) > self.most_labels:
            raise TooManyLabelsError
        return labels

    def _beaten(self, labels: Labels, lead: Ints) -> NDArray[np.bool_]:
        """Return whether `lead` is better than a label by all that its delays may cost it."""
        own, other = labels.times, labels.times[lead]
        later = other[:, PENDING] - own[:, PENDING]
        worse = self.further * np.maximum(
            np.maximum(other[:, SLOWEST] - own[:, SLOWEST], later), 0.0
        )
        worse += np.maximum(other[:, SYNC] - own[:, SYNC], 0.0)
        beaten: NDArray[np.bool_] = other[:, COST] + worse <= own[:, COST]
        # Whatever may stand in front of a label may also stand in front of its lead.
        latest = self.latest_s[labels.kinds, labels.start]
        beaten &= (later <= 0.0) | (other[:, PENDING] <= latest)
        return beaten

    def _traced(self, best: tuple[int, Ints], layers: Sequence[Trace]) -> Found:
        from_end, first = best
        if from_end == 1:
            chosen = [(int(first[0]), 0, self.units)]
        else:
            row, start, number = int(first[1]), 0, int(first[0])
            chosen = []
            for layer in reversed(layers[: from_end - 1]):
                chosen.append((number, start, int(layer.start[row])))
                number, start = int(layer.kinds[row]), int(layer.start[row])
                row = int(layer.parent[row])
            chosen.append((number, start, self.units))
        return Found(
            self.best_s, tuple(StageChoice(a, b, self.space.sets[n]) for n, a, b in chosen)
        )


def _classes(space: KindSets) -> tuple[Ints, int]:
    """Return [J] and their number: sets in one class receive and send back alike."""
    number: dict[tuple[bytes, ...], int] = {}
    found = []
    for j in range(len(space.sets)):
        received = (space.fore_s[:, j], space.back_s[:, j], space.least_back_s[j])
        key = tuple(one.tobytes() for one in received)
        found.append(number.setdefault(key, len(number)))
    return np.array(found, dtype=np.int64), len(number)
