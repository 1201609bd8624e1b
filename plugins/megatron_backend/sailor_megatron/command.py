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
    from sailor.model.plan import Plan
    from sailor_megatron.metrics import StepMetrics
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
    help="Probability of dropout.",
)
@click.option(
    "--precision",
    type=click.Choice(("fp64", "fp32", "bf16", "fp16")),
    help="Instead of the job's precision.",
)
@click.option("--recompute", is_flag=True, help="Keep no activations inside of blocks.")
@click.option("--zero1", is_flag=True, help="Split optimizer states over like ranks (ZeRO-1).")
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
    "--save-every",
    type=click.IntRange(1),
    metavar="N",
    help="Save a checkpoint every N iterations.",
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

    PLAN is a plan, or a result that holds one. Where this machine has a GPU for every worker they
    compute there (NCCL), else on the CPU (gloo). Exit code 6: the run could not be started, or a
    worker died.
    """
    # Imported here: the group is built for every `sailor --help`.
    import sailor
    from sailor.errors import PluginError

    loaded, given = sailor.load_job(job), sailor.load_plan(plan)
    run = _run_spec(loaded, given, options)
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


def _run_spec(job: Job, plan: Plan, options: dict[str, Any]) -> RunSpec:
    from sailor_megatron.layout import PlanLayout
    from sailor_megatron.options import RunOptions
    from sailor_megatron.run_folder import RunSpec, model_of

    spec = model_of(job)
    PlanLayout(spec, plan)  # refuses a plan of another shape
    chosen = RunOptions(
        precision=options["precision"] or job.training.precision,
        optimizer=job.training.optimizer,
        learning_rate=options["learning_rate"],
        warmup_steps=options["warmup_steps"],
        clip_norm=options["clip_norm"] or None,
        recompute=options["recompute"],
        zero1=options["zero1"],
        dropout=options["dropout"],
        activation="relu" if spec.name.lower().startswith("opt") else "gelu",
        seed=options["seed"],
    )
    text, load = options["text"], options["load"]
    return RunSpec(
        spec=spec,
        plan=plan,
        options=chosen,
        steps=options["steps"],
        text=None if text is None else str(text.absolute()),
        load=None if load is None else str(load.absolute()),
        save_every=options["save_every"],
    )


def _show_launch(job: Job, run: RunSpec, folder: Path) -> None:
    from sailor_megatron.render_run import render

    launch = render(job, run, folder)
    click.echo(f"# Put these files into {folder} on every host: {', '.join(launch.files)}")
    for name, text in launch.files.items():
        click.echo(f"cat > {shlex.quote(str(folder / name))} <<'END_OF_FILE'\n{text}END_OF_FILE")
    click.echo("# Then run command i on host i, with PET_MASTER_ADDR set to the address of host 0.")
    for command in launch.commands:
        click.echo(shlex.join(command))


def _launch(session: Any, job: Job, run: RunSpec, folder: Path, port: int) -> None:
    from sailor.errors import PluginError
    from sailor_megatron.launcher import LocalRun, check_machine, write_run
    from sailor_megatron.text_data import BYTE_VALUES, TextSamples, read_text

    if run.spec.vocab < BYTE_VALUES:
        raise PluginError(
            f"the text's tokens are bytes, and the model has only {run.spec.vocab} words",
            where=f"{job.name}: model.vocab",
            hint="give the model 256 words or more",
        )
    text, where = read_text(run.text)
    TextSamples(text, run.spec.seq_len, run.options.seed, where=where)
    if run.load is not None:
        from sailor_megatron.checkpoint_format import check_same_model, read_index

        load = Path(run.load)
        check_same_model(read_index(load), run.spec, run.options.optimizer, load)
    check_machine(run.spec, run.plan, run.options)
    predicted = _predicted(session, job, run.plan)
    local = LocalRun(folder, run, port)
    write_run(folder, run)
    degrees = " | ".join(
        " + ".join(str(replica.tp) for replica in stage.replicas) for stage in run.plan.stages
    )
    click.echo(
        f"{job.name}: {run.plan.num_gpus} workers, tp by stage and replica {degrees}; "
        f"{run.plan.samples} samples of {run.spec.seq_len} tokens an iteration; {where}; "
        f"logs in {folder}"
    )
    progress = _ProgressLines(predicted)
    local.run(progress.add)
    progress.end()


def _predicted(session: Any, job: Job, plan: Plan) -> Estimate | None:
    """Return the simulator's estimate, or say why there is none."""
    import sailor

    try:
        return sailor.simulate(job, plan, registry=session.registry() if session else None)
    except sailor.SailorError as error:
        click.echo(f"sailor: no prediction to compare with: {error}", err=True)
        return None


class _ProgressLines:
    """One line a step, and a summary."""

    def __init__(self, predicted: Estimate | None) -> None:
        self._predicted = predicted
        self._seconds: list[float] = []

    def add(self, metrics: StepMetrics) -> None:
        self._seconds.append(metrics.iteration_s)
        line = (
            f"step {metrics.step:>5}  loss {metrics.loss:8.4f}  norm {metrics.gradient_norm:8.3f}"
            f"  {metrics.tokens_per_s:9.0f} tokens/s  {metrics.iteration_s:8.4f} s"
        )
        if self._predicted is not None:
            line += f" (predicted {self._predicted.iteration_s:.4f} s)"
        click.echo(line + ("  skipped: overflow" if metrics.skipped else ""))

    def end(self) -> None:
        if not self._seconds:
            return
        ordered = sorted(self._seconds)
        median = ordered[len(ordered) // 2]
        line = f"done: median {median:.4f} s an iteration"
        if self._predicted is not None:
            ratio = median / self._predicted.iteration_s
            line += f", {ratio:.2f} times the predicted {self._predicted.iteration_s:.4f} s"
        click.echo(line)
