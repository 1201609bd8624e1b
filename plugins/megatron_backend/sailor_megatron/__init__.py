"""Backend `megatron` renders plans for Megatron-LM; `sailor train` runs any plan on torch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sailor.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from sailor.interfaces import Backend


@hookimpl
def sailor_backends() -> Iterable[Backend]:
    """Return the backend `megatron`."""
    from sailor_megatron.backend import MegatronBackend

    return (MegatronBackend(),)


@hookimpl
def sailor_commands(group: click.Group) -> None:
    """Add `sailor train`."""
    from sailor_megatron.command import train

    group.add_command(train)
