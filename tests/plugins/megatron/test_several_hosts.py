"""The rendered commands of a plan on two hosts, started as two torchrun agents of this machine."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from test_measured_run import job, plan

from sailor_megatron.launcher import LocalRun, write_run
from sailor_megatron.options import RunOptions
from sailor_megatron.render_run import render
from sailor_megatron.run_folder import METRICS_FILE, RunSpec, model_of, worker_file


def losses(folder: Path) -> list[float]:
    rows = csv.DictReader((folder / METRICS_FILE).read_text().splitlines())
    return [float(row["loss"]) for row in rows]


def test_a_node_of_two_gpus_and_one_of_one_are_two_commands() -> None:
    run = RunSpec(spec=model_of(job()), plan=plan(), options=RunOptions(), steps=2, device="cpu")
    launch = render(job(), run, Path("/shared/run"))
    start = ("torchrun", "--nnodes=2")
    end = ("--master-port=29500", "-m", "sailor_megatron.worker", "/shared/run")
    assert launch.commands == (
        (*start, "--node-rank=0", "--nproc-per-node=2", *end),
        (*start, "--node-rank=1", "--nproc-per-node=1", *end),
    )
    assert launch.env == {"SAILOR_DEVICE": "cpu"}
    assert sorted(launch.files) == ["hosts.json", "job.json", "run.json"]
    assert launch == render(job(), run, Path("/shared/run"))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_two_torchrun_agents_train_as_one_launcher_does(tmp_path: Path) -> None:
    run = RunSpec(spec=model_of(job()), plan=plan(), options=RunOptions(), steps=3, device="cpu")
    alone, hosts = tmp_path / "alone", tmp_path / "hosts"
    write_run(alone, run)
    LocalRun(alone, run).run(lambda _metrics: None)

    launch = render(job(), run, hosts)
    hosts.mkdir()
    for name, text in launch.files.items():
        (hosts / name).write_text(text)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = f"--master-port={free.getsockname()[1]}"
    environment = {**os.environ, **launch.env, "PET_MASTER_ADDR": "127.0.0.1"}
    agents = []
    for number, (_torchrun, *arguments) in enumerate(launch.commands):
        mine = [port if part.startswith("--master-port") else part for part in arguments]
        with (tmp_path / f"agent-{number}.log").open("w") as log:
            agents.append(
                subprocess.Popen(
                    [sys.executable, "-m", "torch.distributed.run", *mine],
                    env=environment, stdout=log, stderr=log,
                )
            )  # fmt: skip
    try:
        codes = [agent.wait(150) for agent in agents]
    finally:
        for agent in agents:
            agent.terminate()  # an agent ends its workers
        for agent in agents:
            agent.wait()
    assert codes == [0, 0], (tmp_path / "agent-0.log").read_text()[-2000:]
    # An agent with one worker gives it all cores, and threads add in another order.
    assert losses(hosts) == pytest.approx(losses(alone), rel=1e-5)
    assert all(worker_file(hosts, rank).exists() for rank in range(3))
