"""Layer times from data sheets: operations by shape, with shares fitted to published runs.

The times are those of `sailor.sim.analytic_time`: matrix products by tiles and waves, element-wise
work by its bytes, fused attention at a share of the peak that grows with the sequence,
tensor-parallel all-reduces as rings over the bandwidth inside a node. The launches of a block's
kernels take the host a fixed time, told apart in `LayerProfile.block_host`. Constants by GPU type
and framework, and their sources, stand in `sailor.sim.device` and `frameworks`; how far the times
are from measurements stands in docs/validation.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sailor.interfaces import SourceContext
from sailor.model.arch import ModelSpec, UnitKind
from sailor.model.catalog import Catalog
from sailor.model.execution import Layout, even_chunks
from sailor.model.hardware import NodeType
from sailor.model.job import Training
from sailor.model.profile import LayerFootprint, LayerProfile, Provenance, UnitTime
from sailor.sim.analytic_time import Setting, block_passes, unit_params, unit_seconds
from sailor.sim.clusters import in_nodes
from sailor.sim.frameworks import optimizer_traffic_bytes
from sailor.sim.layers import unit_bytes

MICROBATCHES = (1, 2, 4, 8, 16, 32, 64)

_KINDS: tuple[UnitKind, ...] = ("embedding", "first_block", "block", "head")


class AnalyticProfiles:
    """The profile source `analytic`: an answer for any model, GPU type, tp and microbatch."""

    name = "analytic"

    def grid(
        self, model: ModelSpec, training: Training, gpu: str, context: SourceContext
    ) -> Sequence[tuple[int, int]]:
        """Return powers of two: tp as the model and the largest node allow, microbatch to 64."""
        return tuple(
            (tp, microbatch)
            for exponent in range(11)
            for microbatch in MICROBATCHES
            if _answers(model, training, gpu, tp := 2**exponent, context.catalog)
        )

    def profile(
        self,
        model: ModelSpec,
        training: Training,
        gpu: str,
        tp: int,
        microbatch: int,
        context: SourceContext,
    ) -> LayerProfile | None:
        """Return the estimate, or None: a precision the GPU lacks, or a tp that can't be."""
        if not _answers(model, training, gpu, tp, context.catalog):
            return None
        setting = _setting(model, training, gpu, tp, microbatch, context)
        ends = (unit_seconds(setting, "embedding"), unit_seconds(setting, "head"))
        embedding, head = (
            UnitTime(
                forward_s=end.forward + end.tp_forward, backward_s=end.backward + end.tp_backward
            )
            for end in ends
        )
        block, host = block_passes(setting)
        params = round(sum(sum(unit_params(setting, kind)) for kind in _KINDS))
        moved = optimizer_traffic_bytes(training)
        return LayerProfile(
            model=model.name,
            gpu=gpu,
            tp=tp,
            microbatch=microbatch,
            precision=training.precision,
            embedding=embedding,
            first_block=block,
            block=block,
            head=head,
            block_host=host,
            optimizer_s=params * moved / setting.device.memory_bytes_per_s,
            optimizer_params=params,
            provenance=Provenance.MODELLED,
            source=_source(setting),
        )

    def footprint(
        self, model: ModelSpec, training: Training, tp: int, context: SourceContext
    ) -> LayerFootprint | None:
        """Return the bytes by formula, or None where heads don't split over tp."""
        if not model.allows_tp(tp):
            return None
        block = unit_bytes(model, training, "block", tp)
        kernel = training.attention or "fused"
        return LayerFootprint(
            model=model.name,
            tp=tp,
            precision=training.precision,
            embedding=unit_bytes(model, training, "embedding", tp),
            first_block=block,
            block=block,
            head=unit_bytes(model, training, "head", tp),
            provenance=Provenance.MODELLED,
            source="analytic: activation formula of Korthikanti et al. 2022 with "
            f"{'fused' if kernel != 'eager' else 'eager'} attention, "
            f"{'dropout masks, ' if training.dropout else ''}recomputation {training.recompute}, "
            f"under {training.framework}",
        )


def _setting(
    model: ModelSpec, training: Training, gpu: str, tp: int, microbatch: int, context: SourceContext
) -> Setting:
    """Return one replica's stage: `tp` GPUs of a type in one node of the usual kind."""
    node = _usual_node(gpu, tp * training.cp, context.catalog)
    layout = Layout(
        tp=tp, dp=training.ep, microbatch=microbatch, num_microbatches=2, pp=1,
        chunks=even_chunks(model.num_layers, 1),
    )  # fmt: skip
    cluster = in_nodes(context.cluster, node)
    return Setting.of(model, training, layout, context.catalog.gpu(gpu), cluster)


def _source(setting: Setting) -> str:
    """Return the estimate's basis in one phrase."""
    facts = setting.device.facts
    kind = "eager" if setting.execution.attention == "eager" else "fused"
    text = (
        f"analytic: operations by shape on {setting.device.gpu.name}'s data sheet, "
        f"{facts.source} (matrix products {facts.gemm_share:g} of the peak, memory "
        f"{facts.memory_share:g}, {kind} attention)"
    )
    if setting.layout.tp > 1:
        rate = (setting.cluster.link_bandwidth or 0.0) / 1e9
        text += f", all-reduce at {setting.cluster.link_share:g} of {rate:g} GB/s within a node"
    return text


def _answers(model: ModelSpec, training: Training, gpu: str, tp: int, catalog: Catalog) -> bool:
    if training.precision == "bf16" and not catalog.gpu(gpu).bf16:
        return False
    return model.allows_tp(tp) and tp * training.cp <= _largest_node(gpu, catalog)


def _largest_node(gpu: str, catalog: Catalog) -> int:
    return max((node.num_gpus for node in catalog.nodes.values() if node.gpu == gpu), default=0)


def _usual_node(gpu: str, num_gpus: int, catalog: Catalog) -> NodeType:
    """Return the largest node type with the inner bandwidth that most types of that size have.

    A profile knows its GPU type but not its node type; of equally common figures the lowest
    counts.
    """
    nodes = [
        node for node in catalog.nodes.values() if node.gpu == gpu and node.num_gpus >= num_gpus
    ]
    figures = Counter(node.intra_node_bandwidth for node in nodes)
    most = max(figures.values())
    usual = min(bandwidth for bandwidth, count in figures.items() if count == most)
    mine = [node for node in nodes if node.intra_node_bandwidth == usual]
    return max(mine, key=lambda node: (node.num_gpus, node.name))
