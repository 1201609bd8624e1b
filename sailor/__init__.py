"""Plan, simulate and run the training of large models over mixed pools of GPUs.

The public names load on first use: importing sailor loads neither the solvers nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sailor.api import (
        build_problem,
        load_job,
        load_plan,
        optimize,
        pareto,
        simulate,
        simulate_events,
    )
    from sailor.errors import InputError, PluginError, SailorError
    from sailor.hookspecs import hookimpl
    from sailor.interfaces import Limits
    from sailor.model.estimate import Estimate
    from sailor.model.job import Job
    from sailor.model.plan import Plan
    from sailor.model.problem import Problem
    from sailor.model.result import Result
    from sailor.profiling.store import ProfileStore

_HOME = {
    "optimize": "sailor.api",
    "pareto": "sailor.api",
    "simulate": "sailor.api",
    "simulate_events": "sailor.api",
    "load_job": "sailor.api",
    "load_plan": "sailor.api",
    "build_problem": "sailor.api",
    "SailorError": "sailor.errors",
    "InputError": "sailor.errors",
    "PluginError": "sailor.errors",
    "hookimpl": "sailor.hookspecs",
    "Limits": "sailor.interfaces",
    "Estimate": "sailor.model.estimate",
    "Job": "sailor.model.job",
    "Plan": "sailor.model.plan",
    "Problem": "sailor.model.problem",
    "Result": "sailor.model.result",
    "ProfileStore": "sailor.profiling.store",
}

__all__ = [
    "Estimate",
    "InputError",
    "Job",
    "Limits",
    "Plan",
    "PluginError",
    "Problem",
    "ProfileStore",
    "Result",
    "SailorError",
    "build_problem",
    "hookimpl",
    "load_job",
    "load_plan",
    "optimize",
    "pareto",
    "simulate",
    "simulate_events",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sailor' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
