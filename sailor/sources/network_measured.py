"""Links that were measured: those that ship with sailor, and those of a user's store file."""

from __future__ import annotations

from sailor.interfaces import SourceContext, WorkerGroup
from sailor.model.hardware import Link
from sailor.profiling.store import ProfileStore
from sailor.sources.embedded import embedded_store, store_of


def _find(store: ProfileStore, src: WorkerGroup, dst: WorkerGroup) -> Link | None:
    """Return the link of exactly these zones, GPU types and counts of workers."""
    return store.link(src.zone, dst.zone, src.gpu, dst.gpu, src.workers, dst.workers)


class MeasuredNetwork:
    """The SOSP'25 bandwidth curves (GCP us-central1 and us-west1, and two clusters)."""

    name = "measured"

    def link(self, src: WorkerGroup, dst: WorkerGroup, context: SourceContext) -> Link | None:
        """Return the measured link, or None."""
        return _find(embedded_store(), src, dst)


class StoreNetwork:
    """The links of the file in `sources: {network: {store: FILE}}`.

    A link of exactly these workers comes before one of any number of these GPU types, and that
    before one of any GPU types.
    """

    name = "store"

    def link(self, src: WorkerGroup, dst: WorkerGroup, context: SourceContext) -> Link | None:
        """Return the file's link, or None."""
        store = store_of(context, "network")
        return (
            _find(store, src, dst)
            or store.link(src.zone, dst.zone, src.gpu, dst.gpu, None, None)
            or store.link(src.zone, dst.zone, None, None, None, None)
        )
