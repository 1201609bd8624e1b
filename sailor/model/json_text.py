"""JSON into plain data: fast, strict, and able to say on which line a key stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import partial

from sailor.errors import InputError
from sailor.model.document import (
    MAX_INTEGER,
    Document,
    DocumentPath,
    dotted,
    is_odd_text,
    one_line,
    shown,
)

_JSON_START = re.compile(r'\s*\{\s*["}]')
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
# Escapes of control characters and surrogates, and numbers that may pass 2**63: only a text that
# has one of them is walked through after parsing.
_SUSPICIOUS = re.compile(r"\\u(?:00[01]|007|008|009|[dD][89a-fA-F])|[\\][bf]|\d{19}")


def looks_like_json(text: str) -> bool:
    """Return whether a text starts as a JSON object does (YAML's flow mappings don't)."""
    return _JSON_START.match(text) is not None


def read_json(text: str, name: str, *, first_line: int = 1) -> dict[str, object]:
    """Return what a JSON object says; `first_line` is the line that the text starts on."""
    try:
        data = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        several = error.msg == "Extra data"
        hint = "the file seems cut off" if cut else "check the commas, quotes and brackets there"
        raise InputError(
            f"this is not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}",
            where=f"{name}:{error.lineno + first_line - 1}",
            hint="write one object a file, or one a line in a .jsonl file" if several else hint,
        ) from None
    except _DoubledKeyError as error:
        raise _doubled(text, name, first_line, error.key) from None
    except RecursionError:
        raise InputError(
            "nested too deeply", where=f"{name}:{first_line}", hint="a job needs fewer than 10"
        ) from None
    except ValueError:  # an integer of more digits than Python converts
        raise InputError(
            "a number has thousands of digits",
            where=f"{name}:{first_line}",
            hint=f"numbers are at most {MAX_INTEGER}",
        ) from None
    if _SUSPICIOUS.search(text):
        _refuse_odd_values(json_document(text, name, data, first_line=first_line))
    return dict(data)


def json_document(
    text: str, name: str, data: dict[str, object], *, first_line: int = 1
) -> Document:
    """Return parsed JSON with a look-up of lines that scans the text when asked."""
    return Document(name, data, partial(_line_of, text, first_line))


class _DoubledKeyError(ValueError):
    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(key)


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DoubledKeyError(key)
            seen.add(key)
    return found


def _entries(text: str) -> Iterator[tuple[DocumentPath, int]]:
    """Yield the path and text offset of each key and list entry, in the order of the text.

    The text must be valid JSON.
    """
    stack: list[str | int] = []  # the current key or position of each open object or list
    waiting: list[bool] = []  # for each: whether its next token is a key or the start of an entry
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in "]}":
            stack.pop()
            waiting.pop()
            continue
        if token == ",":
            if isinstance(stack[-1], int):
                stack[-1] += 1
            waiting[-1] = True
            continue
        if token == ":":
            continue
        if stack and waiting[-1]:
            waiting[-1] = False
            if isinstance(stack[-1], str):
                stack[-1] = str(json.loads(token))
                yield tuple(stack), match.start()
                continue
            yield tuple(stack), match.start()
        if token in "[{":
            stack.append(0 if token == "[" else "")
            waiting.append(True)


def _line_of(text: str, first_line: int, path: DocumentPath) -> int | None:
    for found, offset in _entries(text):
        if found == path:
            return first_line + text.count("\n", 0, offset)
    return None


def _doubled(text: str, name: str, first_line: int, key: str) -> InputError:
    seen: set[DocumentPath] = set()
    for path, offset in _entries(text):
        if path in seen:
            line = first_line + text.count("\n", 0, offset)
            return InputError(
                f"the key {shown(path[-1])} is there twice",
                where=f"{name}:{line}",
                hint="keep one of them",
            )
        seen.add(path)
    return InputError(f"the key {shown(key)} is there twice", where=name, hint="keep one of them")


def _refuse_odd_values(document: Document) -> None:
    todo: list[tuple[DocumentPath, object]] = [((), document.data)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                if is_odd_text(key):
                    raise document.error(
                        f"the key {shown(key)} holds a control character",
                        (*path, key),
                        hint="leave it out",
                    )
                todo.append(((*path, key), inner))
        elif isinstance(value, list):
            todo.extend(((*path, index), inner) for index, inner in enumerate(value))
        elif isinstance(value, str) and is_odd_text(value):
            raise document.error(
                f"{dotted(path)} is {shown(value)}, which holds a control character",
                path,
                hint="leave it out",
            )
        elif isinstance(value, int) and abs(value) > MAX_INTEGER:
            raise document.error(
                one_line(f"{dotted(path)} is {shown(value)}"), path, hint=f"at most {MAX_INTEGER}"
            )
