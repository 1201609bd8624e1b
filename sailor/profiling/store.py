"""The profile store: measured times, bytes and links with their provenance."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from sailor.errors import InputError
from sailor.model.arch import ModelSpec
from sailor.model.base import Record
from sailor.model.hardware import Link
from sailor.model.profile import LayerFootprint, LayerProfile
from sailor.profiling import store_format

MAX_FILE_BYTES = 100_000_000

_SHAPE = (
    "num_layers", "hidden", "ffn", "num_heads", "num_kv_heads", "head_dim", "vocab", "seq_len",
    "gated_mlp",
)  # fmt: skip

_ProfileKey = tuple[str, str, int, int, str]
_FootprintKey = tuple[str, int, str]
_LinkKey = tuple[str, str, str | None, str | None, int | None, int | None]


class ProfileStore(Record):
    """Profiles, footprints and links of one origin; `models` are the shapes that were measured."""

    schema_version: Literal[1] = 1
    source: str = Field(min_length=1)
    licence: str = Field(min_length=1)
    as_of: date | None = None
    remarks: tuple[str, ...] = ()  # what the importer left out or worked out, and why
    models: tuple[ModelSpec, ...] = ()
    profiles: tuple[LayerProfile, ...] = ()
    footprints: tuple[LayerFootprint, ...] = ()
    links: tuple[Link, ...] = ()

    @model_validator(mode="after")
    def _no_duplicates(self) -> Self:
        for what, count, index in (
            ("model", len(self.models), self._models),
            ("profile", len(self.profiles), self._profiles),
            ("footprint", len(self.footprints), self._footprints),
            ("link", len(self.links), self._links),
        ):
            if count != len(index):
                raise ValueError(f"a {what} is given twice")
        return self

    @cached_property
    def _models(self) -> Mapping[str, ModelSpec]:
        return {model.name: model for model in self.models}

    @cached_property
    def _profiles(self) -> Mapping[_ProfileKey, LayerProfile]:
        return {(p.model, p.gpu, p.tp, p.microbatch, p.precision): p for p in self.profiles}

    @cached_property
    def _footprints(self) -> Mapping[_FootprintKey, LayerFootprint]:
        return {(row.model, row.tp, row.precision): row for row in self.footprints}

    @cached_property
    def _links(self) -> Mapping[_LinkKey, Link]:
        return {
            (row.src, row.dst, row.src_gpu, row.dst_gpu, row.src_workers, row.dst_workers): row
            for row in self.links
        }

    def describes(self, model: ModelSpec) -> bool:
        """Return whether the measured model of that name has this very shape."""
        measured = self._models.get(model.name)
        return measured is not None and all(
            getattr(measured, field) == getattr(model, field) for field in _SHAPE
        )

    def grid(self, model: str, gpu: str, precision: str) -> tuple[tuple[int, int], ...]:
        """Return the measured (tp, microbatch) pairs, sorted."""
        return tuple(
            sorted(
                (p.tp, p.microbatch)
                for p in self.profiles
                if (p.model, p.gpu, p.precision) == (model, gpu, precision)
            )
        )

    def profile(
        self, model: str, gpu: str, tp: int, microbatch: int, precision: str
    ) -> LayerProfile | None:
        """Return one profile, or None: not measured."""
        return self._profiles.get((model, gpu, tp, microbatch, precision))

    def footprint(self, model: str, tp: int, precision: str) -> LayerFootprint | None:
        """Return one footprint, or None: not measured."""
        return self._footprints.get((model, tp, precision))

    def link(
        self,
        src: str,
        dst: str,
        src_gpu: str | None,
        dst_gpu: str | None,
        src_workers: int | None,
        dst_workers: int | None,
    ) -> Link | None:
        """Return the link of exactly these zones, GPU types and counts, or None."""
        return self._links.get((src, dst, src_gpu, dst_gpu, src_workers, dst_workers))

    def save(self, path: Path | str) -> None:
        """Write the store; an older file is replaced only when the new one is complete."""
        target = Path(path)
        partial = target.with_name(f"{target.name}.partial")
        try:
            partial.write_text(self.to_text(), encoding="utf-8")
            partial.replace(target)
        except OSError as error:
            raise InputError(
                f"can't write the profile store ({error.strerror})",
                where=str(path),
                hint="choose a place that can be written",
            ) from error

    @classmethod
    def load(cls, path: Path | str) -> Self:
        """Read a store that `save` wrote."""
        file, where = Path(path), str(path)
        try:
            size = file.stat().st_size
            text = file.read_text(encoding="utf-8") if size <= MAX_FILE_BYTES else ""
        except OSError as error:
            raise InputError(
                f"can't read the profile store ({error.strerror})",
                where=where,
                hint="make one with: sailor profile import --from sosp25 DIR --out FILE",
            ) from error
        except UnicodeDecodeError as error:
            raise store_format.damaged(f"is no text ({error.reason})", where) from error
        if size > MAX_FILE_BYTES:
            raise store_format.damaged(
                f"is {size} bytes long, more than the {MAX_FILE_BYTES} of a profile store", where
            )
        return cls.from_text(text, where=where)

    def to_text(self) -> str:
        """Return the file's text (see `sailor.profiling.store_format`)."""
        head = self.model_dump(mode="json", include={"source", "licence", "as_of", "remarks"})
        models = [model.model_dump(mode="json") for model in self.models]
        return store_format.dump(
            {**head, "models": models}, self.profiles, self.footprints, self.links
        )

    @classmethod
    def from_text(cls, text: str, *, where: str) -> Self:
        """Return the store in a file's text; `where` names the file in messages."""
        fields = store_format.parse(text, where)
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            raise store_format.damaged(store_format.first_error(error), where) from error
