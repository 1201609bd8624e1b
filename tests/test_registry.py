"""The registry: every hook through its door, and every way a plug-in can be broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from sailor.errors import InputError, PluginError, UnknownNameError
from sailor.hookspecs import hookimpl
from sailor.interfaces import LaunchSpec, PriceAnswer, ProfileAnswer, SearchOutcome
from sailor.registry import PluginInfo, Registry


class AcmePrices:
    name = "acme"

    def prices(self, queries, context):
        return PriceAnswer()

    def egress(self, pairs, context):
        return ()


class AcmeProfiles:
    name = "acme"

    def grid(self, model, training, gpu, context):
        return ()

    def profile(self, model, training, gpu, tp, microbatch, context):
        return None

    def footprint(self, model, training, tp, context):
        return None


class AcmeProfiler:
    name = "acme"

    def unsupported(self, request):
        return ()

    def profile(self, request, on_progress):
        return ProfileAnswer()


class AcmeNetwork:
    name = "acme"

    def link(self, src, dst, context):
        return None


class AcmeQuota:
    name = "acme"

    def offers(self, job, context):
        return ()


class AcmePlanner:
    name = "acme"

    def unsupported(self, problem):
        return ()

    def solve(self, problem, limits, on_progress, should_stop):
        return SearchOutcome(plan=None)


class AcmeTerm:
    name = "acme"

    def usd_per_iteration(self, problem, plan, estimate):
        return 0.25


class AcmeBackend:
    name = "acme"

    def unsupported(self, job, plan):
        return ()

    def render(self, job, plan):
        return LaunchSpec({}, (), {})


class AcmeSink:
    name = "acme"

    def write(self, results):
        return "nothing\n"


def plugin(hook: str, answer: object, *, name: str = "tester") -> object:
    """Make a plug-in object with one hook that returns (or raises) `answer`."""

    def implementation() -> object:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    implementation.__name__ = hook
    return SimpleNamespace(__name__=name, **{hook: hookimpl(implementation)})


def load(*extra: object, files: Sequence[Path] = ()) -> Registry:
    return Registry.load(entry_points=False, extra=extra, files=files)


def fault_of(registry: Registry, name: str = "tester") -> str:
    """Return the recorded fault of a plug-in after all its objects were asked for."""
    found = {info.name: info for info in registry.plugins(check=True)}
    return found[name].error or ""


# one test for each hook: a plug-in's object is found by name --------------------------------


def test_hook_sailor_price_sources() -> None:
    source = AcmePrices()
    registry = load(plugin("sailor_price_sources", [source]))
    assert registry.price_source("acme") is source
    assert registry.price_sources["acme"] is source


def test_hook_sailor_profile_sources() -> None:
    source = AcmeProfiles()
    registry = load(plugin("sailor_profile_sources", (source,)))
    assert registry.profile_source("acme") is source
    assert registry.profile_sources["acme"] is source


def test_hook_sailor_profilers() -> None:
    profiler = AcmeProfiler()
    registry = load(plugin("sailor_profilers", [profiler]))
    assert registry.profiler("acme") is profiler
    assert {"acme", "torch", "counted"} <= set(registry.profilers)


def test_hook_sailor_network_models() -> None:
    model = AcmeNetwork()
    registry = load(plugin("sailor_network_models", (model,)))
    assert registry.network_model("acme") is model
    assert registry.network_models["acme"] is model


def test_hook_sailor_availability_sources() -> None:
    source = AcmeQuota()
    registry = load(plugin("sailor_availability_sources", iter([source])))
    assert registry.availability_source("acme") is source
    assert {"acme", "static", "file"} <= set(registry.availability_sources)


def test_hook_sailor_planners() -> None:
    planner = AcmePlanner()
    registry = load(plugin("sailor_planners", (planner,)))
    assert registry.planner("acme") is planner
    assert registry.planners["acme"] is planner


def test_hook_sailor_cost_terms() -> None:
    term = AcmeTerm()
    second = AcmeTerm()
    second.name = "aardvark"
    registry = load(plugin("sailor_cost_terms", (term, second)))
    assert registry.cost_terms()[-2:] == (second, term)  # by name, whatever the order


def test_hook_sailor_backends() -> None:
    backend = AcmeBackend()
    registry = load(plugin("sailor_backends", (backend,)))
    assert registry.backend("acme") is backend
    assert registry.backends["acme"] is backend


def test_hook_sailor_report_sinks() -> None:
    sink = AcmeSink()
    registry = load(plugin("sailor_report_sinks", (sink,)))
    assert registry.report_sink("acme") is sink
    assert registry.report_sinks["acme"] is sink


def test_hook_sailor_commands() -> None:
    @hookimpl
    def sailor_commands(group: click.Group) -> None:
        @group.command("greet")
        def greet() -> None:
            click.echo("hello")

    registry = load(SimpleNamespace(__name__="tester", sailor_commands=sailor_commands))
    group = click.Group()
    registry.add_commands(group)
    assert list(group.commands) == ["greet"]
    assert registry.broken() == ()


# faults -----------------------------------------------------------------------------------


def test_two_registries_share_nothing() -> None:
    with_acme = load(plugin("sailor_planners", (AcmePlanner(),)))
    assert "acme" in with_acme.planners
    assert "acme" not in load().planners


def test_objects_are_built_only_when_their_kind_is_asked_for() -> None:
    calls: list[str] = []

    @hookimpl
    def sailor_planners():
        calls.append("planners")
        return ()

    registry = load(SimpleNamespace(__name__="tester", sailor_planners=sailor_planners))
    assert [info.hooks for info in registry.plugins() if info.name == "tester"] == [
        ("sailor_planners",)
    ]
    assert registry.price_sources is not None
    assert calls == []
    assert registry.planners is registry.planners
    assert calls == ["planners"]


def test_a_hook_that_raises_is_recorded_and_the_rest_works() -> None:
    broken = plugin("sailor_availability_sources", ZeroDivisionError("no quota"), name="broken")
    good = plugin("sailor_availability_sources", (AcmeQuota(),), name="good")
    registry = load(broken, good)
    assert registry.availability_source("acme").name == "acme"
    assert registry.availability_source("static").name == "static"
    assert "sailor_availability_sources: ZeroDivisionError: no quota" in fault_of(
        registry, "broken"
    )
    assert fault_of(registry, "good") == ""
    assert [info.name for info in registry.broken()] == ["broken"]


def test_a_hook_that_exits_is_recorded() -> None:
    registry = load(plugin("sailor_planners", SystemExit(3)))
    assert "SystemExit: 3" in fault_of(registry)


def test_ctrl_c_in_a_hook_is_not_swallowed() -> None:
    registry = load(plugin("sailor_planners", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        _ = registry.planners


def test_a_hook_that_fails_half_way_through_its_generator_is_recorded() -> None:
    @hookimpl
    def sailor_planners():
        yield AcmePlanner()
        raise OSError("gone")

    registry = load(SimpleNamespace(__name__="tester", sailor_planners=sailor_planners))
    assert "OSError: gone" in fault_of(registry)


def test_a_name_that_is_missing_names_the_broken_plugin_and_its_cause() -> None:
    registry = load(plugin("sailor_planners", OSError("licence expired")))
    with pytest.raises(UnknownNameError) as caught:
        registry.planner("acme", where="job.yaml: planner")
    text = str(caught.value)
    assert text.startswith("job.yaml: planner: unknown planner 'acme'")
    assert "tester (object tester)" in text
    assert "licence expired" in text
    assert isinstance(caught.value.__cause__, OSError)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load().availability_source("statik")
    assert str(caught.value) == ("unknown availability source 'statik'; did you mean 'static'?")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "TypeError"),
        ([AcmePlanner], "AcmePlanner is a class; return an instance of it"),
        ([SimpleNamespace(name="")], "its name is ''"),
        ([SimpleNamespace(name="two words")], "its name is 'two words'"),
        ([SimpleNamespace(name=7)], "its name is 7"),
        ([object()], "object is not a Planner: its name is None"),
        (
            [SimpleNamespace(name="acme", solve=lambda a, b, c, d: None)],
            "SimpleNamespace is not a Planner: it has no method unsupported",
        ),
        (
            [SimpleNamespace(name="acme", unsupported=lambda problem: (), solve=lambda p: None)],
            "its method solve does not take (problem, limits, on_progress, should_stop)",
        ),
    ],
)
def test_an_object_that_is_not_a_planner_is_recorded(answer: object, fault: str) -> None:
    hook = plugin("sailor_planners", () if answer is None else answer)
    if answer is None:

        @hookimpl
        def sailor_planners():
            return 5

        hook = SimpleNamespace(__name__="tester", sailor_planners=sailor_planners)
    registry = load(hook)
    assert "acme" not in registry.planners
    assert fault in fault_of(registry)


def test_one_bad_object_does_not_hide_a_good_one() -> None:
    registry = load(plugin("sailor_planners", [object(), AcmePlanner()]))
    assert registry.planner("acme").name == "acme"
    assert "is not a Planner" in fault_of(registry)


def test_a_misspelt_hook_is_recorded_with_a_suggestion() -> None:
    registry = load(plugin("sailor_planer", (AcmePlanner(),)))
    assert fault_of(registry).startswith(
        "unknown hook 'sailor_planer'; did you mean 'sailor_planners'"
    )


def test_a_plugin_with_a_misspelt_hook_provides_nothing() -> None:
    half = plugin("sailor_planners", (AcmePlanner(),))
    half.sailor_planer = hookimpl(lambda: ())
    registry = load(half)
    assert "unknown hook" in fault_of(registry)
    assert "acme" not in registry.planners


def test_a_name_that_a_plugin_provides_twice_is_recorded() -> None:
    registry = load(plugin("sailor_planners", (AcmePlanner(), AcmePlanner())))
    assert "the planner 'acme' is also provided by itself, twice" in fault_of(registry)


def test_a_hook_with_an_argument_that_sailor_does_not_give_is_recorded() -> None:
    @hookimpl
    def sailor_planners(problem):
        return ()

    registry = load(SimpleNamespace(__name__="tester", sailor_planners=sailor_planners))
    assert "problem" in fault_of(registry)
    assert "acme" not in registry.planners


def test_a_hook_wrapper_is_refused() -> None:
    @hookimpl(wrapper=True)
    def sailor_planners():
        yield
        return []

    good = plugin("sailor_planners", (AcmePlanner(),), name="good")
    registry = load(SimpleNamespace(__name__="tester", sailor_planners=sailor_planners), good)
    assert "hook wrapper" in fault_of(registry)
    assert "acme" in registry.planners


def test_a_plugin_without_hooks_is_recorded() -> None:
    assert "implements no hook" in fault_of(load(SimpleNamespace(__name__="tester")))


def test_a_name_that_two_plugins_claim_belongs_to_neither() -> None:
    registry = load(
        plugin("sailor_planners", (AcmePlanner(),), name="one"),
        plugin("sailor_planners", (AcmePlanner(),), name="two"),
    )
    assert "acme" not in registry.planners
    with pytest.raises(PluginError) as caught:
        registry.planner("acme")
    assert "one (object one) and by two (object two)" in str(caught.value)
    assert caught.value.exit_code == 6
    assert "also provided by two" in fault_of(registry, "one")
    assert "also provided by one" in fault_of(registry, "two")


def test_a_plugin_cannot_take_a_built_in_name() -> None:
    imposter = AcmeQuota()
    imposter.name = "static"
    registry = load(plugin("sailor_availability_sources", (imposter,)))
    assert registry.availability_source("static") is not imposter
    assert "'static' is also provided by sailor" in fault_of(registry)
    assert fault_of(registry, "sailor") == ""


def test_the_same_object_twice_keeps_the_first() -> None:
    once = plugin("sailor_planners", (AcmePlanner(),))
    registry = load(once, once)
    assert "acme" in registry.planners
    first, second = [info for info in registry.plugins(check=True) if info.name == "tester"]
    assert first.error is None
    assert second.error is not None


def test_commands_of_a_plugin_that_fails_are_not_added_and_taken_names_stay() -> None:
    @hookimpl
    def sailor_commands(group: click.Group) -> None:
        group.add_command(click.Command("half"))
        raise RuntimeError("oops")

    def good_commands(group: click.Group) -> None:
        group.add_command(click.Command("plan"))
        group.add_command(click.Command("whole"))

    good_commands.__name__ = "sailor_commands"
    registry = load(
        SimpleNamespace(__name__="broken", sailor_commands=sailor_commands),
        SimpleNamespace(__name__="greedy", sailor_commands=hookimpl(good_commands)),
    )
    own = click.Command("plan")
    group = click.Group(commands={"plan": own})
    registry.add_commands(group)
    assert sorted(group.commands) == ["plan", "whole"]
    assert group.commands["plan"] is own
    assert "RuntimeError: oops" in fault_of(registry, "broken")
    assert fault_of(registry, "greedy") == "the command 'plan' is taken; rename it"


# files ------------------------------------------------------------------------------------

FILE = """
from __future__ import annotations
from dataclasses import dataclass
from sailor.hookspecs import hookimpl

@dataclass
class Quota:
    name: str = "acme"
    def offers(self, job, context):
        return ()

@hookimpl
def sailor_availability_sources():
    return [Quota()]
"""


def test_a_single_file_is_a_plugin(tmp_path: Path) -> None:
    path = tmp_path / "acme.py"
    path.write_text(FILE, encoding="utf-8")
    registry = load(files=[path])
    assert registry.availability_source("acme").name == "acme"
    assert registry.plugins()[-1] == PluginInfo(
        "acme", None, str(path), ("sailor_availability_sources",), None
    )


def test_a_file_that_does_not_import_is_recorded(tmp_path: Path) -> None:
    syntax = tmp_path / "syntax.py"
    syntax.write_text("def broken(:\n", encoding="utf-8")
    missing = tmp_path / "missing.py"
    missing.write_text("\nimport no_such_module_at_all\n", encoding="utf-8")
    text = tmp_path / "notes.txt"
    text.write_text("hello", encoding="utf-8")
    registry = load(files=[syntax, missing, text])
    assert "SyntaxError" in fault_of(registry, "syntax")
    assert "syntax.py, line 1" in fault_of(registry, "syntax")
    assert fault_of(registry, "missing") == (
        "ModuleNotFoundError: No module named 'no_such_module_at_all' (at missing.py:2)"
    )
    assert "notes.txt is not a Python file" in fault_of(registry, "notes")
    assert "static" in registry.availability_sources
    assert not [name for name in sys.modules if name.startswith("sailor_plugin_syntax")]


def test_a_file_that_is_not_there_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(files=[tmp_path / "acme.py"])
    assert "no such plug-in file" in str(caught.value)


# entry points -----------------------------------------------------------------------------


def test_installed_plugins_are_found_and_can_be_restricted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SAILOR_PLUGINS", raising=False)
    every = [info.name for info in Registry.load().plugins()]
    assert every[0] == "sailor"
    assert {"gcp_pricing", "megatron_backend"} <= set(every)
    monkeypatch.setenv("SAILOR_PLUGINS", "megatron_backend")
    restricted = Registry.load().plugins()
    assert [info.name for info in restricted] == ["sailor", "megatron_backend"]
    assert restricted[1].origin.startswith("sailor-planner ")
    monkeypatch.setenv("SAILOR_PLUGINS", "")
    assert [info.name for info in Registry.load().plugins()] == ["sailor"]


def test_a_misspelt_restriction_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAILOR_PLUGINS", "gcp_pricin")
    with pytest.raises(UnknownNameError) as caught:
        Registry.load()
    assert "did you mean 'gcp_pricing'?" in str(caught.value)
    assert str(caught.value).startswith("SAILOR_PLUGINS: ")


def test_a_broken_installed_plugin_is_reported_and_the_rest_loads(tmp_path: Path) -> None:
    (tmp_path / "acme_broken.py").write_text("raise RuntimeError('bad build')", encoding="utf-8")
    info = tmp_path / "acme_broken-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-broken\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[sailor]\nacme = acme_broken\n")
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r})\n"
        "from sailor.registry import Registry\n"
        "for p in Registry.load().plugins(): print(p.name, p.origin, p.error, sep='|')\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    rows = dict(line.split("|", 1) for line in run.stdout.splitlines())
    assert rows["acme"] == "acme-broken 1.2|RuntimeError: bad build (at acme_broken.py:1)"
    assert rows["megatron_backend"].endswith("|None")
