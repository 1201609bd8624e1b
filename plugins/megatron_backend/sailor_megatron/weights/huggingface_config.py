"""What a Hugging Face config.json says about how a model computes, and the one of a saved model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor_megatron.options import RopeScaling, RunOptions
from sailor_megatron.weights.huggingface_names import OPT_OFFSET, Family

RUNNABLE: Mapping[str, Family] = {
    "llama": "llama",
    "mistral": "llama",
    "gpt2": "gpt2",
    "opt": "opt",
}
TORCH_DTYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def family_of(spec: ModelSpec, activation: str) -> Family:
    """Return the family in whose form a model can be saved."""
    if not spec.max_positions:
        fits = spec.norm == "rmsnorm" and spec.gated_mlp and not spec.biases
        if fits:
            return "llama"
    elif (
        spec.norm == "layernorm"
        and not spec.gated_mlp
        and spec.biases
        and spec.num_kv_heads == spec.num_heads
        and spec.hidden == spec.num_heads * spec.head_dim
    ):
        return "opt" if activation == "relu" else "gpt2"
    raise PluginError(
        f"{spec.name} has the form of no family that can be saved (llama, gpt2, opt)",
        where="--export",
        hint="save checkpoints with --save-every instead",
    )


def read_config(folder: Path, name: str = "config.json") -> dict[str, Any]:
    """Return the config of a checkpoint."""
    path = folder / name
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise PluginError(
            f"can't be read: {reason}", where=str(path), hint="name a Hugging Face model's folder"
        ) from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise PluginError(f"is not JSON ({error})", where=str(path)) from None
    if not isinstance(config, dict):
        raise PluginError("holds no JSON object", where=str(path))
    return config


def family_of_config(config: Mapping[str, Any], where: str) -> Family:
    """Return by which names a checkpoint calls its tensors."""
    family = str(config.get("model_type"))
    if family not in RUNNABLE:
        raise PluginError(
            f"weights of model_type {family!r} can't be run here",
            where=where,
            hint=f"known: {', '.join(RUNNABLE)}",
        )
    return RUNNABLE[family]


def computation(config: Mapping[str, Any], where: str, *, seq_len: int) -> dict[str, Any]:
    """Return the run options that a config.json fixes; refuse what is computed in another way.

    `seq_len` is the run's: an attention window that holds it all is no window.
    """
    window = config.get("sliding_window", 4096 if config.get("model_type") == "mistral" else None)
    if window is not None and window < seq_len:
        raise PluginError(
            f"attention looks back {window} positions, and sequences have {seq_len}",
            where=where,
            hint="train with a shorter seq_len",
        )
    family_of_config(config, where)
    return _COMPUTE[config["model_type"]](config, where)


def _llama(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    _expect(config, "hidden_act", ("silu",), where)
    _expect(config, "attention_bias", (False,), where)
    _expect(config, "mlp_bias", (False,), where)
    # The library's version 5 has the base among the other parameters.
    rotary = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return {
        "rope_theta": config.get("rope_theta", rotary.get("rope_theta", 10_000.0)),
        "rope_scaling": _rope_scaling(rotary, where),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
    }


def _rope_scaling(rotary: Mapping[str, Any], where: str) -> RopeScaling | None:
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise _otherwise("rope_type", kind, "default or llama3", where)
    try:
        return RopeScaling(
            factor=rotary["factor"],
            low_freq_factor=rotary["low_freq_factor"],
            high_freq_factor=rotary["high_freq_factor"],
            original_positions=rotary["original_max_position_embeddings"],
        )
    except (KeyError, ValidationError) as error:
        raise PluginError(
            f"rope_scaling of type llama3 lacks what it needs ({_first_line(error)})",
            where=where,
            hint="write factor, low_freq_factor, high_freq_factor and "
            "original_max_position_embeddings",
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def _gpt2(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
             "relu": "relu"}  # fmt: skip
    _expect(config, "activation_function", ("gelu_new", *known), where)
    _expect(config, "scale_attn_weights", (True,), where)
    _expect(config, "scale_attn_by_inverse_layer_idx", (False,), where)
    _expect(config, "add_cross_attention", (False,), where)
    return {
        "activation": known[config.get("activation_function", "gelu_new")],
        "norm_epsilon": config.get("layer_norm_epsilon", 1e-5),
    }


def _opt(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    known = {"relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh"}
    _expect(config, "activation_function", ("relu", *known), where)
    _expect(config, "do_layer_norm_before", (True,), where)
    _expect(config, "enable_bias", (True,), where)
    _expect(config, "layer_norm_elementwise_affine", (True,), where)
    return {
        "activation": known[config.get("activation_function", "relu")],
        "norm_epsilon": 1e-5,
        "position_offset": OPT_OFFSET,
    }


_COMPUTE: Mapping[str, Callable[[Mapping[str, Any], str], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _llama,
    "gpt2": _gpt2,
    "opt": _opt,
}


def _expect(config: Mapping[str, Any], key: str, allowed: tuple[Any, ...], where: str) -> None:
    value = config.get(key, allowed[0])
    if value not in allowed:
        raise _otherwise(key, value, " or ".join(str(one) for one in dict.fromkeys(allowed)), where)


def _otherwise(key: str, value: object, wanted: str, where: str) -> PluginError:
    return PluginError(
        f"{key} is {value!r}, which is not computed here",
        where=where,
        hint=f"computed is {key} {wanted}",
    )


def _stored_scaling(options: RunOptions) -> dict[str, Any] | None:
    scaling = options.rope_scaling
    if scaling is None:
        return None
    return {
        "rope_type": "llama3",
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_freq_factor,
        "high_freq_factor": scaling.high_freq_factor,
        "original_max_position_embeddings": scaling.original_positions,
    }


def config_of(family: Family, spec: ModelSpec, options: RunOptions) -> dict[str, Any]:
    """Return the config.json of a model that is saved."""
    shared = {
        "model_type": family,
        "vocab_size": spec.vocab,
        "tie_word_embeddings": spec.tied_embeddings,
        "torch_dtype": TORCH_DTYPES[options.precision],
    }
    activation = "gelu_new" if options.activation == "gelu_tanh" else options.activation
    if family == "llama":
        return {
            "architectures": ["LlamaForCausalLM"],
            **shared,
            "hidden_size": spec.hidden,
            "intermediate_size": spec.ffn,
            "num_hidden_layers": spec.num_layers,
            "num_attention_heads": spec.num_heads,
            "num_key_value_heads": spec.num_kv_heads,
            "head_dim": spec.head_dim,
            "max_position_embeddings": spec.seq_len,
            "hidden_act": "silu",
            "rms_norm_eps": options.norm_epsilon,
            "rope_theta": options.rope_theta,
            "rope_scaling": _stored_scaling(options),
            "attention_bias": False,
            "mlp_bias": False,
        }
    if family == "gpt2":
        return {
            "architectures": ["GPT2LMHeadModel"],
            **shared,
            "n_embd": spec.hidden,
            "n_inner": spec.ffn,
            "n_layer": spec.num_layers,
            "n_head": spec.num_heads,
            "n_positions": spec.max_positions,
            "activation_function": activation,
            "layer_norm_epsilon": options.norm_epsilon,
        }
    return {
        "architectures": ["OPTForCausalLM"],
        **shared,
        "hidden_size": spec.hidden,
        "word_embed_proj_dim": spec.hidden,
        "ffn_dim": spec.ffn,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "max_position_embeddings": spec.max_positions - options.position_offset,
        "activation_function": activation,
        "do_layer_norm_before": True,
    }
