"""The launch of a plan on several hosts under sailor's own runtime: text, nothing is started."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from sailor.interfaces import LaunchSpec
from sailor.model.job import Job
from sailor_megatron.launcher import device_environment
from sailor_megatron.run_folder import JOB_FILE, RUN_FILE, RunSpec
from sailor_megatron.uniform_plans import hosts_of, torchrun


def render(job: Job, run: RunSpec, folder: Path) -> LaunchSpec:
    """Return the files of a run, and one torchrun command a host in node-rank order.

    The folder must lie on every host, and PET_MASTER_ADDR must name host 0.
    """
    hosts = hosts_of(job, run.plan)
    return LaunchSpec(
        files={
            RUN_FILE: run.model_dump_json(indent=1) + "\n",
            JOB_FILE: job.model_dump_json(indent=1) + "\n",
            "hosts.json": json.dumps([asdict(host) for host in hosts], indent=1) + "\n",
        },
        commands=tuple(
            (*torchrun(host, len(hosts)), "-m", "sailor_megatron.worker", str(folder))
            for host in hosts
        ),
        env=dict(device_environment(run.device)),
    )
