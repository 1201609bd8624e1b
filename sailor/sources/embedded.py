"""Measured layer profiles: those that ship with sailor, and those of a user's store file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path

from sailor.errors import InputError
from sailor.interfaces import SourceContext
from sailor.model.arch import ModelSpec
from sailor.model.job import Training
from sailor.model.profile import LayerFootprint, LayerProfile
from sailor.profiling.store import ProfileStore


@cache
def embedded_store() -> ProfileStore:
    """Return the SOSP'25 measurements that ship with sailor."""
    name = "sosp25_profiles.json"
    text = files("sailor.sources").joinpath("data", name).read_text(encoding="utf-8")
    return ProfileStore.from_text(text, where=name)


def store_of(context: SourceContext, what: str) -> ProfileStore:
    """Return the store in the file that the job names; `what` is the job's key for messages."""
    if context.path is None:
        raise InputError(
            "the source 'store' needs a file",
            where=f"sources.{what}",
            hint=f"write {what}: {{store: FILE}}",
        )
    try:
        status = context.path.stat()
    except OSError:
        return ProfileStore.load(context.path)  # which says what is wrong with the path
    return _load(context.path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _load(path: Path, _mtime_ns: int, _size: int) -> ProfileStore:
    """Load a file once for as long as it stays as it is."""
    return ProfileStore.load(path)


class _StoredProfiles(ABC):
    """Answers from a store; a model of another shape or precision has no answer there."""

    name: str

    @abstractmethod
    def _store(self, context: SourceContext) -> ProfileStore: ...

    def grid(
        self, model: ModelSpec, training: Training, gpu: str, context: SourceContext
    ) -> Sequence[tuple[int, int]]:
        """Return the measured (tp, microbatch) pairs."""
        store = self._store(context)
        if not training.usual or not store.describes(model):
            return ()
        return store.grid(model.name, gpu, training.precision)

    def profile(
        self,
        model: ModelSpec,
        training: Training,
        gpu: str,
        tp: int,
        microbatch: int,
        context: SourceContext,
    ) -> LayerProfile | None:
        """Return the measured times, or None."""
        store = self._store(context)
        if not training.usual or not store.describes(model):
            return None
        return store.profile(model.name, gpu, tp, microbatch, training.precision)

    def footprint(
        self, model: ModelSpec, training: Training, tp: int, context: SourceContext
    ) -> LayerFootprint | None:
        """Return the measured bytes, or None."""
        store = self._store(context)
        if not training.usual or not store.describes(model):
            return None
        return store.footprint(model.name, tp, training.precision)


class EmbeddedProfiles(_StoredProfiles):
    """The measurements that ship with sailor (fp32 only)."""

    name = "embedded"

    def _store(self, context: SourceContext) -> ProfileStore:
        return embedded_store()


class StoreProfiles(_StoredProfiles):
    """The measurements of the file in `sources: {profiles: {store: FILE}}`."""

    name = "store"

    def _store(self, context: SourceContext) -> ProfileStore:
        return store_of(context, "profiles")
