"""Where the jobs of a batch come from: files, folders and JSON Lines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sailor.errors import InputError
from sailor.model.document import Document, one_line
from sailor.model.files import MAX_FILE_BYTES, STDIN, document_from_text, load_text
from sailor.model.json_text import json_document, read_json

JOB_SUFFIXES = (".yaml", ".yml", ".json")
LINES_SUFFIXES = (".jsonl", ".ndjson")
_JOB_KEYS = {"model", "training", "pool"}


@dataclass(frozen=True)
class JobInput:
    """One job that was asked for, not read yet.

    `text` is a line of a JSON Lines file, `line` its number; without it `path` is a file of its
    own. `found` tells files that a folder held from those that were named: of the former, what
    is no job at all is passed over.
    """

    path: str
    line: int | None = None
    text: str | None = None
    found: bool = False

    @property
    def origin(self) -> str:
        """Return the place for messages: file, or file:line."""
        name = one_line(self.path)
        return name if self.line is None else f"{name}:{self.line}"

    def content(self) -> str:
        """Return the text of the job."""
        return load_text(self.path) if self.text is None else self.text

    def document(self, content: str) -> Document:
        """Return what the job's text says."""
        name = one_line(self.path)
        folder = Path(self.path).resolve().parent
        if self.line is None:
            read = document_from_text(content, name)
        else:
            data = read_json(content, name, first_line=self.line)
            read = json_document(content, name, data, first_line=self.line)
        return Document(read.name, read.data, read.line_of, folder)

    def is_other_file(self, document: Document) -> bool:
        """Return whether a folder's file is no job: it has none of a job's main keys."""
        return self.found and not _JOB_KEYS & set(document.data)


def content_digest(job: JobInput, content: str) -> str:
    """Return the identity of a job's text at its place, for jobs that can't be resolved."""
    return hashlib.sha256(f"{job.origin}\n{content}".encode(errors="replace")).hexdigest()


def expand(inputs: Sequence[str], out: Path) -> list[JobInput]:
    """Return the jobs of files, folders (searched recursively) and JSON Lines files, in order.

    The batch's own output folder is never an input.
    """
    found: list[JobInput] = []
    for given in inputs:
        if given == STDIN:
            raise InputError(
                "standard input is no input of a batch",
                where=given,
                hint="write the jobs to a .jsonl file, one a line",
            )
        path = Path(given)
        if path.is_dir():
            found.extend(JobInput(str(file), found=True) for file in _files(path, out.resolve()))
            for file in _lines_files(path, out.resolve()):
                found.extend(_lines(file))
        elif path.suffix in LINES_SUFFIXES:
            found.extend(_lines(path))
        else:
            found.append(JobInput(given))
    unique = list(dict.fromkeys(found))
    if not unique:
        raise InputError(
            "no job is found",
            where=", ".join(one_line(given) for given in inputs),
            hint=f"name files, or folders with {', '.join((*JOB_SUFFIXES, *LINES_SUFFIXES))} files",
        )
    return unique


def _files(folder: Path, out: Path) -> Iterator[Path]:
    return _walk(folder, out, JOB_SUFFIXES)


def _lines_files(folder: Path, out: Path) -> Iterator[Path]:
    return _walk(folder, out, LINES_SUFFIXES)


def _walk(folder: Path, out: Path, suffixes: Sequence[str]) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix not in suffixes or hidden or not path.is_file():
            continue
        if not path.resolve().is_relative_to(out):
            yield path


def _lines(path: Path) -> Iterator[JobInput]:
    """Yield the lines of a JSON Lines file, reading no more than one too long line."""
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_FILE_BYTES + 1):
                number += 1
                if len(raw) > MAX_FILE_BYTES:
                    raise InputError(
                        f"this line is longer than {MAX_FILE_BYTES // 2**20} MiB",
                        where=f"{one_line(str(path))}:{number}",
                        hint="is it the right file?",
                    )
                # What is not UTF-8 stays visible as a broken character and fails as a job.
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8", "replace").strip()
                if text:
                    yield JobInput(str(path), number, text)
    except OSError as error:
        raise InputError(
            f"can't be read: {str(error.strerror).lower()}",
            where=one_line(str(path)),
            hint="name a file that you may read",
        ) from None


def job_name(document: Document | None, job: JobInput) -> str:
    """Return what to call a job that may not have loaded: its name, or its place."""
    name = document.data.get("name") if document is not None else None
    return one_line(name[:200]) if isinstance(name, str) and name else job.origin
