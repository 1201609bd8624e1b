"""Megatron-LM's arguments for a model and a plan.

The names are those of megatron-core 0.19.2 (`megatron/training/arguments.py`, and the fields of
its `TransformerConfig`, of which it makes arguments); `--pipeline-model-parallel-layout` and its
letters (E embedding, t block, L head and loss) are in
`megatron/core/transformer/pipeline_parallel_layer_layout.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sailor.model.arch import Experts, ModelSpec
from sailor.model.execution import Recompute
from sailor.model.job import Training
from sailor.model.plan import Plan

VOCAB_DIVISOR = 128  # ModelSpec.padded_vocab's default, and Megatron-LM's


def of_model(spec: ModelSpec) -> Sequence[str]:
    """Return the arguments that say the model's shape."""
    learned = spec.max_positions > 0
    found = [
        f"--num-layers={spec.num_layers}",
        f"--hidden-size={spec.hidden}",
        f"--ffn-hidden-size={spec.ffn}",
        f"--num-attention-heads={spec.num_heads}",
        f"--kv-channels={spec.head_dim}",
        f"--seq-length={spec.seq_len}",
        f"--max-position-embeddings={spec.max_positions if learned else spec.seq_len}",
        f"--position-embedding-type={'learned_absolute' if learned else 'rope'}",
        f"--vocab-size={spec.vocab}",
        f"--make-vocab-size-divisible-by={VOCAB_DIVISOR}",
        f"--normalization={'LayerNorm' if spec.norm == 'layernorm' else 'RMSNorm'}",
    ]
    if spec.num_kv_heads != spec.num_heads:
        found += ["--group-query-attention", f"--num-query-groups={spec.num_kv_heads}"]
    if spec.gated_mlp:
        found.append("--swiglu")
    if not spec.biases:
        found.append("--disable-bias-linear")
    if not spec.tied_embeddings:
        found.append("--untie-embeddings-and-output-weights")
    if spec.experts is not None:
        found += _of_experts(spec, spec.experts)
    return found


def _of_experts(spec: ModelSpec, experts: Experts) -> Sequence[str]:
    found = [
        f"--num-experts={experts.num_experts}",
        f"--moe-router-topk={experts.top_k}",
        f"--moe-ffn-hidden-size={experts.ffn}",
    ]
    if experts.shared_ffn:
        found.append(f"--moe-shared-expert-intermediate-size={experts.shared_ffn}")
    dense = min(experts.dense_blocks, spec.num_layers)
    if dense:
        found.append(f"--moe-layer-freq=([0]*{dense}+[1]*{spec.num_layers - dense})")
    return found


def of_plan(plan: Plan) -> Sequence[str]:
    """Return the arguments that say a plan of one tp, microbatch and microbatch count."""
    replica = plan.stages[0].replicas[0]
    return [
        f"--tensor-model-parallel-size={replica.tp}",
        f"--pipeline-model-parallel-size={plan.pp}",
        *([f"--context-parallel-size={plan.cp}"] if plan.cp > 1 else []),
        *of_layers(plan),
        f"--micro-batch-size={replica.microbatch}",
        f"--global-batch-size={plan.samples}",
    ]


def of_layers(plan: Plan) -> Sequence[str]:
    """Return the arguments that split the blocks over the stages; none for an even split.

    Without them Megatron-LM gives every stage the same number of blocks, the embedding to the
    first and the head to the last. First and last may be given counts of their own (never zero);
    any other split needs a layout. So does an uneven split over the chunks of an interleaved
    pipeline: its layout lists them in model order, chunk i on pipeline rank i % pp.
    """
    head = plan.num_units - 1
    blocks = [min(stage.stop, head) - max(stage.start, 1) for stage in plan.stages]
    if len(set(blocks)) == 1:
        return [] if plan.vpp == 1 else [f"--num-virtual-stages-per-pipeline-rank={plan.vpp}"]
    middle = set(blocks[1:-1])
    if 0 in blocks or len(middle) > 1 or plan.vpp > 1:
        return [f"--pipeline-model-parallel-layout={_layout(plan, blocks)}"]
    rest = next(iter(middle), None)
    found = []
    if blocks[0] != rest:
        found.append(f"--decoder-first-pipeline-num-layers={blocks[0]}")
    if blocks[-1] != rest:
        found.append(f"--decoder-last-pipeline-num-layers={blocks[-1]}")
    return found


def of_training(training: Training, plan: Plan) -> Sequence[str]:
    """Return the arguments for precision, optimizer, and what is split or computed again."""
    found = [f"--optimizer={training.optimizer}"]
    if training.precision != "fp32":
        found.append(f"--{training.precision}")
    if training.fp8:
        found.append("--fp8-format=hybrid")
    if not training.dropout:
        found += ["--hidden-dropout=0.0", "--attention-dropout=0.0"]
    if zero_of(training, plan):
        found.append("--use-distributed-optimizer")
    if training.sequence_parallel and plan.stages[0].replicas[0].tp > 1:
        found.append("--sequence-parallel")
    if training.ep > 1:
        found.append(f"--expert-model-parallel-size={training.ep}")
    if training.expert_tp is not None:
        found.append(f"--expert-tensor-parallel-size={training.expert_tp}")
    return [*found, *_RECOMPUTE[recompute_of(training, plan)]]


# Selective recomputation is that of attention's core, which is the default of its modules.
_RECOMPUTE: Mapping[Recompute, Sequence[str]] = {
    "none": (),
    "selective": ("--recompute-granularity=selective",),
    "full": (
        "--recompute-granularity=full",
        "--recompute-method=uniform",
        "--recompute-num-layers=1",
    ),
}


def zero_of(training: Training, plan: Plan) -> int:
    """Return the ZeRO stage: the plan's, where it says one, else the job's."""
    return training.zero if plan.zero is None else plan.zero


def recompute_of(training: Training, plan: Plan) -> Recompute:
    """Return what is computed again: as the plan says, where it does, else as the job does."""
    return training.recompute if plan.recompute is None else plan.recompute


def _layout(plan: Plan, blocks: Sequence[int]) -> str:
    stages = []
    for stage, count in zip(plan.stages, blocks, strict=True):
        embedding = "E" if stage.start == 0 else ""
        loss = "L" if stage.stop == plan.num_units else ""
        stages.append(embedding + (f"t*{count}" if count else "") + loss)
    return "|".join(stages)
