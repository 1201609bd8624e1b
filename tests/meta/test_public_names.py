"""The public surface: changing it is a decision, not an accident."""

from __future__ import annotations

import sailor
from sailor import errors, hookspecs, interfaces


def own_names(module: object) -> list[str]:
    """Return the public names that a module defines itself."""
    name = module.__name__  # type: ignore[attr-defined]
    return sorted(
        key
        for key, value in vars(module).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == name
    )


def test_names_of_the_root() -> None:
    assert sorted(sailor.__all__) == [
        "Estimate", "InputError", "Job", "Limits", "Plan", "PluginError", "Problem",
        "ProfileStore", "Result", "SailorError", "build_problem", "hookimpl", "load_job",
        "load_plan", "optimize", "pareto", "simulate", "simulate_events",
    ]  # fmt: skip
    for name in sailor.__all__:
        assert getattr(sailor, name) is not None


def test_names_of_the_interfaces() -> None:
    assert own_names(interfaces) == [
        "AvailabilitySource", "Backend", "CostTermSource", "LaunchSpec", "Limits",
        "NetworkModel", "Planner", "PriceAnswer", "PriceQuery", "PriceSource", "ProfileAnswer",
        "ProfileRequest", "ProfileSource", "Profiler", "Progress", "ReportSink",
        "SearchOutcome", "SourceContext", "UnitStyle", "WorkerGroup",
    ]  # fmt: skip


def test_names_of_the_hooks() -> None:
    assert own_names(hookspecs) == [
        "sailor_availability_sources", "sailor_backends", "sailor_commands",
        "sailor_cost_terms", "sailor_network_models", "sailor_planners",
        "sailor_price_sources", "sailor_profile_sources", "sailor_profilers",
        "sailor_report_sinks",
    ]  # fmt: skip


def test_names_of_the_errors() -> None:
    assert own_names(errors) == [
        "InputError", "PluginError", "SailorError", "UnknownNameError", "did_you_mean",
    ]  # fmt: skip


def test_exit_codes_are_never_renumbered() -> None:
    assert errors.InputError.exit_code == 2
    assert errors.UnknownNameError.exit_code == 2
    assert errors.PluginError.exit_code == 6
