"""What one run of the command line shares between its commands."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from sailor.cli.output import note
from sailor.errors import PluginError

if TYPE_CHECKING:
    from sailor.registry import Registry


@dataclass
class Session:
    """The global options, and the registry once something asks for it."""

    plugin_files: tuple[Path, ...] = ()
    debug: bool = False
    _loaded: list[Registry] = field(default_factory=list)

    def registry(self) -> Registry:
        """Return the registry; broken plug-ins are named on stderr, one asked for is an error."""
        if not self._loaded:
            from sailor.registry import Registry

            registry = Registry.load(files=self.plugin_files)
            asked = {str(path) for path in self.plugin_files}
            for info in registry.broken():
                if info.origin in asked:
                    raise PluginError(f"the plug-in can't be used: {info.error}", where=info.origin)
                note(f"plug-in {info.name} ({info.origin}) is left out: {info.error}")
            self._loaded.append(registry)
        return self._loaded[0]
