"""The command `sailor train`."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sailor.model.estimate import Estimate
    from sailor.model.job import Job
    from sailor_megatron.run_folder import RunSpec


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("plan", metavar="PLAN")
@click.option(
    "--steps",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    metavar="N",
    help="Iterations to run.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Text to train on, byte by byte. Without it: Python's own help topics.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of logs, metrics and checkpoints. Default: runs/JOB-TIME.",
)
@click.option(
    "--learning-rate",
    type=click.FloatRange(0, min_open=True),
    default=1e-3,
    show_default=True,
    metavar="X",
    help="Adam's, after --warmup-steps.",
)
@click.option(
    "--warmup-steps",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    metavar="N",
    help="Steps over which the learning rate rises.",
)
@click.option(
    "--clip-norm",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="X",
    help="Largest norm of the whole gradient; 0: no limit.",
)
@click.option(
    "--dropout",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    metavar="P",
    help="Probability of dropout, after the embedding and on a block's outputs.",
)
@click.option(
    "--attention-dropout",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    metavar="P",
    help="Probability of dropout, of attention's weights.",
)
@click.option(
    "--precision",
    type=click.Choice(("fp64", "fp32", "bf16", "fp16")),
    help="Instead of the job's precision.",
)
@click.option("--recompute", is_flag=True, help="Keep no activations inside of blocks.")
@click.option("--zero1", is_flag=True, help="Split optimizer states over like ranks (ZeRO-1).")
@click.option(
    "--stages",
    type=click.Choice(("torch", "megatron", "auto")),
    default="torch",
    show_default=True,
    help="Whose transformer layers; auto: megatron-core's where it is installed and can.",
)
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    metavar="N",
    help="Seed of weights, data order and dropout.",
)
@click.option(
    "--load",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Go on from a checkpoint, saved under any plan of this model.",
)
@click.option(
    "--init-from",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Start from the weights in a Hugging Face folder (config.json, *.safetensors).",
)
@click.option(
    "--export",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="After the last step write the weights to a new Hugging Face folder.",
)
@click.option(
    "--save-every",
    type=click.IntRange(1),
    metavar="N",
    help="Save a checkpoint every N iterations.",
)
@click.option(
    "--measure",
    is_flag=True,
    help="Time stages, units and links, and write DIR/profile.json; see compare-run.",
)
@click.option("--tensorboard", is_flag=True, help="Write event files to DIR/tensorboard too.")
@click.option(
    "--device",
    type=click.Choice(("auto", "cpu", "cuda")),
    default="auto",
    show_default=True,
    help="auto: a GPU for each worker where this machine has so many, else the CPU.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="Port at which the workers meet. Default: one that is free.",
)
@click.option(
    "--render-only", is_flag=True, help="Print the commands for the plan's hosts and start nothing."
)
@click.pass_obj
def train(session: Any, /, job: str, plan: str, **options: Any) -> None:
    """Train a job by a plan: on this machine, one process a GPU of the plan.

    PLAN is a plan, or a result that holds one. Workers compute on GPUs over NCCL, or on the CPU
    over gloo. Each line has the iteration's seconds and the
    fullest worker's memory beside what was predicted. Exit code 6: the run could not be started,
    or a worker died.
    """
    # Imported here: the group is built for every `sailor --help`.
    import sailor
    from sailor.errors import PluginError
    from sailor_megatron.run_request import run_spec

    loaded, given = sailor.load_job(job), sailor.load_plan(plan)
    run = run_spec(loaded, given, options)
    started = datetime.now(tz=UTC).strftime("%Y%m%d-%H%M%S")
    out = options["out"]
    folder = Path("runs", f"{loaded.name}-{started}") if out is None else Path(out)
    if options["render_only"]:
        _show_launch(loaded, run, folder)
        return
    try:
        import torch  # noqa: F401
    except ImportError:
        raise PluginError(
            "training needs torch, which is not installed",
            where="sailor train",
            hint="pip install 'sailor-planner[train]'",
        ) from None
    _launch(session, loaded, run, folder, options["port"])


def _show_launch(job: Job, run: RunSpec, folder: Path) -> None:
    from sailor_megatron.render_run import render

    launch = render(job, run, folder)
    click.echo(f"# Put these files into {folder} on every host: {', '.join(launch.files)}")
    for name, text in launch.files.items():
        click.echo(f"cat > {shlex.quote(str(folder / name))} <<'END_OF_FILE'\n{text}END_OF_FILE")
    click.echo("# Then run command i on host i, with PET_MASTER_ADDR set to the address of host 0.")
    environment = [f"{name}={shlex.quote(value)}" for name, value in launch.env.items()]
    for command in launch.commands:
        click.echo(" ".join([*environment, shlex.join(command)]))


def _launch(session: Any, job: Job, run: RunSpec, folder: Path, port: int) -> None:
    from sailor.model.files import write_atomic
    from sailor_megatron.launcher import LocalRun, write_run
    from sailor_megatron.machine import check_machine
    from sailor_megatron.models.factory import chosen_stages
    from sailor_megatron.progress import ProgressLines
    from sailor_megatron.run_folder import JOB_FILE
    from sailor_megatron.run_request import check_inputs

    where = check_inputs(job, run)
    check_machine(run.spec, run.plan, run.options, run.device)
    predicted = _predicted(session, job, run)
    local = LocalRun(folder, run, port)
    write_run(folder, run)
    write_atomic(folder / JOB_FILE, job.model_dump_json(indent=1) + "\n")
    kind, _ = chosen_stages(run.spec, run.plan, run.options)
    degrees = " | ".join(
        " + ".join(str(replica.tp) for replica in stage.replicas) for stage in run.plan.ranks
    )
    click.echo(
        f"{job.name}: {run.plan.num_gpus} workers, tp by stage and replica {degrees}; "
        f"{run.plan.samples} samples of {run.spec.seq_len} tokens an iteration; "
        f"{kind} stages; {where}; logs in {folder}"
    )
    progress = ProgressLines(folder, predicted)
    local.run(progress.add)
    progress.end()
    if run.measure:
        _write_profile(run, folder)


def _predicted(session: Any, job: Job, run: RunSpec) -> Estimate | None:
    """Return the simulator's estimate, or say why there is none."""
    import sailor
    from sailor_megatron.compare import as_run

    try:
        return sailor.simulate(
            as_run(job, run.options), run.plan, registry=session.registry() if session else None
        )
    except sailor.SailorError as error:
        click.echo(f"sailor: no prediction to compare with: {error}", err=True)
        return None


def _write_profile(run: RunSpec, folder: Path) -> None:
    from sailor_megatron.own_profile import write_profile
    from sailor_megatron.run_folder import PROFILE_FILE

    store = write_profile(folder, run)
    click.echo(
        f"{len(store.profiles)} layer profiles, {len(store.footprints)} footprints and "
        f"{len(store.links)} links written to {folder / PROFILE_FILE}; next: sailor compare-run "
        f"{folder}"
    )
