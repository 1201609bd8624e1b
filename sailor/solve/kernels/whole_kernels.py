"""The least time of pipelines by the GPUs that they take, in compiled code.

Gives what `whole_chains` gives in numpy, bit by bit. Import it through `compiled.kernels` only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import inlined, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@inlined
def _least_into(target: Floats, source: Floats, more: float) -> None:
    """Lower each target to its source and so much more."""
    for n in range(len(source)):
        value = source[n] + more
        # Written so, and not with min or if, it becomes vector code.
        target[n] = value if value < target[n] else target[n]  # noqa: FURB136


@inlined
def _widened(values: Floats, low: Ints, high: Ints, kind: int, start: int, place: int) -> None:
    """Let the range of points of a stage hold a place, too; what is new there is infinite."""
    if high[kind, start] == 0:
        low[kind, start], high[kind, start] = place, place
    while low[kind, start] > place:
        low[kind, start] -= 1
        values[kind, start, low[kind, start]] = np.inf
    while high[kind, start] <= place:
        values[kind, start, high[kind, start]] = np.inf
        high[kind, start] += 1


@inlined
def _hopeful(
    seconds: float, place: int, ahead: Floats, price: Floats, limit: Floats,
    key: tuple[int, int, int, int],
) -> bool:  # fmt: skip
    """Return whether a partial pipeline can be completed within the limits."""
    from_end, row, kind, start = key
    fits = True
    for z in range(len(price)):
        left = seconds + price[z, place] + ahead[z, from_end, row, kind, start]
        fits = fits and left < limit[z, row]
    return fits


@inlined
def _spanned(from_n: Ints, to_n: Ints, low: Ints, high: Ints) -> None:
    """Widen the ranges of points of all cuts to hold others."""
    for cut in range(1, len(low)):
        from_n[cut] = min(from_n[cut], low[cut])
        to_n[cut] = max(to_n[cut], high[cut])


@inlined
def _join(
    level: Ints, link: Floats, best: Floats, low: Ints, high: Ints,
    behind: Floats, from_n: Ints, to_n: Ints,
) -> None:  # fmt: skip
    """Set what lies behind each cut, its transfers included, by pair of kind and level."""
    kinds, units = low.shape
    from_n[:] = behind.shape[2]
    to_n[:] = 0
    for kind in range(kinds):
        for partner in range(kinds):
            pair = level[kind, partner]
            if pair >= 0:
                _spanned(from_n[pair], to_n[pair], low[partner], high[partner])
    for pair in range(len(behind)):
        for cut in range(1, units):
            behind[pair, cut, from_n[pair, cut] : to_n[pair, cut]] = np.inf
    for kind in range(kinds):
        for partner in range(kinds):
            pair = level[kind, partner]
            if pair < 0:
                continue
            for cut in range(1, units):
                begin, end = low[partner, cut], high[partner, cut]
                source = best[partner, cut, begin:end]
                _least_into(behind[pair, cut, begin:end], source, link[kind, partner, cut])


@inlined
def _stage(
    least: Floats, compute: Floats, behind: Floats, from_n: Ints, to_n: Ints, start: int,
    furthest: int,
) -> tuple[int, int]:  # fmt: skip
    """Set the least time with a stage from `start` in front; return the points from and up to."""
    begin, end = len(least), 0
    for cut in range(start + 1, furthest + 1):
        begin = min(begin, from_n[cut])
        end = max(end, to_n[cut])
    least[begin:end] = np.inf
    for cut in range(start + 1, furthest + 1):
        some = behind[cut, from_n[cut] : to_n[cut]]
        _least_into(least[from_n[cut] : to_n[cut]], some, compute[start, cut])
    return begin, end


@inlined
def _open(
    out: Floats, first_s: Floats, behind: Floats, from_n: Ints, to_n: Ints, onward: Ints,
    furthest: int, most: float,
) -> None:  # fmt: skip
    """Complete pipelines with a first stage."""
    for cut in range(1, furthest + 1):
        for n in range(from_n[cut], to_n[cut]):
            value = behind[cut, n] + first_s[cut]
            place = onward[n + 1]
            if value < most and place >= 0:
                out[place] = min(value, out[place])


@inlined
def _close(
    out: Floats, compute: Floats, single: Bools, last: Bools, memory: Ints, onward: Ints,
    ahead: Floats, price: Floats, limit: Floats, row: int, best: Floats, low: Ints, high: Ints,
) -> None:  # fmt: skip
    """Set the last stages and the pipelines of one stage."""
    kinds, units = low.shape
    for kind in range(kinds):
        place = onward[kind, 0]
        if place < 0:
            continue
        whole = compute[kind, 0, units]
        if single[kind] and whole < limit[0, row]:
            out[1, place] = min(whole, out[1, place])
        for start in range(1, units):
            here = compute[kind, start, units]
            fits = last[kind, start] and memory[kind, start] >= units
            if fits and _hopeful(here, place, ahead, price, limit, (1, row, kind, start)):
                best[kind, start, place] = here
                low[kind, start], high[kind, start] = place, place + 1


@kernel(
    "void(f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,:,:,::1], f8[:,::1], f8[:,::1], "
    "i8[:,::1], i8[::1], f8[:,:,::1], i8[:,:,::1], i8[:,:,:,::1], b1[:,:,::1], b1[:,::1], "
    "i8[:,:,::1], i8[:,::1], f8[:,:,::1])"
)
def least_times(
    compute: Floats,
    edge: Floats,
    edge_end: Floats,
    ahead: Floats,
    price: Floats,
    limit: Floats,
    level: Ints,
    pair_kind: Ints,
    first_s: Floats,
    middle: Ints,
    first: Ints,
    last: Bools,
    single: Bools,
    memory: Ints,
    onward: Ints,
    out: Floats,
) -> None:
    """Set `out` [B, F + 1, N]; see `whole_chains.WholeChains` for the arguments."""
    kinds, units, _ = compute.shape
    pairs, points = len(pair_kind), out.shape[2]
    best, after = np.empty((kinds, units, points)), np.empty((kinds, units, points))
    behind, least = np.empty((pairs, units, points)), np.empty(points)
    # Points from and up to which there is anything; empty: from `points` up to 0.
    ends = np.empty((2, kinds, units), dtype=np.int64)
    cuts = np.empty((2, pairs, units), dtype=np.int64)
    low, high, from_n, to_n = ends[0], ends[1], cuts[0], cuts[1]
    for row in range(len(out)):
        low[:] = points
        high[:] = 0
        _close(
            out[row], compute, single[row], last[row], memory[0], onward,
            ahead, price, limit, row, best, low, high,
        )  # fmt: skip
        for from_end in range(2, out.shape[1]):
            if not high.any():
                break
            link = edge_end if from_end == 2 else edge
            _join(level, link, best, low, high, behind, from_n, to_n)
            low[:] = points
            high[:] = 0
            short = min(from_end, first_s.shape[0] - 1)
            for pair in range(pairs):
                kind = pair_kind[pair]
                room = memory[from_end - 1, kind]
                for start in range(1, units):
                    furthest = min(middle[row, pair, start], room[start], units - 1)
                    begin, end = _stage(
                        least, compute[kind], behind[pair], from_n[pair], to_n[pair],
                        start, furthest,
                    )  # fmt: skip
                    for n in range(begin, end):
                        place = onward[kind, n + 1]
                        if place < 0 or not least[n] < limit[0, row]:
                            continue
                        key = (from_end, row, kind, start)
                        if _hopeful(least[n], place, ahead, price, limit, key):
                            _widened(after, low, high, kind, start, place)
                            value = min(least[n], after[kind, start, place])
                            after[kind, start, place] = value
                furthest = min(first[short, row, pair, 0], room[0], units - 1)
                _open(
                    out[row, from_end], first_s[short, pair], behind[pair], from_n[pair],
                    to_n[pair], onward[kind], furthest, limit[0, row],
                )  # fmt: skip
            best, after = after, best
