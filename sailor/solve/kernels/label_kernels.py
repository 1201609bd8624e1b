"""The positional programme in compiled code: labels of one layer become those of the next.

Import this module through `compiled.kernels` only: it needs numba.

Shapes: N labels sorted by their start, J kind sets, U units, Z weights of the prices, W words. What
a label took of every pool is packed into words, a field a row with a spare bit on top (`guard`), so
that one subtraction compares all of them. Tables are laid out so that the last axis is what the
innermost loop runs over: `back_s` and `fore_s` [U, J, J] by cut, set behind and set in front;
`compute_s`, `sync_s` and `fits` [U, U + 1, J] by start and stop.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor.solve.kernels.compiled import inner, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Small = NDArray[np.int16]
Bools = NDArray[np.bool_]


@inner
def _within(use: Ints, most: Ints, guard: Ints) -> bool:
    """Return whether every field of `use` is at most that of `most`."""
    for word in range(len(guard)):
        if ((most[word] | guard[word]) - use[word]) & guard[word] != guard[word]:
            return False
    return True


@inner
def _ends(
    fits: bool, stage: float, ceiling_s: float, use: Ints, done: Ints, guard: Ints
) -> bool:  # fmt: skip
    """Return whether a set may be the first stage."""
    return fits and stage <= ceiling_s and _within(use, done, guard)


@kernel(
    "Tuple((f8, i8, i8))(i8[::1], i8[::1], i8[:,::1], f8[:,::1], i8[:,::1], i8[:,::1], i8[::1],"
    " b1[::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1], b1[:,:,::1], f8, f8, f8, f8,"
    " f8, b1, i8[::1], i2[::1])"
)
def complete(
    start: Ints, kinds: Ints, use: Ints, times: Floats, left: Ints, done: Ints, guard: Ints,
    usable: Bools, back_s: Floats, fore_s: Floats, compute_s: Floats, sync_s: Floats, fits: Bools,
    twice: float, factor: float, ceiling_s: float, further: float, best_s: float, whole: bool,
    begins: Ints, chosen: Small,
) -> tuple[float, int, int]:  # fmt: skip
    """Put a first stage in front of every label: return the best seconds, its set and label.

    With it fill in which sets may stand in front of each label: `chosen` from begins[n] to
    begins[n + 1]. `left` and `done` [J, W] are the most that may be taken behind a set in front,
    and behind a first one. Gradients sent back count `twice` times, a first stage's transfer
    `factor` times. Where pipelines may not end here (`whole`) only the sets are filled in.
    """
    best_set, best_label, count = -1, -1, 0
    for label in range(len(start)):
        cut, behind = start[label], kinds[label]
        cost, pending, slowest, sync = times[label]
        begins[label] = count
        for j in range(len(usable)):
            back = twice * back_s[cut, behind, j]
            if not usable[j] or pending + back > ceiling_s:
                continue
            if not _within(use[label], left[j], guard):
                continue
            chosen[count] = j
            count += 1
            stage = compute_s[0, cut, j] + factor * fore_s[cut, behind, j]
            slow = max(max(slowest, pending + back), stage)
            seconds = further * slow + (cost + back) + stage + max(sync, sync_s[0, cut, j])
            if (
                whole
                and seconds < best_s
                and _ends(fits[0, cut, j], stage, ceiling_s, use[label], done[j], guard)
            ):
                best_s, best_set, best_label = seconds, j, label
    begins[len(start)] = count
    return best_s, best_set, best_label


@inner
def _hopeless(
    least: float, ahead: Floats, price: Floats, paid: Floats, best_s: float
) -> bool:  # fmt: skip
    """Return whether nothing that may stand in front brings a label below the best."""
    found = False
    for z in range(len(ahead)):
        if least + (ahead[z] + (paid[z] + price[z])) >= best_s:
            found = True
            break
    return found


@inner
def _gather(
    w: int, cut: int, first: int, end: int, kinds: Ints, times: Floats, begins: Ints,
    chosen: Small, back_s: Floats, fore_s: Floats, compute_s: Floats, sync_s: Floats, fits: Bools,
    send_back_s: Floats, ahead: Floats, paid: Floats, price: Floats,
    twice: float, ceiling_s: float, further: float, best_s: float, parents: NDArray[np.int32],
    sets: Small, seconds: Floats, count: int,
) -> int:  # fmt: skip
    """Append the candidates that start at w and end at a cut, of the labels first to end.

    Return their number; -1: more than there is space for.
    """
    for label in range(first, end):
        behind = kinds[label]
        cost, pending, slowest, sync = times[label]
        for place in range(begins[label], begins[label + 1]):
            j = chosen[place]
            if not fits[w, cut, j]:
                continue
            back = twice * back_s[cut, behind, j]
            stage = compute_s[w, cut, j] + fore_s[cut, behind, j]
            sent = stage + send_back_s[w, j]
            if sent > ceiling_s:
                continue
            slow = max(max(slowest, pending + back), sent)
            least = further * slow + max(sync, sync_s[w, cut, j]) + (cost + back + stage)
            if _hopeless(least, ahead[w, j], price[j], paid[label], best_s):
                continue
            if count >= len(seconds):
                return -1
            parents[count], sets[count], seconds[count] = label, j, least
            count += 1
    return count


@inner
def _grouped(seconds: Floats, sets: Small, by_class: Ints, classes: int) -> tuple[Ints, Ints]:
    """Return the candidates by class and in it by seconds, and where each class begins."""
    begins = np.zeros(classes + 1, dtype=np.int64)
    for j in sets:
        begins[by_class[j] + 1] += 1
    for c in range(classes):
        begins[c + 1] += begins[c]
    place, order = begins.copy(), np.empty(len(sets), dtype=np.int64)
    for candidate in np.argsort(seconds, kind="mergesort"):
        c = by_class[sets[candidate]]
        order[place[c]] = candidate
        place[c] += 1
    return order, begins


@inner
def _beaten(
    new: int, first: int, use: Ints, times: Floats, guard: Ints, further: float, latest_s: float
) -> bool:
    """Return whether a label from `first` on is better than the new one, whatever follows.

    `latest_s`: a stage this late takes any gradient from in front within the ceiling.
    """
    cost, pending, slowest, sync = times[new]
    for old in range(first, new):
        lead = cost - times[old, 0]
        if lead < 0.0:
            continue
        later = times[old, 1] - pending
        if later > 0.0 and times[old, 1] > latest_s:
            continue
        worse = further * max(max(times[old, 2] - slowest, later), 0.0)
        worse += max(times[old, 3] - sync, 0.0)
        if times[old, 0] + worse <= cost and _within(use[old], use[new], guard):
            return True
    return False


@kernel(
    "i8(i8[::1], i8[::1], i8[::1], i8[:,::1], f8[:,::1], f8[:,::1], i8[::1], i2[::1], i8[::1],"
    " i8, i8[:,::1], i8[:,::1], i8[::1], i8[::1], f8[:,:,::1], f8[:,:,::1], f8[:,:,::1],"
    " f8[:,:,::1], b1[:,:,::1], f8[:,::1], f8[:,::1], f8[:,:,::1], f8[:,::1],"
    " f8, f8, f8, f8, i4[::1], i2[::1], f8[::1],"
    " i8[::1], i8[::1], i8[::1], i8[:,::1], f8[:,::1], f8[:,::1])"
)
def extend(
    start: Ints, kinds: Ints, first_of: Ints, use: Ints, times: Floats, paid: Floats,
    begins: Ints, chosen: Small, by_class: Ints, classes: int, set_use: Ints, keep: Ints,
    guard: Ints, stops: Ints, back_s: Floats, fore_s: Floats, compute_s: Floats, sync_s: Floats,
    fits: Bools, send_back_s: Floats, latest_s: Floats, ahead: Floats, price: Floats,
    twice: float, ceiling_s: float, further: float, best_s: float,
    parents: NDArray[np.int32], sets: Small, seconds: Floats,
    new_start: Ints, new_kinds: Ints, new_parent: Ints, new_use: Ints, new_times: Floats,
    new_paid: Floats,
) -> int:  # fmt: skip
    """Put one more stage in front of every label; return how many labels are left, -1: too many.

    Labels with start v are those from first_of[v] to first_of[v + 1]; stops[w] is the furthest
    cut of a stage from w. `parents`, `sets` and `seconds` are space for candidates.
    """
    units, size = len(stops), 0
    for w in range(1, units):
        count = 0
        for cut in range(w + 1, min(stops[w], units - 1) + 1):
            count = _gather(
                w, cut, first_of[cut], first_of[cut + 1], kinds, times, begins, chosen, back_s,
                fore_s, compute_s, sync_s, fits, send_back_s, ahead, paid, price,
                twice, ceiling_s, further, best_s, parents, sets, seconds, count,
            )  # fmt: skip
            if count < 0:
                return -1
        order, groups = _grouped(seconds[:count], sets[:count], by_class, classes)
        for c in range(classes):
            first = size
            for candidate in order[groups[c] : groups[c + 1]]:
                if size >= len(new_start):
                    return -1
                label, j = parents[candidate], sets[candidate]
                cut, behind = start[label], kinds[label]
                back = twice * back_s[cut, behind, j]
                stage = compute_s[w, cut, j] + fore_s[cut, behind, j]
                new_times[size, 0] = times[label, 0] + back + stage
                new_times[size, 1] = stage
                new_times[size, 2] = max(times[label, 2], times[label, 1] + back)
                new_times[size, 3] = max(times[label, 3], sync_s[w, cut, j])
                for word in range(len(guard)):
                    taken = use[label, word] + set_use[j, word]
                    new_use[size, word] = taken & keep[j, word]
                if not _beaten(size, first, new_use, new_times, guard, further, latest_s[w, j]):
                    new_start[size], new_kinds[size], new_parent[size] = w, j, label
                    for z in range(price.shape[1]):
                        new_paid[size, z] = paid[label, z] + price[j, z]
                    size += 1
    return size
