"""What is known about each published source beyond its table's columns.

A family says which framework, kernels and cluster a source used, and corrects known misprints.
It speaks of sources, never of single rows' results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sailor.model.execution import Chunk, chunks_of
from sailor.model.presets import preset
from sailor.sim.clusters import CLUSTERS, DEFAULT_CLUSTER
from sailor.validation.fields import Fields, Refused
from sailor.validation.functional import megatron_functional
from sailor.validation.subject import Draft

_PRESETS = (
    (r"llama-?3(\.1)?.{0,3}405b", "llama-3-405b"),
    (r"llama-?3(\.1)?.{0,3}70b", "llama-3-70b"),
    (r"llama-?3(\.1)?.{0,3}8b", "llama-3-8b"),
    (r"gpt-?3.{0,3}175b", "gpt-3-175b"),
)
H100_FLOP_PER_S = 989e12


@dataclass(frozen=True)
class Family:
    """Sources that one reader of rows fits."""

    name: str
    pattern: str  # found in a row's `source`
    revise: Callable[[Fields, Draft], None]
    remark: str


def draft_of(fields: Fields) -> tuple[Draft, Family | None]:
    """Return what is decided for a row, by its source's family (None: not a known one)."""
    draft = Draft(cluster=DEFAULT_CLUSTER)
    for family in FAMILIES:
        if re.search(family.pattern, fields.source, re.IGNORECASE):
            family.revise(fields, draft)
            return draft, family
    _unknown(fields, draft)
    return draft, None


def _unknown(fields: Fields, draft: Draft) -> None:
    """Decide for a source that no family knows: by the words of the row, else by defaults."""
    text = f"{fields.source} {fields.model} {fields.sharding} {fields.notes}".lower()
    if re.search(r"moe|mixtral|\d+x\d+b|deepseek|-a\d+b|qwen3-30b|experts", text):
        raise Refused("the experts of the model are not described in the row")
    if re.search(r"torchtitan|fms|fsdp|full_shard", text):
        draft.framework = "torchtitan"
        draft.options = {
            "overlap_grads": True, "recompute_stops_early": True,
            "fused_norms": "compile" in text,
        }  # fmt: skip
        draft.sequence_parallel = (fields.tp or 1) > 1
        if draft.zero is None and re.search("fsdp|full_shard", text):
            draft.zero = 3
    elif re.search(r"nemo|megatron|megascale", text):
        draft.options = {
            "overlap_grads": True, "overlap_params": True, "fused_accumulation": True,
        }  # fmt: skip
    elif re.search(r"deepspeed", text):
        draft.framework = "megatron-deepspeed"
    _llama_like(text, draft)
    _known_shape(text, fields)
    if fields.mbs is None and fields.gbs is not None:
        draft.microbatches = _sizes(fields)
        fields.remarks.append("microbatch size not stated: the fastest counts")


def _known_shape(text: str, fields: Fields) -> None:
    """Fill in what the row leaves out of a well-known model's shape."""
    for pattern, name in _PRESETS:
        if fields.layers is None and re.search(pattern, text):
            model = preset(name)
            fields.layers, fields.hidden = model.num_layers, model.hidden
            fields.heads, fields.kv_heads = model.num_heads, model.num_kv_heads
            fields.ffn = fields.ffn or model.ffn
            fields.vocab = fields.vocab or model.vocab
            fields.remarks.append(f"shape of {name}")
    if fields.vocab is None and re.search("llama-?3", text):
        fields.vocab = 128_256
    if fields.vocab is None and re.search("llama-?2|llama2", text):
        fields.vocab = 32_000


def _llama_like(text: str, draft: Draft) -> None:
    if re.search("llama|mistral|qwen|internlm", text.lower()):
        draft.gated, draft.biases, draft.rmsnorm, draft.positions = True, False, True, False


def _vtrain(fields: Fields, draft: Draft) -> None:
    draft.cluster = CLUSTERS["vtrain-node" if "single" in fields.source else "vtrain"]
    draft.framework, draft.attention, draft.dropout, draft.tied = (
        "megatron-deepspeed", "eager", True, True,
    )  # fmt: skip
    fields.precision = "fp16"
    # With tp 1 the table isn't padded: the head's share of the times is that of odd shapes, 73
    # TFLOP/s.
    draft.vocab_divisor = 1 if fields.tp == 1 and "single" in fields.source else 128
    # The single-node times leave no room for a second forward pass, whatever the repository's
    # configuration says: 8.75 ms a layer would be 204 TFLOP/s on an A100.
    draft.recompute = "none" if "single" in fields.source else "full"


def _bloom(fields: Fields, draft: Draft) -> None:
    draft.cluster = CLUSTERS["jean-zay"]
    draft.framework, draft.attention, draft.dropout, draft.tied = (
        "megatron-deepspeed", "eager", False, True,
    )  # fmt: skip
    draft.positions = False  # ALiBi
    draft.recompute, draft.view, draft.memory_unit = "full", "device", 1e9
    fields.vocab = 250_880
    if re.search("640 differs", fields.notes):
        raise Refused("the printed dp x tp x pp is not the row's GPU count")
    _bloom_shape(fields)
    if fields.n_gpus == 8 and fields.gbs == 2048:
        fields.gbs = 512  # the printed TFLOP/s are those of a batch of 512
    draft.chunks = _bloom_stages(fields)
    fields.precision = "bf16" if "bf16" in fields.precision else "fp16"
    if (fields.layers, fields.tp, fields.mbs, fields.memory) == (84, 8, 2, "65"):
        fields.memory = ""
        fields.remarks.append("65 GB at microbatch 2 contradicts 56 GB at 4 with the same layout")
    swapped = "not usable" in fields.notes
    if fields.iter_s is None and fields.tflops and not swapped:
        printed = fields.tflops * 1.0375  # early figures left out a term of the formula
        fields.iter_s = sc21_flop(fields, 96) / (printed * 1e12 * fields.need("n_gpus"))


def _bloom_shape(fields: Fields) -> None:
    """Fill in layers and heads where a row has only the parameter count, which is 12 L h^2."""
    hidden, pp = fields.need("hidden"), fields.need("pp")
    if fields.layers is None:
        if fields.params is None:
            raise Refused("neither layers nor parameters are given")
        fields.layers = pp * max(1, round(fields.params / (12 * hidden**2) / pp))
    if fields.heads is None:
        fields.heads = 96 if hidden == 14400 else 64
    if fields.heads % (fields.tp or 1):
        raise Refused("heads don't split over tp")
    fields.kv_heads = fields.heads


def _bloom_stages(fields: Fields) -> tuple[Chunk, ...] | None:
    """Return the uneven cut of a row; None: even."""
    layers, pp = fields.need("layers"), fields.need("pp")
    if "Rebalancing layers" in fields.notes and (layers + 2) % pp == 0 and pp > 1:
        # Embedding and head count as a layer each.
        each = (layers + 2) // pp
        return chunks_of([each - 1] + [each] * (pp - 2) + [each - 1])
    return _filled(layers, pp) if layers % pp else None


def _filled(layers: int, pp: int) -> tuple[Chunk, ...]:
    """Return DeepSpeed's cut: ceil(layers / pp) to each stage until none is left."""
    each = -(-layers // pp)
    counts = [max(0, min(each, layers - each * stage)) for stage in range(pp)]
    return chunks_of(counts)


def sc21_flop(fields: Fields, factor: int) -> float:
    """Return Narayanan et al. 2021's FLOP: factor B s L h^2 (1 + s / 6h + 6V / (factor L h)).

    Factor 96 with full recomputation (V / 16 L h), 72 without (V / 12 L h).
    """
    layers, hidden = fields.need("layers"), fields.need("hidden")
    seq, batch, vocab = fields.need("seq"), fields.need("gbs"), fields.need("vocab")
    inside = 1 + seq / (6 * hidden) + 6 * vocab / (factor * layers * hidden)
    return factor * batch * seq * layers * hidden**2 * inside


def _megatron_published(fields: Fields, draft: Draft) -> None:
    draft.attention, draft.dropout, draft.tied = "eager", True, True
    if "H100" in fields.gpu:
        draft.cluster, draft.attention, draft.dropout = CLUSTERS["eos"], "flash", False
        draft.recompute, draft.sequence_parallel = "none", True
        draft.zero = 1
        draft.options = {
            "overlap_grads": True, "overlap_params": True, "overlap_tp": True,
            "fused_accumulation": True,
        }  # fmt: skip
        factor = 72
    elif "2020" in fields.source:
        draft.cluster = CLUSTERS["dgx2" if "V100" in fields.gpu else "selene"]
        fields.seq, fields.vocab = fields.seq or 1024, fields.vocab or 51200
        draft.recompute, factor = "full", 96
        draft.options = {"overlap_grads": True}  # 2020's engine overlapped by PyTorch's DDP
    else:
        draft.cluster, draft.recompute, factor = CLUSTERS["selene"], "full", 96
        if "ZeRO-3" in fields.sharding:
            draft.framework = "megatron-deepspeed"
    if fields.iter_s is None and fields.tflops:
        gpus = fields.need("n_gpus")
        fields.iter_s = sc21_flop(fields, factor) / (fields.tflops * 1e12 * gpus)
    if fields.tp is None and fields.mbs is None:
        raise Refused("neither the parallel degrees nor the microbatch size are given")
    if fields.mbs is None:
        draft.microbatches = _sizes(fields)


def _sizes(fields: Fields) -> Sequence[int]:
    """Return the microbatch sizes to choose the best of, where the source gives none."""
    per_replica = fields.need("gbs") * (fields.tp or 1) * (fields.pp or 1) // fields.need("n_gpus")
    return [size for size in (1, 2, 4, 8, 16, 32) if per_replica % size == 0]


def _korthikanti(fields: Fields, draft: Draft) -> None:
    draft.cluster = CLUSTERS["selene"]
    draft.attention, draft.dropout, draft.tied, draft.view, draft.rank = (
        "eager", True, True, "states+activations", 0,
    )  # fmt: skip
    lowered = fields.recompute
    draft.options = {"fused_accumulation": True}
    draft.sequence_parallel = "sequence" in lowered


def _mosaic(fields: Fields, draft: Draft) -> None:
    h100 = "h100" in fields.gpu.lower()
    draft.cluster = CLUSTERS["mosaic-h100" if h100 else "mosaic-a100"]
    draft.framework, draft.tied, draft.biases = "llm-foundry", True, False
    draft.attention = "flash1"  # Triton's kernel
    draft.options = {
        "keep_gathered": "SHARD_GRAD_OP" in fields.sharding,
        # The runs of the newer PyTorch, whose checkpoints aren't reentrant.
        "recompute_stops_early": "DEFAULT" in fields.sharding,
    }
    draft.zero = 3


def _internevo(fields: Fields, draft: Draft) -> None:
    draft.cluster, draft.framework = CLUSTERS["internevo"], "internevo"
    draft.attention = "flash1"
    _llama_like("llama", draft)
    draft.biases = False
    group = re.search(r"group (\d+)", fields.sharding)
    draft.zero_group = int(group.group(1)) if group else None
    draft.zero = 3 if "FSDP" in fields.sharding else 1
    draft.view, draft.memory_unit = "device", 1e9
    if fields.layers is None and "20B" in fields.model:
        # InternLM-20B's published shape.
        fields.layers, fields.hidden, fields.heads, fields.ffn = 60, 5120, 40, 13824
        fields.kv_heads = 40
    if fields.gbs is None:
        fields.gbs = 4 * fields.need("mbs") * (fields.dp or 1)


def _nanotron(fields: Fields, draft: Draft) -> None:
    draft.cluster, draft.framework = CLUSTERS["hf-h100"], "nanotron"
    _llama_like("llama", draft)
    draft.view, draft.memory_unit, draft.sequence_parallel = "device", 1e9, True
    draft.tied = (fields.params or 0) < 4e9
    draft.recompute = "none"
    draft.chunks = _by_cost(fields)
    if fields.iter_s is None and fields.mfu_pct:
        layers, hidden, seq = fields.need("layers"), fields.need("hidden"), fields.need("seq")
        ffn, vocab, batch = fields.need("ffn"), fields.need("vocab"), fields.need("gbs")
        matrices = layers * (4 * hidden**2 + 3 * hidden * ffn) + hidden * vocab
        forward = 2 * batch * seq * (matrices + 2 * layers * seq * hidden)
        rate = fields.mfu_pct / 100 * H100_FLOP_PER_S * fields.need("n_gpus")
        fields.iter_s = 3 * forward / rate


def _by_cost(fields: Fields) -> tuple[Chunk, ...]:
    """Return nanotron's cut: each stage takes blocks until its share of all products is reached."""
    hidden, layers, pp = fields.need("hidden"), fields.need("layers"), fields.pp or 1
    block = 4 * hidden**2 + 3 * hidden * fields.need("ffn")
    share = (layers * block + hidden * fields.need("vocab")) / pp
    counts = [0] * pp
    for index in range(layers):
        counts[min(pp - 1, int(index * block / share))] += 1
    return chunks_of(counts)


def _galvatron(fields: Fields, draft: Draft) -> None:
    draft.framework = "galvatron"
    _llama_like("llama", draft)
    fields.gpu = "A100-80GB"  # not stated; only memory is read off the row
    # One microbatch holds a replica's share of the batch of 8.
    fields.mbs = fields.need("gbs") // (fields.dp or 1)
    draft.sequence_parallel, draft.zero, draft.view = True, 3, "allocated"
    rank = fields.note(r"rank (\d+)")
    draft.rank = int(rank or 0) * (fields.pp or 1) // 8
    draft.recompute = "full" if re.search(r"_c_sp", fields.notes) else "none"
    draft.options = {"fused_norms": False, "vocab_parallel": "vtp" in fields.notes}
    for kind in ("states", "activation"):
        printed = fields.note(rf"{kind} ([\d.]+) MB")
        if printed:
            draft.parts[kind] = float(printed) * 2**20


def _sosp25(fields: Fields, draft: Draft) -> None:
    if fields.layers is None:
        raise Refused("the model is not in the row")
    fields.precision = "fp32"
    draft.framework = "megatron-deepspeed"
    draft.attention, draft.tied, draft.view = "eager", False, "device"
    draft.options = {"tf32": True}  # its profiles are faster than fp32's peak


def _bigscience_v100(fields: Fields, draft: Draft) -> None:
    if fields.params is None:
        raise Refused("neither the shape nor the parameter count is given")
    draft.cluster, draft.framework = CLUSTERS["jean-zay-v100"], "megatron-deepspeed"
    draft.attention, draft.dropout, draft.tied, draft.recompute = "eager", True, True, "full"
    draft.view, draft.memory_unit = "device", 1e9
    # The printed times and TFLOP/s (8 FLOP a parameter and token) agree for 1,024 tokens.
    fields.seq, fields.vocab = 1024, 50257
    if fields.layers is None:
        _usual_shape(fields)
    if fields.pp == 1 and "ZeRO (" in fields.notes:
        draft.zero = 3
    if "differs from GPUs" in fields.notes:
        raise Refused("the printed dp x tp x pp is not the row's GPU count")


def _usual_shape(fields: Fields) -> None:
    """Fill in the shape of a GPT by its parameters: 12 L h^2 of them, with h near 128 L."""
    params, pp = fields.params or 0.0, fields.pp or 1
    hidden = round((params * 128 / 12) ** (1 / 3) / 512) * 512
    fields.hidden = max(512, hidden)
    fields.layers = max(1, round(params / (12 * fields.hidden**2) / pp)) * pp
    fields.heads = fields.kv_heads = fields.hidden // 128
    fields.ffn = 4 * fields.hidden
    fields.remarks.append("shape inferred from the parameter count")


def _issues(fields: Fields, draft: Draft) -> None:
    if fields.layers is None or fields.mbs is None:
        raise Refused("the thread doesn't give the model's shape and layout")
    _llama_like(fields.model, draft)
    fields.seq = fields.seq or 2048
    draft.zero, draft.memory_unit = 1, 1e9


FAMILIES = (
    Family("issues", r"issue #|PR #\d+|README Performance|nv-adlr", _issues, "threads"),
    Family("vtrain", r"vTrain", _vtrain, "Megatron-DeepSpeed, eager attention"),
    Family("bloom", r"chronicles-prequel", _bloom, "Megatron-DeepSpeed on Jean Zay"),
    Family("functional", r"functional_tests", megatron_functional, "Megatron-LM's own tests"),
    Family("korthikanti", r"Korthikanti|calculon", _korthikanti, "Megatron-LM on Selene"),
    Family("megatron-published", r"SC21|NVIDIA/Megatron-LM.*(images/|README)", _megatron_published,
           "Megatron-LM's published tables"),
    Family("mosaic", r"llm-foundry", _mosaic, "PyTorch FSDP, Triton flash attention"),
    Family("internevo", r"InternEvo", _internevo, "InternEvo"),
    Family("nanotron", r"nanotron", _nanotron, "nanotron, best configuration by size"),
    Family("galvatron", r"Galvatron", _galvatron, "Galvatron's memory profiles"),
    Family("sosp25", r"simulations/validation", _sosp25, "SOSP'25 artifact"),
    Family("bigscience-v100", r"gpt2\.md", _bigscience_v100, "Jean Zay V100"),
)  # fmt: skip
