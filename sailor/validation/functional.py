"""Rows of Megatron-LM's functional tests: their flags, one by one."""

from __future__ import annotations

import re

from sailor.model.arch import Experts
from sailor.model.execution import Chunk, chunks_of
from sailor.sim.clusters import DEFAULT_CLUSTER
from sailor.validation.fields import Fields, Refused
from sailor.validation.subject import Draft

_NOT_DECODERS = (
    (r"^t5/", "encoder-decoder models are not modelled"),
    (r"^multimodal|llava|vlm", "image encoders are not modelled"),
    (r"mamba|hybrid", "state-space blocks are not modelled"),
)


def megatron_functional(fields: Fields, draft: Draft) -> None:
    """Read the flags of a functional test. The peak is that of the last rank."""
    for pattern, reason in _NOT_DECODERS:
        if re.search(pattern, fields.model) or fields.flag("is-hybrid-model"):
            raise Refused(reason)
    _refuse_flags(fields)
    draft.cluster = DEFAULT_CLUSTER
    fields.n_gpus = fields.n_gpus or 8
    if fields.model.startswith("bert/"):
        # The blocks are a decoder's; the pooler and the second head are small.
        fields.vocab = fields.vocab or 30522
    fields.vocab = fields.vocab or 50257
    fields.seq = fields.seq or 1024
    draft.tied = fields.flag("untie-embeddings-and-output-weights") != "True"
    draft.gated = fields.flag("swiglu") == "True"
    draft.biases = fields.flag("disable-bias-linear") != "True"
    draft.rmsnorm = fields.flag("normalization") == "RMSNorm"
    draft.positions = not re.search(r"rotary|rope", fields.notes + fields.model)
    draft.dropout = True
    draft.sequence_parallel = fields.flag("sequence-parallel") == "True"
    head_dim = fields.flag("kv-channels")
    draft.head_dim = int(head_dim) if head_dim else None
    divisor = fields.flag("make-vocab-size-divisible-by")
    draft.vocab_divisor = int(divisor) if divisor else 128
    draft.attention = _attention(fields)
    if draft.attention == "either":
        draft.attention, draft.other_attention = "eager", "flash"
        fields.remarks.append("attention kernel not stated: the nearer of both answers counts")
    draft.view = "allocated"
    _sharding(fields, draft)
    _experts(fields, draft)
    draft.options = {
        "overlap_grads": fields.flag("overlap-grad-reduce") == "True",
        "overlap_params": fields.flag("overlap-param-gather") == "True",
        "overlap_tp": fields.flag("tp-comm-overlap") == "True",
        "overlap_warmup": fields.flag("overlap-p2p-communication-warmup-flush") == "True",
        "fused_loss": "cross_entropy_loss_fusion" in fields.model,
        "deferred_head_grad": "defer_embedding_wgrad" in fields.model,
        "fused_accumulation": fields.flag("transformer-impl") == "transformer_engine",
        "fused_norms": "uninstall_te" not in fields.model,
    }
    if "dgxc" in fields.gpu or (fields.n_gpus == 4 and "GB200" in fields.gpu):
        fields.iter_s = None  # one-node runs that waited for their data: 2 s beside 0.1 s elsewhere
        fields.tokens_per_s = None
        fields.remarks.append("the time is not usable: a run that waited for its data")
    draft.chunks = _chunks(fields)
    draft.rank = (fields.pp or 1) - 1


def _refuse_flags(fields: Fields) -> None:
    if "release_sm" in fields.model:
        raise Refused("a release test: vocabulary and batch are not in the row")
    if fields.flag("multi-latent-attention"):
        raise Refused("latent attention is not modelled")
    if fields.flag("optimizer") == "muon":
        raise Refused("the optimizer muon is not modelled")
    if fields.n_gpus is None and (fields.hidden or 0) > 1024:
        raise Refused("the GPU count is not in the row")
    if fields.flag("mtp-num-layers"):
        raise Refused("multi-token prediction is not modelled")
    if "check_grads" in fields.model:
        raise Refused("a gradient check: it holds states that training doesn't")


def _attention(fields: Fields) -> str:
    backend = fields.flag("attention-backend")
    if backend in ("unfused", "local"):
        return "eager"
    if backend or fields.flag("use-flash-attn"):
        return "flash"
    if fields.flag("transformer-impl") == "local":
        return "eager"
    if "env lts" in fields.notes:
        return "either"  # the same test ran with either kernel on this image
    return "flash"


def _sharding(fields: Fields, draft: Draft) -> None:
    fields.cp = fields.cp or 1
    ranks = (fields.n_gpus or 8) // ((fields.tp or 1) * (fields.pp or 1))
    draft.zero = 1 if fields.flag("use-distributed-optimizer") == "True" else 0
    if fields.flag("use-megatron-fsdp") == "True":
        draft.zero = 3
    instances = fields.flag("num-distributed-optimizer-instances")
    if instances and draft.zero:
        draft.zero_group = max(1, ranks // int(instances))


def _experts(fields: Fields, draft: Draft) -> None:
    count = fields.flag("num-experts")
    if not count:
        return
    frequency = fields.flag("moe-layer-freq")
    dense = 0
    if frequency:
        found = re.fullmatch(r"\(\[0\]\*(\d+)\+\[1\]\*\d+\)", frequency)
        if not found:
            raise Refused(f"the pattern of expert layers {frequency!r} is not known")
        dense = int(found.group(1))
    ffn = fields.flag("moe-ffn-hidden-size")
    draft.experts = Experts(
        num_experts=int(count), top_k=int(fields.flag("moe-router-topk") or 2),
        ffn=int(ffn) if ffn else fields.ffn or 4 * fields.need("hidden"),
        shared_ffn=int(fields.flag("moe-shared-expert-intermediate-size") or 0),
        dense_blocks=dense,
    )  # fmt: skip
    draft.ep = int(fields.flag("expert-model-parallel-size") or 1)
    expert_tp = fields.flag("expert-tensor-parallel-size")
    draft.expert_tp = int(expert_tp) if expert_tp else fields.tp


def _chunks(fields: Fields) -> tuple[Chunk, ...] | None:
    """Return the chunks that a test's flags ask for; None: evenly cut."""
    layers, pp, vpp = fields.need("layers"), fields.pp or 1, fields.vpp or 1
    layout = fields.flag("pipeline-model-parallel-layout")
    if layout:
        return _drawn(layout)
    first = fields.flag("decoder-first-pipeline-num-layers")
    last = fields.flag("decoder-last-pipeline-num-layers")
    if first and last and pp > 2:
        middle = (layers - int(first) - int(last)) // (pp - 2)
        by_rank = [int(first), *[middle] * (pp - 2), int(last)]
        counts = [by_rank[index % pp] // vpp for index in range(pp * vpp)]
        return chunks_of(counts)
    units = layers
    starts = fields.flag("account-for-embedding-in-pipeline-split") == "True"
    ends = fields.flag("account-for-loss-in-pipeline-split") == "True"
    units += starts + ends
    if (starts or ends) and units % (pp * vpp) == 0:
        each = units // (pp * vpp)
        counts = [each] * (pp * vpp)
        counts[0] -= starts
        counts[-1] -= ends
        return chunks_of(counts)
    return None


def _drawn(layout: str) -> tuple[Chunk, ...]:
    """Read Megatron's drawing: E embedding, t block, L loss, | between chunks, x*n repeats.

    Also the row's `m`, a block for multi-token prediction, which is refused elsewhere.
    """
    text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), layout)
    text = re.sub(r"(\w)\*(\d+)", lambda m: m.group(1) * int(m.group(2)), text)
    return tuple(
        Chunk(blocks=part.count("t"), embedding="E" in part, head="L" in part)
        for part in text.split("|")
    )
