"""Mixture-of-experts families of Hugging Face configs, as fields of a `ModelSpec`.

All have llama's attention and gated experts; biases, norms of queries and keys and the gate of a
shared expert (under 0.01 % of the parameters) are left out.
"""

from __future__ import annotations

from typing import Any

from sailor.errors import InputError
from sailor.model.huggingface_dense import llama
from sailor.model.huggingface_keys import Config, number


def mixtral(config: Config, where: str) -> dict[str, Any]:
    """Map mixtral and granitemoe: experts as wide as `intermediate_size` in every block."""
    fields = llama(config, where)
    experts = {
        "num_experts": number(config, "num_local_experts", where),
        "top_k": number(config, "num_experts_per_tok", where),
        "ffn": fields["ffn"],
    }
    return {**fields, "experts": experts}


def qwen_moe(config: Config, where: str) -> dict[str, Any]:
    """Map qwen2_moe, which has a shared expert, and qwen3_moe, which has none."""
    shared = config.get("shared_expert_intermediate_size")
    experts = {
        "num_experts": number(config, "num_experts", where),
        "top_k": number(config, "num_experts_per_tok", where),
        "ffn": number(config, "moe_intermediate_size", where),
        "shared_ffn": number(config, "shared_expert_intermediate_size", where) if shared else 0,
        "dense_blocks": _dense_blocks(config, where),
    }
    _every_block(config, "decoder_sparse_step", where)
    return {**llama(config, where), "experts": experts}


def deepseek(config: Config, where: str) -> dict[str, Any]:
    """Map deepseek (DeepSeekMoE): shared experts count as one that is as wide as all of them."""
    fields = llama(config, where)
    if config.get("n_routed_experts") is None:
        return fields
    width = number(config, "moe_intermediate_size", where)
    shared = config.get("n_shared_experts")
    dense = config.get("first_k_dense_replace")
    experts = {
        "num_experts": number(config, "n_routed_experts", where),
        "top_k": number(config, "num_experts_per_tok", where),
        "ffn": width,
        "shared_ffn": width * number(config, "n_shared_experts", where) if shared else 0,
        "dense_blocks": number(config, "first_k_dense_replace", where) if dense else 0,
    }
    _every_block(config, "moe_layer_freq", where)
    return {**fields, "experts": experts}


def _every_block(config: Config, key: str, where: str) -> None:
    step = number(config, key, where, default=1)
    if step != 1:
        raise InputError(
            f"{key} {step}: experts in one of {step} blocks can't be described here",
            where=where,
            hint="only models whose blocks after the first ones all have experts can",
        )


def _dense_blocks(config: Config, where: str) -> int:
    """Return how many blocks lack experts, of which `mlp_only_layers` has to name the first."""
    named = config.get("mlp_only_layers") or []
    if not isinstance(named, list) or named != list(range(len(named))):
        raise InputError(
            f"mlp_only_layers is {named!r}; only the first blocks can be without experts here",
            where=where,
            hint="a model described here has them at 0, 1, 2 ...",
        )
    return len(named)
