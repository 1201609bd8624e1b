"""Whose fault an unexpected exception is: sailor's, or a plug-in's."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from sailor.hookspecs import PROJECT
from sailor.model.document import one_line

BUG = 1
PLUGIN_FAILED = 6
_FILE_PLUGIN = "sailor_plugin_"  # the module names that the registry gives to --plugin files


def blamed(error: BaseException) -> tuple[str, int]:
    """Return one sentence about an unexpected exception, and the exit code it stands for."""
    text = " ".join(str(error).split())[:300]
    what = f"{type(error).__name__}: {text}" if text else type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    plugin = next((name for name in _modules(error) if _is_plugin(name)), None)
    if plugin is not None:
        name = plugin.removeprefix(_FILE_PLUGIN)
        return one_line(
            f"the plug-in {name} failed ({what}{place}); tell its author"
        ), PLUGIN_FAILED
    return (
        one_line(
            f"this is a bug in sailor ({what}{place}); please report it with the input and what "
            "`sailor doctor` prints"
        ),
        BUG,
    )


def _modules(error: BaseException) -> Iterator[str]:
    """Yield the top-level modules that an exception passed through."""
    step = error.__traceback__
    while step is not None:
        yield str(step.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        step = step.tb_next


def _is_plugin(module: str) -> bool:
    if module.startswith(_FILE_PLUGIN):
        return True
    roots = {point.module.partition(".")[0] for point in entry_points(group=PROJECT)}
    return module in roots and module != PROJECT
