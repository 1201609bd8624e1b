"""Models from a local `config.json` in the Hugging Face format."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sailor.errors import InputError, did_you_mean
from sailor.model.arch import ModelSpec

MAX_CONFIG_BYTES = 10_000_000

_Config = Mapping[str, Any]


def read_config(path: Path | str, seq_len: int | None = None) -> ModelSpec:
    """Return the model that a `config.json` describes.

    Families: llama, mistral, qwen2, gpt2, gpt_neo, opt. `seq_len` (tokens) None: the longest
    sequence that the config allows. Attention windows are not modelled: attention counts as full.
    """
    file = Path(path)
    config = _load(file)
    family = config.get("model_type")
    if not isinstance(family, str):
        raise InputError(
            "no model_type; it would name the family",
            where=str(file),
            hint=f"known families: {', '.join(_FAMILIES)}",
        )
    if family not in _FAMILIES:
        raise InputError(
            f"model_type {family!r} can't be described as a dense decoder-only transformer here",
            where=str(file),
            hint=did_you_mean(family, _FAMILIES),
        )
    fields = _FAMILIES[family](config, str(file))
    if seq_len is not None:
        _check_positions(fields, seq_len, str(file))
        fields["seq_len"] = seq_len
    try:
        return ModelSpec.model_validate(
            {"name": _name(config, file), "source": f"{family} config {file.name}", **fields}
        )
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        message = f"{place}: {first['msg']}" if place else str(first["msg"])
        raise InputError(message, where=str(file), hint="check the config's numbers") from error


def _load(file: Path) -> _Config:
    where = str(file)
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise InputError(
                f"is {file.stat().st_size} bytes long, too much for a model's config.json",
                where=where,
                hint="name the config.json, not the weights",
            )
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"can't read the model config ({error.strerror})",
            where=where,
            hint="give the path of a config.json",
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(
            f"is not JSON ({error})", where=where, hint="give the path of a config.json"
        ) from error
    if not isinstance(config, dict):
        raise InputError("holds no JSON object", where=where, hint="give the path of a config.json")
    return config


def _llama(config: _Config, where: str) -> dict[str, Any]:
    """Map llama, mistral and qwen2, which share their keys.

    qwen2's bias on queries, keys and values (under 0.01 % of the parameters) is left out.
    """
    heads = _number(config, "num_attention_heads", where)
    hidden = _number(config, "hidden_size", where)
    return {
        "num_layers": _number(config, "num_hidden_layers", where),
        "hidden": hidden,
        "ffn": _number(config, "intermediate_size", where),
        "num_heads": heads,
        "num_kv_heads": _number(config, "num_key_value_heads", where, default=heads),
        "head_dim": _number(config, "head_dim", where)
        if config.get("head_dim") is not None
        else _head_dim(hidden, heads, where),
        "vocab": _number(config, "vocab_size", where),
        "seq_len": _number(config, "max_position_embeddings", where),
        "tied_embeddings": _flag(config, "tie_word_embeddings", where, default=False),
        "gated_mlp": True,
        "biases": _flag(config, "attention_bias", where, default=False)
        and _flag(config, "mlp_bias", where, default=False),
        "norm": "rmsnorm",
    }


def _gpt2(config: _Config, where: str) -> dict[str, Any]:
    hidden = _number(config, "n_embd", where)
    positions = _number(config, "n_positions", where)
    return _with_learned_positions(
        config,
        where,
        num_layers=_number(config, "n_layer", where),
        hidden=hidden,
        heads=_number(config, "n_head", where),
        ffn=_number(config, "n_inner", where, default=4 * hidden),
        positions=positions,
    )


def _gpt_neo(config: _Config, where: str) -> dict[str, Any]:
    hidden = _number(config, "hidden_size", where)
    return _with_learned_positions(
        config,
        where,
        num_layers=_number(config, "num_layers", where),
        hidden=hidden,
        heads=_number(config, "num_heads", where),
        ffn=_number(config, "intermediate_size", where, default=4 * hidden),
        positions=_number(config, "max_position_embeddings", where),
    )


def _opt(config: _Config, where: str) -> dict[str, Any]:
    hidden = _number(config, "hidden_size", where)
    projection = _number(config, "word_embed_proj_dim", where, default=hidden)
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
        num_layers=_number(config, "num_hidden_layers", where),
        hidden=hidden,
        heads=_number(config, "num_attention_heads", where),
        ffn=_number(config, "ffn_dim", where),
        positions=_number(config, "max_position_embeddings", where),
    )
    # OPT's table has two rows before position 0 (the padding offset of its code).
    return {**fields, "max_positions": fields["max_positions"] + 2}


_FAMILIES: Mapping[str, Callable[[_Config, str], dict[str, Any]]] = {
    "gpt2": _gpt2,
    "gpt_neo": _gpt_neo,
    "llama": _llama,
    "mistral": _llama,
    "opt": _opt,
    "qwen2": _llama,
}


def _with_learned_positions(
    config: _Config,
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
        "head_dim": _head_dim(hidden, heads, where),
        "vocab": _number(config, "vocab_size", where),
        "seq_len": positions,
        "max_positions": positions,
        "tied_embeddings": _flag(config, "tie_word_embeddings", where, default=True),
        "gated_mlp": False,
        "biases": True,
        "norm": "layernorm",
    }


def _number(config: _Config, key: str, where: str, *, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        if default is not None:
            return default
        raise InputError(f"the key {key!r} is missing", where=where, hint=f"add {key}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key} is {value!r}", where=where, hint="write a whole number above 0")
    return value


def _flag(config: _Config, key: str, where: str, *, default: bool) -> bool:
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{key} is {value!r}", where=where, hint="write true or false")
    return value


def _head_dim(hidden: int, heads: int, where: str) -> int:
    if hidden % heads:
        raise InputError(
            f"hidden size {hidden} is not a multiple of {heads} heads",
            where=where,
            hint="correct one of them",
        )
    return hidden // heads


def _check_positions(fields: Mapping[str, Any], seq_len: int, where: str) -> None:
    longest = fields["seq_len"]
    if fields.get("max_positions") and seq_len > longest:
        raise InputError(
            f"seq_len {seq_len} is longer than the {longest} positions that the model learned",
            where=where,
            hint=f"choose at most {longest}",
        )


def _name(config: _Config, file: Path) -> str:
    """Return the model's name: what the config says, else the folder's, else the family's."""
    stated = config.get("_name_or_path")
    name = str(stated).rstrip("/").rsplit("/", 1)[-1] if isinstance(stated, str) else ""
    name = name or file.resolve().parent.name or str(config["model_type"])
    return re.sub(r"\s+", "-", name)[:120]
