"""What Megatron-LM's interleaved 1F1B keeps at its fullest."""

from __future__ import annotations

from collections.abc import Sequence


def warmup_passes(pp: int, vpp: int, rank: int, *, overlaps: bool) -> int:
    """Return the forward passes of a rank before it alternates with backward passes.

    Sends that overlap the first passes need two more.
    """
    return (pp - rank - 1) * 2 + (vpp - 1) * pp + (2 if overlaps else 0)


def interleaved_peak(
    kept_bytes: Sequence[float], pp: int, num_microbatches: int, warmup: int
) -> list[int]:
    """Return, by chunk, the microbatches kept when their bytes are most.

    Steps through Megatron-LM's order: `warmup` forward passes, then one for one. Forward pass k
    belongs to chunk (k mod (pp vpp)) / pp, backward passes go through the chunks in reverse. The
    pattern repeats after pp vpp passes.
    """
    vpp = len(kept_bytes)
    held = [0] * vpp
    fullest, peak = list(held), 0.0
    steps = min(num_microbatches * vpp, warmup + 2 * pp * vpp)
    for step in range(steps):
        held[(step % (pp * vpp)) // pp] += 1
        total = sum(count * kept for count, kept in zip(held, kept_bytes, strict=True))
        if total > peak:
            fullest, peak = list(held), total
        if step >= warmup:
            held[vpp - 1 - ((step - warmup) % (pp * vpp)) // pp] -= 1
    return fullest
