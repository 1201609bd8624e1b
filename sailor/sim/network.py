"""Links between worker kinds as arrays: one look-up per pair, evaluated for many messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor.model.hardware import Link
from sailor.model.problem import Problem
from sailor.sim.kinds import WorkerKind

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# (src zone, src gpu, src workers, dst zone, dst gpu, dst workers); None matches any.
_Key = tuple[str, str | None, int | None, str, str | None, int | None]


class LinkIndex:
    """Finds the most specific link of a problem between two groups of workers."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._links: dict[_Key, Link] = {}
        for link in links:
            key = (
                link.src,
                link.src_gpu,
                link.src_workers,
                link.dst,
                link.dst_gpu,
                link.dst_workers,
            )
            self._links.setdefault(key, link)

    def find(
        self, src: WorkerKind, dst: WorkerKind, src_workers: int, dst_workers: int
    ) -> Link | None:
        """Return the link for that many workers at each end, or None when none is known."""
        for src_gpu, dst_gpu in ((src.gpu, dst.gpu), (None, None)):
            for n_src, n_dst in ((src_workers, dst_workers), (None, None)):
                found = self._links.get((src.zone, src_gpu, n_src, dst.zone, dst_gpu, n_dst))
                if found is not None:
                    return found
        return None


@dataclass(frozen=True)
class LinkTable:
    """Links between every pair of K kinds.

    Arrays are [K, K] (source, destination); `known` is False where there is no link. A plain
    bandwidth is a curve with coefficients (0, 0, GB/s).
    """

    known: NDArray[np.bool_]
    latency_s: Floats
    coefficients: Floats  # [K, K, 3], highest power first, GB/s over log2(MB)
    min_bytes: Floats
    max_bytes: Floats
    peak: Floats  # bytes/s
    assumed: NDArray[np.bool_]  # a data sheet's figure, not a measurement

    def fitted_transfer_s(self, message_bytes: Floats, src: Ints, dst: Ints) -> Floats:
        """Return bytes over the fitted bandwidth, unclamped and without latency.

        This is the published model's transfer. Where the fit is not positive it says nothing, and
        the transfer is infinitely slow rather than negative.
        """
        size = np.asarray(message_bytes, dtype=np.float64)
        c2, c1, c0 = np.moveaxis(self.coefficients[src, dst], -1, 0)
        x = np.log2(np.maximum(size, 1e-300) / 1e6)
        rate = 1e9 * ((c2 * x + c1) * x + c0)
        usable = self.known[src, dst] & (rate > 0)
        seconds = np.divide(size, rate, out=np.full(np.shape(rate), np.inf), where=usable)
        return np.where(size > 0, seconds, 0.0)

    def transfer_s(self, message_bytes: Floats, src: Ints, dst: Ints) -> Floats:
        """Return latency plus bytes over bandwidth, the fit clamped to its measured range.

        Equal to `Link.transfer_s`; a test holds them together.
        """
        size = np.asarray(message_bytes, dtype=np.float64)
        low, peak = self.min_bytes[src, dst], self.peak[src, dst]
        c2, c1, c0 = np.moveaxis(self.coefficients[src, dst], -1, 0)
        x = np.log2(np.clip(size, low, self.max_bytes[src, dst]) / 1e6)
        x_low = np.log2(low / 1e6)
        floor = np.minimum(np.maximum(1e9 * ((c2 * x_low + c1) * x_low + c0), peak * 1e-3), peak)
        rate = np.clip(1e9 * ((c2 * x + c1) * x + c0), floor, peak)
        seconds = self.latency_s[src, dst] + size / rate
        seconds = np.where(self.known[src, dst], seconds, np.inf)
        return np.where(size > 0, seconds, 0.0)

    def alike(self, src: Ints, dst: Ints, *more: Floats | Ints) -> Ints:
        """Return a number for every pair: pairs of one number have equal links and `more`."""
        own = (self.known, self.latency_s, self.min_bytes, self.max_bytes, self.peak)
        rows = [array[src, dst].astype(np.float64) for array in own]
        rows += list(np.moveaxis(self.coefficients[src, dst], -1, 0))
        rows += [np.asarray(array, dtype=np.float64) for array in more]
        found: Ints = np.unique(np.stack(rows), axis=1, return_inverse=True)[1].ravel()
        return found


def link_table(
    problem: Problem, kinds: Sequence[WorkerKind], *, workers: int | None = None
) -> LinkTable:
    """Build the links between kinds; `workers` None: each side sends with its tp GPUs at once."""
    index = LinkIndex(problem.links)
    shape = (len(kinds), len(kinds))
    table = LinkTable(
        known=np.zeros(shape, dtype=np.bool_),
        latency_s=np.zeros(shape),
        coefficients=np.zeros((*shape, 3)),
        min_bytes=np.ones(shape),
        max_bytes=np.ones(shape),
        peak=np.ones(shape),
        assumed=np.zeros(shape, dtype=np.bool_),
    )
    for i, src in enumerate(kinds):
        for j, dst in enumerate(kinds):
            link = index.find(src, dst, workers or src.tp, workers or dst.tp)
            if link is None:
                continue
            table.known[i, j] = True
            table.latency_s[i, j] = link.latency_s
            table.assumed[i, j] = link.assumed and link.curve is None
            if link.curve is not None:
                table.coefficients[i, j] = link.curve.coefficients
                table.min_bytes[i, j] = link.curve.min_bytes
                table.max_bytes[i, j] = link.curve.max_bytes
                table.peak[i, j] = link.curve.peak_bytes_per_s
            elif link.bandwidth is not None:
                table.coefficients[i, j] = (0.0, 0.0, link.bandwidth / 1e9)
                table.peak[i, j] = link.bandwidth
    return table


def with_shared_cards(problem: Problem, kinds: Sequence[WorkerKind], links: LinkTable) -> LinkTable:
    """Return links on which replicas that share a node get their part of its network card.

    Where a node has more GPUs than a replica uses, the others send too: the link's rate is at
    most the card's, divided by GPUs. A replica that has its node to itself keeps the link's rate.
    Of a card that was not measured, training reaches the cluster's share.
    """
    part = np.full(len(kinds), np.inf)
    for number, kind in enumerate(kinds):
        node = problem.node(kind.node_type)
        if kind.tp < node.num_gpus:
            part[number] = node.nic_bandwidth * kind.tp / node.num_gpus
    cap = np.minimum(part[:, None], part[None, :])
    cap = np.where(links.assumed, problem.cluster.nic_share * cap, cap)
    return replace(links, peak=np.minimum(links.peak, cap))


def inside_one_node(
    problem: Problem, kinds: Sequence[WorkerKind], links: LinkTable
) -> LinkTable | None:
    """Return the links of a pool that is a single node: its own; None for larger pools."""
    if len(problem.placements) != 1 or [c.max_nodes for c in problem.capacities] != [1]:
        return None
    node, cluster = problem.node(problem.placements[0].node_type), problem.cluster
    # Every GPU has a link of its own: a replica's aggregate is theirs together.
    rate = node.intra_node_bandwidth * cluster.link_share
    tp = np.array([kind.tp for kind in kinds], dtype=np.float64)
    peak = rate * np.minimum(tp[:, None], tp[None, :])
    flat = np.zeros((*peak.shape, 3))
    flat[..., 2] = peak / 1e9
    return replace(
        links,
        known=np.ones(peak.shape, dtype=np.bool_),
        latency_s=np.full(peak.shape, cluster.link_step_s),
        coefficients=flat,
        min_bytes=np.ones(peak.shape),
        max_bytes=np.ones(peak.shape),
        peak=peak,
    )


def egress_usd_per_byte(problem: Problem, kinds: Sequence[WorkerKind]) -> Floats:
    """Return [K, K] dollars a byte from kind to kind; NaN where the price is unknown."""
    known = {(price.src, price.dst): price.usd_per_byte for price in problem.egress}
    return np.array(
        [[known.get((src.zone, dst.zone), np.nan) for dst in kinds] for src in kinds]
    ).reshape(len(kinds), len(kinds))
