"""Cost model `published`: the closed form of Sailor (SOSP'25), exactly.

Source: the evaluation of the public artifact (eth-easl/sailor, MIT licence), simulations/
runtime_simulator.py. It is the ring in which optimisers are compared, and knows 1F1B, fp32, Adam
and one microbatch size only. Its empirical parts are kept: memory of 24 bytes a parameter with
`tp == 1 ? 2e9 : 3e9` bytes on top, nominal card sizes, a send factor for pipelines of up to
three stages, all-reduce buckets of 5e8 bytes on the link of a single pair of GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor.model.problem import Problem
from sailor.sim.kinds import WorkerKind
from sailor.sim.memory_tables import MemoryTables, dense_states, no_margin, no_sharing, no_slack
from sailor.sim.network import LinkTable, egress_usd_per_byte, link_table
from sailor.sim.prices import usd_per_gpu_hour
from sailor.sim.profiles import ProfileIndex
from sailor.sim.tables import StageTables

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_BUCKET_BYTES = 5e8
_VALUE_BYTES = 4.0  # fp32 throughout
_OPTIMIZER_BYTES, _PARAMETER_BYTES, _GRADIENT_BYTES = 8.0, 4.0, 4.0
_COMMUNICATION_BYTES = 8.0  # flat copy for the all-reduce, and one spare copy of the model
_EXTRA_BYTES_TP1, _EXTRA_BYTES = 2e9, 3e9
_MAX_TP_IN_SYNC = 4
_SHORT_PIPELINE = (3, 1.0)


@dataclass(frozen=True)
class PublishedSync:
    """Bucketed ring: every bucket's 2 (D - 1) steps move bytes/D over one pair's link."""

    links: LinkTable
    parameters_prefix: Floats  # [U + 1], at tp 1

    def seconds(
        self,
        start: Ints,
        stop: Ints,
        min_tp: Ints,
        dp: Ints | int,
        src: Ints,
        dst: Ints,
        run: Ints | int | None = None,
    ) -> Floats:
        """Return the ring's seconds (0 for dp 1); every hop is between nodes."""
        parameters = self.parameters_prefix[stop] - self.parameters_prefix[start]
        size = parameters * _VALUE_BYTES / np.minimum(_MAX_TP_IN_SYNC, min_tp)
        full, rest = np.divmod(size, _BUCKET_BYTES)
        steps = 2.0 * (np.asarray(dp, dtype=float) - 1)
        whole = self.links.fitted_transfer_s(_BUCKET_BYTES / np.asarray(dp, dtype=float), src, dst)
        part = self.links.fitted_transfer_s(rest / dp, src, dst)
        times = np.multiply(
            full, whole, out=np.zeros(np.broadcast_shapes(full.shape, whole.shape)), where=full > 0
        )
        ring = times + np.where(rest > 0, part, 0.0)
        # dp 1 has no step; an unknown link must not make it infinite.
        seconds: Floats = np.multiply(
            steps, ring, out=np.zeros(np.broadcast_shapes(steps.shape, ring.shape)), where=steps > 0
        )
        return seconds

    def alike(self, src: Ints, dst: Ints) -> Ints:
        """Return a number for every pair of kinds: hops of one number take equally long."""
        return self.links.alike(src, dst)


class PublishedModel:
    """The SOSP'25 closed form as tables."""

    name = "published"
    description = "the closed form of Sailor (SOSP'25), for comparing planners"

    def tables(self, problem: Problem, kinds: Sequence[WorkerKind], microbatch: int) -> StageTables:
        """Return the cost terms of these kinds at one microbatch size."""
        index = ProfileIndex(problem)
        links = link_table(problem, kinds)
        sizes, by_unit = index.message_sizes(microbatch)
        parameters = index.parameters_prefix()
        grid = np.arange(len(kinds))
        send = links.fitted_transfer_s(
            sizes[:, None, None], grid[None, :, None], grid[None, None, :]
        )
        single_pair = link_table(problem, kinds, workers=1)
        return StageTables(
            kinds=tuple(kinds),
            microbatch=microbatch,
            num_units=problem.arch.num_units,
            usable=index.usable(kinds, microbatch),
            compute_prefix_s=index.compute_prefix_s(kinds, microbatch),
            host_prefix_s=None,
            stage_s=np.zeros(len(kinds)),
            gather=None,
            update_s=np.array(
                [getattr(index.profile(k, microbatch), "optimizer_s", 0.0) for k in kinds]
            ),
            update_prefix_s=np.zeros((len(kinds), problem.arch.num_units + 1)),
            shared_update=None,
            tied_update_s=np.zeros(len(kinds)),
            memory=self._memory(problem, index, kinds, microbatch),
            size_bytes=sizes,
            forward_size=by_unit,
            # A stage that sends a gradient back is charged for its own first unit's output.
            backward_size=by_unit,
            send_s=send,
            blocked_s=None,
            sync=PublishedSync(single_pair, parameters),
            gradient_prefix_bytes=parameters * _VALUE_BYTES,
            egress_usd_per_byte=egress_usd_per_byte(problem, kinds),
            usd_per_gpu_hour=usd_per_gpu_hour(problem, kinds),
            tp=np.array([kind.tp for kind in kinds], dtype=np.int64),
            tied_send_s=None,
            coupled=True,
            short_pipeline_factor=_SHORT_PIPELINE,
        )

    def assumptions(self, problem: Problem) -> Sequence[str]:
        """Return the simplifications of the published model."""
        return (
            "cost model 'published' counts fp32 values, 24 bytes a parameter, 1F1B without "
            "overlap, and the nominal size of the card",
        )

    def _memory(
        self, problem: Problem, index: ProfileIndex, kinds: Sequence[WorkerKind], microbatch: int
    ) -> MemoryTables:
        parameters = index.bytes_prefix(kinds, lambda fp, kind: fp.unit(kind).params)
        activations = index.bytes_prefix(kinds, lambda fp, kind: fp.unit(kind).activation_bytes)
        none = np.zeros(len(kinds))
        return MemoryTables(
            states=dense_states(
                (
                    ("parameters", _PARAMETER_BYTES * parameters),
                    ("gradients", _GRADIENT_BYTES * parameters),
                    ("optimizer", _OPTIMIZER_BYTES * parameters),
                    ("communication", _COMMUNICATION_BYTES * parameters),
                )
            ),
            sharing=no_sharing(len(kinds)),
            activations_prefix_bytes=activations * microbatch,
            received_bytes=none,
            block_transient_bytes=none,
            head_transient_bytes=none,
            head_freed_bytes=none,
            boundary_bytes=none,
            ends_bytes=none,
            reserve_bytes=np.array(
                [_EXTRA_BYTES_TP1 if kind.tp == 1 else _EXTRA_BYTES for kind in kinds]
            ),
            capacity_bytes=np.array(
                [problem.gpu(kind.gpu).marketed_gib * 2.0**30 for kind in kinds]
            ),
            tied_share=none,
            in_flight_capped=False,
            slack=no_slack(len(kinds)),
            margin=no_margin(len(kinds)),
        )
