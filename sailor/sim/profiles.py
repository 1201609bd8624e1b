"""Profiles of a problem as prefix sums over units."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.problem import Problem
from sailor.model.profile import LayerFootprint, LayerProfile
from sailor.sim.kinds import WorkerKind

Floats = NDArray[np.float64]
_Record = TypeVar("_Record", LayerProfile, LayerFootprint)


class ProfileIndex:
    """Looks up profiles and footprints, and adds them up over units."""

    def __init__(self, problem: Problem) -> None:
        self.arch = problem.arch
        self._profiles = {(p.gpu, p.tp, p.microbatch): p for p in problem.profiles}
        self._footprints = {footprint.tp: footprint for footprint in problem.footprints}

    def profile(self, kind: WorkerKind, microbatch: int) -> LayerProfile | None:
        """Return the times of a kind at a microbatch size, or None: not profiled."""
        return self._profiles.get((kind.gpu, kind.tp, microbatch))

    def footprint(self, tp: int) -> LayerFootprint | None:
        """Return the bytes at a tp degree, or None."""
        return self._footprints.get(tp)

    def usable(self, kinds: Sequence[WorkerKind], microbatch: int) -> NDArray[np.bool_]:
        """Return [K]: whether times and bytes are known."""
        return np.array(
            [
                self.profile(kind, microbatch) is not None and kind.tp in self._footprints
                for kind in kinds
            ],
            dtype=np.bool_,
        )

    def time_prefix(
        self,
        kinds: Sequence[WorkerKind],
        microbatch: int,
        value: Callable[[LayerProfile, UnitKind], float],
    ) -> Floats:
        """Return [K, U + 1]: `value` summed over units; 0 where there is no profile."""
        return np.array(
            [
                unit_prefix(self.arch, None if profile is None else _bind(value, profile))
                for profile in (self.profile(kind, microbatch) for kind in kinds)
            ]
        ).reshape(len(kinds), self.arch.num_units + 1)

    def bytes_prefix(
        self, kinds: Sequence[WorkerKind], value: Callable[[LayerFootprint, UnitKind], float]
    ) -> Floats:
        """Return [K, U + 1]: `value` summed over units; 0 where there is no footprint."""
        return np.array(
            [
                unit_prefix(self.arch, None if footprint is None else _bind(value, footprint))
                for footprint in (self.footprint(kind.tp) for kind in kinds)
            ]
        ).reshape(len(kinds), self.arch.num_units + 1)

    def whole(self, value: Callable[[LayerFootprint, UnitKind], float]) -> Floats:
        """Return [U] of the footprint at tp 1 (every problem has it: `resolve` sees to that)."""
        footprint = self._footprints[1]
        arch = self.arch
        return np.array([value(footprint, arch.unit_kind(u)) for u in range(arch.num_units)])

    def compute_prefix_s(self, kinds: Sequence[WorkerKind], microbatch: int) -> Floats:
        """Return [K, U + 1]: forward and backward seconds of one microbatch."""
        return self.time_prefix(
            kinds,
            microbatch,
            lambda profile, kind: profile.unit(kind).forward_s + profile.unit(kind).backward_s,
        )

    def message_sizes(self, microbatch: int) -> tuple[Floats, NDArray[np.int64]]:
        """Return the distinct bytes that units hand on, and each unit's class among them."""
        output = self.whole(lambda footprint, kind: footprint.unit(kind).output_bytes)
        sizes, by_unit = np.unique(output * microbatch, return_inverse=True)
        return sizes, by_unit

    def parameters_prefix(self) -> Floats:
        """Return [U + 1]: parameters of the whole model, summed over units."""
        units = self.whole(lambda footprint, kind: footprint.unit(kind).params)
        return np.concatenate(([0.0], np.cumsum(units)))


def unit_prefix(arch: ModelSpec, value: Callable[[UnitKind], float] | None) -> Floats:
    """Return [U + 1] prefix sums of a value by unit kind."""
    prefix = np.zeros(arch.num_units + 1)
    if value is not None:
        by_kind = {kind: value(kind) for kind in ("embedding", "first_block", "block", "head")}
        units = [by_kind[arch.unit_kind(unit)] for unit in range(arch.num_units)]
        np.cumsum(units, out=prefix[1:])
    return prefix


def blocks_prefix(arch: ModelSpec) -> Floats:
    """Return [U + 1]: blocks before each unit."""
    units = np.arange(arch.num_units + 1, dtype=np.float64)
    found: Floats = np.clip(units - 1, 0, arch.num_layers)
    return found


def _bind(
    value: Callable[[_Record, UnitKind], float], record: _Record
) -> Callable[[UnitKind], float]:
    return lambda kind: value(record, kind)
