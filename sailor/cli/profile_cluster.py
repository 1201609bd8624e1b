"""`sailor profile cluster`: what a job says of its cluster, measured."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sailor.cli.options import OUT_FILE, probe_time_limit
from sailor.cli.output import check_writable, data, deliver, note
from sailor.errors import InputError

if TYPE_CHECKING:
    from sailor.model.hardware import GpuType, NodeType
    from sailor.profiling.cluster_probe import ClusterProbe


@click.command("cluster", short_help="Measure what a job says of its cluster.")
@click.option(
    "--out",
    type=OUT_FILE,
    metavar="FILE",
    help="The YAML file to write on machine 0: the `cluster:` of a job.",
)
@click.option(
    "--node-type", required=True, metavar="NAME", help="What this machine is in the catalogue."
)
@click.option(
    "--job",
    type=click.Path(path_type=Path),
    metavar="JOB",
    help="A job whose catalogue has the node type.",
)
@click.option(
    "--device",
    type=click.Choice(("cpu", "cuda")),
    default="cuda",
    show_default=True,
    help="cuda: NCCL between GPUs, and the host's launches. cpu: gloo, no launches.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    metavar="N",
    help="Of each machine, one a GPU; by default as many as the node type has GPUs.",
)
@click.option(
    "--init",
    metavar="ADDRESS",
    help="tcp://HOST:PORT of machine 0, for nic_share. Without it one machine is measured.",
)
@click.option(
    "--machine",
    type=click.IntRange(0, 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Which of the two this machine is, with --init.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(2**18, 2**30),
    default=2**28,
    show_default=True,
    metavar="N",
    help="The largest message; the smallest is 64 KiB.",
)
@probe_time_limit
def cluster(
    out: Path | None,
    node_type: str,
    job: Path | None,
    device: str,
    processes: int | None,
    init: str | None,
    machine: int,
    max_bytes: int,
    time_limit: float,
) -> None:
    """Measure the shares of bandwidth and the host's speed that a job's `cluster:` states.

    Times all-reduces of the GPUs of this machine (with --init and --machine also of two machines)
    and the host's launches, and writes the figures as a piece of a job file. What can't be measured
    here is left out, with the reason.
    """
    from sailor.profiling.cluster_probe import ClusterRequest, probe

    if out is None and machine == 0:
        raise InputError(
            "machine 0 has the figures and no file to write them to", hint="give --out FILE"
        )
    check_writable(out)
    node, gpu = _node_of(node_type, job)
    found = probe(
        ClusterRequest(
            node, gpu, device, processes or node.num_gpus, init, machine, max_bytes, time_limit
        )
    )
    if found is None or out is None:
        note("done; machine 0 writes the figures")
        return
    _deliver(found, node.name, out)


def _node_of(name: str, job: Path | None) -> tuple[NodeType, GpuType]:
    """Return a node type of the catalogue, a job's own entries included, and its GPU type."""
    from sailor.cli.jobs import JobFile
    from sailor.model.catalog import Catalog

    catalog = Catalog.builtin()
    if job is not None:
        catalog = catalog.with_additions(JobFile.load(str(job)).job.catalog)
    node = catalog.node(name, where="--node-type")
    return node, catalog.gpu(node.gpu, where=f"node type {name}")


def _deliver(found: ClusterProbe, node_type: str, out: Path) -> None:
    """Write the piece of a job file, and show medians and figures."""
    from sailor.profiling.cluster_snippet import figure_rows, message_rows, snippet
    from sailor.report.layout import blocks, section, table

    deliver(snippet(found, node_type, datetime.now().astimezone().date()), out)
    messages = table(
        ("all-reduce", "KiB", "median ms", "spread", "GB/s"), message_rows(found), left="lrrrr"
    )
    figures = table(
        ("figure", "here", "default", "spread", "what it is"), figure_rows(found), left="lrrrl"
    )
    data(
        blocks(
            section("Medians by message size", messages) if found.messages else "",
            section("Figures of this cluster", figures),
        )
    )
    for remark in found.remarks:
        note(remark)
    note(f"{len(found.figures)} figures written to {out}: paste them into a job file")
