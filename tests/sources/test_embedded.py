"""The sources `embedded` and `store`: measured answers only, for the very model and precision."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sailor.errors import InputError
from sailor.interfaces import ProfileSource, SourceContext
from sailor.model.catalog import Catalog
from sailor.model.job import Training
from sailor.model.presets import preset, presets
from sailor.profiling.sosp25 import import_sosp25
from sailor.profiling.store import ProfileStore
from sailor.sources.embedded import EmbeddedProfiles, StoreProfiles, embedded_store

ARTIFACT = Path(__file__).parents[3] / "shared/reference/sosp25_artifact"
CATALOG = Catalog(gpus={}, nodes={}, zones={}, gpu_aliases={})
CONTEXT = SourceContext(CATALOG)
FP32 = Training(global_batch=8, precision="fp32")
BF16 = Training(global_batch=8, precision="bf16")


def test_both_are_profile_sources() -> None:
    assert isinstance(EmbeddedProfiles(), ProfileSource)
    assert isinstance(StoreProfiles(), ProfileSource)
    assert (EmbeddedProfiles().name, StoreProfiles().name) == ("embedded", "store")


# (model, GPU type, tp, microbatch) -> forward and backward of a block, of the head, optimizer;
# read off the artifact's files by hand.
HANDPICKED = [
    ("opt-350m", "A100-40GB", 1, 1, (0.002314, 0.005909), (0.004508, 0.003989), 0.002938),
    ("opt-350m", "A100-40GB", 4, 1, (0.002134, 0.002278), (0.0022110000000000003, 0.002078),
     0.000976),
    ("opt-350m", "V100-16GB", 8, 4, (0.005284, 0.010685), (0.009594, 0.016233), 0.000842),
    ("opt-350m", "V100-16GB", 2, 4, (0.016014, 0.035784), (0.037029, 0.060235000000000004),
     0.002492),
    ("opt-350m", "GH200-96GB", 1, 8, (0.006988, 0.021514), (0.014852, 0.019173), 0.001392),
    ("opt-350m", "A100-80GB", 2, 64, (0.07149, 0.176306), (0.126935, 0.140841), 0.001361),
    ("opt-350m", "TitanRTX-24GB", 1, 1, (0.007746, 0.020338), (0.018824, 0.029667), 0.008146),
    ("opt-350m", "RTX2080Ti-11GB", 8, 16, (0.110555, 0.137098), (0.043131, 0.114238), 0.001479),
    ("opt-350m", "RTX3090-24GB", 8, 32, (0.658069, 0.690042), (0.041705000000000006, 0.380686),
     0.00119),
    ("gpt-neo-2.7b", "A100-40GB", 2, 2, (0.005581, 0.012448), (0.000455, 0.000626), 0.003361),
    ("gpt-neo-2.7b", "V100-16GB", 1, 1, (0.027493, 0.059348), (0.000361, 0.000688), 0.010849),
    ("gpt-neo-2.7b", "GH200-96GB", 4, 1, (0.001505, 0.002316), (0.000984, 0.000406), 0.000876),
    ("opt-30b", "V100-16GB", 8, 2, (0.0544, 0.1049), (0.0274, 0.0553), 0.0068),
    ("opt-30b", "GH200-96GB", 4, 32, (0.121858, 0.292545), (0.056059000000000005, 0.137348),
     0.005126),
    ("llama-3-8b-sosp25", "A100-40GB", 4, 2, (0.1775, 0.3536), (0.0014 + 0.09519999999999999,
     0.0046 + 0.1831), 0.0039),
]  # fmt: skip


@pytest.mark.parametrize(("model", "gpu", "tp", "microbatch", "block", "head", "step"), HANDPICKED)
def test_times_are_the_measured_ones(
    model: str,
    gpu: str,
    tp: int,
    microbatch: int,
    block: tuple[float, float],
    head: tuple[float, float],
    step: float,
) -> None:
    profile = EmbeddedProfiles().profile(preset(model), FP32, gpu, tp, microbatch, CONTEXT)
    assert profile is not None
    assert (profile.block.forward_s, profile.block.backward_s) == block
    assert (profile.head.forward_s, profile.head.backward_s) == head
    assert profile.optimizer_s == step
    assert "SOSP'25 artifact" in profile.source


def test_footprints_are_the_measured_ones() -> None:
    footprint = EmbeddedProfiles().footprint(preset("opt-350m"), FP32, 4, CONTEXT)
    assert footprint is not None
    assert footprint.first_block.activation_bytes == 4 * 27_398_144
    assert footprint.block.activation_bytes == 4 * 27_267_072
    assert footprint.head.params == 12_978_176
    assert footprint.head.output_bytes == 4 * 25_952_257
    neo = EmbeddedProfiles().footprint(preset("gpt-neo-2.7b"), FP32, 1, CONTEXT)
    assert neo is not None
    assert neo.head.params == 5120
    assert "no output table" in neo.source


@pytest.mark.parametrize("model", ["opt-350m", "opt-30b", "gpt-neo-2.7b", "llama-3-8b-sosp25"])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_presets_count_the_measured_parameters(model: str, tp: int) -> None:
    spec = preset(model)
    footprint = EmbeddedProfiles().footprint(spec, FP32, tp, CONTEXT)
    assert footprint is not None
    assert footprint.embedding.params == spec.unit_params("embedding", tp)
    assert footprint.block.params == spec.unit_params("block", tp)
    if model.startswith("opt"):
        assert footprint.head.params == spec.unit_params("head", tp)


def test_the_measured_grid() -> None:
    grid = EmbeddedProfiles().grid(preset("opt-350m"), FP32, "V100-16GB", CONTEXT)
    assert set(grid) == {
        *((tp, microbatch) for tp in (1, 2, 4, 8) for microbatch in (1, 2, 4)),
        *((tp, 8) for tp in (2, 4, 8)),  # tp 1 ran out of memory
    }


def test_no_answer_beyond_what_was_measured() -> None:
    source, opt = EmbeddedProfiles(), preset("opt-350m")
    assert source.profile(opt, FP32, "V100-16GB", 1, 8, CONTEXT) is None
    assert source.profile(opt, FP32, "A100-40GB", 1, 16, CONTEXT) is None
    assert source.profile(opt, FP32, "H100-80GB", 1, 1, CONTEXT) is None
    assert source.footprint(opt, FP32, 16, CONTEXT) is None


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_fp32_times_never_answer_for_16_bit(precision: str) -> None:
    training = Training.model_validate({"global_batch": 8, "precision": precision})
    source, opt = EmbeddedProfiles(), preset("opt-350m")
    assert source.grid(opt, training, "A100-40GB", CONTEXT) == ()
    assert source.profile(opt, training, "A100-40GB", 1, 1, CONTEXT) is None
    assert source.footprint(opt, training, 1, CONTEXT) is None


def test_another_shape_under_a_known_name_has_no_answer() -> None:
    source = EmbeddedProfiles()
    for field, value in (("seq_len", 1024), ("vocab", 50257), ("hidden", 2048)):
        other = preset("opt-350m").model_copy(update={field: value})
        assert source.grid(other, FP32, "A100-40GB", CONTEXT) == ()
        assert source.profile(other, FP32, "A100-40GB", 1, 1, CONTEXT) is None
        assert source.footprint(other, FP32, 1, CONTEXT) is None


def test_the_real_llama_3_8b_is_not_measured() -> None:
    assert EmbeddedProfiles().grid(preset("llama-3-8b"), FP32, "A100-40GB", CONTEXT) == ()


def test_the_store_s_shapes_are_the_presets() -> None:
    for model in embedded_store().models:
        assert model == presets()[model.name]


def test_the_shipped_file_is_what_the_importer_makes() -> None:
    if not ARTIFACT.is_dir():
        pytest.skip("the SOSP'25 artifact is not here")
    assert embedded_store() == import_sosp25(ARTIFACT)


def test_the_shipped_file_loads_quickly() -> None:
    text = embedded_store().to_text()
    best = min(_seconds_to_read(text) for _ in range(5))
    assert best < 0.1  # about 0.01 s on a free core; the tests may run on a busy one


def _seconds_to_read(text: str) -> float:
    start = time.perf_counter()
    ProfileStore.from_text(text, where="x")
    return time.perf_counter() - start


def test_a_store_file_answers_like_the_embedded_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    embedded_store().save(file)
    context = SourceContext(CATALOG, file)
    opt = preset("opt-350m")
    ours, shipped = StoreProfiles(), EmbeddedProfiles()
    assert ours.grid(opt, FP32, "A100-40GB", context) == shipped.grid(
        opt, FP32, "A100-40GB", CONTEXT
    )
    assert ours.profile(opt, FP32, "A100-40GB", 2, 2, context) == shipped.profile(
        opt, FP32, "A100-40GB", 2, 2, CONTEXT
    )
    assert ours.footprint(opt, BF16, 2, context) is None


def test_a_changed_store_file_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    store = embedded_store()
    store.save(file)
    context = SourceContext(CATALOG, file)
    opt = preset("opt-350m")
    assert StoreProfiles().grid(opt, FP32, "A100-40GB", context)
    store.model_copy(update={"profiles": ()}).save(file)
    assert StoreProfiles().grid(opt, FP32, "A100-40GB", context) == ()


def test_a_store_needs_a_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sources\.profiles: .*needs a file; write profiles"):
        StoreProfiles().grid(preset("opt-350m"), FP32, "A100-40GB", CONTEXT)
    missing = SourceContext(CATALOG, tmp_path / "none.json")
    with pytest.raises(InputError, match=r"none\.json: can't read the profile store"):
        StoreProfiles().footprint(preset("opt-350m"), FP32, 1, missing)
