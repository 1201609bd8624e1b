"""Dense families of Hugging Face configs, as fields of a `ModelSpec`."""

from __future__ import annotations

from typing import Any

from sailor.errors import InputError
from sailor.model.huggingface_keys import Config, flag, head_dim, number


def llama(config: Config, where: str) -> dict[str, Any]:
    """Map llama and the families that share its keys.

    qwen2's bias on queries, keys and values and qwen3's norms of queries and keys (under 0.01 % of
    the parameters) are left out, and so are granite's multipliers, which have none.
    """
    heads = number(config, "num_attention_heads", where)
    hidden = number(config, "hidden_size", where)
    return {
        "num_layers": number(config, "num_hidden_layers", where),
        "hidden": hidden,
        "ffn": number(config, "intermediate_size", where),
        "num_heads": heads,
        "num_kv_heads": number(config, "num_key_value_heads", where, default=heads),
        "head_dim": number(config, "head_dim", where)
        if config.get("head_dim") is not None
        else head_dim(hidden, heads, where),
        "vocab": number(config, "vocab_size", where),
        "seq_len": number(config, "max_position_embeddings", where),
        "tied_embeddings": flag(config, "tie_word_embeddings", where, default=False),
        "gated_mlp": True,
        "biases": flag(config, "attention_bias", where, default=False)
        and flag(config, "mlp_bias", where, default=False),
        "norm": "rmsnorm",
    }


def gemma(config: Config, where: str) -> dict[str, Any]:
    """Map gemma: llama's block with heads of their own width and a tied table, unless said."""
    stated = {"head_dim": 256, "tie_word_embeddings": True, **config}
    return llama(stated, where)


def qwen3(config: Config, where: str) -> dict[str, Any]:
    """Map qwen3: llama's block, heads 128 wide unless said."""
    return llama({"head_dim": 128, **config}, where)


def starcoder2(config: Config, where: str) -> dict[str, Any]:
    """Map starcoder2: llama's attention, LayerNorm, no gate, biases, a tied table, unless said."""
    fields = llama({"tie_word_embeddings": True, **config}, where)
    return {
        **fields,
        "gated_mlp": False,
        "biases": flag(config, "use_bias", where, default=True),
        "norm": "layernorm",
    }


def gpt2(config: Config, where: str) -> dict[str, Any]:
    hidden = number(config, "n_embd", where)
    positions = number(config, "n_positions", where)
    return _with_learned_positions(
        config,
        where,
        num_layers=number(config, "n_layer", where),
        hidden=hidden,
        heads=number(config, "n_head", where),
        ffn=number(config, "n_inner", where, default=4 * hidden),
        positions=positions,
    )


def gpt_neo(config: Config, where: str) -> dict[str, Any]:
    hidden = number(config, "hidden_size", where)
    return _with_learned_positions(
        config,
        where,
        num_layers=number(config, "num_layers", where),
        hidden=hidden,
        heads=number(config, "num_heads", where),
        ffn=number(config, "intermediate_size", where, default=4 * hidden),
        positions=number(config, "max_position_embeddings", where),
    )


def opt(config: Config, where: str) -> dict[str, Any]:
    hidden = number(config, "hidden_size", where)
    projection = number(config, "word_embed_proj_dim", where, default=hidden)
    if projection != hidden:
        raise InputError(
            f"word_embed_proj_dim {projection} differs from hidden_size {hidden}; a projected "
            "embedding can't be described here",
            where=where,
            hint="use the preset opt-350m, which has an embedding of full width",
        )
    fields = _with_learned_positions(
        config,
        where,
        num_layers=number(config, "num_hidden_layers", where),
        hidden=hidden,
        heads=number(config, "num_attention_heads", where),
        ffn=number(config, "ffn_dim", where),
        positions=number(config, "max_position_embeddings", where),
    )
    # OPT's table has two rows before position 0 (the padding offset of its code).
    return {**fields, "max_positions": fields["max_positions"] + 2}


def _with_learned_positions(
    config: Config,
    where: str,
    *,
    num_layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    positions: int,
) -> dict[str, Any]:
    """Return the fields of a GPT-2-like model: learned positions, LayerNorm, biases, no gate."""
    return {
        "num_layers": num_layers,
        "hidden": hidden,
        "ffn": ffn,
        "num_heads": heads,
        "num_kv_heads": heads,
        "head_dim": head_dim(hidden, heads, where),
        "vocab": number(config, "vocab_size", where),
        "seq_len": positions,
        "max_positions": positions,
        "tied_embeddings": flag(config, "tie_word_embeddings", where, default=True),
        "gated_mlp": False,
        "biases": True,
        "norm": "layernorm",
    }
