"""Thousands of bad job and plan files: each is refused in one sentence, none ends otherwise.

Structured mutations break one rule of a valid document and must be refused. Text mutations
(cuts, flipped bytes) may leave a document valid: what then loads is held against an independent
reading of the same text.
"""

from __future__ import annotations

import copy
import io
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from sailor.api import load_job, load_plan
from sailor.cli import run
from sailor.errors import SailorError
from sailor.model.base import Record
from sailor.model.job import Job
from sailor.model.plan import Plan
from sailor.model.problem import Problem
from sailor.model.result import Result

JOB: dict[str, Any] = {
    "schema_version": 1,
    "name": "mixed-1",
    "model": {
        "name": "tiny", "num_layers": 4, "hidden": 512, "ffn": 2048, "num_heads": 8,
        "num_kv_heads": 4, "head_dim": 64, "vocab": 50304, "seq_len": 1024,
    },
    "training": {"global_batch": 256, "precision": "fp16"},
    "batch": {"within": 0.01},
    "pool": [
        {"zone": "us-central1-a", "gpu": "A100-40GB", "quota": 16},
        {"zone": "us-central1-b", "node_type": "n1-v100-4", "count": 3, "market": "spot"},
        {"region": "us-west1", "gpu": "V100-16GB", "quota": 8},
    ],
    "objective": "min_cost",
    "constraints": {
        "max_usd_per_iteration": "1.5 USD", "min_iterations_per_s": 0.1, "max_gpus": 32,
        "zones": ["us-central1-a", "us-central1-b"], "memory_headroom": "1 GiB", "tp": 2,
    },
    "search_space": {"tp": [1, 2], "microbatch": [1, 2, 4], "uneven_layers": True, "max_pp": 6},
    "cost_model": "sailor",
    "sources": {"prices": ["gcp", {"file": "prices.yaml"}], "network": "zones"},
    "catalog": {
        "gpus": [{
            "name": "X1", "memory_bytes": "40 GiB", "marketed_gib": 40,
            "fp32_flop_per_s": "19 TFLOP/s", "half_flop_per_s": "312 TFLOP/s",
            "memory_bandwidth": "1.5 TB/s", "source": "me",
        }],
        "nodes": [{
            "name": "x1-node", "provider": "gcp", "gpu": "X1", "num_gpus": 4,
            "intra_node_bandwidth": "300 GB/s", "nic_bandwidth": "100 Gbit/s", "source": "me",
        }],
        "zones": [{"name": "z-1", "region": "z", "provider": "gcp"}],
        "prices": [{
            "zone": "z-1", "node_type": "x1-node", "market": "on_demand",
            "usd_per_hour": "3.67 USD/h", "source": "me", "as_of": "2026-11-01",
        }],
        "egress": [{
            "src": "z-1", "dst": "us-central1-a", "usd_per_byte": "0.02 USD/GB", "source": "me",
            "as_of": "2026-11-01",
        }],
        "links": [{
            "src": "z-1", "dst": "us-central1-a", "latency_s": "20 us",
            "bandwidth": "10 Gbit/s", "source": "me",
        }],
    },
}  # fmt: skip

REPLICA = {
    "gpu": "A100-40GB", "node_type": "a2-highgpu-4g", "zone": "us-central1-a",
    "market": "on_demand", "tp": 2, "microbatch": 2, "num_microbatches": 8,
}  # fmt: skip
PLAN: dict[str, Any] = {
    "schema_version": 1, "model": "tiny", "num_units": 6, "global_batch": 32, "schedule": "1f1b",
    "stages": [
        {"start": 0, "stop": 2, "replicas": [REPLICA, REPLICA]},
        {"start": 2, "stop": 3, "replicas": [REPLICA, {**REPLICA, "tp": 1}]},
        {"start": 3, "stop": 6, "replicas": [REPLICA, REPLICA]},
    ],
}  # fmt: skip

Path_ = tuple[str | int, ...]

# By field name: what is wrong for every field of that name, besides what is wrong for all.
WHOLE = {
    "schema_version", "num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "head_dim",
    "vocab", "seq_len", "global_batch", "quota", "count", "max_gpus", "tp", "max_pp", "num_gpus",
    "marketed_gib", "microbatch", "num_microbatches", "num_units", "start", "stop",
}  # fmt: skip
MAY_BE_ZERO = {"quota", "count", "start", "memory_headroom", "within", "usd_per_byte", "latency_s"}
RATES = {"memory_bandwidth", "intra_node_bandwidth", "nic_bandwidth", "bandwidth"}
RATE_MISTAKES = ["100 Gb", "100 GB", "100 Gbps", "0 Gbit/s", "-5 Gbit/s", "100 gbit/s"]
UNITS = RATES | {
    "max_usd_per_iteration", "memory_headroom", "memory_bytes", "fp32_flop_per_s",
    "half_flop_per_s", "usd_per_hour", "usd_per_byte", "latency_s",
}  # fmt: skip
CHOICES = {"precision", "market", "objective", "schedule"}
OPTIONAL = {"file", "max_usd_per_iteration", "min_iterations_per_s", "max_gpus", "zones", "tp",
            "microbatch", "max_pp", "count", "quota", "gpu", "node_type", "zone", "region",
            "bandwidth"}  # fmt: skip
REQUIRED = {
    "name", "model", "training", "pool", "num_layers", "hidden", "ffn", "num_heads",
    "num_kv_heads", "head_dim", "vocab", "seq_len", "global_batch", "memory_bytes",
    "marketed_gib", "fp32_flop_per_s", "half_flop_per_s", "memory_bandwidth", "source",
    "provider", "num_gpus", "intra_node_bandwidth", "nic_bandwidth", "usd_per_hour", "as_of",
    "src", "dst", "usd_per_byte", "latency_s", "num_units", "stages", "start", "stop", "replicas",
    "num_microbatches",
}  # fmt: skip


def leaves(value: object, path: Path_ = ()) -> Iterator[tuple[Path_, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from leaves(inner, (*path, index))
    else:
        yield path, value


def boxes(value: object, kind: type, path: Path_ = ()) -> Iterator[Path_]:
    """Yield the paths of all mappings or lists."""
    if isinstance(value, kind):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(
        value if isinstance(value, list) else ()
    )  # fmt: skip
    for key, inner in items:
        yield from boxes(inner, kind, (*path, key))


def at(data: Any, path: Path_) -> Any:
    for step in path:
        data = data[step]
    return data


def field_of(path: Path_) -> str:
    return next(str(step) for step in reversed(path) if isinstance(step, str))


class Deep:
    """Stands for a value nested very deeply; written out when the text is made."""

    def __init__(self, levels: int) -> None:
        self.levels = levels


NOT_NUMBERS = [True, -1, math.nan, math.inf, -math.inf]
NOT_NAMES = ["", "a b", "x\ty", 3, 1.5, True, "y" * 121]
WRONG: dict[str, list[object]] = {
    "network": [[], {}, {"a": "b", "c": "d"}, 3, True, None, [1], "a b", {"x": 3}],
    "uneven_layers": ["maybe", 2, 0.5, "", -1],
    "as_of": ["yesterday", "2026-13-01", "2026-02-30", 0, 86400, 20261101, True, 1.5],
    "source": ["", 3, False],
    "file": [3, True],
    "within": [*NOT_NUMBERS, 1, 1.5, "much", ""],
    "min_iterations_per_s": [*NOT_NUMBERS, 0, 0.0, -0.5, "much", ""],
}
WRONG["prices"] = WRONG["network"]
WRONG |= {name: ["fast", "", "MIN_COST", 1, True] for name in CHOICES}
WRONG |= {
    name: [*NOT_NUMBERS, "many", "1.5", 1.5, -(10**9), 10**30, 1e300, False]
    + ([] if name in MAY_BE_ZERO else [0, "0", 0.0])
    for name in WHOLE
}
WRONG |= {
    name: [*NOT_NUMBERS, "much", "", "-1", -0.5, "nan", "inf", "5", "1e999 GB/s", "3 parsecs",
           "GiB", "1 2 GiB", "0x10 GiB"]
    + ([] if name in MAY_BE_ZERO else [0, 0.0])
    + (RATE_MISTAKES if name in RATES else [])
    for name in UNITS
}  # fmt: skip
JOB_NAMES = ["", "a b", "-x", "../x", "a/b", "x" * 201, 3, True, "\u00e9", "a\nb"]


def wrong_for(name: str, value: object, rng: random.Random) -> object:
    """Return a value that no field of this name takes."""
    shapes: list[object] = [[], {}, [[1]], {"a": 1}, {"value": value}, [value, value]]
    if name not in OPTIONAL:
        shapes.append(None)
    if name in ("network", "prices"):  # there lists and mappings are short forms
        shapes = []
    values = JOB_NAMES if value == "mixed-1" else WRONG.get(name, NOT_NAMES)
    return rng.choice([*shapes, *values])


def change_a_leaf(data: Any, rng: random.Random) -> None:
    path, value = rng.choice(list(leaves(data)))
    at(data, path[:-1])[path[-1]] = wrong_for(field_of(path), value, rng)


def change_a_box(data: Any, rng: random.Random) -> None:
    paths = [path for kind in (dict, list) for path in boxes(data, kind) if path]
    path = rng.choice([p for p in paths if p[:2] != ("sources", "prices")])
    # A model may be a name, and sources may be: there a text is another valid form.
    wrong: list[object] = [3, True, 1.5]
    if path[-1] not in ("model", "sources", "network"):
        wrong.append("text")
    here = at(data, path)
    if not (isinstance(path[-1], str) and path[-1] in OPTIONAL):
        wrong.append(None)
    if isinstance(here, list):
        wrong.append({str(n): item for n, item in enumerate(here)})
    else:
        wrong.append([here])
    at(data, path[:-1])[path[-1]] = rng.choice(wrong)


def add_a_key(data: Any, rng: random.Random) -> None:
    paths = [p for p in boxes(data, dict) if p[:2] != ("sources", "prices")]
    box = at(data, rng.choice(paths))
    known = rng.choice(list(box))
    key = rng.choice([known + "s", known[::-1], known.upper(), "x" * 5000, "\u202e", "model_config",
                      "__class__", "self", "1", " " + known, "a.b", "digest"])  # fmt: skip
    if key in box:
        key += "_"
    value: object = rng.choice([1, "x", None, {}, [], Deep(60), True])
    box[key] = value


def drop_a_key(data: Any, rng: random.Random) -> None:
    found = [
        (path, key)
        for path in boxes(data, dict)
        for key in at(data, path)
        if key in REQUIRED and not (key == "source" and path == ())
    ]
    path, key = rng.choice(found)
    del at(data, path)[key]


def nest_deeply(data: Any, rng: random.Random) -> None:
    path, _ = rng.choice([leaf for leaf in leaves(data) if leaf[0][:1] != ("sources",)])
    at(data, path[:-1])[path[-1]] = Deep(rng.choice([70, 300, 50_000]))


def break_the_pool(data: Any, rng: random.Random) -> None:
    pool = data["pool"]
    offer = rng.randrange(len(pool))
    rng.choice([
        lambda: pool.append(dict(pool[offer])),
        lambda: pool.clear(),
        lambda: [o.update({k: 0 for k in ("quota", "count") if k in o}) for o in pool],
        lambda: pool[offer].update(zone="us-central1-a", region="us-central1"),
        lambda: [pool[offer].pop(k, None) for k in ("zone", "region")],
        lambda: pool[offer].update(node_type="n1-v100-4", gpu="V100-16GB", count=1, quota=1),
        lambda: [pool[offer].pop(k, None) for k in ("quota", "count")],
    ])()  # fmt: skip


def break_the_rules(data: Any, rng: random.Random) -> None:
    rng.choice([
        lambda: data["model"].update(num_kv_heads=3),
        lambda: data["model"].update(num_layers=1025),
        lambda: data["catalog"]["links"][0].update(curve={}),
        lambda: data["catalog"]["links"][0].pop("bandwidth"),
        lambda: data["catalog"]["links"][0].update(
            curve={"coefficients": [1, 2, 3], "peak_bytes_per_s": 1}
        ),
        lambda: data.update(schema_version=2),
        lambda: data["sources"].update(prices={"gcp": "a", "file": "b"}),
    ])()  # fmt: skip


def break_the_stages(data: Any, rng: random.Random) -> None:
    stages = data["stages"]
    n = rng.randrange(len(stages))
    other = {**REPLICA, "microbatch": 4}
    rng.choice([
        lambda: stages.pop(n),  # drops layers
        lambda: stages.insert(n, dict(stages[n])),  # doubles layers
        lambda: stages.reverse(),
        lambda: stages[n].update(start=stages[n]["start"] + 1),
        lambda: stages[n].update(stop=stages[n]["stop"] + 1),
        lambda: stages[n].update(stop=stages[n]["start"]),
        lambda: stages[n]["replicas"].pop(),
        lambda: stages[n].update(replicas=[*stages[n]["replicas"], REPLICA]),
        lambda: stages[n].update(replicas=[REPLICA, other]),
        lambda: data.update(num_units=rng.choice([5, 7, 2, 1026])),
        lambda: stages.clear(),
    ])()  # fmt: skip


def as_json(data: object) -> str:
    text = json.dumps(data, indent=1, default=lambda deep: f"DEEP{deep.levels}")
    return spread(text)


def spread(text: str) -> str:
    """Put nested lists where `Deep` values stand."""
    return re.sub(r'"?DEEP(\d+)"?', lambda m: "[" * int(m[1]) + "]" * int(m[1]), text)


def as_yaml(data: object) -> str:
    plain = json.loads(json.dumps(data, default=lambda deep: f"DEEP{deep.levels}"))
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.allow_unicode = True
    stream = io.StringIO()
    writer.dump(plain, stream)
    return spread(stream.getvalue())


def doubled_key(text: str, rng: random.Random) -> str:
    """Repeat one line of an indented JSON text that holds a key with a plain value."""
    lines = text.split("\n")
    rows = [n for n, line in enumerate(lines) if '": ' in line and line.rstrip(",")[-1] not in "[{"]
    row = rng.choice(rows)
    line = lines[row].rstrip(",")
    return "\n".join([*lines[:row], line + ",", *lines[row:]])


JOB_MUTATIONS: tuple[Callable[[Any, random.Random], None], ...] = (
    change_a_leaf, change_a_leaf, change_a_leaf, change_a_box, add_a_key, drop_a_key, nest_deeply,
    break_the_pool, break_the_rules,
)  # fmt: skip
PLAN_MUTATIONS: tuple[Callable[[Any, random.Random], None], ...] = (
    change_a_leaf, change_a_leaf, change_a_box, add_a_key, drop_a_key, nest_deeply,
    break_the_stages, break_the_stages,
)  # fmt: skip


def broken_text(
    document: dict[str, Any],
    mutations: tuple[Callable[[Any, random.Random], None], ...],
    rng: random.Random,
) -> str:
    """Return a document that breaks one rule, as JSON or YAML."""
    data = copy.deepcopy(document)
    if rng.random() < 0.05:
        return doubled_key(as_json(data), rng)
    rng.choice(mutations)(data, rng)
    text = as_json(data)
    return as_yaml(data) if rng.random() < 0.25 and len(text) < 10_000 else text


def garbled(text: str, rng: random.Random) -> bytes:
    """Return a text cut, flipped, shuffled, or something else altogether."""
    raw = bytearray(text.encode())
    kind = rng.randrange(8)
    if kind == 0:
        return bytes(raw[: rng.randrange(len(raw))])
    if kind == 1:
        return bytes(raw[rng.randrange(len(raw)) :])
    if kind == 2:
        return rng.randbytes(rng.randrange(2000))
    if kind == 3:
        lines = text.split("\n")
        rng.shuffle(lines)
        return "\n".join(lines).encode()
    if kind == 4:
        start = rng.randrange(len(raw))
        del raw[start : start + rng.randrange(1, 40)]
    elif kind == 5:
        start = rng.randrange(len(raw))
        raw[start:start] = raw[: rng.randrange(1, 60)]
    else:
        for _ in range(rng.randrange(1, 4)):
            raw[rng.randrange(len(raw))] = (
                rng.randrange(256)
                if kind == 6
                else ord(rng.choice("{}[],:\"'&*!|>%@`#-?\n\t 0e.\\"))
            )
    return bytes(raw)


def refusal(load: Callable[[Path], object], path: Path, raw: bytes) -> str | None:
    """Return the sentence of a refusal, None for a file that loads; anything else fails."""
    path.write_bytes(raw)
    try:
        load(path)
    except SailorError as error:
        refused = error
    else:
        return None
    sentence = str(refused)
    assert sentence.isprintable(), sentence
    assert str(path) in sentence, sentence
    assert len(sentence) < 3000, sentence
    assert not any(word in sentence for word in JARGON), sentence
    assert refused.exit_code == 2
    return sentence


JARGON = (
    "pydantic", "Input should", "Traceback", "model_type", "int_type", "string_type", "tuple",
    "function-", "Value error", "constrained",
)  # fmt: skip


def independent(raw: bytes, cls: type[Record]) -> Record:
    """Read a text with other readers: json, or ruamel.yaml's own constructor of YAML 1.2."""
    text = raw.decode()
    try:
        data = json.loads(text)
    except ValueError:
        data = YAML(typ="safe", pure=True).load(text)
    return cls.model_validate(data)


def holds_only_sound_numbers(record: Record) -> None:
    for path, value in leaves(record.model_dump(mode="json")):
        if isinstance(value, float):
            assert math.isfinite(value), path
        if isinstance(value, (int, float)) and "coefficients" not in path:
            assert value >= 0, path


@pytest.mark.parametrize("seed", range(8))
def test_a_job_that_breaks_a_rule_is_refused(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for number in range(250):
        text = broken_text(JOB, JOB_MUTATIONS, rng)
        sentence = refusal(load_job, tmp_path / "job.yaml", text.encode())
        assert sentence is not None, f"{number} loads:\n{text[:4000]}"


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_breaks_a_rule_is_refused(seed: int, tmp_path: Path) -> None:
    rng = random.Random(100 + seed)
    for number in range(250):
        text = broken_text(PLAN, PLAN_MUTATIONS, rng)
        sentence = refusal(load_plan, tmp_path / "plan.json", text.encode())
        assert sentence is not None, f"{number} loads:\n{text[:4000]}"


@pytest.mark.parametrize("seed", range(6))
def test_a_garbled_file_is_refused_or_means_what_it_says(seed: int, tmp_path: Path) -> None:
    rng = random.Random(200 + seed)
    loaded = 0
    for _ in range(200):
        is_job = rng.random() < 0.7
        document = JOB if is_job else PLAN
        raw = garbled((as_yaml if rng.random() < 0.5 else as_json)(document), rng)
        path = tmp_path / "file"
        load = load_job if is_job else load_plan
        if refusal(load, path, raw) is not None:
            continue
        loaded += 1
        record: Job | Plan = load_job(path) if is_job else load_plan(path)
        holds_only_sound_numbers(record)
        if isinstance(record, Plan):
            assert record == independent(raw, Plan)
        else:
            other = independent(raw, Job)
            assert isinstance(other, Job)
            # Paths are made absolute on loading; all else is as the text says.
            assert record.model_copy(update={"sources": other.sources}) == other
    assert loaded < 100  # most of them are no documents any more


def test_the_documents_that_are_broken_are_sound(tmp_path: Path) -> None:
    """If the base documents were refused, every test above would pass for nothing."""
    for text in (as_json(JOB), as_yaml(JOB)):
        assert refusal(load_job, tmp_path / "job", text.encode()) is None
        assert load_job(tmp_path / "job").pool[1].count == 3
    for text in (as_json(PLAN), as_yaml(PLAN)):
        assert refusal(load_plan, tmp_path / "plan", text.encode()) is None
        assert load_plan(tmp_path / "plan").samples == 32


def test_bad_files_on_the_command_line_print_no_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(300)
    job, good = tmp_path / "job.yaml", tmp_path / "good.json"
    good.write_text(as_json(PLAN))
    for number in range(60):
        job.write_text(broken_text(JOB, JOB_MUTATIONS, rng))
        verb = ("plan", str(job)) if number % 2 else ("simulate", str(job), str(good))
        assert run(verb) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"sailor: {job}")
        assert err.count("\n") == 1
        assert len(err) > len(str(job)) + 20


def test_records_of_other_kinds_are_no_jobs_and_no_plans(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for cls in (Problem, Result, Plan):
        schema = json.dumps(cls.model_json_schema())
        assert refusal(load_job, path, schema.encode()) is not None
        assert refusal(load_plan, path, schema.encode()) is not None
    assert refusal(load_job, path, as_json(PLAN).encode()) is not None
    assert refusal(load_plan, path, as_json(JOB).encode()) is not None
