"""Microbatch sizes between measured ones: times in a straight line, and said to be so."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from sailor.model.profile import LayerProfile, UnitTime

# (tp, microbatch) to what was measured.
Measured = Callable[[int, int], LayerProfile | None]


def between_measured(
    grid: Iterable[tuple[int, int]],
    wanted: Collection[int],
    tps: Collection[int],
    measured: Measured,
) -> tuple[list[LayerProfile], list[str]]:
    """Return profiles of wanted sizes inside the measured range, and remarks on those outside.

    Times of one tp degree are interpolated between the nearest sizes on both sides. Beyond the
    range nothing is known, and nothing is returned.
    """
    sizes_by_tp: dict[int, list[int]] = {}
    for tp, size in grid:
        if tp in tps:
            sizes_by_tp.setdefault(tp, []).append(size)
    found: list[LayerProfile] = []
    outside: list[str] = []
    for tp, sizes in sorted(sizes_by_tp.items()):
        for size in sorted(set(wanted) - set(sizes)):
            below = [known for known in sizes if known < size]
            above = [known for known in sizes if known > size]
            ends = [measured(tp, max(below)), measured(tp, min(above))] if below and above else []
            if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
                found.append(_mix(ends[0], ends[1], size))
            else:
                outside.append(
                    f"microbatch {size} at tp {tp}: outside of the profiled sizes "
                    f"{min(sizes)} to {max(sizes)}"
                )
    return found, outside


def _mix(low: LayerProfile, high: LayerProfile, size: int) -> LayerProfile:
    share = (size - low.microbatch) / (high.microbatch - low.microbatch)

    def mixed(a: float, b: float) -> float:
        return a + share * (b - a)

    units = {
        kind: UnitTime(
            forward_s=mixed(getattr(low, kind).forward_s, getattr(high, kind).forward_s),
            backward_s=mixed(getattr(low, kind).backward_s, getattr(high, kind).backward_s),
        )
        for kind in ("embedding", "first_block", "block", "head")
    }
    return low.model_copy(
        update={
            **units,
            "microbatch": size,
            "optimizer_s": mixed(low.optimizer_s, high.optimizer_s),
            "source": f"interpolated between microbatch {low.microbatch} and {high.microbatch}: "
            f"{low.source}",
        }
    )
