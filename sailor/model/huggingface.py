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
from sailor.model.huggingface_dense import gemma, gpt2, gpt_neo, llama, opt, qwen3, starcoder2
from sailor.model.huggingface_experts import deepseek, mixtral, qwen_moe
from sailor.model.huggingface_keys import Config

MAX_CONFIG_BYTES = 10_000_000


def read_config(path: Path | str, seq_len: int | None = None) -> ModelSpec:
    """Return the model that a `config.json` describes.

    Dense families: gemma, gpt2, gpt_neo, granite, llama, mistral, opt, phi3, qwen2, qwen3,
    starcoder2; with experts: deepseek, granitemoe, mixtral, qwen2_moe, qwen3_moe. `seq_len`
    (tokens) None: the longest sequence that the config allows. Attention windows are not modelled:
    attention counts as full.
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
    if family in _REFUSED:
        raise InputError(
            f"model_type {family!r} can't be described here: {_REFUSED[family]}",
            where=str(file),
            hint=f"known families: {', '.join(_FAMILIES)}",
        )
    if family not in _FAMILIES:
        raise InputError(
            f"model_type {family!r} is no decoder-only transformer that can be described here",
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


def _load(file: Path) -> Config:
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


_FAMILIES: Mapping[str, Callable[[Config, str], dict[str, Any]]] = {
    "deepseek": deepseek,
    "gemma": gemma,
    "gpt2": gpt2,
    "gpt_neo": gpt_neo,
    "granite": llama,
    "granitemoe": mixtral,
    "llama": llama,
    "mistral": llama,
    "mixtral": mixtral,
    "opt": opt,
    "phi3": llama,
    "qwen2": llama,
    "qwen2_moe": qwen_moe,
    "qwen3": qwen3,
    "qwen3_moe": qwen_moe,
    "starcoder2": starcoder2,
}

_LATENT = "its keys and values come from a latent vector (multi-head latent attention)"
_FOUR_NORMS = "its blocks have four norms"
_REFUSED: Mapping[str, str] = {
    "deepseek_v2": _LATENT,
    "deepseek_v3": _LATENT,
    "kimi_k2": _LATENT,
    "gemma2": _FOUR_NORMS,
    "gemma3_text": _FOUR_NORMS,
    "olmo": "its norms have no weights",
    "olmo2": "its norms stand behind attention and feed-forward part",
}


def _check_positions(fields: Mapping[str, Any], seq_len: int, where: str) -> None:
    longest = fields["seq_len"]
    if fields.get("max_positions") and seq_len > longest:
        raise InputError(
            f"seq_len {seq_len} is longer than the {longest} positions that the model learned",
            where=where,
            hint=f"choose at most {longest}",
        )


def _name(config: Config, file: Path) -> str:
    """Return the model's name: what the config says, else the folder's, else the family's."""
    stated = config.get("_name_or_path")
    name = str(stated).rstrip("/").rsplit("/", 1)[-1] if isinstance(stated, str) else ""
    name = name or file.resolve().parent.name or str(config["model_type"])
    return re.sub(r"\s+", "-", name)[:120]
