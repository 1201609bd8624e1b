"""Every kind of bad input that sailor promises to explain: its place, and what would be right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from toy_jobs import toy_job

from sailor.cli import run

TINY = {
    "name": "tiny", "num_layers": 4, "hidden": 512, "ffn": 2048, "num_heads": 6,
    "num_kv_heads": 3, "head_dim": 64, "vocab": 1000, "seq_len": 512,
}  # fmt: skip
OFFER = {"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 16}
GPU = {
    "name": "X1", "memory_bytes": "40 GiB", "marketed_gib": 40, "fp32_flop_per_s": "19 TFLOP/s",
    "half_flop_per_s": "312 TFLOP/s", "memory_bandwidth": "1.5 TB/s", "source": "me",
}  # fmt: skip
NODE = {
    "name": "x1-node", "provider": "gcp", "gpu": "X1", "num_gpus": 4,
    "intra_node_bandwidth": "300 GB/s", "nic_bandwidth": "100 Gbit/s", "source": "me",
}  # fmt: skip
LINK = {
    "src": "us-central1-a", "dst": "us-west1-b", "latency_s": "20 us", "bandwidth": "10 Gbit/s",
    "source": "me",
}  # fmt: skip


def without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name != key}


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = run([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("changes", "key", "sentence"),
    [
        ({"modle": "x"}, "modle", "unknown key 'modle'; did you mean 'model'?"),
        (
            {"training": {"global_bach": 8}},
            "global_bach",
            "unknown key 'global_bach' in training; did you mean 'global_batch'?",
        ),
        (
            {"catalog": {"links": [{**LINK, "bandwidth": "100 Gb"}]}},
            "bandwidth",
            "catalog.links[0].bandwidth: '100 Gb' has the unit 'Gb', which this field doesn't "
            "know; write it like '100 Gbit/s' (units: bit/s, ",
        ),
        (
            {"training": {"global_batch": 0}},
            "global_batch",
            "training.global_batch should be at least 1, not 0",
        ),
        (
            {"pool": [{**OFFER, "quota": -4}]},
            "quota",
            "pool[0].quota should be at least 0, not -4",
        ),
        (
            {"catalog": {"gpus": [{**GPU, "memory_bytes": "0 GiB"}]}},
            "memory_bytes",
            "catalog.gpus[0].memory_bytes should be greater than 0, not '0 GiB'",
        ),
        (
            {"catalog": {"gpus": [without(GPU, "memory_bytes")]}},
            "gpus",
            "catalog.gpus[0] has no memory_bytes; add `memory_bytes:` with a whole number",
        ),
        (
            {"pool": [OFFER, OFFER]},
            "pool",
            "pool[1] repeats pool[0] (A100-40GB on_demand in us-central1-a); "
            "write one offer with the sum",
        ),
        (
            {"pool": [{**OFFER, "quota": 0}]},
            "pool",
            "every offer of the pool has quota 0: there is nothing to rent",
        ),
        ({"pool": []}, "pool", "pool should have at least 1 entry, not 0"),
        (
            {"model": {**TINY, "num_kv_heads": 4}},
            "model",
            "model: num_heads 6 is not a multiple of num_kv_heads 4; ",
        ),
        (
            {"constraints": {"min_iterations_per_s": float("nan")}},
            "min_iterations_per_s",
            "constraints.min_iterations_per_s should be a finite number, not nan",
        ),
        (
            {"constraints": {"max_usd_per_iteration": "1.2 EUR"}},
            "max_usd_per_iteration",
            "constraints.max_usd_per_iteration: '1.2 EUR' has the unit 'EUR', which this field "
            "doesn't know; write it like '12 USD' (units: USD)",
        ),
        (
            {"pool": [{**OFFER, "gpu": "A1000"}]},
            "gpu",
            "pool[0].gpu: unknown GPU type 'A1000'; did you mean 'A100-",
        ),
        (
            {"constraints": {"zones": ["us-central1-aa"]}},
            "zones",
            "constraints.zones: unknown zone 'us-central1-aa'; did you mean 'us-central1-a'",
        ),
        (
            {"catalog": {"zones": [{"name": "z", "region": "r", "provider": "p"}] * 2}},
            "zones",
            "catalog.zones[1]: 'z' is defined twice; give each entry its own name",
        ),
        (
            {"sources": {"prices": "gpc"}},
            "prices",
            "sources.prices: unknown price source 'gpc'; did you mean 'gcp'?",
        ),
        (
            {"model": TINY, "constraints": {"tp": 4}},
            "tp",
            "constraints.tp: tp 4 doesn't divide 6 heads and 3 key-value heads of tiny; "
            "allowed: 1, 3",
        ),
        (
            {"model": TINY, "search_space": {"tp": [2, 4]}},
            "tp",
            "search_space.tp: tp 2 doesn't divide 6 heads and 3 key-value heads of tiny",
        ),
        (
            {"model": TINY, "constraints": {"pp": 9}},
            "pp",
            "constraints.pp: 9 stages are more than the 6 units of tiny (embedding, 4 blocks, "
            "head); take at most 6",
        ),
    ],
)
def test_bad_jobs(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    changes: dict[str, Any],
    key: str,
    sentence: str,
) -> None:
    path = tmp_path / "job.json"
    text = json.dumps(toy_job(**changes), indent=1)
    path.write_text(text)
    code, out, err = told(capsys, "plan", path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    place, _, told_sentence = err.removeprefix(f"sailor: {path}:").partition(": ")
    assert told_sentence.startswith(sentence), err
    # The line is that of the key, or of the entry of its list.
    first = 1 + text.split(f'"{key}"')[0].count("\n")
    last = 1 + text.rpartition(f'"{key}"')[0].count("\n") + (12 if key in ("pool", "zones") else 1)
    assert first <= int(place) <= last


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {
                "catalog": {"gpus": [GPU], "nodes": [NODE]},
                "pool": [{"zone": "us-central1-a", "node_type": "x1-node", "count": 2}],
            },
            "no on-demand price of x1-node in us-central1-a is known",
        ),
        (
            {"model": "llama-3-405b"},
            "llama-3-405b fits nowhere: its parameters, gradients and optimizer states take ",
        ),
        (
            {"constraints": {"gpu_types": ["V100-16GB"]}},
            "A100-40GB is not among constraints.gpu_types",
        ),
    ],
)
def test_what_can_t_be_planned_says_why(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(toy_job(**changes)))
    code, out, err = told(capsys, "plan", path)
    assert (code, err) == (3, "")
    assert sentence in " ".join(out.split())
    assert "toy: infeasible, no plan exists" in out


def test_the_padding_of_a_vocabulary_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(toy_job(model=TINY)))
    code, out, _ = told(capsys, "plan", path, "--format", "json")
    assert code == 0
    assert any("1000" in text and "padded" in text for text in json.loads(out)["assumptions"])


REPLICA = {
    "gpu": "A100-40GB", "node_type": "a2-highgpu-1g", "zone": "us-central1-a", "tp": 1,
    "microbatch": 1, "num_microbatches": 8,
}  # fmt: skip


@pytest.mark.parametrize(
    ("stages", "stage", "sentence"),
    [
        (
            [(0, 12), (13, 26)],
            1,
            "units 12..12 are in no stage: stage 1 starts at 13; "
            "stages must cover 0..25 exactly once",
        ),
        (
            [(0, 13), (12, 26)],
            1,
            "unit 12 is in two stages: stage 1 starts at 12 but the one before stops at 13",
        ),
        ([(0, 12), (12, 25)], 0, "the stages stop at unit 25, but the model has units 0..25"),
        ([(0, 12), (12, 12), (12, 26)], 1, "stage 1 holds no unit: [12, 12)"),
    ],
)
def test_plans_that_drop_or_double_a_layer(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    stages: list[tuple[int, int]],
    stage: int,
    sentence: str,
) -> None:
    job, plan = tmp_path / "job.json", tmp_path / "plan.json"
    job.write_text(json.dumps(toy_job()))
    cut = [{"start": start, "stop": stop, "replicas": [REPLICA]} for start, stop in stages]
    data = {"model": "opt-350m", "num_units": 26, "global_batch": 8, "stages": cut}
    text = json.dumps(data, indent=1)
    plan.write_text(text)
    code, out, err = told(capsys, "simulate", job, plan)
    assert (code, out) == (2, "")
    assert err.startswith(f"sailor: {plan}:")
    assert err.endswith(f": {sentence}\n")
    line = int(err.removeprefix(f"sailor: {plan}:").partition(":")[0])
    before = text.split("\n")[: line - 1]
    assert sum(1 for row in before if '"start"' in row) == stage


def test_an_unknown_model_gets_suggestions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(toy_job(model="opt-350"), indent=1))
    code, out, err = told(capsys, "plan", path)
    assert (code, out) == (2, "")
    wanted = rf"sailor: {path}(:3: model)?: unknown model 'opt-350'; did you mean 'opt-350m' .*\n"
    assert re.fullmatch(wanted, err)


def test_files_that_are_no_jobs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.truncate(200 * 2**20)
    cut = tmp_path / "cut.json"
    cut.write_text(json.dumps(toy_job(), indent=1)[:-40])
    for path, sentence in (
        (huge, ": 200 MiB is too large for one job or plan (at most 32 MiB); is it the right file"),
        (cut, ": this is not valid JSON: "),
        (tmp_path, ": is a folder; name a file in it"),
        (tmp_path / "nothing.yaml", ": no such file; "),
    ):
        code, out, err = told(capsys, "plan", path)
        assert (code, out) == (2, "")
        assert err.startswith(f"sailor: {path}")
        assert sentence in err
        assert err.count("\n") == 1


def test_a_link_that_is_missing_excludes_the_pair_with_a_reason(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "job.json"
    pool = [OFFER, {**OFFER, "zone": "us-west1-b", "gpu": "V100-16GB"}]
    egress = {"src": "us-central1-a", "dst": "us-west1-b", "usd_per_byte": 0, "source": "me",
              "as_of": "2026-11-01"}  # fmt: skip
    job = toy_job(pool=pool, sources={"network": "store"}, catalog={"egress": [egress]})
    path.write_text(json.dumps(job))
    code, out, err = told(capsys, "plan", path, "--format", "json")
    if code == 2:  # the store source itself asks for its file
        assert "sources.network: " in err
        assert out == ""
    else:
        assert any("no link is known" in text for text in json.loads(out)["excluded"])
