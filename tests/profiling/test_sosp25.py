"""The SOSP'25 importer: the artifact's figures exactly, and one sentence for bad files."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sailor.errors import InputError
from sailor.model.profile import Provenance
from sailor.profiling.sosp25 import import_sosp25
from sailor.profiling.store import ProfileStore

ARTIFACT = Path(__file__).parents[3] / "shared/reference/sosp25_artifact"
MODELS = {"opt-350m": "OPT-350", "gpt-neo-2.7b": "GPT-Neo-2.7", "opt-30b": "OPT-30"}
GPUS = {
    "A100-40GB": "A100-40",
    "A100-80GB": "A100-80",
    "V100-16GB": "V100-16",
    "GH200-96GB": "GH-96",
    "RTX3090-24GB": "RTX-3090",
    "RTX2080Ti-11GB": "RTX-2080",
    "TitanRTX-24GB": "Titan-RTX",
}


def _artifact(name: str) -> Any:
    file = ARTIFACT / name
    if not file.is_file():
        pytest.skip(f"the artifact's {name} is not here")
    return json.loads(file.read_text())


@pytest.fixture(scope="module")
def store() -> ProfileStore:
    _artifact("profiles/memory_per_layer.json")
    return import_sosp25(ARTIFACT)


def test_every_time_is_the_artifact_s_bit_for_bit(store: ProfileStore) -> None:
    times = _artifact("profiles/all_models_all_gpus.json")
    checked = 0
    for profile in store.profiles:
        by_gpu = times.get(MODELS.get(profile.model, ""), {})
        table = by_gpu.get(GPUS[profile.gpu])
        if table is None:
            continue  # LLAMA-3-8 and the pair that has a file of its own: tests below
        layers = table[str(profile.microbatch)][str(profile.tp)]
        last = str(len(layers) - 1)
        for unit, key in (
            (profile.embedding, "0"),
            (profile.first_block, "1"),
            (profile.block, "2"),
            (profile.block, str(int(last) - 1)),
            (profile.head, last),
        ):
            assert [unit.forward_s, unit.backward_s] == layers[key][:2]
        assert profile.optimizer_s == layers["0"][2]
        checked += 1
    assert checked == 199


def test_every_footprint_is_four_bytes_a_float(store: ProfileStore) -> None:
    memory = _artifact("profiles/memory_per_layer.json")
    checked = 0
    for footprint in store.footprints:
        by_tp = memory.get(MODELS.get(footprint.model, ""), {})
        layers = by_tp.get(str(footprint.tp))
        if layers is None:
            continue
        for unit, key in (
            (footprint.embedding, "0"),
            (footprint.first_block, "1"),
            (footprint.block, "2"),
            (footprint.head, str(len(layers) - 1)),
        ):
            row = layers[key]
            assert unit.params == row["params_floats"]
            assert unit.activation_bytes == 4 * row["act_mem_floats"]
            assert unit.output_bytes == 4 * row["act_output_floats"]
        checked += 1
    assert checked == 10


def test_llama_s_last_two_layers_are_the_head(store: ProfileStore) -> None:
    profile = store.profile("llama-3-8b-sosp25", "V100-16GB", 4, 1, "fp32")
    assert profile is not None
    assert profile.head.forward_s == 0.0012 + 0.0623
    assert profile.head.backward_s == 0.0039 + 0.1216
    footprint = store.footprint("llama-3-8b-sosp25", 1, "fp32")
    assert footprint is not None
    assert footprint.head.params == 4096 + 4096
    assert footprint.head.activation_bytes == 4 * (100_671_488 + 512_780_544)
    assert footprint.head.output_bytes == 4 * 33_554_433


def test_handpicked_profile(store: ProfileStore) -> None:
    profile = store.profile("opt-350m", "A100-40GB", 2, 1, "fp32")
    assert profile is not None
    assert (profile.block.forward_s, profile.block.backward_s) == (0.001908, 0.003398)
    assert (profile.first_block.forward_s, profile.head.forward_s) == (0.001853, 0.002604)
    assert profile.optimizer_s == 0.001504
    # embedding + two blocks + head on one of two ranks
    assert profile.optimizer_params == 27_918_336 + 2 * 6_301_184 + 25_823_232
    assert profile.provenance is Provenance.MEASURED


def test_coverage(store: ProfileStore) -> None:
    count = Counter((profile.model, profile.gpu) for profile in store.profiles)
    assert count == {
        ("opt-350m", "A100-40GB"): 12,
        ("opt-350m", "V100-16GB"): 15,
        ("opt-350m", "GH200-96GB"): 21,
        ("opt-350m", "A100-80GB"): 20,
        ("opt-350m", "TitanRTX-24GB"): 22,
        ("opt-350m", "RTX2080Ti-11GB"): 17,
        ("opt-350m", "RTX3090-24GB"): 22,
        ("gpt-neo-2.7b", "A100-40GB"): 12,
        ("gpt-neo-2.7b", "V100-16GB"): 11,
        ("gpt-neo-2.7b", "A100-80GB"): 13,
        ("gpt-neo-2.7b", "GH200-96GB"): 20,
        ("opt-30b", "A100-40GB"): 8,
        ("opt-30b", "V100-16GB"): 6,
        ("opt-30b", "GH200-96GB"): 15,
        ("llama-3-8b-sosp25", "A100-40GB"): 3,
        ("llama-3-8b-sosp25", "V100-16GB"): 2,
        ("llama-3-8b-sosp25", "GH200-96GB"): 6,
    }
    # 1016 entries of the file less the 36 copies (4 senders x 9).
    assert len(store.links) == 980
    assert len({link.curve for link in store.links}) == 167


def test_out_of_memory_combinations_are_absent(store: ProfileStore) -> None:
    assert store.profile("opt-350m", "V100-16GB", 1, 8, "fp32") is None
    assert store.profile("opt-30b", "V100-16GB", 2, 1, "fp32") is None
    assert store.profile("gpt-neo-2.7b", "A100-80GB", 1, 64, "fp32") is None


def test_what_the_artifact_has_wrong_is_left_out_or_said(store: ProfileStore) -> None:
    # GPT-Neo on GH-96 is not the copy of OPT-350's file that lies beside it.
    neo = store.profile("gpt-neo-2.7b", "GH200-96GB", 1, 1, "fp32")
    opt = store.profile("opt-350m", "GH200-96GB", 1, 1, "fp32")
    assert neo is not None
    assert opt is not None
    assert neo.block.forward_s == 0.002127
    assert opt.block.forward_s == 0.001225
    unmeasured = [profile for profile in store.profiles if profile.optimizer_s == 0]
    assert {(p.model, p.gpu) for p in unmeasured} == {("gpt-neo-2.7b", "A100-80GB")}
    assert all("optimizer step not measured" in p.source for p in unmeasured)
    assert not [p for p in store.profiles if p.tp == 7]
    assert [r for r in store.remarks if "tp 7 left out" in r and "opt-30b on V100-16GB" in r]
    senders = {link.src for link in store.links if link.src_gpu == "GH200-96GB"}
    assert senders == {"us-central1-a"}


def test_a_file_of_its_own_fills_a_gap(store: ProfileStore) -> None:
    layers = _artifact("profiles/OPT-30/GH-96/profile.json")["8"]["4"]
    profile = store.profile("opt-30b", "GH200-96GB", 4, 8, "fp32")
    assert profile is not None
    assert [profile.block.forward_s, profile.block.backward_s] == layers["2"][:2]
    assert [profile.head.forward_s, profile.optimizer_s] == [layers["49"][0], layers["49"][2]]


def test_tf32_is_said_where_the_times_prove_it(store: ProfileStore) -> None:
    fast = {(p.model, p.gpu) for p in store.profiles if "TF32" in p.source}
    assert ("gpt-neo-2.7b", "A100-40GB") in fast  # 65 TFLOP/s of 19.5
    assert ("opt-30b", "A100-40GB") not in fast  # 17.7
    assert not [pair for pair in fast if pair[1].startswith("V100")]


def test_tp_8_is_worked_out_from_2_and_4_where_bytes_are_missing(store: ProfileStore) -> None:
    footprint = store.footprint("opt-30b", 8, "fp32")
    assert footprint is not None
    assert footprint.provenance is Provenance.MODELLED
    # A block of OPT-30B on one of 8 ranks: 12 h^2 / 8 + (3 h + 4 h) / 8 + 2 h + 4 h
    assert footprint.block.params == 12 * 7168**2 // 8 + 7 * 7168 // 8 + 6 * 7168
    assert footprint.block.activation_bytes == 4 * (132_124_672 - 88_080_384 / 2)


def test_the_rule_gives_opt_350m_s_measured_tp_8(tmp_path: Path, store: ProfileStore) -> None:
    memory = _artifact("profiles/memory_per_layer.json")
    del memory["OPT-350"]["8"]
    folder = tmp_path / "profiles"
    folder.mkdir()
    (folder / "memory_per_layer.json").write_text(json.dumps(memory))
    shutil.copy(ARTIFACT / "profiles/all_models_all_gpus.json", folder)
    worked_out = import_sosp25(tmp_path).footprint("opt-350m", 8, "fp32")
    measured = store.footprint("opt-350m", 8, "fp32")
    assert worked_out is not None
    assert measured is not None
    assert worked_out.block == measured.block
    assert worked_out.embedding.params == measured.embedding.params
    assert worked_out.head.params == measured.head.params
    assert worked_out.head.activation_bytes == pytest.approx(
        measured.head.activation_bytes, rel=0.02
    )


def test_every_link_is_the_artifact_s_bit_for_bit(store: ProfileStore) -> None:
    table = _artifact("network/multizone_bandwidths_het.json")
    for link in store.links:
        assert link.src_gpu is not None
        assert link.dst_gpu is not None
        by_zone = table[link.src][GPUS[link.src_gpu]][str(link.src_workers)]
        coefficients, peak = by_zone[link.dst][GPUS[link.dst_gpu]][str(link.dst_workers)]
        assert link.curve is not None
        assert list(link.curve.coefficients) == coefficients
        assert link.curve.peak_bytes_per_s == peak


def test_links_say_what_was_not_measured(store: ProfileStore) -> None:
    same = store.link("us-central1-a", "us-west1-b", "A100-40GB", "A100-40GB", 4, 4)
    mixed = store.link("us-central1-a", "us-central1-b", "A100-40GB", "V100-16GB", 4, 4)
    near = store.link("us-central1-a", "us-central1-a", "A100-40GB", "A100-40GB", 1, 1)
    assert same is not None
    assert mixed is not None
    assert near is not None
    assert (same.assumed, mixed.assumed, near.assumed) == (False, True, False)
    assert same.latency_s == pytest.approx(0.018139)
    assert mixed.latency_s == 0.5e-3
    assert near.latency_s == 60e-6
    assert "latency assumed" in near.source
    # 6.04 GB/s at most between two nodes that send with 4 A100s each; a little less at 1 GB.
    peak = store.link("us-central1-a", "us-central1-a", "A100-40GB", "A100-40GB", 4, 4)
    assert peak is not None
    assert 1 / 6.036 < peak.transfer_s(1e9) < 1.1 / 6.036


def test_the_written_file_reads_back_equal_and_small(tmp_path: Path, store: ProfileStore) -> None:
    file = tmp_path / "store.json"
    store.save(file)
    assert ProfileStore.load(file) == store
    assert file.stat().st_size < 250_000


def test_a_checkout_of_the_artifact_is_read_as_well(tmp_path: Path, store: ProfileStore) -> None:
    for name, place in (
        ("profiles/all_models_all_gpus.json", "sailor/Planner/simulations/profiles_tmp.json"),
        ("profiles/memory_per_layer.json", "sailor/Planner/llm_info.json"),
        ("network/multizone_bandwidths_het.json", "sailor/providers/multizone_bandwidths_het.json"),
    ):
        target = tmp_path / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ARTIFACT / name, target)
    imported = import_sosp25(tmp_path)
    assert imported.links == store.links
    assert [p for p in store.profiles if (p.model, p.gpu) != ("opt-30b", "GH200-96GB")] == list(
        imported.profiles
    )


# Small folders of our own making, for what can be wrong with one.


def _layers(count: int, step_s: float = 0.5) -> dict[str, list[float]]:
    return {str(layer): [0.1, 0.2, step_s] for layer in range(count)}


def _bytes(count: int) -> dict[str, dict[str, int]]:
    row = {"params_floats": 10, "act_mem_floats": 20, "act_output_floats": 30}
    return {str(layer): row for layer in range(count)}


def _folder(root: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    files: dict[str, Any] = {
        "OPT-350/A100-40/profile.json": {"2": {"1": _layers(26)}},
        "llm_info.json": {"OPT-350": {"1": _bytes(26)}},
    }
    change(files)
    for name, content in files.items():
        target = root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content if isinstance(content, str) else json.dumps(content))
    return root


def _set(name: str, *keys: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(files: dict[str, Any]) -> None:
        *path, last = (name, *keys)
        for key in path:
            files = files[key]
        files[last] = value

    return change


def test_a_single_profile_and_memory_file_are_enough(tmp_path: Path) -> None:
    store = import_sosp25(_folder(tmp_path, lambda files: None))
    assert store.grid("opt-350m", "A100-40GB", "fp32") == ((1, 2),)
    assert store.links == ()
    assert "no bandwidth file: the store holds no links" in store.remarks


PROFILE = "OPT-350/A100-40/profile.json"
LINK = {"us-central1-a": {"V100-16": {"1": {"us-central1-a": {"V100-16": {"1": None}}}}}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(PROFILE, "2", "1", "7", value=[0.1, 0.3, 0.5]), "tp 1: blocks 2 to the last differ"),
        (_set(PROFILE, "2", "1", "7", value=[0.1, 0.2, 0.6]), "different optimizer steps"),
        (_set(PROFILE, "2", "1", value=_layers(34)), "34 layers where opt-350m has 26.*another"),
        (_set(PROFILE, "2", "1", "7", value=[0.1, -0.2, 0.5]), "not three numbers of seconds"),
        (_set(PROFILE, "2", "1", "7", value=[0.1, float("inf"), 0.5]), "not three numbers"),
        (_set(PROFILE, "2", "1", "7", value="fast"), "'fast', not three numbers"),
        (_set(PROFILE, "2", "one", value=_layers(26)), "'one' is not a count"),
        (_set(PROFILE, "2", "2", value=_layers(26)), "no bytes for opt-350m at tp 2"),
        (_set(PROFILE, "2", value=[]), "is not a table of named entries"),
        (_set(PROFILE, value="{"), "profile.json: is not JSON"),
        (_set("OPT-35/A100-40/profile.json", value={}), "unknown model.*did you mean 'OPT-350'"),
        (_set("OPT-350/A100/profile.json", value={}), "unknown GPU type.*did you mean.*'A100-40'"),
        (_set("llm_info.json", "OPT-350", "1", "3", "params_floats", value=1.5), "is 1.5, not a"),
        (_set("multizone_bandwidths_het.json", value=LINK), r"a fit is None.*\[\[c2, c1, c0\]"),
        (
            _set("multizone_bandwidths_het.json", value={"us-east1-b": {"V100-16": {"1": {
                "us-west1-b": {"V100-16": {"1": [[0, 0, 1], 1e9]}}}}}}),
            "no latency is known between us-east1 and us-west1",
        ),
    ],
)  # fmt: skip
def test_bad_folders_get_one_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        import_sosp25(_folder(tmp_path, change))
    assert str(tmp_path) in str(caught.value)


def test_block_of_zero_seconds_is_refused(tmp_path: Path) -> None:
    layers = {str(layer): [0.0, 0.0, 0.5] for layer in range(26)}
    with pytest.raises(InputError, match="missing measurement"):
        import_sosp25(_folder(tmp_path, _set(PROFILE, "2", "1", value=layers)))


def test_an_empty_folder_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no layer times; expected .*profile\.json"):
        import_sosp25(tmp_path)
    with pytest.raises(InputError, match="is not a folder"):
        import_sosp25(tmp_path / "none")
