"""Reading single keys of a Hugging Face config, with one sentence for what can't be right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sailor.errors import InputError

Config = Mapping[str, Any]


def number(config: Config, key: str, where: str, *, default: int | None = None) -> int:
    """Return a whole number above 0; a missing or null key gives `default`, or is an error."""
    value = config.get(key)
    if value is None:
        if default is not None:
            return default
        raise InputError(f"the key {key!r} is missing", where=where, hint=f"add {key}")
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{key} is {value!r}", where=where, hint="write a whole number above 0")
    return value


def flag(config: Config, key: str, where: str, *, default: bool) -> bool:
    """Return true or false."""
    value = config.get(key, default)
    if not isinstance(value, bool):
        raise InputError(f"{key} is {value!r}", where=where, hint="write true or false")
    return value


def head_dim(hidden: int, heads: int, where: str) -> int:
    """Return the width of a head where the config names none."""
    if hidden % heads:
        raise InputError(
            f"hidden size {hidden} is not a multiple of {heads} heads",
            where=where,
            hint="correct one of them",
        )
    return hidden // heads
