"""Where a Hugging Face checkpoint keeps each tensor of a model.

A tensor here is rows [start, start + n) of a tensor there, which GPT-2 stores transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sailor.model.arch import ModelSpec
from sailor_megatron.layout import EMBEDDING, TensorSpec, unit_tensors

Family = Literal["llama", "gpt2", "opt"]

_LLAMA_BLOCK = {
    "attention_norm": "input_layernorm",
    "mlp_norm": "post_attention_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.o_proj",
    "mlp.gate": "mlp.gate_proj",
    "mlp.up": "mlp.up_proj",
    "mlp.down": "mlp.down_proj",
}
_OPT_BLOCK = {
    "attention_norm": "self_attn_layer_norm",
    "mlp_norm": "final_layer_norm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.output": "self_attn.out_proj",
    "mlp.up": "fc1",
    "mlp.down": "fc2",
}
_GPT2_BLOCK = {
    "attention_norm": "ln_1",
    "mlp_norm": "ln_2",
    "attention.query": "attn.c_attn",
    "attention.key": "attn.c_attn",
    "attention.value": "attn.c_attn",
    "attention.output": "attn.c_proj",
    "mlp.up": "mlp.c_fc",
    "mlp.down": "mlp.c_proj",
}


@dataclass(frozen=True)
class _Names:
    root: str  # what all names but the head's begin with; some checkpoints leave it out
    embedding: str
    positions: str
    layers: str
    final_norm: str
    block: Mapping[str, str]


_FAMILIES: Mapping[Family, _Names] = {
    "llama": _Names("model.", "embed_tokens", "", "layers", "norm", _LLAMA_BLOCK),
    "gpt2": _Names("transformer.", "wte", "wpe", "h", "ln_f", _GPT2_BLOCK),
    "opt": _Names(
        "model.decoder.", "embed_tokens", "embed_positions", "layers", "final_layer_norm",
        _OPT_BLOCK,
    ),
}  # fmt: skip
HEAD = "lm_head.weight"
OPT_OFFSET = 2  # rows of OPT's position table before the one of position 0


@dataclass(frozen=True)
class Place:
    """Rows [start, start + n) of a tensor `name`, or columns of it where it is transposed."""

    name: str
    start: int = 0
    transposed: bool = False


def root_of(family: Family) -> str:
    """Return what the names of a family begin with, unless a checkpoint leaves it out."""
    return _FAMILIES[family].root


def first_name(family: Family) -> str:
    """Return a tensor that every checkpoint of a family has, without the root."""
    return f"{_FAMILIES[family].embedding}.weight"


def places(family: Family, spec: ModelSpec, *, root: str, position_offset: int) -> dict[str, Place]:
    """Return where each tensor of a model is, by its name here.

    `position_offset` is the row of position 0 in the model's own position table. In OPT's it is
    the third.
    """
    names = _FAMILIES[family]
    found: dict[str, Place] = {}
    for unit in range(spec.num_units):
        for tensor in unit_tensors(spec, unit):
            found[tensor.name] = _place(family, names, spec, tensor.name, root)
    if family == "opt":
        table = found["positions.weight"]
        found["positions.weight"] = Place(table.name, OPT_OFFSET - position_offset)
    return found


def _place(family: Family, names: _Names, spec: ModelSpec, tensor: str, root: str) -> Place:
    part, _, kind = tensor.rpartition(".")
    if tensor == EMBEDDING:
        return Place(f"{root}{names.embedding}.weight")
    if part == "positions":
        return Place(f"{root}{names.positions}.weight")
    if part == "head":
        return Place(HEAD)
    if part == "final_norm":
        return Place(f"{root}{names.final_norm}.{kind}")
    _, block, inner = part.split(".", 2)
    name = f"{root}{names.layers}.{block}.{names.block[inner]}.{kind}"
    if family != "gpt2" or inner.endswith("_norm"):
        return Place(name)
    size = spec.num_heads * spec.head_dim
    start = {"attention.key": size, "attention.value": 2 * size}.get(inner, 0)
    return Place(name, start, transposed=kind == "weight")


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint: its shape, and the names here of what it holds."""

    shape: tuple[int, ...]
    holds: tuple[str, ...]


def stored_tensors(spec: ModelSpec, where: Mapping[str, Place]) -> dict[str, Stored]:
    """Return the tensors of a checkpoint by name, in model order."""
    held: dict[str, dict[str, TensorSpec]] = {}
    for unit in range(spec.num_units):
        for tensor in unit_tensors(spec, unit):
            held.setdefault(where[tensor.name].name, {})[tensor.name] = tensor
    found: dict[str, Stored] = {}
    for name, tensors in held.items():
        rows = max(where[t.name].start + t.shape[0] for t in tensors.values())
        first = next(iter(tensors.values()))
        rest = first.shape[1:]
        shape = (*rest, rows) if where[first.name].transposed else (rows, *rest)
        found[name] = Stored(shape, tuple(tensors))
    return found
