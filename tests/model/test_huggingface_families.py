"""Families of Hugging Face configs against the sizes of their released checkpoints.

The configs are the released ones, cut to the keys that say something about shapes. `left_out` are
the parameters of a checkpoint that a `ModelSpec` has no place for, worked out by hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sailor.errors import InputError
from sailor.interfaces import ProfileRequest
from sailor.model.arch import Experts, ModelSpec
from sailor.model.huggingface import read_config
from sailor.model.presets import preset
from sailor.profiling.profilers import CountedProfiler

Config = dict[str, Any]

MIXTRAL_8X7B: Config = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "head_dim": None,
    "max_position_embeddings": 32768, "sliding_window": None, "tie_word_embeddings": False,
}  # fmt: skip
QWEN3_30B_A3B: Config = {
    "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936,
    "max_position_embeddings": 40960, "attention_bias": False, "tie_word_embeddings": False,
}  # fmt: skip
QWEN15_MOE: Config = {
    "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
    "num_experts": 60, "num_experts_per_tok": 4, "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632, "decoder_sparse_step": 1, "vocab_size": 151936,
    "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK_MOE_16B: Config = {
    "model_type": "deepseek", "hidden_size": 2048, "intermediate_size": 10944,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "moe_intermediate_size": 1408, "first_k_dense_replace": 1, "moe_layer_freq": 1,
    "vocab_size": 102400, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
GRANITE_1B_A400M: Config = {
    "model_type": "granitemoe", "hidden_size": 1024, "intermediate_size": 512,
    "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 8,
    "num_local_experts": 32, "num_experts_per_tok": 8, "vocab_size": 49155,
    "max_position_embeddings": 4096, "attention_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
QWEN3_0_6B: Config = {
    "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": True,
}  # fmt: skip
GEMMA_7B: Config = {
    "model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16, "head_dim": 256,
    "vocab_size": 256000, "max_position_embeddings": 8192,
}  # fmt: skip
PHI3_MINI: Config = {
    "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
    "vocab_size": 32064, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
GRANITE_3_8B: Config = {
    "model_type": "granite", "hidden_size": 4096, "intermediate_size": 12800,
    "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 49155, "max_position_embeddings": 4096, "attention_bias": False,
    "mlp_bias": False, "tie_word_embeddings": True,
}  # fmt: skip
STARCODER2_3B: Config = {
    "model_type": "starcoder2", "hidden_size": 3072, "intermediate_size": 12288,
    "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
    "vocab_size": 49152, "max_position_embeddings": 16384, "use_bias": True,
    "norm_type": "layer_norm",
}  # fmt: skip


def read(folder: Path, config: Config) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return read_config(path)


@pytest.mark.parametrize(
    ("config", "checkpoint", "left_out"),
    [
        (MIXTRAL_8X7B, 46_702_792_704, 0),
        # norms of queries and keys: 48 x 2 x 128
        (QWEN3_30B_A3B, 30_532_122_624, 12_288),
        # bias of queries, keys and values, 3 x 2048, and a gate of 2048 for the shared expert
        (QWEN15_MOE, 14_315_784_192, 24 * 4 * 2048),
        (DEEPSEEK_MOE_16B, 16_375_728_128, 0),
        (GRANITE_1B_A400M, 1_334_628_352, 0),
        (QWEN3_0_6B, 596_049_920, 28 * 2 * 128),
        (GEMMA_7B, 8_537_680_896, 0),
        (PHI3_MINI, 3_821_079_552, 0),
        (GRANITE_3_8B, 8_170_848_256, 0),
        (STARCODER2_3B, 3_030_371_328, 0),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_parameters_are_those_of_the_checkpoint(
    tmp_path: Path, config: Config, checkpoint: int, left_out: int
) -> None:
    found = read(tmp_path, config).num_params()
    # A model with dense blocks counts an average block, rounded: half a parameter a block.
    assert abs(found - (checkpoint - left_out)) <= config["num_hidden_layers"] / 2
    assert found == pytest.approx(checkpoint, rel=5e-3)


@pytest.mark.parametrize(
    ("config", "active"),
    [
        # All but 6 of 8 experts of 3 x 4096 x 14336 in 32 blocks.
        (MIXTRAL_8X7B, 46_702_792_704 - 32 * 6 * 176_160_768),
        # 120 of 128 experts of 3 x 2048 x 768 in 48 blocks.
        (QWEN3_30B_A3B, 30_532_110_336 - 48 * 120 * 4_718_592),
        # 56 of 60 experts of 3 x 2048 x 1408 in 24 blocks; the shared expert is always visited.
        (QWEN15_MOE, 14_315_587_584 - 24 * 56 * 8_650_752),
        # 58 of 64 experts in 27 blocks: the first has none.
        (DEEPSEEK_MOE_16B, 16_375_728_128 - 27 * 58 * 8_650_752),
        (GEMMA_7B, 8_537_680_896),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else "",
)
def test_a_token_visits_its_own_experts(tmp_path: Path, config: Config, active: int) -> None:
    model = read(tmp_path, config)
    assert abs(model.active_params() - active) <= config["num_hidden_layers"] / 2


def test_active_totals_are_the_published_ones() -> None:
    # "12.9B" (Jiang et al. 2024) and "3.3B" (Qwen3 Technical Report)
    assert round(preset("mixtral-8x7b").active_params() / 1e9, 1) == 12.9
    assert preset("qwen3-30b-a3b").active_params() == pytest.approx(3.3e9, rel=0.02)
    dense = preset("llama-3-8b")
    assert dense.active_params() == dense.num_params()


def test_experts_are_mapped_key_by_key(tmp_path: Path) -> None:
    assert read(tmp_path, MIXTRAL_8X7B).experts == Experts(num_experts=8, top_k=2, ffn=14336)
    assert read(tmp_path, QWEN15_MOE).experts == Experts(
        num_experts=60, top_k=4, ffn=1408, shared_ffn=5632
    )
    assert read(tmp_path, DEEPSEEK_MOE_16B).experts == Experts(
        num_experts=64, top_k=6, ffn=1408, shared_ffn=2816, dense_blocks=1
    )
    assert read(tmp_path, {**QWEN3_30B_A3B, "mlp_only_layers": [0, 1]}).experts == Experts(
        num_experts=128, top_k=8, ffn=768, dense_blocks=2
    )
    dense = {**DEEPSEEK_MOE_16B, "n_routed_experts": None}
    assert read(tmp_path, dense).experts is None


@pytest.mark.parametrize(
    ("name", "config"), [("mixtral-8x7b", MIXTRAL_8X7B), ("qwen3-30b-a3b", QWEN3_30B_A3B)]
)
def test_presets_are_the_released_configs(tmp_path: Path, name: str, config: Config) -> None:
    ours, released = preset(name), read(tmp_path, config)
    same = {"name": "", "source": "", "seq_len": 1}
    assert ours.model_copy(update=same) == released.model_copy(update=same)


def test_usual_values_of_missing_keys(tmp_path: Path) -> None:
    gemma = read(tmp_path, {key: GEMMA_7B[key] for key in GEMMA_7B if key != "head_dim"})
    assert (gemma.head_dim, gemma.tied_embeddings, gemma.gated_mlp) == (256, True, True)
    coder = read(tmp_path, STARCODER2_3B)
    assert (coder.norm, coder.biases, coder.gated_mlp, coder.max_positions) == (
        "layernorm", True, False, 0,
    )  # fmt: skip
    assert not read(tmp_path, {**STARCODER2_3B, "use_bias": False}).biases


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "deepseek_v3"}, "'deepseek_v3' can't .*latent attention.*known families"),
        ({"model_type": "deepseek_v2"}, "latent attention"),
        ({"model_type": "gemma2"}, "four norms"),
        ({"model_type": "olmo"}, "norms have no weights"),
        ({"model_type": "mixtrall"}, "did you mean 'mixtral'"),
        ({**QWEN3_30B_A3B, "decoder_sparse_step": 2}, "decoder_sparse_step 2: experts in one of 2"),
        ({**QWEN3_30B_A3B, "mlp_only_layers": [0, 5]}, r"mlp_only_layers is \[0, 5\]"),
        ({**DEEPSEEK_MOE_16B, "moe_layer_freq": 3}, "moe_layer_freq 3: experts in one of 3"),
        ({**MIXTRAL_8X7B, "num_experts_per_tok": 9}, "top_k 9 is larger than num_experts 8"),
        ({**MIXTRAL_8X7B, "num_local_experts": None}, "'num_local_experts' is missing"),
        ({**QWEN15_MOE, "shared_expert_intermediate_size": "5632"}, "size is '5632'"),
    ],
)
def test_what_can_t_be_described_gets_one_sentence(
    tmp_path: Path, config: Config, said: str
) -> None:
    with pytest.raises(InputError, match=said) as caught:
        read(tmp_path, config)
    assert str(tmp_path) in str(caught.value)


def test_profilers_run_dense_modules_only() -> None:
    model = preset("mixtral-8x7b")
    request = ProfileRequest(
        model=model, precision="bf16", gpu="A100-80GB", tps=(1,), microbatches=(1,)
    )
    assert CountedProfiler().unsupported(request) == [
        "it has experts, and the modules that are run are dense"
    ]
