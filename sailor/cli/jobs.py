"""Job files on the command line: load, resolve, and place what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sailor.errors import SailorError
from sailor.model.document import Document, relocated
from sailor.model.files import load_document
from sailor.model.job import Job
from sailor.model.job_paths import job_of_document

_T = TypeVar("_T")


class JobFile:
    """One job file, read once, so that what is found wrong later can be placed in it."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.job = job_of_document(document)

    @classmethod
    def load(cls, path: str) -> JobFile:
        """Read a file, or standard input for `-`."""
        return cls(load_document(path))

    def placed(self, action: Callable[[], _T]) -> _T:
        """Return what `action` returns; an error about a field gets the file and line of it."""
        try:
            return action()
        except SailorError as error:
            raise relocated(error, self.document, Job.model_fields) from error.__cause__
