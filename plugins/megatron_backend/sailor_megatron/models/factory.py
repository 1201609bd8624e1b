"""Which stages a run has: the native ones or megatron-core's, and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.plan import Plan
from sailor_megatron.models.megatron_import import import_obstacle
from sailor_megatron.options import RunOptions

if TYPE_CHECKING:
    from sailor_megatron.models.contract import Stage
    from sailor_megatron.models.tensor_parallel import TensorParallel
    from sailor_megatron.parameters import Parameters
    from sailor_megatron.process_groups import ProcessGroups


def megatron_obstacle(spec: ModelSpec, plan: Plan, options: RunOptions) -> str | None:
    """Return why megatron-core's layers can't run a plan, None where they can."""
    if options.dropout or options.attention_dropout:
        return "its dropout depends on the plan"
    if options.sequence_parallel:
        return "its norms without Transformer Engine don't split positions"
    if options.activation == "gelu_tanh" and not spec.gated_mlp:
        return "activation gelu_tanh is not among its own"
    for tp in sorted({replica.tp for stage in plan.stages for replica in stage.replicas}):
        if not spec.allows_tp(tp) or spec.ffn % tp:
            return (
                f"tp {tp} does not divide {spec.num_heads} heads, {spec.num_kv_heads} key-value "
                f"heads and {spec.ffn} feed-forward columns"
            )
    return import_obstacle()


def chosen_stages(spec: ModelSpec, plan: Plan, options: RunOptions) -> tuple[str, str]:
    """Return "torch" or "megatron", and why; refuse megatron where it was asked for and can't."""
    if options.stages == "torch":
        return "torch", "asked for"
    obstacle = megatron_obstacle(spec, plan, options)
    if obstacle is None:
        return "megatron", "asked for" if options.stages == "megatron" else "megatron-core can"
    if options.stages == "megatron":
        raise PluginError(
            f"megatron-core's layers can't run this: {obstacle}",
            where="--stages megatron",
            hint="take --stages torch, which runs every plan",
        )
    return "torch", obstacle


def stage_maker(
    params: Parameters, tp: TensorParallel, options: RunOptions, groups: ProcessGroups
) -> Callable[[int], Stage]:
    """Return what makes a stage out of its index in the plan."""
    from sailor_megatron.models.stage import TorchStage

    kind, _ = chosen_stages(params.layout.spec, params.layout.plan, options)
    if kind == "torch":
        return lambda index: TorchStage(params, index, tp, options)
    from sailor_megatron.models.megatron_block import MegatronBlocks

    blocks = MegatronBlocks(params, tp, options, groups)
    return lambda index: TorchStage(params, index, tp, options, blocks, kind)
