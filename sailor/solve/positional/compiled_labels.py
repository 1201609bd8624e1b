"""The compiled step of the positional programme: its tables, its space, and the calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import loaded
from sailor.solve.positional.kind_sets import KindSets
from sailor.solve.positional.labels import Labels, TooManyLabelsError
from sailor.solve.positional.packed import Packed

if TYPE_CHECKING:
    from sailor.solve.positional.programme import PositionalProgramme

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KERNELS = "label_kernels"  # the module
_CANDIDATES = 12  # of one start, to the labels that may be left of a layer


class CompiledLabels:
    """Tables of a cell's kind sets in the order in which the kernels run over them."""

    def __init__(self, space: KindSets, packed: Packed) -> None:
        self.space, self.packed = space, packed
        by_cut = (2, 1, 0)
        self.back_s = np.ascontiguousarray(space.back_s.transpose(by_cut))
        self.fore_s = np.ascontiguousarray(space.fore_s.transpose(by_cut))
        self.compute_s = np.ascontiguousarray(space.compute_s.transpose(1, 2, 0))
        self.sync_s = np.ascontiguousarray(space.sync_s.transpose(1, 2, 0))

    def extended(
        self, run: PositionalProgramme, labels: Labels, from_end: int
    ) -> tuple[Labels, Ints | None]:
        """Put one more stage in front; with it the first stage of the best pipeline, if better.

        That is (kind set, label behind it).
        """
        kernels, packed, size = loaded(KERNELS), self.packed, len(labels)
        fits = np.ascontiguousarray(run.fits_at(from_end).transpose(1, 2, 0))
        begins = np.empty(size + 1, dtype=np.int64)
        chosen = np.empty(size * len(packed.usable), dtype=np.int16)
        twice = 2.0 if from_end == 2 else 1.0
        best_s, first, behind = kernels.complete(
            labels.start, labels.kinds, labels.use, labels.times, packed.left, packed.done,
            packed.guard, packed.usable, self.back_s, self.fore_s, self.compute_s, self.sync_s,
            fits, twice, run.programme.tables.real.first_send_factor(from_end), run.ceiling_s,
            float(run.further), run.best_s, run.may_end(from_end), begins, chosen,
        )  # fmt: skip
        complete = None if first < 0 else np.array([first, behind])
        run.best_s = best_s
        return self._in_front(run, labels, fits, twice, begins, chosen), complete

    def _in_front(
        self, run: PositionalProgramme, labels: Labels, fits: NDArray[np.bool_], twice: float,
        begins: Ints, chosen: NDArray[np.int16],
    ) -> Labels:  # fmt: skip
        """Return the labels with one more stage, `chosen` in front of each."""
        packed, most, units = self.packed, run.most_labels, self.space.units
        stops = np.where(fits.any(axis=2), np.arange(units + 1), 0).max(axis=1)
        first_of = np.searchsorted(labels.start, np.arange(units + 1))
        space = _CANDIDATES * most
        new = Labels(
            start=np.empty(most, dtype=np.int64),
            kinds=np.empty(most, dtype=np.int64),
            use=np.empty((most, len(packed.guard)), dtype=np.int64),
            times=np.empty((most, 4)),
            price=np.empty((most, run.price.shape[1])),
            parent=np.empty(most, dtype=np.int64),
        )
        count = loaded(KERNELS).extend(
            labels.start, labels.kinds, first_of, labels.use, labels.times, labels.price, begins,
            chosen, run.by_class, run.num_classes, packed.use, packed.keep, packed.guard, stops,
            self.back_s, self.fore_s, self.compute_s, self.sync_s, fits,
            np.ascontiguousarray(run.send_back_s.T), np.ascontiguousarray(run.latest_s.T),
            np.ascontiguousarray(run.ahead.transpose(1, 0, 2)), run.price,
            twice, run.ceiling_s, float(run.further), run.best_s,
            np.empty(space, dtype=np.int32), np.empty(space, dtype=np.int16), np.empty(space),
            new.start, new.kinds, new.parent, new.use, new.times, new.price,
        )  # fmt: skip
        if count < 0:
            raise TooManyLabelsError
        return new.take(slice(count))
