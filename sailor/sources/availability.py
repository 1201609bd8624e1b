"""What can be rented: the job's own pool, or a quota file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from sailor.errors import InputError
from sailor.interfaces import SourceContext
from sailor.model.base import Record
from sailor.model.files import load_record
from sailor.model.hardware import Offer
from sailor.model.job import Job, check_pool


class QuotaFile(Record):
    """A quota file: a pool in the form in which a job writes it."""

    schema_version: Literal[1] = 1
    pool: tuple[Offer, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _has_something(self) -> Self:
        check_pool(self.pool)
        return self


class StaticAvailability:
    """The pool that the job lists, as it stands."""

    name = "static"

    def offers(self, job: Job, context: SourceContext) -> Sequence[Offer]:
        """Return the job's pool."""
        return job.pool


class FileAvailability:
    """The pool of a quota file, in place of the job's: one file for the quotas of many jobs."""

    name = "file"

    def offers(self, job: Job, context: SourceContext) -> Sequence[Offer]:
        """Return the file's pool."""
        if context.path is None:
            raise InputError(
                "the availability source 'file' has no file",
                where=f"{job.name}: sources.availability",
                hint="write `availability: {file: quotas.yaml}`",
            )
        return load_record(QuotaFile, context.path).pool
