"""Compiled kernels: whether there are any, and how one is declared.

Kernels are plain loops that numba turns into machine code, where it is installed (extra `fast`).
Each has a numpy counterpart that gives the same numbers, bit by bit; setting the environment
variable SAILOR_NO_NUMBA to anything makes that one run. numba is imported when the first kernel
is wanted, and compiled code is kept on disk where a folder for it can be written.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_SWITCH = "SAILOR_NO_NUMBA"


def compiled() -> bool:
    """Return whether kernels are used; doesn't import numba."""
    return not os.environ.get(_SWITCH) and importlib.util.find_spec("numba") is not None


def kernels(name: str) -> Any:
    """Return module `sailor.solve.kernels.<name>` with its kernels, or None without numba."""
    return loaded(name) if compiled() else None


@cache
def loaded(name: str) -> Any:
    """Return the module, whatever the environment says; None where numba can't be imported."""
    try:
        importlib.import_module("numba")
    except ImportError:
        return None  # not there, or made for another numpy
    return importlib.import_module(f"sailor.solve.kernels.{name}")


def kernel(signature: str) -> Callable[[Function], Function]:
    """Compile a function for exactly these types, or take it from the cache on disk."""

    def declared(function: Function) -> Function:
        njit: Any = importlib.import_module("numba").njit
        try:
            cached: Function = njit(signature, cache=True)(function)
        except (RuntimeError, OSError):
            # No folder for the cache can be written, or it is full or broken.
            fresh: Function = njit(signature)(function)
            return fresh
        return cached

    return declared


def inner(function: Function) -> Function:
    """Make a function a part of the kernels that call it."""
    njit: Any = importlib.import_module("numba").njit
    found: Function = njit(function)
    return found


def inlined(function: Function) -> Function:
    """Put a function's code into the kernels that call it, where a call costs too much."""
    njit: Any = importlib.import_module("numba").njit
    found: Function = njit(function, inline="always")
    return found
