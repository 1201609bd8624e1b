"""Presets and local configs: published parameter totals, and one sentence for bad files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sailor.errors import InputError, UnknownNameError
from sailor.model.huggingface import read_config
from sailor.model.presets import preset, presets

# Totals as published: Llama 3 model cards, Brown et al. 2020, Black et al. 2021, Zhang et al.
# 2022, Jiang et al. 2024, Qwen3 Technical Report 2025. The sosp25 shape's total is what the
# artifact's memory file adds up to.
PUBLISHED_TOTALS = {
    "llama-3-8b": 8.03e9,
    "llama-3-70b": 70.55e9,
    "llama-3-405b": 405.85e9,
    "gpt-3-175b": 174.6e9,
    "gpt-neo-2.7b": 2.65e9,
    "opt-30b": 29.97e9,
    "llama-3-8b-sosp25": 8.80e9,
    "mixtral-8x7b": 46.70e9,
    "qwen3-30b-a3b": 30.53e9,
}

LLAMA_3_8B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-05,
}
GPT2_XL = {
    "model_type": "gpt2",
    "n_embd": 1600,
    "n_layer": 48,
    "n_head": 25,
    "n_positions": 1024,
    "vocab_size": 50257,
}
GPT_NEO = {
    "model_type": "gpt_neo",
    "hidden_size": 2560,
    "num_layers": 32,
    "num_heads": 20,
    "intermediate_size": None,
    "vocab_size": 50257,
    "max_position_embeddings": 2048,
}
OPT_30B = {
    "model_type": "opt",
    "hidden_size": 7168,
    "word_embed_proj_dim": 7168,
    "ffn_dim": 28672,
    "num_hidden_layers": 48,
    "num_attention_heads": 56,
    "vocab_size": 50272,
    "max_position_embeddings": 2048,
}
QWEN2_7B = {
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
MISTRAL_7B = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "max_position_embeddings": 32768,
}


def _write(folder: Path, config: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return path


@pytest.mark.parametrize(("name", "total"), PUBLISHED_TOTALS.items())
def test_presets_have_the_published_number_of_parameters(name: str, total: float) -> None:
    assert preset(name).num_params() == pytest.approx(total, rel=1e-3)


def test_opt_350m_is_the_profiled_shape() -> None:
    model = preset("opt-350m")
    # 24 x 12,596,224 + 2 x 50,272 x 1,024 + 2,048 x 1,024 + 2 x 1,024
    assert model.num_params() == 407_365_632
    assert not model.tied_embeddings
    assert "SOSP'25" in model.source


def test_the_artifact_s_llama_is_not_llama_3_8b() -> None:
    ours, real = preset("llama-3-8b-sosp25"), preset("llama-3-8b")
    assert (ours.num_kv_heads, ours.vocab) == (32, 50304)
    assert (real.num_kv_heads, real.vocab) == (8, 128256)
    assert "not Llama-3-8B" in ours.source


def test_misspelt_preset_suggests_the_right_one() -> None:
    with pytest.raises(UnknownNameError, match=r"job.yaml:3: unknown model.*'llama-3-8b'"):
        preset("llama3-8b", where="job.yaml:3")
    assert sorted(presets()) == sorted({*PUBLISHED_TOTALS, "opt-350m"})


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (LLAMA_3_8B, 8_030_261_248),
        (GPT2_XL, 1_557_611_200),
        (OPT_30B, 29_974_540_288),
        (MISTRAL_7B, 7_241_732_096),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_config_gives_the_checkpoint_s_exact_size(
    tmp_path: Path, config: dict[str, Any], total: int
) -> None:
    assert read_config(_write(tmp_path, config)).num_params() == total


def test_configs_whose_biases_are_partial_are_near(tmp_path: Path) -> None:
    # GPT-Neo has no bias on q, k, v (2,651,307,520); qwen2 has only those (7,615,616,512).
    neo = read_config(_write(tmp_path, GPT_NEO))
    assert neo.num_params() == pytest.approx(2_651_307_520, rel=1e-4)
    assert neo.ffn == 10240
    qwen = read_config(_write(tmp_path, QWEN2_7B))
    assert qwen.num_params() == pytest.approx(7_615_616_512, rel=1e-4)


def test_seq_len_is_the_longest_unless_given(tmp_path: Path) -> None:
    path = _write(tmp_path, LLAMA_3_8B)
    assert read_config(path).seq_len == 8192
    assert read_config(path, seq_len=4096).seq_len == 4096
    assert read_config(_write(tmp_path, GPT2_XL)).seq_len == 1024


def test_name_comes_from_the_config_or_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my model"
    folder.mkdir()
    assert read_config(_write(folder, LLAMA_3_8B)).name == "my-model"
    named = {**LLAMA_3_8B, "_name_or_path": "meta-llama/Meta-Llama-3-8B"}
    assert read_config(_write(folder, named)).name == "Meta-Llama-3-8B"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "no model_type"),
        ([1, 2], "no JSON object"),
        ({**LLAMA_3_8B, "model_type": "mistra"}, "model_type 'mistra'.*mistral"),
        ({k: v for k, v in LLAMA_3_8B.items() if k != "hidden_size"}, "'hidden_size' is missing"),
        ({**LLAMA_3_8B, "hidden_size": "4096"}, "hidden_size is '4096'.*whole number"),
        ({**LLAMA_3_8B, "num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({**LLAMA_3_8B, "num_hidden_layers": 5000}, "num_layers: .*1024"),
        ({**LLAMA_3_8B, "num_key_value_heads": 7}, "not a multiple of num_kv_heads"),
        ({**LLAMA_3_8B, "tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'"),
        ({**GPT2_XL, "n_head": 24}, "1600 is not a multiple of 24 heads"),
        ({**OPT_30B, "word_embed_proj_dim": 512}, "word_embed_proj_dim 512.*preset opt-350m"),
    ],
)
def test_bad_configs_get_one_sentence(tmp_path: Path, config: object, message: str) -> None:
    path = _write(tmp_path, config)
    with pytest.raises(InputError, match=message) as caught:
        read_config(path)
    assert str(path) in str(caught.value)


def test_unreadable_files_get_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't read the model config"):
        read_config(tmp_path / "none.json")
    torn = tmp_path / "torn.json"
    torn.write_text('{"model_type": "llama", "hid')
    with pytest.raises(InputError, match="is not JSON"):
        read_config(torn)
    binary = tmp_path / "model.safetensors"
    binary.write_bytes(b"\xff\x00" * 100)
    with pytest.raises(InputError, match="is not JSON"):
        read_config(binary)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as stream:
        stream.truncate(11_000_000)
    with pytest.raises(InputError, match="11000000 bytes"):
        read_config(huge)


def test_learned_positions_bound_the_sequence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="seq_len 2048 is longer than the 1024 positions"):
        read_config(_write(tmp_path, GPT2_XL), seq_len=2048)
