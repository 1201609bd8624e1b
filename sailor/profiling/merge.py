"""New figures into an existing store file: those of the same key replace the old ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import TypeVar

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.profiling.store import ProfileStore

_Row = TypeVar("_Row")


def check_addable(path: Path, models: Iterable[ModelSpec] = ()) -> None:
    """Refuse a file that can't take figures of these models, before any are measured."""
    if path.exists():
        _check_shapes(ProfileStore.load(path), models, str(path))


def add_to_file(path: Path, new: ProfileStore) -> ProfileStore:
    """Write `new` to a file, beside what it has; return the store that the file now holds."""
    store = merged(ProfileStore.load(path), new, str(path)) if path.exists() else new
    store.save(path)
    return store


def merged(old: ProfileStore, new: ProfileStore, where: str) -> ProfileStore:
    """Return both stores as one; `where` names the old one in messages."""
    _check_shapes(old, new.models, where)
    return ProfileStore(
        source=_joined(old.source, new.source),
        licence=_joined(old.licence, new.licence),
        as_of=new.as_of or old.as_of,
        remarks=tuple(dict.fromkeys((*old.remarks, *new.remarks))),
        models=_rows(old.models, new.models, lambda row: row.name),
        profiles=_rows(
            old.profiles,
            new.profiles,
            lambda row: (row.model, row.gpu, row.tp, row.microbatch, row.precision),
        ),
        footprints=_rows(
            old.footprints, new.footprints, lambda row: (row.model, row.tp, row.precision)
        ),
        links=_rows(
            old.links,
            new.links,
            lambda row: (
                row.src, row.dst, row.src_gpu, row.dst_gpu, row.src_workers, row.dst_workers
            ),
        ),
    )  # fmt: skip


def _check_shapes(old: ProfileStore, models: Iterable[ModelSpec], where: str) -> None:
    for model in models:
        known = any(model.name == other.name for other in old.models)
        if known and not old.describes(model):
            raise InputError(
                f"the file has figures of another model named {model.name}",
                where=where,
                hint="name another file, or give the model another name",
            )


def _rows(
    old: Iterable[_Row], new: Iterable[_Row], key: Callable[[_Row], Hashable]
) -> tuple[_Row, ...]:
    return tuple({key(row): row for row in (*old, *new)}.values())


def _joined(old: str, new: str) -> str:
    return old if new in old.split("; ") else f"{old}; {new}"
