"""The jobs of the benchmark page: the SOSP'25 ones and larger or harder pools."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
JOBS = ROOT / "examples" / "jobs" / "sosp25"
PRICES = JOBS / "prices.yaml"
GPU_TYPES = ("A100-40GB", "V100-16GB", "GH200-96GB")
ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f")
FIVE_ZONES = ("us-central1-a", "us-central1-b", "us-central1-c", "us-west1-a", "us-west1-b")


@dataclass(frozen=True)
class Case:
    """One job, how long it may be searched, and which table it is in."""

    name: str
    section: str
    job: Any  # a path, or a document
    cpu_s: float | None = None  # of the search, all its processes together; None: no limit
    wall_s: float | None = None
    planner: str = "auto"
    gap: float | None = None  # that is wanted
    processes: int = 2


def cases() -> list[Case]:
    """Return all cases, in the order of the page."""
    found = [
        Case(f"{path.stem}/{planner}", "sosp25", path, cpu_s=20.0, planner=planner, processes=1)
        for path in sorted(JOBS.glob("*-fig*.yaml"))
        for planner in ("dynamic", "auto")
    ]
    found += [
        Case(name, "certificates", job, wall_s=wall_s, planner="cpsat", gap=gap)
        for name, job, gap, wall_s in _certificates()
    ]
    found += [
        Case(f"{name}/{planner}", "generated", job, cpu_s=20.0, planner=planner, processes=1)
        for name, job in generated(24)
        for planner in ("dynamic", "auto")
    ]
    found += [
        Case(f"{name} under sailor/{planner}", "sailor", sailor_model(name), cpu_s=40.0,
             planner=planner)
        for name in (
            "opt350-fig7-128", "gptneo27-fig7-128", "opt350-fig8b-32+96", "gptneo27-fig8b-32+96",
            "opt350-fig8b-128+384", "gptneo27-fig8b-128+384",
        )
        for planner in ("dynamic", "auto")
    ]  # fmt: skip
    return found


def _certificates() -> Iterator[tuple[str, Any, float, float]]:
    """Yield name, job, the gap that is wanted, and within how many seconds."""
    for model in ("opt350", "gptneo27"):
        yield f"{model}, 128 A100", JOBS / f"{model}-fig7-128.yaml", 0.001, 3.0
    mixed = "128 A100 and 384 V100"
    yield f"opt350, {mixed}", JOBS / "opt350-fig8b-128+384.yaml", 0.001, 10.0
    yield f"gptneo27, {mixed}", JOBS / "gptneo27-fig8b-128+384.yaml", 0.005, 20.0
    for model in ("opt350", "gptneo27"):
        yield f"{model}, 128 A100 in five zones", JOBS / f"{model}-fig10-5x128.yaml", 0.01, 60.0
    for model in ("opt-350m", "gpt-neo-2.7b"):
        yield f"{model}, 256 of each of three types", three_types(model, 256), 0.01, 40.0
    for rate in (1 / 12, 1 / 6, 1 / 3):
        job = two_zones("min_cost", min_iterations_per_s=rate)
        yield f"cheapest at {rate:g} it/s", job, 0.02, 60.0
    for usd in (0.55, 0.65):
        job = two_zones("max_throughput", max_usd_per_iteration=usd)
        yield f"fastest for {usd:.2f} USD", job, 0.02, 60.0
    for gpus, batch in ((2048, 2048), (10240, 8192)):
        for model in ("opt-350m", "opt-30b"):
            name = f"{model}, {gpus:,} GPUs, 3 types, 5 zones"
            yield name, everywhere(model, gpus, batch), 0.15, 60.0
    yield "gpt-neo-2.7b, 128 + 384, equal shares", shares(unequal=False), 0.02, 60.0
    yield "gpt-neo-2.7b, 128 + 384, unequal shares", shares(unequal=True), 0.02, 60.0


def _job(
    name: str,
    model: str,
    batch: int,
    pool: list[dict[str, Any]],
    cost_model: str = "published",
    **more: Any,
) -> Any:
    return {
        "name": name,
        "model": model,
        "training": {"global_batch": batch, "precision": "fp32"},
        "pool": pool,
        "cost_model": cost_model,
        "sources": {"prices": {"file": str(PRICES)}, "profiles": "embedded",
                    "network": ["measured", "zones"]},
        "catalog": {"nodes": [{"name": "a-gh200-4", "provider": "gcp", "gpu": "GH200-96GB",
                               "num_gpus": 4, "intra_node_bandwidth": "150 GB/s",
                               "nic_bandwidth": "25 GB/s",
                               "source": "assumed: four to a node"}]},
        **more,
    }  # fmt: skip


def three_types(model: str, gpus: int) -> Any:
    """Return a job over so many GPUs of each of three types in one zone."""
    pool = [{"zone": FIVE_ZONES[0], "gpu": gpu, "quota": gpus} for gpu in GPU_TYPES]
    return _job("three-types", model, 2048, pool)


def everywhere(model: str, gpus: int, batch: int) -> Any:
    """Return a job over three types in five zones of two regions, whose egress is priced."""
    each = gpus // (len(FIVE_ZONES) * 8)
    pool = [
        {"zone": zone, "gpu": gpu, "quota": each * parts}
        for zone in FIVE_ZONES
        for gpu, parts in zip(GPU_TYPES, (3, 4, 1), strict=True)
    ]
    return _job("everywhere", model, batch, pool)


def two_zones(objective: str, **limits: float) -> Any:
    """Return a job over 128 A100 and 128 V100 in each of two zones."""
    pool = [
        {"zone": zone, "gpu": gpu, "quota": 128} for zone in FIVE_ZONES[:2] for gpu in GPU_TYPES[:2]
    ]
    return _job("two-zones", "opt-350m", 2048, pool, objective=objective, constraints=limits)


def shares(*, unequal: bool) -> Any:
    """Return GPT-Neo over 128 A100 and 384 V100 with or without unequal microbatch shares.

    Under cost model `sailor`: in `published` the slowest pipeline's pace is everybody's.
    """
    pool = [
        {"zone": FIVE_ZONES[0], "gpu": gpu, "quota": quota}
        for gpu, quota in zip(GPU_TYPES, (128, 384), strict=False)
    ]
    return _job("shares", "gpt-neo-2.7b", 2048, pool, cost_model="sailor",
                search_space={"microbatch_shares": unequal})  # fmt: skip


def generated(count: int) -> Iterator[tuple[str, Any]]:
    """Yield jobs that nobody chose: one zone of two types, up to four zones, two of two types."""
    rng = random.Random(1)
    for number in range(count):
        model = rng.choice(("opt-350m", "gpt-neo-2.7b"))
        zones = rng.choice((1, 1, 2, 3, 4))
        types = GPU_TYPES[: 2 if zones == 1 or (zones == 2 and rng.random() < 0.7) else 1]
        quotas = [
            rng.choice((16, 24, 32, 48, 64, 96, 128)),
            rng.choice((16, 32, 64, 128, 192, 256, 384)),
        ]
        pool = [
            {"zone": zone, "gpu": gpu, "quota": quota}
            for zone in ZONES[:zones]
            for gpu, quota in zip(types, quotas, strict=False)
        ]
        more: dict[str, Any] = {"objective": rng.choice(("max_throughput",) * 2 + ("min_cost",))}
        if more["objective"] == "min_cost":
            more["constraints"] = {"min_iterations_per_s": rng.choice((0.02, 0.05))}
        offer = " + ".join(
            f"{quota} {gpu.split('-')[0]}" for gpu, quota in zip(types, quotas, strict=False)
        )
        batch = rng.choice((512, 1024, 2048))
        name = f"{number + 1}: {model}, {zones} x ({offer}), batch {batch}, {more['objective']}"
        yield name, _job(f"generated-{number + 1}", model, batch, pool, **more)


def sailor_model(name: str) -> Any:
    """Return a SOSP'25 job under sailor's own cost model."""
    from sailor.model.files import load_document

    data = dict(load_document(JOBS / f"{name}.yaml").data)
    data["sources"] = {**data["sources"], "prices": {"file": str(PRICES)}}
    return {**data, "cost_model": "sailor"}
