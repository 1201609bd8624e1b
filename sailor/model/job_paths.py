"""Paths in a job file: relative to the file's folder, made absolute once it is read."""

from __future__ import annotations

from pathlib import Path

from sailor.model.document import Document
from sailor.model.job import HuggingFaceModel, Job
from sailor.model.parse import parse_record


def job_of_document(document: Document) -> Job:
    """Return the job that a document describes, with absolute paths."""
    return with_absolute_paths(parse_record(Job, document), document.folder)


def with_absolute_paths(job: Job, folder: Path) -> Job:
    """Return the job with the paths of its sources and model taken as relative to `folder`."""
    sources = job.sources.model_copy(
        update={
            kind: tuple(
                ref if ref.path is None else ref.model_copy(update={"path": str(folder / ref.path)})
                for ref in getattr(job.sources, kind)
            )
            for kind in type(job.sources).model_fields
        }
    )
    model = job.model
    if isinstance(model, HuggingFaceModel):
        model = model.model_copy(update={"huggingface": str(folder / model.huggingface)})
    return job.model_copy(update={"sources": sources, "model": model})
