"""Tiny jobs that `exhaustive` can enumerate, for the tests of the planners."""

from __future__ import annotations

from datetime import date
from typing import Any

TINY_MODEL = {
    "name": "tiny", "num_layers": 2, "hidden": 1024, "ffn": 4096, "num_heads": 16,
    "num_kv_heads": 16, "head_dim": 64, "vocab": 50272, "seq_len": 1024, "tied_embeddings": False,
}  # fmt: skip


def tiny_job(
    *,
    a100: int,
    v100: int,
    zones: int,
    batch: int,
    objective: str,
    cost_model: str = "sailor",
    **more: Any,
) -> dict[str, Any]:
    """A job of four units over at most two GPU types and three zones, priced by hand."""
    names = ["us-central1-a", "us-central1-b", "us-central1-c"][:zones]
    a2, n1 = ["a2-highgpu-1g", "a2-highgpu-2g"], ["n1-v100-1", "n1-v100-2"]
    pool: list[dict[str, Any]] = [
        {"zone": zone, "gpu": "A100-40GB", "quota": a100, "node_types": a2} for zone in names
    ]
    pool.append({"zone": names[0], "gpu": "V100-16GB", "quota": v100, "node_types": n1})
    prices = [
        {"zone": zone, "node_type": node, "market": "on_demand", "usd_per_hour": usd * gpus,
         "source": "test", "as_of": date(2026, 1, 1)}
        for zone in names
        for node, usd, gpus in (
            ("a2-highgpu-1g", 3.7, 1), ("a2-highgpu-2g", 3.7, 2),
            ("n1-v100-1", 2.8, 1), ("n1-v100-2", 2.8, 2),
        )
    ]  # fmt: skip
    egress = [
        {"src": a, "dst": b, "usd_per_byte": 0.0 if a == b else 1e-11, "source": "test",
         "as_of": date(2026, 1, 1)}
        for a in names for b in names
    ]  # fmt: skip
    return {
        "name": "tiny",
        "model": TINY_MODEL,
        "training": {"global_batch": batch, "precision": "fp32"},
        "pool": [offer for offer in pool if offer["quota"]],
        "objective": objective,
        "cost_model": cost_model,
        "sources": {"prices": "file", "profiles": "analytic", "network": "measured",
                    "availability": "static"},
        "catalog": {"prices": prices, "egress": egress},
        "search_space": {"tp": [1, 2], "microbatch": [1, 2]},
        **more,
    }  # fmt: skip
