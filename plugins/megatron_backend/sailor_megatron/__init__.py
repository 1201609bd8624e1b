"""Backend `megatron`: renders the launch of a plan for Megatron-LM. It launches nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sailor.hookspecs import hookimpl

if TYPE_CHECKING:
    from sailor.interfaces import Backend


@hookimpl
def sailor_backends() -> Iterable[Backend]:
    """Return the backend `megatron`."""
    from sailor_megatron.backend import MegatronBackend

    return (MegatronBackend(),)
