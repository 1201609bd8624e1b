"""The launch of a plan on several hosts under sailor's own runtime: text, nothing is started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from sailor.interfaces import LaunchSpec
from sailor.model.catalog import Catalog
from sailor.model.job import Job
from sailor_megatron.hosts import pack
from sailor_megatron.run_folder import RUN_FILE, RunSpec

MASTER_PORT = 29500


def render(job: Job, run: RunSpec, folder: Path) -> LaunchSpec:
    """Return the files of a run, and one torchrun command a host in node-rank order.

    The folder must lie on every host, and PET_MASTER_ADDR must name host 0.
    """
    catalog = Catalog.builtin().with_additions(job.catalog)
    names = {replica.node_type for stage in run.plan.stages for replica in stage.replicas}
    hosts = pack(
        run.plan, {name: catalog.node(name, where="plan").num_gpus for name in sorted(names)}
    )
    return LaunchSpec(
        files={
            RUN_FILE: run.model_dump_json(indent=1) + "\n",
            "hosts.json": json.dumps([asdict(host) for host in hosts], indent=1) + "\n",
        },
        commands=tuple(
            (
                "torchrun",
                f"--nnodes={len(hosts)}",
                f"--node-rank={host.node_rank}",
                f"--nproc-per-node={host.num_ranks}",
                f"--master-port={MASTER_PORT}",
                "-m",
                "sailor_megatron.worker",
                str(folder),
            )
            for host in hosts
        ),
        env={},
    )
