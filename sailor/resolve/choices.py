"""Recomputation and ZeRO as choices: the jobs that a search goes through, and a plan's own."""

from __future__ import annotations

from itertools import product

from pydantic import ValidationError

from sailor.errors import InputError
from sailor.model.job import Job, Training
from sailor.model.plan import Plan


def training_choices(job: Job) -> tuple[Job, ...]:
    """Return the job with each training that its search space allows, the job's own first.

    Empty when the search space leaves both to the training. Each is a job that could have been
    written by hand: its search space has no choice left.
    """
    space, own = job.search_space, job.training
    if space.recompute is None and space.zero is None:
        return ()
    recompute = tuple(dict.fromkeys(space.recompute or (own.recompute,)))
    zero = tuple(dict.fromkeys(space.zero or (own.zero,)))
    fixed = space.model_copy(update={"recompute": None, "zero": None})
    combined = sorted(
        product(recompute, zero), key=lambda one: one != (own.recompute, own.zero)
    )  # a stable sort: otherwise as the job has them
    return tuple(
        job.model_copy(update={"training": _training(own, *one), "search_space": fixed})
        for one in combined
    )


def relaxed_jobs(job: Job) -> dict[str, Job]:
    """Return jobs with one wish less or another training, by what was changed.

    What a problem no longer shows, as it went into the pool and the profiles: places and GPU types
    that the job rules out, sizes that it doesn't allow, activations and states that it keeps.
    """
    limits, space, training = job.constraints, job.search_space, job.training
    found: dict[str, Job] = {}
    for name in ("zones", "regions", "gpu_types", "tp", "microbatch"):
        if getattr(limits, name) is not None:
            fewer = limits.model_copy(update={name: None})
            found[f"leave constraints.{name} out"] = job.model_copy(update={"constraints": fewer})
    for name in ("tp", "microbatch"):
        if getattr(space, name) is not None:
            wider = space.model_copy(update={name: None})
            found[f"leave search_space.{name} out"] = job.model_copy(update={"search_space": wider})
    if job.cost_model == "published":
        return found  # it knows one training only
    tries = []
    if training.zero == 0:
        tries.append((f"training.zero {training.zero} -> 1", training.recompute, 1))
    if training.recompute != "full":
        change = f"training.recompute {training.recompute} -> full"
        tries.append((change, "full", training.zero))
        if training.zero == 0:
            tries.append((f"{change} and training.zero 0 -> 1", "full", 1))
    fixed = space.model_copy(update={"recompute": None, "zero": None})
    for change, recompute, zero in tries:
        other = _training(training, recompute, zero)
        found[change] = job.model_copy(update={"training": other, "search_space": fixed})
    return found


def job_of_plan(job: Job, plan: Plan) -> Job:
    """Return the job with the recomputation and ZeRO that a plan decided on."""
    own = job.training
    recompute = own.recompute if plan.recompute is None else plan.recompute
    zero = own.zero if plan.zero is None else plan.zero
    fixed = job.search_space.model_copy(update={"recompute": None, "zero": None})
    return job.model_copy(
        update={"training": _training(own, recompute, zero), "search_space": fixed}
    )


def _training(own: Training, recompute: str, zero: int) -> Training:
    """Return the training with other values, checked as if they had been written."""
    try:
        return Training.model_validate({**own.model_dump(), "recompute": recompute, "zero": zero})
    except ValidationError as error:
        raise InputError(
            f"recompute {recompute} with zero {zero}: {error.errors()[0]['msg']}",
            where="search_space",
            hint="leave this combination out",
        ) from None
