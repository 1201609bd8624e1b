"""`sailor train` runs any plan on torch; backends render plans for Megatron-LM and torchtitan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sailor.hookspecs import hookimpl

if TYPE_CHECKING:
    import click

    from sailor.interfaces import Backend


@hookimpl
def sailor_backends() -> Iterable[Backend]:
    """Return the backends `megatron` and `torchtitan`."""
    from sailor_megatron.backend import MegatronBackend
    from sailor_megatron.torchtitan_backend import TorchtitanBackend

    return (MegatronBackend(), TorchtitanBackend())


@hookimpl
def sailor_commands(group: click.Group) -> None:
    """Add `sailor train`, `sailor change-plan` and `sailor compare-run`."""
    from sailor_megatron.change_command import change_plan
    from sailor_megatron.command import train
    from sailor_megatron.compare_command import compare

    group.add_command(train)
    group.add_command(change_plan)
    group.add_command(compare)
