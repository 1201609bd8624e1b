"""What to run: job, plan and the options of `sailor train`, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sailor.errors import PluginError
from sailor.model.arch import ModelSpec
from sailor.model.job import Job, Training
from sailor.model.plan import Plan
from sailor_megatron.layout import PlanLayout
from sailor_megatron.models.factory import chosen_stages
from sailor_megatron.options import RunOptions
from sailor_megatron.run_folder import RunSpec, model_of
from sailor_megatron.weights.start import as_stored


def run_spec(job: Job, plan: Plan, options: Mapping[str, Any]) -> RunSpec:
    """Return the run that the command's options ask for."""
    spec = model_of(job)
    PlanLayout(spec, plan)  # refuses a plan of another shape
    _check_steps(options)
    text, load = options["text"], options["load"]
    return RunSpec(
        spec=spec,
        plan=plan,
        options=as_stored(
            _run_options(job, spec, plan, options), job, init_from=options["init_from"], load=load
        ),
        steps=options["steps"],
        text=_absolute(text),
        load=_absolute(load),
        init_from=_absolute(options["init_from"]),
        export=_absolute(options["export"]),
        save_every=options["save_every"],
        measure=options["measure"],
        device=options["device"],
        tensorboard=options["tensorboard"],
    )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _run_options(job: Job, spec: ModelSpec, plan: Plan, options: Mapping[str, Any]) -> RunOptions:
    training = job.training
    _check_training(training)
    recompute = _chosen("--recompute", options, training.recompute, plan.recompute)
    return RunOptions(
        precision=options["precision"] or training.precision,
        optimizer=training.optimizer,
        learning_rate=options["learning_rate"],
        warmup_steps=options["warmup_steps"],
        clip_norm=options["clip_norm"] or None,
        recompute=recompute == "full",
        recompute_attention=recompute == "selective",
        zero1=_chosen("--zero1", options, training.zero, plan.zero) == 1,
        sequence_parallel=training.sequence_parallel,
        dropout=options["dropout"],
        attention_dropout=options["attention_dropout"],
        activation="relu" if spec.name.lower().startswith("opt") else "gelu",
        seed=options["seed"],
        stages=options["stages"],
    )


def _chosen(flag: str, options: Mapping[str, Any], of_job: object, of_plan: object) -> object:
    """Return what the plan says, or where it says nothing what the flag or the job does."""
    meaning: object = {"--recompute": "full", "--zero1": 1}[flag]
    asked = options[flag.removeprefix("--")]
    if of_plan is None:
        return meaning if asked else of_job
    if asked and of_plan != meaning:
        raise PluginError(
            f"the plan was made with {of_plan!r}",
            where=flag,
            hint="leave the option out, or plan again",
        )
    return of_plan


def _check_training(training: Training) -> None:
    """Refuse what a job's training may ask for and this runtime doesn't do."""
    asked = (
        (training.zero > 1, f"zero {training.zero}", "take zero 0 or 1"),
        (training.recompute == "operators", "recompute operators", "take none, selective or full"),
        (training.fp8, "fp8", "leave fp8 out"),
    )
    for wanted, name, hint in asked:
        if wanted:
            raise PluginError(f"this runtime does not run {name}", where="job: training", hint=hint)


def _check_steps(options: Mapping[str, Any]) -> None:
    if options["measure"] and options["steps"] < 3:
        raise PluginError(
            f"{options['steps']} iterations are too few to measure: the first one warms up",
            where="--steps",
            hint="take 3 or more",
        )


def check_inputs(job: Job, run: RunSpec) -> str:
    """Refuse what can't be trained on or with; return where the text is from."""
    from sailor_megatron.text_data import BYTE_VALUES, TextSamples, read_text
    from sailor_megatron.weights.start import check_ends

    if run.spec.vocab < BYTE_VALUES:
        raise PluginError(
            f"the text's tokens are bytes, and the model has only {run.spec.vocab} words",
            where=f"{job.name}: model.vocab",
            hint="give the model 256 words or more",
        )
    chosen_stages(run.spec, run.plan, run.options)  # refuses megatron-core's where they can't
    text, where = read_text(run.text)
    TextSamples(text, run.spec.seq_len, run.options.seed, where=where)
    if run.load is not None:
        from sailor_megatron.checkpoint_facts import check_same_model, read_index

        load = Path(run.load)
        check_same_model(read_index(load), run.spec, run.options.optimizer, load)
    check_ends(run)
    if run.tensorboard:
        from sailor_megatron.event_files import check_tensorboard

        check_tensorboard()
    return where
