"""What every contract suite needs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from sailor.interfaces import SourceContext
from sailor.model.catalog import Catalog
from sailor.plugin_check import protocol_fault

_T = TypeVar("_T")


class Contract(ABC, Generic[_T]):
    """What every suite needs: the object under test, and what it may look at."""

    protocol: type

    @abstractmethod
    def provided(self) -> _T:
        """Return the object under test; it is made anew for every test."""

    def context(self) -> SourceContext:
        """Return what the object may look at: by default the built-in catalogue."""
        return SourceContext(Catalog.builtin())

    def test_follows_the_protocol(self) -> None:
        """The object has the name and the methods that the registry asks for."""
        fault = protocol_fault(self.provided(), self.protocol)
        require(fault is None, fault or "")


def require(holds: bool, otherwise: str) -> None:
    """Fail a test with a sentence."""
    if not holds:
        raise AssertionError(otherwise)
