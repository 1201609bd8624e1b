"""Weights from and to Hugging Face folders, under plans that cut them."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from gang import run_gang
from layout_strategies import replica
from proof import CPU, opened, windows
from torch import Tensor

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.huggingface import read_config as read_spec
from sailor.model.plan import Plan, Stage
from sailor_megatron.engine import Engine
from sailor_megatron.layout import PlanLayout
from sailor_megatron.models.rotary import rotary_angles
from sailor_megatron.options import RopeScaling, RunOptions
from sailor_megatron.process_groups import leave
from sailor_megatron.run_folder import RunSpec
from sailor_megatron.weights.huggingface_config import computation, read_config
from sailor_megatron.weights.load import check_weights, load_weights
from sailor_megatron.weights.safetensors_file import Planned, write_file
from sailor_megatron.weights.save import export
from sailor_megatron.weights.start import as_stored, check_ends

LIMIT_S = 60
SPECS = {
    "llama": ModelSpec(
        name="llama", num_layers=2, hidden=24, ffn=13, num_heads=6, num_kv_heads=2, head_dim=4,
        vocab=31, seq_len=8, biases=False, norm="rmsnorm", gated_mlp=True,
    ),
    "gpt2": ModelSpec(
        name="gpt2", num_layers=2, hidden=12, ffn=20, num_heads=3, num_kv_heads=3, head_dim=4,
        vocab=31, seq_len=8, max_positions=8, tied_embeddings=True,
    ),
    "opt": ModelSpec(
        name="opt", num_layers=2, hidden=12, ffn=20, num_heads=3, num_kv_heads=3, head_dim=4,
        vocab=31, seq_len=8, max_positions=10, tied_embeddings=True,
    ),
}  # fmt: skip
OPTIONS = {
    "llama": RunOptions(
        precision="fp64", norm_epsilon=1e-6, rope_theta=500.0,
        rope_scaling=RopeScaling(
            factor=8, low_freq_factor=0.2, high_freq_factor=1.5, original_positions=8
        ),
    ),
    "gpt2": RunOptions(precision="fp64", activation="gelu_tanh"),
    "opt": RunOptions(precision="fp64", activation="relu", position_offset=2),
}  # fmt: skip


def plan_of(spec: ModelSpec, first: tuple[int, ...], second: tuple[int, ...]) -> Plan:
    return Plan(
        model=spec.name, num_units=4, global_batch=2 * len(first),
        stages=tuple(
            Stage(start=a, stop=b, replicas=tuple(replica(tp, 2, 1) for tp in tps))
            for a, b, tps in ((0, 2, first), (2, 4, second))
        ),
    )  # fmt: skip


def engine_of(rank: int, port: int, spec: ModelSpec, plan: Plan, options: RunOptions) -> Engine:
    opened(rank, port, plan.num_gpus)
    layout = PlanLayout(spec, plan)
    return Engine(layout, rank, options, CPU, lambda samples: windows(spec, samples))


def train_and_export(
    rank: int, port: int, spec: ModelSpec, plan: Plan, options: RunOptions, folder: Path, most: int
) -> float:
    """Return the loss of the step after the weights were written."""
    engine = engine_of(rank, port, spec, plan, options)
    engine.step()
    export(engine, folder, file_bytes=most)
    loss = engine.step().loss
    leave()
    return loss


def load_and_step(
    rank: int, port: int, spec: ModelSpec, plan: Plan, options: RunOptions, folder: Path, first: int
) -> float:
    engine = engine_of(rank, port, spec, plan, options)
    load_weights(folder, engine.params, engine.options)
    engine.next_sample = first
    loss = engine.step().loss
    leave()
    return loss


@pytest.mark.parametrize("family", list(SPECS))
def test_weights_survive_a_folder_and_a_change_of_plan(family: str, tmp_path: Path) -> None:
    spec, options = SPECS[family], OPTIONS[family]
    folder = tmp_path / "saved"
    mixed, other = plan_of(spec, (3,), (1,)), plan_of(spec, (1,), (2,))
    if family == "gpt2":
        mixed, other = plan_of(spec, (2, 1), (1, 1)), plan_of(spec, (1, 1), (1, 1))
    most = 4000 if family == "gpt2" else 10**9
    (loss, *_) = run_gang(
        train_and_export, mixed.num_gpus, spec, mixed, options, folder, most, limit_s=LIMIT_S
    )
    files = sorted(path.name for path in folder.iterdir())
    if family == "gpt2":
        assert "model.safetensors.index.json" in files
        assert len(files) > 4
    else:
        assert files == ["config.json", "model.safetensors"]
    stored = read_spec(folder / "config.json")
    same = {"name": spec.name, "source": spec.source}
    assert stored.model_copy(update=same) == spec
    fixed = computation(read_config(folder), "test", seq_len=8)
    assert RunOptions.model_validate({"precision": "fp64", **fixed}) == options
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]
    (again, *_) = run_gang(
        load_and_step, other.num_gpus, spec, other, options, folder, mixed.samples, limit_s=LIMIT_S
    )
    assert again == pytest.approx(loss, abs=1e-12)


def test_slow_waves_are_slowed_and_fast_ones_stay() -> None:
    """Base 16 and 4 columns: frequencies 1 and 1/4, of which 20 positions hold 3.18 and 0.80."""
    scaling = RopeScaling(factor=2, low_freq_factor=1, high_freq_factor=3, original_positions=20)
    options = RunOptions(rope_theta=16.0, rope_scaling=scaling)
    assert rotary_angles(4, 3, options)[2].tolist() == [2.0, 2 * 0.25 / 2]
    between = RunOptions(
        rope_theta=16.0, rope_scaling=scaling.model_copy(update={"original_positions": 40})
    )
    waves = 40 * 0.25 / (2 * math.pi)  # 1.59: 0.296 of the way from 1 to 3
    kept = (waves - 1) / 2
    assert rotary_angles(4, 2, between)[1].tolist() == pytest.approx(
        [1.0, 0.25 * (kept + (1 - kept) / 2)], abs=1e-15
    )


def gpt2_folder(folder: Path) -> dict[str, Tensor]:
    """Write a GPT-2 checkpoint with the hub's names, without the root `transformer.`."""
    spec = SPECS["gpt2"]
    hidden, ffn = spec.hidden, spec.ffn
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (31, hidden), "wpe.weight": (8, hidden)}
    for index in range(spec.num_layers):
        for name, shape in (
            ("ln_1.weight", (hidden,)), ("ln_1.bias", (hidden,)),
            ("attn.c_attn.weight", (hidden, 3 * hidden)), ("attn.c_attn.bias", (3 * hidden,)),
            ("attn.c_proj.weight", (hidden, hidden)), ("attn.c_proj.bias", (hidden,)),
            ("ln_2.weight", (hidden,)), ("ln_2.bias", (hidden,)),
            ("mlp.c_fc.weight", (hidden, ffn)), ("mlp.c_fc.bias", (ffn,)),
            ("mlp.c_proj.weight", (ffn, hidden)), ("mlp.c_proj.bias", (hidden,)),
        ):  # fmt: skip
            shapes[f"h.{index}.{name}"] = shape
    shapes |= {"ln_f.weight": (hidden,), "ln_f.bias": (hidden,)}
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    planned = {name: Planned("F32", shape) for name, shape in shapes.items()}
    write_file(folder / "model.safetensors", planned, iter(tensors.items()))
    config = {
        "model_type": "gpt2", "n_embd": hidden, "n_inner": ffn, "n_layer": 2, "n_head": 3,
        "n_positions": 8, "vocab_size": 31,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return tensors


def shards_of(rank: int, port: int, plan: Plan, folder: Path) -> dict[str, Tensor]:
    engine = engine_of(rank, port, SPECS["gpt2"], plan, OPTIONS["gpt2"])
    load_weights(folder, engine.params, engine.options)
    params = engine.params
    found = {name: params.view(params.master, name).clone() for name in params.shards}
    leave()
    return found


def test_gpt_2_s_fused_and_transposed_tensors_are_cut_by_heads(tmp_path: Path) -> None:
    """Three heads of four columns over two ranks: heads 0 and 1, and head 2."""
    tensors = gpt2_folder(tmp_path)
    plan = plan_of(SPECS["gpt2"], (2,), (1,))
    first, second, _ = run_gang(shards_of, 3, plan, tmp_path, limit_s=LIMIT_S)
    fused, bias = tensors["h.0.attn.c_attn.weight"], tensors["h.0.attn.c_attn.bias"]
    name = "blocks.0.attention"
    assert torch.equal(first[f"{name}.query.weight"], fused[:, :8].T.double())
    assert torch.equal(second[f"{name}.query.weight"], fused[:, 8:12].T.double())
    assert torch.equal(second[f"{name}.key.weight"], fused[:, 20:24].T.double())
    assert torch.equal(second[f"{name}.value.bias"], bias[32:].double())
    output = tensors["h.0.attn.c_proj.weight"]
    assert torch.equal(second[f"{name}.output.weight"], output[8:].T.double())
    down = tensors["h.0.mlp.c_proj.weight"]
    assert torch.equal(first["blocks.0.mlp.down.weight"], down[:10].T.double())


def test_what_can_not_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    spec, options = SPECS["gpt2"], OPTIONS["gpt2"]
    with pytest.raises(PluginError, match=r"config\.json: can't be read: no such file"):
        check_weights(tmp_path, spec, options)
    tensors = gpt2_folder(tmp_path)
    check_weights(tmp_path, spec, options)
    with pytest.raises(PluginError, match="holds another model: ffn is 20, not 24"):
        check_weights(tmp_path, spec.model_copy(update={"ffn": 24}), options)
    path = tmp_path / "model.safetensors"
    name = "h.1.mlp.c_fc.weight"
    fewer = {key: value for key, value in tensors.items() if key != name}
    write_file(path, {k: Planned("F32", tuple(v.shape)) for k, v in fewer.items()},
               iter(fewer.items()))  # fmt: skip
    with pytest.raises(PluginError, match=f"has no tensor {name}, which gpt2 needs"):
        check_weights(tmp_path, spec, options)
    turned = {**tensors, name: tensors[name].T}
    write_file(path, {k: Planned("F32", tuple(v.shape)) for k, v in turned.items()},
               iter(turned.items()))  # fmt: skip
    with pytest.raises(PluginError, match=rf"{name} is \[20, 12\] and gpt2 needs \[12, 20\]"):
        check_weights(tmp_path, spec, options)
    path.unlink()
    with pytest.raises(PluginError, match=r"model\.safetensors: can't be read: no such file"):
        check_weights(tmp_path, spec, options)
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b"}}')
    with pytest.raises(PluginError, match=r"names '\.\./b', which is not in its folder"):
        check_weights(tmp_path, spec, options)


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"model_type": "gpt_neo"}, "model_type 'gpt_neo' can't be run here"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}, "rope_type is 'yarn'"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "llama3"}}, "lacks what it needs"),
        ({"model_type": "mistral", "sliding_window": 4096}, "looks back 4096 positions"),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias is True"),
        ({"model_type": "opt", "do_layer_norm_before": False}, "do_layer_norm_before is False"),
        ({"model_type": "gpt2", "activation_function": "swish"}, "activation_function is 'swish'"),
    ],
)
def test_what_is_computed_otherwise_is_refused(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PluginError, match=sentence):
        computation(config, "config.json", seq_len=8192)


def test_a_run_computes_as_the_folder_that_it_starts_from_says(tmp_path: Path) -> None:
    import sailor  # here: each process of a gang imports this module

    job = sailor.load_job(Path(__file__).parents[3] / "examples/jobs/tiny-gpt-cpu.yaml")
    gpt2_folder(tmp_path)
    options = as_stored(RunOptions(), job, init_from=tmp_path, load=None)
    assert options == RunOptions(activation="gelu_tanh", norm_epsilon=1e-5)
    assert as_stored(RunOptions(), job, init_from=None, load=None) == RunOptions()
    with pytest.raises(PluginError, match="can't come from two places"):
        as_stored(RunOptions(), job, init_from=tmp_path, load=tmp_path)


def test_an_export_that_can_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    run = RunSpec(
        spec=SPECS["gpt2"], plan=plan_of(SPECS["gpt2"], (1,), (1,)), options=OPTIONS["gpt2"],
        steps=1, export=str(tmp_path / "file" / "weights"),
    )  # fmt: skip
    with pytest.raises(PluginError, match="file is no folder that may be written to"):
        check_ends(run)
    check_ends(run.model_copy(update={"export": str(tmp_path / "a" / "b" / "c")}))
    assert not (tmp_path / "a").exists()
    sizes = {"hidden": 13, "head_dim": 4}
    odd = run.model_copy(update={"spec": SPECS["gpt2"].model_copy(update=sizes)})
    with pytest.raises(PluginError, match="gpt2 has the form of no family that can be saved"):
        check_ends(odd.model_copy(update={"export": str(tmp_path / "a")}))


@pytest.mark.slow
@pytest.mark.timeout(100)
def test_the_command_exports_and_starts_from_what_it_exported(tmp_path: Path) -> None:
    from test_train import files, micro_job, micro_plan, run_train

    job, plan = files(tmp_path, micro_job(), micro_plan([2], [1]))
    saved = tmp_path / "saved"
    run_train(job, plan, "--steps", 2, "--export", saved, "--out", tmp_path / "first")
    assert check_weights(saved, micro_job().model, RunOptions()).files
    job, plan = files(tmp_path, micro_job(), micro_plan([1], [1]))
    run_train(job, plan, "--steps", 1, "--init-from", saved, "--out", tmp_path / "second")
    first, second = (
        [
            float(row["loss"])
            for row in csv.DictReader((tmp_path / name / "metrics.csv").read_text().splitlines())
        ]
        for name in ("first", "second")
    )
    assert second[0] < first[0] - 0.01  # the same samples, two steps later
    with pytest.raises(PluginError, match="exists already"):
        run_train(job, plan, "--export", saved, "--out", tmp_path / "third")
    assert not (tmp_path / "third").exists()


@pytest.mark.slow
@pytest.mark.parametrize("family", list(SPECS))
def test_transformers_computes_the_same_losses(family: str, tmp_path: Path) -> None:
    """The library that the format is from, on its own weights and on those written here."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    spec, options = SPECS[family], OPTIONS[family]
    tolerance = 1e-7 if family == "llama" else 1e-12  # the library's Llama has fp32 in its norms
    configs = {
        "llama": lambda: transformers.LlamaConfig(
            vocab_size=31, hidden_size=24, intermediate_size=13, num_hidden_layers=2,
            num_attention_heads=6, num_key_value_heads=2, head_dim=4, rms_norm_eps=1e-6,
            max_position_embeddings=8, tie_word_embeddings=False,
            rope_parameters={
                "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 0.2,
                "high_freq_factor": 1.5, "original_max_position_embeddings": 8,
            },
        ),
        "gpt2": lambda: transformers.GPT2Config(
            vocab_size=31, n_embd=12, n_inner=20, n_layer=2, n_head=3, n_positions=8,
            attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
        ),
        "opt": lambda: transformers.OPTConfig(
            vocab_size=31, hidden_size=12, word_embed_proj_dim=12, ffn_dim=20,
            num_hidden_layers=2, num_attention_heads=3, max_position_embeddings=8, dropout=0.0,
        ),
    }  # fmt: skip
    torch.manual_seed(2)
    theirs = transformers.AutoModelForCausalLM.from_config(configs[family]()).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    theirs.save_pretrained(tmp_path / "theirs")

    def their_loss(model: Any, samples: range) -> float:
        rows = windows(spec, samples)
        with torch.no_grad():
            logits = model(rows[:, :-1]).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()

    fixed = computation(read_config(tmp_path / "theirs"), "test", seq_len=8)
    assert options == RunOptions.model_validate({"precision": "fp64", **fixed})
    plan = plan_of(spec, (2,), (1,))
    (loss, *_) = run_gang(
        load_and_step, 3, spec, plan, options, tmp_path / "theirs", 0, limit_s=LIMIT_S
    )
    assert loss == pytest.approx(their_loss(theirs, range(2)), abs=tolerance)
    (loss, *_) = run_gang(
        train_and_export, 3, spec, plan, options, tmp_path / "ours", 10**9, limit_s=LIMIT_S
    )
    ours = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", dtype=torch.float64
    ).eval()
    assert loss == pytest.approx(their_loss(ours, range(2, 4)), abs=tolerance)
