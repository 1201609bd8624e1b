"""`sailor profile`: layer profiles, links and clusters, measured here or imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from sailor.cli.options import OUT_FILE, probe_time_limit
from sailor.cli.output import check_writable, note
from sailor.cli.profile_cluster import cluster
from sailor.cli.session import Session
from sailor.errors import InputError

if TYPE_CHECKING:
    from sailor.model.arch import ModelSpec
    from sailor.model.execution import Precision

SOURCES = ("sosp25",)


@click.group()
def command() -> None:
    """Layer profiles, links and clusters: measure or import them."""


command.add_command(cluster)


@command.command("import", short_help="Import measured profiles of another project.")
@click.option("--from", "origin", type=click.Choice(SOURCES), required=True, help="Whose files.")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option("--out", type=OUT_FILE, required=True, metavar="FILE", help="The store to write.")
def import_(origin: str, folder: Path, out: Path) -> None:
    """Import measured profiles of another project into a file of sailor's own format.

    sosp25: the layer times, memory and bandwidth files of the SOSP'25 artifact. A job names the
    written FILE by `sources: {profiles: {store: FILE}}`.
    """
    from sailor.profiling.sosp25 import import_sosp25

    del origin  # there is one so far, and click has refused others
    check_writable(out)
    store = import_sosp25(folder)
    store.save(out)
    for remark in store.remarks:
        note(remark)
    note(
        f"{len(store.profiles)} layer profiles, {len(store.footprints)} footprints and "
        f"{len(store.links)} links of {len(store.models)} models written to {out}"
    )


def _numbers(_ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Read whole numbers with commas."""
    parts = [part.strip() for part in value.split(",")]
    if not all(part.isascii() and part.isdigit() and 0 < int(part) <= 65536 for part in parts):
        raise click.BadParameter(f"{value!r} is not a list of numbers above 0, such as 1,2,4")
    return tuple(dict.fromkeys(int(part) for part in parts))


@command.command("measure", short_help="Time a model's layers on this machine's device.")
@click.argument("model", metavar="MODEL")
@click.option(
    "--out",
    type=OUT_FILE,
    required=True,
    metavar="FILE",
    help="The store to write; figures of a store that is there are kept or replaced.",
)
@click.option(
    "--tp",
    "tps",
    default="1",
    show_default=True,
    callback=_numbers,
    metavar="N,N",
    help="Tensor-parallel degrees: the shapes of one rank, its communication not included.",
)
@click.option(
    "--microbatch",
    "microbatches",
    default="1,2",
    show_default=True,
    callback=_numbers,
    metavar="N,N",
    help="Samples of a microbatch.",
)
@click.option(
    "--precision",
    type=click.Choice(("fp32", "fp16", "bf16")),
    help="Of weights and activations; by default the job's, or fp32.",
)
@click.option(
    "--device", default="cpu", show_default=True, metavar="NAME", help="cpu, cuda, cuda:1 ..."
)
@click.option(
    "--gpu",
    metavar="NAME",
    help="The device's name in a job's catalog; by default cpu, or what the driver calls it.",
)
@click.option(
    "--attention",
    type=click.Choice(("sdpa", "eager")),
    default="sdpa",
    show_default=True,
    help="torch's fused attention, or score matrices written out.",
)
@click.option(
    "--activation",
    type=click.Choice(("gelu", "relu", "silu")),
    help="By default silu where the feed-forward part is gated, else gelu.",
)
@click.option(
    "--dropout",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    metavar="P",
    help="Probability, after the embedding and in each block.",
)
@click.option(
    "--warmup",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    metavar="N",
    help="Passes before those that count.",
)
@click.option(
    "--repeats",
    type=click.IntRange(3, 10000),
    default=10,
    show_default=True,
    metavar="N",
    help="Passes whose median counts; fewer where they take longer than a minute.",
)
@click.option(
    "--profiler",
    "names",
    multiple=True,
    metavar="NAME",
    default=("torch", "counted"),
    help="Who measures; may be given several times. By default torch (times) and counted (bytes).",
)
@click.pass_obj
def measure(
    session: Session,
    model: str,
    out: Path,
    tps: tuple[int, ...],
    microbatches: tuple[int, ...],
    precision: Precision | None,
    device: str,
    gpu: str | None,
    attention: Literal["sdpa", "eager"],
    activation: Literal["gelu", "relu", "silu"] | None,
    dropout: float,
    warmup: int,
    repeats: int,
    names: tuple[str, ...],
) -> None:
    """Time the layers of a model on this machine's device, and count the bytes that they keep.

    MODEL is a preset's name, a job file, a file that describes one model as a job does, or a
    config.json of Hugging Face. A job names the written FILE by
    `sources: {profiles: {store: FILE}}`. A size for which the memory doesn't suffice is left out.
    """
    from sailor.interfaces import ProfileRequest, UnitStyle
    from sailor.profiling.merge import add_to_file, check_addable
    from sailor.profiling.profilers import device_name, profiled

    check_writable(out)
    spec, of_job = _model(model)
    check_addable(out, (spec,))
    registry = session.registry()
    profilers = [registry.profiler(name, where="--profiler") for name in dict.fromkeys(names)]
    request = ProfileRequest(
        model=spec,
        precision=precision or of_job or "fp32",
        gpu=gpu or device_name(device),
        tps=tps,
        microbatches=microbatches,
        device=device,
        style=UnitStyle(attention, activation, dropout),
        warmup=warmup,
        repeats=repeats,
    )
    found = profiled(request, profilers, lambda progress: note(progress.message))
    for remark in found.remarks:
        note(remark)
    if not found.profiles and not found.footprints:
        raise InputError("nothing could be measured", where=str(out), hint="see the remarks above")
    add_to_file(out, found)
    note(
        f"{len(found.profiles)} layer profiles of {spec.name} on {request.gpu} "
        f"({request.precision}) and {len(found.footprints)} footprints written to {out}"
    )


@command.command("network", short_help="Time messages between two machines or zones.")
@click.option(
    "--out",
    type=OUT_FILE,
    metavar="FILE",
    help="The store to write on rank 0; figures of a store that is there are kept or replaced.",
)
@click.option("--src", required=True, metavar="ZONE", help="The zone of rank 0.")
@click.option("--dst", required=True, metavar="ZONE", help="The zone of rank 1.")
@click.option("--src-gpu", metavar="NAME", help="For links of this GPU type only.")
@click.option("--dst-gpu", metavar="NAME", help="For links of this GPU type only.")
@click.option(
    "--init",
    metavar="ADDRESS",
    help="tcp://HOST:PORT of rank 0. Without it both processes run here, over loopback.",
)
@click.option(
    "--rank",
    type=click.IntRange(0, 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Which of the two this machine is, with --init.",
)
@click.option(
    "--backend",
    type=click.Choice(("gloo", "nccl")),
    default="gloo",
    show_default=True,
    help="gloo sends from main memory, nccl from GPU to GPU.",
)
@click.option(
    "--max-bytes",
    type=click.IntRange(2**18, 2**30),
    default=2**30,
    show_default=True,
    metavar="N",
    help="The largest message; the smallest is 64 KiB.",
)
@probe_time_limit
def network(
    out: Path | None,
    src: str,
    dst: str,
    src_gpu: str | None,
    dst_gpu: str | None,
    init: str | None,
    rank: int,
    backend: str,
    max_bytes: int,
    time_limit: float,
) -> None:
    """Time messages between two processes, and write the link's latency and bandwidth curve.

    Start it on a machine of each zone with the same --init, once with --rank 0 and once with
    --rank 1. A job names the written FILE by `sources: {network: {store: FILE}}`.
    """
    from sailor.profiling.merge import add_to_file, check_addable
    from sailor.profiling.network_probe import NetworkRequest, probe

    if out is None and rank == 0:
        raise InputError(
            "rank 0 has the figures and no file to write them to", hint="give --out FILE"
        )
    if out is not None:
        check_writable(out)
        check_addable(out)
    request = NetworkRequest(src, dst, src_gpu, dst_gpu, init, rank, backend, max_bytes, time_limit)
    found = probe(request)
    if found is None or out is None:
        note("done; rank 0 writes the figures")
        return
    add_to_file(out, found)
    for remark in found.remarks:
        note(remark)
    for link in found.links:
        rate = link.curve.peak_bytes_per_s if link.curve else float(link.bandwidth or 0)
        note(
            f"{link.src} to {link.dst}: latency {link.latency_s * 1e6:.0f} us, "
            f"up to {rate / 1e9:.3g} GB/s"
        )
    note(f"{len(found.links)} links written to {out}")


def _model(name: str) -> tuple[ModelSpec, Precision | None]:
    """Return the model of a preset's name or a file, and a job's precision."""
    from sailor.cli.jobs import JobFile
    from sailor.model.arch import ModelSpec
    from sailor.model.files import load_document
    from sailor.model.huggingface import read_config
    from sailor.model.parse import parse_record
    from sailor.model.presets import preset, presets
    from sailor.resolve.problem import resolve_arch

    if name in presets() or not ("/" in name or "." in name or Path(name).exists()):
        return preset(name), None
    document = load_document(name)
    if "model_type" in document.data:
        return read_config(Path(name)), None
    if "pool" in document.data or "training" in document.data:
        file = JobFile(document)
        return file.placed(lambda: resolve_arch(file.job)), file.job.training.precision
    return parse_record(ModelSpec, document), None
