"""The positional programme: the best pipeline of a cell, with GPUs counted as they are.

The Lagrangian bound prices GPUs, so it may use two and a half stages' worth of a pool. Here the
stages are laid one by one, from the last to the first, and each partial pipeline (a label) knows
what it has taken of every pool. Labels that can't be completed below the cutoff, by the Lagrangian
programme's own prefixes, are dropped; of labels alike in all else the cheaper stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.solve.positional_sets import KindSets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_SLACK = 1e-9
_BEFORE_PRUNING = 12  # labels of a layer, to those that may be left of them
_EXPANDED_AT_ONCE = 2_000_000
_ROUNDS = 2  # of comparing labels with the best one that is alike


@dataclass(frozen=True)
class Limits:
    """What pipelines of a box are: ceilings, the least fixed time, and what is of no interest."""

    low_s: float
    high_s: float
    low_g: float
    high_g: float
    cutoff_s: float
    prices: Floats  # [K] of a stage of the kind
    paid: float  # what the prices of all that there is add up to
    weights: Floats  # [Z] of the prices, several ways to look at a label


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


class TooManyLabelsError(Exception):
    """The programme was given up: nothing is known of the box."""


@dataclass
class _Labels:
    """Partial pipelines of one number of stages, from `start` to the end of the model."""

    start: Ints
    kinds: Ints  # index of the first stage's kind set
    code: Ints  # what the pure stages took of every pool
    mix: Ints  # which mixed stages there are
    use: Ints  # [N, Q] weighted use
    cost_s: Floats  # without the transfer to the stage before
    pending_s: Floats  # of the first stage, without the gradient that it sends back
    slowest_s: Floats  # stage behind the first
    sync_s: Floats  # slowest sync
    price: Floats
    parent: Ints

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: object) -> _Labels:
        return _Labels(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


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
        self.space = space
        self.programme, self.units = space.programme, space.units
        self.further = max(space.cell.num_microbatches - 1, 0)

    def run(
        self,
        limits: Limits,
        ahead: Sequence[Floats],
        most_labels: int,
        should_stop: Callable[[], bool],
    ) -> Found | None:
        """Return the best pipeline of the box that beats the cutoff; None: there is none.

        `ahead` has [Z, K, U] by place: the least cost with prices of what lies in front of a
        stage there. Raises TooManyLabelsError where the answer would take too long.
        """
        own = [list(kinds) for kinds in self.space.sets]
        self.limits, self.most_labels = limits, most_labels
        self.ahead_at = ahead
        self._look_ahead(1)
        self.price = np.array([limits.prices[k].min() for k in own])
        self.ceiling_s = limits.high_s * (1 + _SLACK)
        within_g = self.space.sync_s <= limits.high_g * (1 + _SLACK) + 1e-15
        start = np.arange(self.units)
        self.send_back_s = np.where(start > 0, self.space.least_back_s[:, : self.units], 0.0)
        self.fits = within_g & (
            self.space.compute_s + self.send_back_s[:, :, None] <= self.ceiling_s
        )
        self.best_s = limits.cutoff_s
        best: tuple[int, Ints] | None = None
        layers: list[_Labels] = []
        labels, single = self._last()
        if single is not None:
            best = (1, np.array([single]))
        pinned = self.programme.pinned
        layers.append(labels)
        for from_end in range(2, (pinned or self.programme.max_stages) + 1):
            if not len(labels):
                break
            if should_stop():
                raise TooManyLabelsError
            self._look_ahead(from_end)
            labels, complete = self._extended(labels, from_end, whole=pinned in (None, from_end))
            if complete is not None:
                best = (from_end, complete)
            layers.append(labels)
        return None if best is None else self._traced(best, layers)

    def _look_ahead(self, place: int) -> None:
        """Take what lies in front of a stage at a place, less what prices pay for."""
        paid = (self.limits.weights * self.limits.paid)[:, None]
        ahead = self.ahead_at[place]
        own = [list(kinds) for kinds in self.space.sets]
        by_set = np.stack([ahead[:, k].min(axis=1) - paid for k in own])  # [J, Z, U]
        self.ahead = np.ascontiguousarray(by_set.transpose(0, 2, 1))

    def _last(self) -> tuple[_Labels, int | None]:
        """Return the last stages as labels, and the best pipeline of one stage (its set)."""
        units = self.units
        over: Ints = self.space.use - self.space.room
        room = over.max(axis=1) <= 0
        single: int | None = None
        if self.programme.pinned in (None, 1):
            ok = self.space.whole & self.fits[:, 0, units] & room
            whole = np.maximum(self.space.compute_s[:, 0, units], self.limits.low_s)
            seconds = self.further * whole + self.space.compute_s[:, 0, units]
            seconds = seconds + np.maximum(self.space.sync_s[:, 0, units], self.limits.low_g)
            value = np.where(ok, seconds, np.inf)
            if value.min() < self.best_s:
                single = int(value.argmin())
                self.best_s = float(value[single])
        compute = self.space.compute_s[:, :, units]
        fits = self.fits[:, :, units] & (self.space.memory(1) >= units) & room[:, None]
        fits &= compute + 2.0 * self.send_back_s <= self.ceiling_s
        fits[:, 0] = False
        kinds, start = np.nonzero(fits)
        seconds = compute[kinds, start]
        labels = _Labels(
            start, kinds, self.space.code[kinds], self.space.mix_next[0, kinds],
            self.space.use[kinds], seconds, seconds, np.full(len(kinds), self.limits.low_s),
            np.maximum(self.space.sync_s[kinds, start, units], self.limits.low_g),
            self.price[kinds], np.full(len(kinds), -1, dtype=np.int64),
        )  # fmt: skip
        return self._kept(labels, 2.0), single

    def _least(self, labels: _Labels, back: float) -> tuple[Floats, Floats]:
        """Return, for labels, the least slowest stage, and the least seconds without the rest."""
        sent = back * self.send_back_s[labels.kinds, labels.start]
        slowest = np.maximum(labels.slowest_s, labels.pending_s + sent)
        return slowest, self.further * slowest + labels.sync_s + labels.cost_s

    def _hopeless(self, labels: _Labels, back: float) -> NDArray[np.bool_]:
        _, seconds = self._least(labels, back)
        rest = self.ahead[labels.kinds, labels.start]
        rest += labels.price[:, None] * self.limits.weights
        hopeless: NDArray[np.bool_] = seconds + rest.max(axis=1) >= self.best_s
        return hopeless

    def _extended(
        self, labels: _Labels, from_end: int, *, whole: bool
    ) -> tuple[_Labels, Ints | None]:
        """Put one more stage in front; with it the first stage of the best pipeline, if better.

        That is (kind set, label behind it).
        """
        twice = 2.0 if from_end == 2 else 1.0
        back = twice * self.space.back_s[:, labels.kinds, labels.start].T  # [N, J]
        mix = self.space.mix_next[labels.mix]
        legal = (labels.pending_s[:, None] + back <= self.ceiling_s) & (mix >= 0)
        for row in range(len(self.space.room)):
            left = self.space.room[row] - labels.use[:, row]
            legal &= self.space.use[None, :, row] <= left[:, None]
        label, kinds = np.nonzero(legal)
        step = _Step(
            label, kinds, labels.start[label],
            labels.cost_s[label] + back[label, kinds],
            np.maximum(labels.slowest_s[label], labels.pending_s[label] + back[label, kinds]),
            self.space.fore_s[kinds, labels.kinds[label], labels.start[label]],
        )  # fmt: skip
        complete = self._complete(labels, step, from_end) if whole else None
        memory = self.space.memory(from_end)
        fits = self.fits & (np.arange(self.units + 1)[None, None] <= memory[:, :, None])
        fits[:, 0] = False
        fits &= np.arange(self.units)[None, :, None] < np.arange(self.units + 1)[None, None]
        ends = np.cumsum(fits.sum(axis=1)[kinds, step.cut])
        parts: list[_Labels] = []
        begin = 0
        while begin < len(label):
            before = ends[begin - 1] if begin else 0
            stop = int(np.searchsorted(ends, before + _EXPANDED_AT_ONCE, side="right"))
            stop = max(stop, begin + 1)
            parts.append(self._sized(labels, step.take(slice(begin, stop)), fits, mix))
            if sum(len(part) for part in parts) > _BEFORE_PRUNING * self.most_labels:
                raise TooManyLabelsError
            begin = stop
        if not parts:
            return labels.take(np.zeros(0, dtype=np.int64)), complete
        joined = _Labels(
            *(
                np.concatenate([getattr(part, name) for part in parts])
                for name in _Labels.__dataclass_fields__
            )
        )
        return self._kept(joined, 1.0), complete

    def _complete(self, labels: _Labels, step: _Step, from_end: int) -> Ints | None:
        """Return the first stage of the best complete pipeline, if it beats the best so far."""
        factor = self.programme.tables.real.first_send_factor(from_end)
        kinds, cut = step.kinds, step.cut
        stage = self.space.compute_s[kinds, 0, cut] + factor * step.fore_s
        ok = self.fits[kinds, 0, cut] & (self.space.memory(from_end)[kinds, 0] >= cut)
        ok &= stage <= self.ceiling_s
        sync = np.maximum(labels.sync_s[step.label], self.space.sync_s[kinds, 0, cut])
        seconds = self.further * np.maximum(step.slowest_s, stage) + step.cost_s + stage + sync
        seconds = np.where(ok, seconds, np.inf)
        if not len(seconds) or seconds.min() >= self.best_s:
            return None
        best = int(seconds.argmin())
        self.best_s = float(seconds[best])
        return np.array([kinds[best], step.label[best]])

    def _sized(self, labels: _Labels, step: _Step, fits: NDArray[np.bool_], mix: Ints) -> _Labels:
        """Return a label for every number of units of the new stages."""
        pair, start = np.nonzero(fits[step.kinds, :, step.cut])
        own, stop, parent = step.kinds[pair], step.cut[pair], step.label[pair]
        stage = self.space.compute_s[own, start, stop] + step.fore_s[pair]
        keep = stage + self.send_back_s[own, start] <= self.ceiling_s
        pair, start, own, stop = pair[keep], start[keep], own[keep], stop[keep]
        parent, stage = parent[keep], stage[keep]
        new = _Labels(
            start, own, parent, parent, parent[:, None], step.cost_s[pair] + stage, stage,
            step.slowest_s[pair],
            np.maximum(labels.sync_s[parent], self.space.sync_s[own, start, stop]),
            labels.price[parent] + self.price[own], parent,
        )  # fmt: skip
        # Most are hopeless, so the rest is filled in afterwards.
        new = new.take(np.flatnonzero(~self._hopeless(new, 1.0)))
        own, parent = new.kinds, new.parent
        new.code = labels.code[parent] + self.space.code[own]
        new.mix = mix[parent, own]
        new.use = labels.use[parent] + self.space.use[own]
        return new

    def _kept(self, labels: _Labels, back: float) -> _Labels:
        """Return the labels that no other one, alike but for its times, beats.

        One beats another when it is better by all that its slower stage or sync may cost it.
        """
        if len(labels) > _BEFORE_PRUNING * self.most_labels:
            raise TooManyLabelsError
        labels = labels.take(np.flatnonzero(~self._hopeless(labels, back)))
        if not len(labels):
            return labels
        group = labels.start * len(self.space.sets) + labels.kinds
        key = group * len(self.space.mix_next) + labels.mix
        key = key * self.space.num_codes + labels.code
        if self.space.paired:
            # Any number of mixed stages: what they took is in the weighted uses alone.
            _, use = np.unique(labels.use, axis=0, return_inverse=True)
            key = group * len(labels) + use.ravel()
        for _ in range(_ROUNDS):
            _, seconds = self._least(labels, back)
            order = np.lexsort((seconds, key))
            labels, key = labels.take(order), key[order]
            first = np.concatenate(([True], key[1:] != key[:-1]))
            lead = np.maximum.accumulate(np.where(first, np.arange(len(key)), 0))
            beaten = self._beaten(labels, lead) & ~first
            if not beaten.any():
                break
            labels, key = labels.take(~beaten), key[~beaten]
        if len(labels) > self.most_labels:
            raise TooManyLabelsError
        return labels

    def _beaten(self, labels: _Labels, lead: Ints, rows: Ints | None = None) -> NDArray[np.bool_]:
        """Return whether `lead` is better than a label by all that its delays may cost it."""
        rows = np.arange(len(labels)) if rows is None else rows
        later = np.maximum(
            labels.slowest_s[lead] - labels.slowest_s[rows],
            labels.pending_s[lead] - labels.pending_s[rows],
        )
        worse = self.further * np.maximum(later, 0.0)
        worse += np.maximum(labels.sync_s[lead] - labels.sync_s[rows], 0.0)
        beaten: NDArray[np.bool_] = labels.cost_s[lead] + worse <= labels.cost_s[rows]
        return beaten

    def _traced(self, best: tuple[int, Ints], layers: Sequence[_Labels]) -> Found:
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
