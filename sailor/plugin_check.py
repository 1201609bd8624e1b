"""What can be wrong with a plug-in, as one sentence each."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Protocol

from sailor.errors import SailorError


class _Report(Protocol):
    def __call__(self, sentence: str, cause: BaseException | None = None, /) -> None: ...


class Guard:
    """Turn whatever a plug-in's code raises into a report, and go on after the block.

    The border between sailor and code of strangers: the one place where every exception is
    taken, `sys.exit` among them. Ctrl-C passes.
    """

    def __init__(self, report: _Report) -> None:
        self._report = report

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, (Exception, SystemExit)):
            return False
        self._report(sentence(error), error)
        return True


def sentence(error: BaseException) -> str:
    """Return an exception as one line: what, and the file and line that raised it."""
    if isinstance(error, SailorError):
        return str(error)
    text = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:  # a SyntaxError's text names its own place
        return f"{type(error).__name__}: {text}"
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
    return f"{type(error).__name__}: {text} (at {place})"


def protocol_fault(item: object, protocol: type) -> str | None:
    """Return why `item` isn't what the protocol asks for, or None when it is."""
    if isinstance(item, type):
        return f"{item.__name__} is a class; return an instance of it"
    what = f"{type(item).__name__} is not a {protocol.__name__}"
    name = getattr(item, "name", None)
    if not isinstance(name, str) or not name or any(char.isspace() for char in name):
        return f"{what}: its name is {name!r}; it must be a string without spaces"
    for method_name, wanted in vars(protocol).items():
        if method_name.startswith("_") or not inspect.isfunction(wanted):
            continue
        method = getattr(item, method_name, None)
        if not callable(method):
            return f"{what}: it has no method {method_name}"
        if not _takes(method, wanted):
            arguments = ", ".join(list(inspect.signature(wanted).parameters)[1:])
            return f"{what}: its method {method_name} does not take ({arguments})"
    return None


def import_file(path: Path) -> ModuleType:
    """Import one Python file as a module of its own, under a name that no other file gets."""
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    name = f"sailor_plugin_{path.stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path.name} is not a Python file; a plug-in file ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _takes(method: Callable[..., object], wanted: Callable[..., object]) -> bool:
    try:
        signature = inspect.signature(method)
    except ValueError:  # a built-in that tells no signature
        return True
    values = list(inspect.signature(wanted).parameters)[1:]
    try:
        signature.bind(*values)
    except TypeError:
        return False
    return True
