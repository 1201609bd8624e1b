"""Jobs so small that every plan can be tried."""

from __future__ import annotations

from collections.abc import Sequence

from sailor.model.job import Job


def tiny_jobs() -> Sequence[Job]:
    """Return jobs whose whole search space can be tried out; the last one has no plan.

    OPT-350M on one to four GPUs, with prices, links and egress of their own: they need no price
    list. One kind; two kinds; two zones, at a least speed; and more memory than there is.
    """
    a100 = {"zone": "us-central1-a", "node_type": "a2-highgpu-1g"}
    v100 = {"zone": "us-central1-a", "node_type": "n1-v100-2"}
    far = {"zone": "us-west1-b", "node_type": "n1-v100-2"}
    few = {"search_space": {"microbatch": [1, 4]}}
    cheap = {"objective": "min_cost", "constraints": {"min_iterations_per_s": 0.02}}
    return (
        _tiny_job("one-kind", [{**a100, "count": 2}]),
        _tiny_job("two-kinds", [{**a100, "count": 2}, {**v100, "count": 1}], **few),
        _tiny_job("two-zones", [{**v100, "count": 1}, {**far, "count": 1}], **few, **cheap),
        _tiny_job("nothing-fits", [{**v100, "count": 1}], model="opt-30b"),
    )


def _tiny_job(name: str, pool: Sequence[object], **wishes: object) -> Job:
    zones = ("us-central1-a", "us-west1-b")
    told = {"source": "sailor.testing", "as_of": "2026-01-01"}
    usd_per_hour = {"a2-highgpu-1g": 3.6, "n1-v100-2": 5.0}
    pairs = [(src, dst) for src in zones for dst in zones]
    return Job.model_validate(
        {
            "name": name,
            "model": "opt-350m",
            "training": {"global_batch": 16, "precision": "fp32"},
            "pool": pool,
            "catalog": {
                "prices": [
                    {"zone": zone, "node_type": node, "market": "on_demand",
                     "usd_per_hour": usd, **told}
                    for zone in zones for node, usd in usd_per_hour.items()
                ],
                "egress": [
                    {"src": src, "dst": dst, "usd_per_byte": 0.0 if src == dst else 2e-11, **told}
                    for src, dst in pairs
                ],
                "links": [
                    {"src": src, "dst": dst, "latency_s": 1e-4 if src == dst else 3e-2,
                     "bandwidth": 3e9 if src == dst else 3e8, "source": "sailor.testing"}
                    for src, dst in pairs
                ],
            },
            **wishes,
        }
    )  # fmt: skip
