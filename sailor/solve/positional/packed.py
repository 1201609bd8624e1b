"""What partial pipelines took of every weighted pool, packed into a few words.

Each row has a field with a spare bit on top, the guard. With the guards set in one of two packed
vectors, their difference has all guards left exactly if no field of the other one is larger. Where
a pipeline must have a flagged set, one more field says that there is none yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sailor.solve.positional.kind_sets import KindSets

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_BITS = 63  # of a word, which is never negative


class Packed:
    """The rows of a cell's kind sets, packed."""

    def __init__(self, space: KindSets) -> None:
        use, room = space.use, space.room
        if not space.paired:
            more = np.array([[len(kinds) - 1] for kinds in space.sets], dtype=np.int64)
            use, room = np.hstack([use, more]), np.append(room, space.extra)
        fields = [int(one).bit_length() + 1 for one in room] + [2]
        self._fields = fields
        self._where = where = _places(fields)
        self._need_flag = space.need_flag
        words = where[-1][0] + 1
        self.usable: Bools = np.all(use <= room, axis=1)  # [J] sets that a pipeline has room for
        self.guard = np.zeros(words, dtype=np.int64)
        self.use = np.zeros((len(use), words), dtype=np.int64)  # [J, W] of a stage
        self.left = np.zeros_like(self.use)  # [J, W] the most before that stage
        for field, (word, shift) in enumerate(where):
            self.guard[word] |= np.int64(1) << (shift + fields[field] - 1)
            if field < len(room):
                taken = np.where(self.usable, use[:, field], 0)
                self.use[:, word] += taken << shift
                self.left[:, word] += (room[field] - taken) << shift
        # The last field is 1 while no set is flagged.
        word, shift = where[-1]
        bit = np.int64(1) << shift
        self.left[:, word] |= bit
        self.keep = np.full_like(self.use, -1)  # [J, W] of what was there before the stage
        self.keep[space.flagged, word] = ~bit
        self.first_use = self.use.copy()  # [J, W] of a last stage
        self.first_use[~space.flagged, word] |= bit
        self.done = self.left.copy()  # [J, W] the most before a first stage
        if space.need_flag:
            self.done[~space.flagged, word] &= ~bit

    def unpacked(self, use: Ints) -> Floats:
        """Return [N, Q] of every row; that of the flags, where one is needed, is -1 with a flag."""
        rows = [
            (use[:, word] >> shift) & ((1 << (bits - 1)) - 1)
            for (word, shift), bits in zip(self._where, self._fields, strict=True)
        ]
        rows[-1] -= 1
        return np.stack(rows if self._need_flag else rows[:-1], axis=1).astype(np.float64)

    def with_stage(self, use: Ints, kinds: Ints) -> Ints:
        """Return [N, W] with a stage of a set in front."""
        found: Ints = (use + self.use[kinds]) & self.keep[kinds]
        return found

    def within(self, use: Ints, most: Ints) -> Bools:
        """Return whether no field of `use` [..., W] is above that of `most` [..., W]."""
        found: Bools = np.ones(np.broadcast_shapes(use.shape, most.shape)[:-1], dtype=np.bool_)
        for word, guard in enumerate(self.guard):
            found = found & ((((most[..., word] | guard) - use[..., word]) & guard) == guard)
        return found


def _places(fields: Sequence[int]) -> list[tuple[int, int]]:
    """Return word and shift of each field."""
    found: list[tuple[int, int]] = []
    word, shift = 0, 0
    for bits in fields:
        if shift + bits > _BITS:
            word, shift = word + 1, 0
        found.append((word, shift))
        shift += bits
    return found
