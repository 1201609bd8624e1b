"""YAML 1.2 (core schema) into plain data with the line of every key.

Built on ruamel.yaml's events, so that what a job file has no use for is refused where it stands,
before anything is built: tags, anchors and aliases (a few of them expand without bound), doubled
keys, several documents, deep nesting.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sailor.errors import InputError
from sailor.model.document import MAX_DEPTH, MAX_INTEGER, DocumentPath, is_odd_text, one_line, shown

_NULL = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE"}
_FALSE = {"false", "False", "FALSE"}
_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL = re.compile(r"0o[0-7]+")
_HEX = re.compile(r"0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_INFINITY = re.compile(r"[-+]?\.(inf|Inf|INF)")
_NAN = {".nan", ".NaN", ".NAN"}
_MAX_NUMBER_CHARS = 400
_NOT_TEXT = re.compile(
    "[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)


@dataclass
class _Open:
    """A list or mapping whose end has not been seen."""

    path: DocumentPath
    items: dict[str, object] | list[object]
    key: str | None = None  # of a mapping: the key whose value comes next
    key_lines: dict[str, int] = field(default_factory=dict)


def read_yaml(text: str, name: str) -> tuple[object, dict[DocumentPath, int]]:
    """Return what a YAML text says, and the line (from 1) of each key and list entry."""
    odd = _NOT_TEXT.search(text)
    if odd is not None:
        line = text.count("\n", 0, odd.start()) + 1
        raise InputError(
            f"character U+{ord(odd[0]):04X} is not text",
            where=f"{name}:{line}",
            hint="give a YAML or JSON file in UTF-8",
        )
    builder = _Builder(name)
    for event in _events(text, name):
        builder.take(event)
    return builder.root, builder.lines


def _events(text: str, name: str) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    last_line = text.count("\n") + 1
    line = 1
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            line = event.start_mark.line + 1
            yield event
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark is not None else line
        problem = one_line(str(error.problem or error.context or "can't be read"))
        cut = mark is not None and mark.index >= len(text.rstrip())
        raise InputError(
            f"this is not valid YAML: {problem}",
            where=f"{name}:{min(line, last_line)}",
            hint="the file seems cut off" if cut else "check the indentation and quotes there",
        ) from None
    except (YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError) as error:
        # ruamel.yaml lets a few plain exceptions out on malformed directives and escapes.
        raise InputError(
            f"this is not valid YAML: {one_line(str(error)[:200])}",
            where=f"{name}:{line}",
            hint="check the characters there",
        ) from None


class _Builder:
    """Turns events into dicts, lists and scalars."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.root: object = None
        self.lines: dict[DocumentPath, int] = {}
        self._open: list[_Open] = []
        self._documents = 0

    def take(self, event: Any) -> None:
        kind = type(event).__name__
        line = event.start_mark.line + 1
        if kind == "DocumentStartEvent":
            self._start_document(event, line)
        elif kind == "AliasEvent":
            raise self._refused(
                line, f"the alias *{event.anchor} is not allowed", "write the value out"
            )
        elif kind in ("ScalarEvent", "SequenceStartEvent", "MappingStartEvent"):
            self._refuse_decoration(event, line)
            if kind == "ScalarEvent":
                self._scalar(event, line)
            else:
                self._start(line, [] if kind == "SequenceStartEvent" else {})
        elif kind in ("SequenceEndEvent", "MappingEndEvent"):
            self._open.pop()

    def _start_document(self, event: Any, line: int) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._refused(
                line, "a second YAML document starts here", "write one document a file"
            )
        if event.tags or (event.version is not None and tuple(event.version) != (1, 2)):
            raise self._refused(
                line, "YAML directives are not allowed", "leave out the lines that start with %"
            )

    def _refuse_decoration(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            raise self._refused(
                line, f"the anchor &{event.anchor} is not allowed", "write the value out"
            )
        if event.tag is not None and not (type(event).__name__ == "ScalarEvent" and _plain(event)):
            raise self._refused(
                line, f"the tag {shown(str(event.tag))} is not allowed", "write a plain value"
            )

    def _start(self, line: int, items: dict[str, object] | list[object]) -> None:
        if len(self._open) >= MAX_DEPTH:
            raise self._refused(
                line, f"nested more than {MAX_DEPTH} levels deep", "a job needs fewer than 10"
            )
        if self._open and self._expects_key():
            raise self._refused(line, "a key must be plain text", "write it as `key: value`")
        self._open.append(_Open(self._place(items, line), items))

    def _scalar(self, event: Any, line: int) -> None:
        text = str(event.value)
        if self._open and self._expects_key():
            self._key(text, line)
            return
        if is_odd_text(text):
            raise self._refused(line, f"{shown(text)} holds a control character", "leave it out")
        self._place(self._value(text, line) if event.style is None else text, line)

    def _expects_key(self) -> bool:
        top = self._open[-1]
        return isinstance(top.items, dict) and top.key is None

    def _key(self, key: str, line: int) -> None:
        top = self._open[-1]
        if key == "" or is_odd_text(key):
            raise self._refused(line, f"{shown(key)} is no key", "write keys as `key: value`")
        if key in top.key_lines:
            raise self._refused(
                line,
                f"the key {shown(key)} is there twice (first on line {top.key_lines[key]})",
                "keep one of them",
            )
        top.key_lines[key] = line
        top.key = key
        self.lines[(*top.path, key)] = line

    def _place(self, value: object, line: int) -> DocumentPath:
        """Put a value where it belongs, and return its path."""
        if not self._open:
            self.root = value
            return ()
        top = self._open[-1]
        if isinstance(top.items, list):
            path: DocumentPath = (*top.path, len(top.items))
            self.lines[path] = line
            top.items.append(value)
            return path
        key = str(top.key)
        top.items[key] = value
        top.key = None
        return (*top.path, key)

    def _value(self, text: str, line: int) -> object:
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if text in _NAN:
            return float("nan")
        if _INFINITY.fullmatch(text):
            return float("-inf" if text.startswith("-") else "inf")
        if not _number_like(text):
            return text
        if len(text) > _MAX_NUMBER_CHARS:
            raise self._refused(
                line, f"a number of {len(text)} characters", "write it with fewer digits"
            )
        number = _number(text)
        if isinstance(number, int) and abs(number) > MAX_INTEGER:
            raise self._refused(
                line, f"the number {shown(text)} is too large", f"at most {MAX_INTEGER}"
            )
        return number

    def _refused(self, line: int, message: str, hint: str) -> InputError:
        return InputError(one_line(message), where=f"{self.name}:{line}", hint=hint)


def _plain(event: Any) -> bool:
    """Return whether a scalar's tag is only what its quotes imply."""
    return bool(event.implicit[0] or event.implicit[1]) and str(event.tag) in ("None", "")


def _number_like(text: str) -> bool:
    return any(form.fullmatch(text) for form in (_INT, _FLOAT, _OCTAL, _HEX))


def _number(text: str) -> int | float:
    if _INT.fullmatch(text):
        return int(text)
    if _OCTAL.fullmatch(text):
        return int(text, 0)
    return int(text, 0) if _HEX.fullmatch(text) else float(text)
