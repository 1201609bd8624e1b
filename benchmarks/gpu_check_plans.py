"""The model, the plans and the job of gpu_check."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch

from sailor.model.arch import ModelSpec
from sailor.model.job import Job
from sailor.model.plan import Plan, Replica, Stage

GPU, NODE, ZONE = "device", "machine", "here"
MICROBATCH, COUNT = 2, 4  # of each of two pipelines; the one rank has both pipelines' samples


def spec_of(device: torch.device) -> ModelSpec:
    """Return a model of which six ranks fit: 1.3 B parameters, 0.4 B, 0.2 B, or a small one."""
    free = 0 if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if device.type == "cpu":
        layers, hidden, vocab, positions = 4, 256, 1024, 128
    elif free > 110 * 2**30:
        layers, hidden, vocab, positions = 24, 2048, 50304, 2048
    elif free > 35 * 2**30:
        layers, hidden, vocab, positions = 24, 1024, 50304, 1024
    else:
        layers, hidden, vocab, positions = 12, 768, 50304, 512
    return ModelSpec(
        name="gpu-check", num_layers=layers, hidden=hidden, ffn=4 * hidden,
        num_heads=hidden // 64, num_kv_heads=hidden // 64, head_dim=64, vocab=vocab,
        seq_len=positions, max_positions=positions,
    )  # fmt: skip


def replica(tp: int, count: int) -> Replica:
    return Replica(
        gpu=GPU, node_type=NODE, zone=ZONE, tp=tp, microbatch=MICROBATCH, num_microbatches=count
    )


def plan_of(spec: ModelSpec, kind: str) -> Plan:
    """Return the plan of one rank, or the mixed one of six; both take the same samples."""
    if kind == "one":
        stages = [Stage(start=0, stop=spec.num_units, replicas=(replica(1, 2 * COUNT),))]
    else:
        middle = 1 + spec.num_layers // 2
        stages = [
            Stage(start=0, stop=middle, replicas=(replica(2, COUNT), replica(1, COUNT))),
            Stage(
                start=middle, stop=spec.num_units, replicas=(replica(1, COUNT), replica(2, COUNT))
            ),
        ]
    return Plan(
        model=spec.name,
        num_units=spec.num_units,
        global_batch=2 * COUNT * MICROBATCH,
        stages=tuple(stages),
    )


def job_of(
    spec: ModelSpec, device: torch.device, speed: Mapping[str, float], store: Path | None
) -> Job:
    """Return a job whose only node is this machine; without a store times are modelled."""
    memory = (
        torch.cuda.get_device_properties(device).total_memory
        if device.type == "cuda"
        else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    )
    source, rate = "measured by gpu_check", speed["bytes"] / 4
    return Job.model_validate(
        {
            "name": "gpu-check",
            "model": spec.model_dump(),
            "training": {
                "global_batch": 2 * COUNT * MICROBATCH, "precision": "bf16", "dropout": False,
            },
            "pool": [{"zone": ZONE, "node_type": NODE, "count": 1}],
            "sources": {
                "profiles": [{"store": str(store)}, "analytic"] if store else ["analytic"],
                "network": "zones",
            },
            "catalog": {
                "gpus": [{
                    "name": GPU, "memory_bytes": memory, "marketed_gib": memory // 2**30,
                    "fp32_flop_per_s": speed["fp32"], "half_flop_per_s": speed["half"],
                    "memory_bandwidth": speed["bytes"], "source": source,
                }],
                "nodes": [{
                    "name": NODE, "provider": "local", "gpu": GPU, "num_gpus": 8,
                    "intra_node_bandwidth": rate, "nic_bandwidth": rate, "source": source,
                }],
                "zones": [{"name": ZONE, "region": ZONE, "provider": "local"}],
                "prices": [{
                    "zone": ZONE, "node_type": NODE, "market": "on_demand", "usd_per_hour": 1.0,
                    "source": "made up", "as_of": "2026-08-01",
                }],
                "egress": [{
                    "src": ZONE, "dst": ZONE, "usd_per_byte": 0, "source": "one machine",
                    "as_of": "2026-08-01",
                }],
                "links": [{
                    "src": ZONE, "dst": ZONE, "latency_s": 20e-6, "bandwidth": rate,
                    "source": "made up",
                }],
            },
        }
    )  # fmt: skip
