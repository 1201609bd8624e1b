"""Plug-ins by name: built-ins, entry points and single files, all through the same hooks.

A plug-in that is broken is recorded with a sentence and left out; everything else works. The
objects of a hook are built when that kind of thing is first asked for, so that listing plug-ins
or printing help imports no planner.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, PackageNotFoundError, version
from importlib.metadata import entry_points as installed_entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pluggy

from sailor import hookspecs
from sailor.errors import InputError, PluginError, UnknownNameError, did_you_mean
from sailor.plugin_check import Guard, import_file, protocol_fault

if TYPE_CHECKING:
    import click

    from sailor.interfaces import (
        AvailabilitySource,
        Backend,
        CostTermSource,
        NetworkModel,
        Planner,
        PriceSource,
        Profiler,
        ProfileSource,
        ReportSink,
    )

PLUGINS_VARIABLE = "SAILOR_PLUGINS"
BUILT_IN = "built in"
_DISTRIBUTION = "sailor-planner"

_T = TypeVar("_T")


@dataclass(frozen=True)
class PluginInfo:
    """One plug-in for people: where it came from, the hooks it implements, what is wrong.

    `origin` is "built in", a distribution with its version, or the path of a file.
    """

    name: str
    version: str | None
    origin: str
    hooks: tuple[str, ...]
    error: str | None


@dataclass
class _Plugin:
    name: str
    version: str | None
    origin: str
    hooks: tuple[str, ...] = ()
    faults: list[str] = field(default_factory=list)
    cause: BaseException | None = None

    @property
    def label(self) -> str:
        return self.name if self.origin == BUILT_IN else f"{self.name} ({self.origin})"

    def info(self) -> PluginInfo:
        error = "; ".join(self.faults) or None
        return PluginInfo(self.name, self.version, self.origin, self.hooks, error)


@dataclass(frozen=True)
class _Kind(Generic[_T]):
    """A kind of thing that plug-ins provide. The protocol goes by name: importing it is slow."""

    what: str
    hook: str
    protocol: str


@dataclass(frozen=True)
class _Provided:
    """The objects of one kind by name, and the names that more than one plug-in claims."""

    objects: Mapping[str, Any]
    contested: Mapping[str, Sequence[str]]


_PRICES: _Kind[PriceSource] = _Kind("price source", "sailor_price_sources", "PriceSource")
_PROFILES: _Kind[ProfileSource] = _Kind("profile source", "sailor_profile_sources", "ProfileSource")
_PROFILERS: _Kind[Profiler] = _Kind("profiler", "sailor_profilers", "Profiler")
_NETWORK: _Kind[NetworkModel] = _Kind("network model", "sailor_network_models", "NetworkModel")
_AVAILABILITY: _Kind[AvailabilitySource] = _Kind(
    "availability source", "sailor_availability_sources", "AvailabilitySource"
)
_PLANNERS: _Kind[Planner] = _Kind("planner", "sailor_planners", "Planner")
_COST_TERMS: _Kind[CostTermSource] = _Kind("cost term", "sailor_cost_terms", "CostTermSource")
_BACKENDS: _Kind[Backend] = _Kind("backend", "sailor_backends", "Backend")
_SINKS: _Kind[ReportSink] = _Kind("report format", "sailor_report_sinks", "ReportSink")
_KINDS: tuple[_Kind[Any], ...] = (
    _PRICES, _PROFILES, _PROFILERS, _NETWORK, _AVAILABILITY, _PLANNERS, _COST_TERMS, _BACKENDS,
    _SINKS,
)  # fmt: skip

_HOOKS = (*(kind.hook for kind in _KINDS), "sailor_commands")


class Registry:
    """What plug-ins provide, by name. Make one with `Registry.load`; nothing is shared."""

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._by_key: dict[str, _Plugin] = {}  # by the name under which pluggy has it
        self._provided: dict[str, _Provided] = {}

    @classmethod
    def load(
        cls,
        *,
        entry_points: bool = True,
        files: Sequence[Path] = (),
        extra: Sequence[object] = (),
    ) -> Registry:
        """Load the built-ins, installed plug-ins, single files and given objects, in that order.

        The environment variable SAILOR_PLUGINS restricts installed plug-ins to the names that it
        lists with commas; set and empty it loads none.
        """
        registry = cls()
        registry._add(
            _Plugin("sailor", _core_version(), BUILT_IN),
            partial(importlib.import_module, "sailor.defaults"),
        )
        for point in _wanted_entry_points() if entry_points else ():
            dist = point.dist
            origin = f"{dist.name} {dist.version}" if dist else point.value
            registry._add(_Plugin(point.name, dist.version if dist else None, origin), point.load)
        for path in files:
            if not path.is_file():
                raise InputError(
                    "no such plug-in file", where=str(path), hint="give the path of a .py file"
                )
            registry._add(_Plugin(path.stem, None, str(path)), partial(import_file, path))
        for item in extra:
            name = str(getattr(item, "__name__", type(item).__name__))
            registry._add(_Plugin(name, None, f"object {name}"), partial(_itself, item))
        return registry

    @property
    def price_sources(self) -> Mapping[str, PriceSource]:
        """Return the price sources by name."""
        return self._of(_PRICES).objects

    @property
    def profile_sources(self) -> Mapping[str, ProfileSource]:
        """Return the profile sources by name."""
        return self._of(_PROFILES).objects

    @property
    def profilers(self) -> Mapping[str, Profiler]:
        """Return the profilers by name."""
        return self._of(_PROFILERS).objects

    @property
    def network_models(self) -> Mapping[str, NetworkModel]:
        """Return the network models by name."""
        return self._of(_NETWORK).objects

    @property
    def availability_sources(self) -> Mapping[str, AvailabilitySource]:
        """Return the availability sources by name."""
        return self._of(_AVAILABILITY).objects

    @property
    def planners(self) -> Mapping[str, Planner]:
        """Return the planners by name."""
        return self._of(_PLANNERS).objects

    @property
    def backends(self) -> Mapping[str, Backend]:
        """Return the backends by name."""
        return self._of(_BACKENDS).objects

    @property
    def report_sinks(self) -> Mapping[str, ReportSink]:
        """Return the report sinks by name."""
        return self._of(_SINKS).objects

    def cost_terms(self) -> tuple[CostTermSource, ...]:
        """Return every extra cost term, by name; all of them are reported."""
        terms: Mapping[str, CostTermSource] = self._of(_COST_TERMS).objects
        return tuple(terms[name] for name in sorted(terms))

    def price_source(self, name: str, *, where: str | None = None) -> PriceSource:
        """Return a price source; `where` is the place of the name, for messages."""
        return self._named(_PRICES, name, where)

    def profile_source(self, name: str, *, where: str | None = None) -> ProfileSource:
        """Return a profile source; `where` is the place of the name, for messages."""
        return self._named(_PROFILES, name, where)

    def profiler(self, name: str, *, where: str | None = None) -> Profiler:
        """Return a profiler; `where` is the place of the name, for messages."""
        return self._named(_PROFILERS, name, where)

    def network_model(self, name: str, *, where: str | None = None) -> NetworkModel:
        """Return a network model; `where` is the place of the name, for messages."""
        return self._named(_NETWORK, name, where)

    def availability_source(self, name: str, *, where: str | None = None) -> AvailabilitySource:
        """Return an availability source; `where` is the place of the name, for messages."""
        return self._named(_AVAILABILITY, name, where)

    def planner(self, name: str, *, where: str | None = None) -> Planner:
        """Return a planner; `where` is the place of the name, for messages."""
        return self._named(_PLANNERS, name, where)

    def backend(self, name: str, *, where: str | None = None) -> Backend:
        """Return a backend; `where` is the place of the name, for messages."""
        return self._named(_BACKENDS, name, where)

    def report_sink(self, name: str, *, where: str | None = None) -> ReportSink:
        """Return a report sink; `where` is the place of the name, for messages."""
        return self._named(_SINKS, name, where)

    def add_commands(self, group: click.Group) -> None:
        """Add the plug-ins' commands to `group`; a name that is taken stays with its first owner.

        Each plug-in gets an empty group of its own, so that one that fails half way adds nothing.
        """
        import click

        taken = set(group.list_commands(click.Context(group)))
        for plugin, call in self._implementations("sailor_commands"):
            own = click.Group()
            with Guard(partial(self._record, plugin, "sailor_commands: ")):
                call(group=own)
                for name, command in sorted(own.commands.items()):
                    if name in taken:
                        self._record(plugin, "", f"the command {name!r} is taken; rename it")
                        continue
                    taken.add(name)
                    group.add_command(command, name)

    def plugins(self, *, check: bool = False) -> tuple[PluginInfo, ...]:
        """Return every plug-in. With `check` all their objects are built, so all faults show."""
        if check:
            for kind in _KINDS:
                self._of(kind)
        return tuple(plugin.info() for plugin in self._by_key.values())

    def broken(self) -> tuple[PluginInfo, ...]:
        """Return the plug-ins in which a fault has been found so far."""
        return tuple(info for info in self.plugins() if info.error)

    def _add(self, plugin: _Plugin, load: Callable[[], object]) -> None:
        key = f"{len(self._by_key)} {plugin.name}"  # two plug-ins may have one name
        self._by_key[key] = plugin
        loaded: list[object] = []
        with Guard(partial(self._record, plugin, "")):
            loaded.append(load())
            self._manager.register(loaded[0], key)
        if loaded and self._manager.get_name(loaded[0]) == key:
            for fault in self._hook_faults(plugin, loaded[0]):
                self._record(plugin, "", fault)
            if plugin.faults:
                self._manager.unregister(loaded[0])

    def _hook_faults(self, plugin: _Plugin, loaded: object) -> Iterator[str]:
        callers = self._manager.get_hookcallers(loaded) or []
        plugin.hooks = tuple(sorted(caller.name for caller in callers))
        if not callers and not plugin.faults:
            yield "it implements no hook; mark its functions with @sailor.hookimpl"
        for caller in callers:
            if caller.name not in _HOOKS:
                yield f"unknown hook {caller.name!r}; {did_you_mean(caller.name, _HOOKS)}"
            for impl in caller.get_hookimpls():
                if impl.plugin is loaded and (impl.wrapper or impl.hookwrapper):
                    yield f"{caller.name} is a hook wrapper; sailor's hooks have none"

    def _implementations(self, hook: str) -> Iterator[tuple[_Plugin, Callable[..., Any]]]:
        """Yield each plug-in's own function of a hook, in load order.

        pluggy's call runs them all as one, so the first to raise would hide the others' answers.
        """
        caller = getattr(self._manager.hook, hook)
        functions = {impl.plugin_name: partial(_call, impl) for impl in caller.get_hookimpls()}
        for key, plugin in self._by_key.items():
            if key in functions:
                yield plugin, functions[key]

    def _of(self, kind: _Kind[Any]) -> _Provided:
        if kind.hook not in self._provided:
            self._provided[kind.hook] = self._build(kind)
        return self._provided[kind.hook]

    def _build(self, kind: _Kind[Any]) -> _Provided:
        protocol = getattr(importlib.import_module("sailor.interfaces"), kind.protocol)
        claims: dict[str, list[tuple[_Plugin, object]]] = {}
        for plugin, call in self._implementations(kind.hook):
            returned: list[Any] = []
            with Guard(partial(self._record, plugin, f"{kind.hook}: ")):
                returned.extend(call())
            for item in returned:
                with Guard(partial(self._record, plugin, f"{kind.hook}: ")):
                    fault = protocol_fault(item, protocol)
                    if fault:
                        self._record(plugin, f"{kind.hook}: ", fault)
                    else:
                        claims.setdefault(item.name, []).append((plugin, item))
        return self._settle(kind, claims)

    def _settle(
        self, kind: _Kind[Any], claims: Mapping[str, Sequence[tuple[_Plugin, object]]]
    ) -> _Provided:
        """Give a contested name to the built-in that has it, otherwise to nobody."""
        objects: dict[str, object] = {}
        contested: dict[str, list[str]] = {}
        for name, claimants in claims.items():
            first, item = claimants[0]
            owned = len(claimants) == 1 or first.origin == BUILT_IN
            if owned:
                objects[name] = item
            else:
                contested[name] = [plugin.label for plugin, _ in claimants]
            for plugin, _ in claimants[1 if owned else 0 :]:
                rivals = [other.label for other, _ in claimants if other is not plugin]
                by = " and ".join(rivals) or "itself, twice"
                self._record(plugin, "", f"the {kind.what} {name!r} is also provided by {by}")
        return _Provided(objects, contested)

    def _named(self, kind: _Kind[_T], name: str, where: str | None) -> _T:
        provided = self._of(kind)
        if name in provided.objects:
            found: _T = provided.objects[name]
            return found
        if name in provided.contested:
            raise PluginError(
                f"the {kind.what} {name!r} is provided by "
                + " and by ".join(provided.contested[name]),
                where=where,
                hint=f"choose the plug-ins to load with {PLUGINS_VARIABLE}=NAME,NAME",
            )
        error = UnknownNameError(kind.what, name, provided.objects, where=where)
        broken = [plugin for plugin in self._by_key.values() if plugin.faults]
        if not broken:
            raise error
        told = ", ".join(f"{plugin.label}: {'; '.join(plugin.faults)}" for plugin in broken)
        error.hint = f"{error.hint}; a broken plug-in may have it ({told})"
        raise error from next((plugin.cause for plugin in broken if plugin.cause), None)

    @staticmethod
    def _record(
        plugin: _Plugin, prefix: str, sentence: str, cause: BaseException | None = None
    ) -> None:
        plugin.faults.append(prefix + sentence)
        plugin.cause = plugin.cause or cause


def _call(impl: pluggy.HookImpl, **given: object) -> Any:
    return impl.function(*(given[name] for name in impl.argnames))


def _itself(item: object) -> object:
    return item


def _core_version() -> str | None:
    try:
        return version(_DISTRIBUTION)
    except PackageNotFoundError:  # run from a source tree that isn't installed
        return None


def _wanted_entry_points() -> list[EntryPoint]:
    found = sorted(
        installed_entry_points(group=hookspecs.PROJECT), key=lambda point: (point.name, point.value)
    )
    listed = os.environ.get(PLUGINS_VARIABLE)
    if listed is None:
        return found
    wanted = {name.strip() for name in listed.split(",") if name.strip()}
    for name in sorted(wanted - {point.name for point in found}):
        raise UnknownNameError(
            "plug-in", name, {point.name for point in found}, where=PLUGINS_VARIABLE
        )
    return [point for point in found if point.name in wanted]
