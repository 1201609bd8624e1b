"""Files in and out: YAML or JSON by content, errors with file and line, writes that are whole."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from sailor.errors import InputError, did_you_mean
from sailor.model.base import Record
from sailor.model.document import Document, DocumentPath, one_line, shown
from sailor.model.json_text import json_document, looks_like_json, read_json
from sailor.model.parse import parse_record as parse_record
from sailor.model.yaml_text import read_yaml

MAX_FILE_BYTES = 32 * 2**20
# ruamel.yaml reads about half a megabyte a second; larger data is written by programs, as JSON.
MAX_YAML_BYTES = 4 * 2**20
STDIN = "-"

_Loaded = TypeVar("_Loaded", bound=Record)


def load_document(path: str | Path) -> Document:
    """Return what a YAML or JSON file says; `-` reads standard input."""
    name = "<stdin>" if str(path) == STDIN else one_line(str(path))
    document = document_from_text(_decoded(_read(path, name), name), name)
    return document if str(path) == STDIN else replace(document, folder=Path(path).resolve().parent)


def load_text(path: str | Path) -> str:
    """Return the text of a file that is neither YAML nor JSON, such as a CSV table."""
    name = one_line(str(path))
    return _decoded(_read(path, name), name)


def load_record(cls: type[_Loaded], path: str | Path) -> _Loaded:
    """Return the record that a YAML or JSON file describes."""
    return parse_record(cls, load_document(path))


def document_from_text(text: str, name: str, *, first_line: int = 1) -> Document:
    """Return what a text says: JSON when it starts as a JSON object does, else YAML 1.2.

    `first_line` is the line of `name` on which a JSON text starts (JSON Lines).
    """
    start = text.lstrip()[:1]
    if not start:
        raise InputError("the file is empty", where=name, hint="see `sailor schema job`")
    if looks_like_json(text):
        data = read_json(text, name, first_line=first_line)
        return json_document(text, name, data, first_line=first_line)
    if start != "[" and len(text.encode(errors="replace")) > MAX_YAML_BYTES:
        raise InputError(
            f"a YAML file of more than {MAX_YAML_BYTES // 2**20} MiB",
            where=name,
            hint="write it as JSON, which is read faster",
        )
    found, lines = ([], {}) if start == "[" else read_yaml(text, name)
    if not isinstance(found, dict):
        raise InputError(
            f"the top level should be a mapping, not {shown(found)}".replace("an empty", "a"),
            where=f"{name}:{first_line}",
            hint="write `key: value` lines, or several jobs one a line in a .jsonl file",
        )

    def line_of(path: DocumentPath) -> int | None:
        line = lines.get(path)
        return None if line is None else line + first_line - 1

    return Document(name, found, line_of)


def write_atomic(path: str | Path, text: str) -> None:
    """Write a whole file or nothing: readers see the old content or the new one.

    A temporary file in the same folder is synced and renamed over `path`. What is not a regular
    file (a pipe, /dev/stdout) is written to directly.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.exists() and not target.is_file():
            if target.is_dir():
                raise InputError("is a folder", where=str(path), hint="name a file in it")
            target.write_text(text, encoding="utf-8")
            return
        _replace(target, text.encode("utf-8"))
    except FileNotFoundError:
        raise InputError(
            "the folder of this file does not exist", where=str(path), hint="create it first"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"can't be written: {_reason(error)}",
            where=one_line(str(path)),
            hint="name a file in a folder that you may write to",
        ) from None


def _replace(target: Path, content: bytes) -> None:
    temporary = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename last through a power cut, where the system allows to sync a folder."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(path: str | Path, name: str) -> bytes:
    if str(path) == STDIN:
        content = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        return _bounded(content, len(content), name)
    try:
        with Path(path).open("rb") as file:
            status = os.fstat(file.fileno())
            if stat.S_ISREG(status.st_mode):
                _bounded(b"", status.st_size, name)
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise InputError("no such file", where=name, hint=_nearby(Path(path))) from None
    except IsADirectoryError:
        raise InputError("is a folder", where=name, hint="name a file in it") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"can't be read: {_reason(error)}", where=name, hint="name a file that you may read"
        ) from None
    return _bounded(content, len(content), name)


def _bounded(content: bytes, size_bytes: int, name: str) -> bytes:
    if size_bytes > MAX_FILE_BYTES:
        size = f"{size_bytes / 2**20:.0f} MiB is" if not content else "this is"
        raise InputError(
            f"{size} too large for one job or plan (at most {MAX_FILE_BYTES // 2**20} MiB)",
            where=name,
            hint="is it the right file?",
        )
    return content


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"byte {content[error.start]:#04x} is not UTF-8 text",
            where=f"{name}:{line}",
            hint="save the file as UTF-8, or check that it is a YAML or JSON file",
        ) from None


def _nearby(path: Path) -> str:
    """Return a hint with file names of the same folder that are spelt alike."""
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except (OSError, ValueError):
        return "check the folder"
    hint = did_you_mean(path.name, names)
    return one_line(hint) if hint.startswith("did you mean") else "check the name and the folder"


def _reason(error: OSError | ValueError) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return one_line(text[:1].lower() + text[1:])
