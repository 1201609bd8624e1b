"""Plain data into records; what is wrong with it, as one sentence with its place."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import date
from enum import Enum
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from sailor.errors import InputError, did_you_mean
from sailor.model.base import Record
from sailor.model.complaint import Complaint, read_complaints, sentence
from sailor.model.document import Document, DocumentPath, dotted, one_line, shown

_Parsed = TypeVar("_Parsed", bound=Record)


def parse_record(
    cls: type[_Parsed],
    source: Document | Mapping[str, object],
    *,
    where: Document | str | None = None,
) -> _Parsed:
    """Return a record, or raise one InputError that names the place and what would be right.

    `source` is a loaded document or a plain mapping; `where` names a mapping in messages, or is
    the document that it was read from.
    """
    if isinstance(source, Document):
        document = source
    elif isinstance(where, Document):
        document = Document(where.name, source, where.line_of)
    else:
        document = Document(where or "", source)
    try:
        record = cls.model_validate(document.data)
    except ValidationError as error:
        raise _explained(cls, document, error) from None
    except RecursionError:
        raise document.error("nested too deeply", hint="a job needs fewer than 10") from None
    _refuse_coercions(record, document.data, (), document)
    return record


def _explained(cls: type[Record], document: Document, error: ValidationError) -> InputError:
    complaints = _without_other_branches(cls, document, read_complaints(document.data, error))
    # A misspelt key also shows up as a missing one: the misspelling is the better news.
    chosen = next((c for c in complaints if c.kind == "extra_forbidden"), complaints[0])
    known = record_fields(annotation_at(cls, chosen.path[:-1], chosen.branch))
    if chosen.kind == "extra_forbidden":
        key = str(chosen.path[-1])
        message = f"unknown key {shown(key)}"
        if chosen.path[:-1]:
            message += f" in {dotted(chosen.path[:-1])}"
        return document.error(message, chosen.path, hint=did_you_mean(key, known))
    kind = described(annotation_at(cls, chosen.path, chosen.branch))
    return _placed(document, chosen, kind)


def _placed(document: Document, complaint: Complaint, kind: str) -> InputError:
    if complaint.kind == "missing":
        *parent, key = complaint.path
        owner = f"{dotted(tuple(parent))} has no {key}" if parent else f"{key} is missing"
        return document.error(owner, tuple(parent), hint=f"add `{key}:` with {kind}")
    message, hint = sentence(complaint, kind)
    place = complaint.path
    if not place:
        place = _path_in(message, document.data)
    return document.error(message, place, hint=hint)


def _path_in(message: str, data: object) -> DocumentPath:
    """Return what a whole-record check speaks of: `pool[1]`, `stage 2`, or a key's name."""
    if not isinstance(data, Mapping):
        return ()
    entry = re.search(r"([a-z_]+)\[(\d+)\]|stage (\d+)", message)
    if entry is not None:
        key = entry[1] or "stages"
        items, index = data.get(key), int(entry[2] or entry[3])
        if isinstance(items, list) and index < len(items):
            return (key, index)
    named = [word for word in re.findall(r"[a-z_]+", message) if word in data]
    return (named[0],) if named else ()


def _without_other_branches(
    cls: type[Record], document: Document, complaints: Sequence[Complaint]
) -> Sequence[Complaint]:
    """Keep, where a field takes several forms, only what concerns the form that was meant."""
    kept: list[Complaint] = []
    done: set[DocumentPath] = set()
    for complaint in complaints:
        if complaint.union is None:
            kept.append(complaint)
        elif complaint.union not in done:
            done.add(complaint.union)
            kept.extend(_meant(cls, document, complaint.union, complaints))
    return kept


def _meant(
    cls: type[Record], document: Document, union: DocumentPath, complaints: Sequence[Complaint]
) -> Sequence[Complaint]:
    value = value_at(document.data, union)
    by_branch: dict[str, list[Complaint]] = {}
    for complaint in complaints:
        if complaint.union == union:
            by_branch.setdefault(complaint.branch or "", []).append(complaint)
    members = _members(annotation_at(cls, union))
    records = {m.__name__: m for m in members if isinstance(m, type) and issubclass(m, BaseModel)}
    if isinstance(value, Mapping):
        fitting = {
            branch: found
            for branch, found in by_branch.items()
            if any(
                name in branch and set(value) & set(r.model_fields) for name, r in records.items()
            )
        }
    else:
        fitting = {
            branch: found
            for branch, found in by_branch.items()
            if not any(name in branch for name in records)
            and not any(c.kind.endswith("_type") for c in found)
        }
    if not fitting:
        forms = described(annotation_at(cls, union))
        text = f"{dotted(union)} should be {forms}, not {shown(value)}"
        return (Complaint(kind="value_error", path=union, value=value, told=text),)
    return min(fitting.values(), key=_distance)


def _distance(complaints: Sequence[Complaint]) -> int:
    return sum(1 for c in complaints if c.kind in ("missing", "extra_forbidden"))


def value_at(data: object, path: DocumentPath) -> object:
    """Return the value at a path, or None where the data ends before it."""
    for step in path:
        if isinstance(data, Mapping) and step in data:
            data = data[str(step)]
        elif isinstance(data, Sequence) and isinstance(step, int) and step < len(data):
            data = data[step]
        else:
            return None
    return data


def annotation_at(cls: type[Record], path: DocumentPath, branch: str | None = None) -> Any:
    """Return the type that a record expects at a path; Any where it says nothing.

    `branch` is pydantic's label of a union's member: it chooses among several records.
    """
    here: Any = cls
    for step in path:
        members = _members(here)
        if isinstance(step, int):
            lists = [m for m in members if typing.get_origin(m) in (tuple, list)]
            here = typing.get_args(lists[0])[0] if lists else Any
            continue
        owners = [m for m in members if step in record_fields(m)]
        named = [m for m in owners if branch and m.__name__ in branch]
        if not owners:
            return Any
        field = (named or owners)[0].model_fields[step]
        here = field.annotation
    return here if branch is None else _branch_member(here, branch)


def _branch_member(annotation: Any, branch: str) -> Any:
    for member in _members(annotation):
        if isinstance(member, type) and member.__name__ in branch:
            return member
    return annotation


def _members(annotation: Any) -> list[Any]:
    """Return the alternatives of a type, without Annotated and None."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return _members(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return [
            member
            for part in typing.get_args(annotation)
            if part is not type(None)
            for member in _members(part)
        ]
    return [annotation]


def record_fields(annotation: Any) -> Sequence[str]:
    """Return the keys of the record that a type stands for, in order."""
    return [
        name
        for member in _members(annotation)
        if isinstance(member, type) and issubclass(member, BaseModel)
        for name in member.model_fields
    ]


_WORDS: Mapping[object, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    date: "a date such as '2026-11-01'",
}


def described(annotation: Any) -> str:
    """Return what a type accepts, in words."""
    texts = {_described_member(member): None for member in _members(annotation)}
    return " or ".join(sorted(texts, key=len))  # the simplest form first


def _described_member(member: Any) -> str:
    origin = typing.get_origin(member)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in typing.get_args(member))
    if origin in (tuple, list):
        return "a list"
    if isinstance(member, type) and issubclass(member, Enum):
        return " or ".join(repr(str(choice.value)) for choice in member)
    if isinstance(member, type) and issubclass(member, BaseModel):
        required = [name for name, f in member.model_fields.items() if f.is_required()]
        return "a mapping" + (f" with {', '.join(required)}" if required else "")
    return _WORDS.get(member, "a value")


def _refuse_coercions(value: object, raw: object, path: DocumentPath, document: Document) -> None:
    """Refuse what pydantic turns into another thing: true into 1, a number into a date."""
    if isinstance(value, Record) and isinstance(raw, Mapping):
        for name in type(value).model_fields:
            if name in raw:
                _refuse_coercions(getattr(value, name), raw[name], (*path, name), document)
    elif isinstance(value, tuple) and isinstance(raw, (list, tuple)) and len(value) == len(raw):
        for index, (inner, raw_inner) in enumerate(zip(value, raw, strict=True)):
            _refuse_coercions(inner, raw_inner, (*path, index), document)
    elif isinstance(raw, bool) and not isinstance(value, bool):
        raise document.error(f"{dotted(path)} should be a number, not {shown(raw)}", path)
    elif isinstance(value, date) and isinstance(raw, (int, float)):
        raise document.error(
            one_line(f"{dotted(path)} should be {_WORDS[date]}, not {shown(raw)}"), path
        )
