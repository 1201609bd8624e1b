"""What pydantic finds wrong, read in terms of the user's data rather than of its schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import ValidationError

from sailor.errors import did_you_mean
from sailor.model.document import DocumentPath, dotted, one_line, shown


@dataclass(frozen=True)
class Complaint:
    """One thing that is wrong.

    `path` leads through the user's data. `union` is the path of a field that takes several forms
    when the complaint is about one of them, `branch` pydantic's label of that form. `told` is the
    message of one of our own checks. `below` goes on from `path` where the data was written in a
    short form, such as a source's `{file: prices.yaml}`.
    """

    kind: str  # pydantic's error type
    path: DocumentPath
    value: object = None
    limits: Mapping[str, object] = field(default_factory=dict)
    told: str = ""
    union: DocumentPath | None = None
    branch: str | None = None
    below: DocumentPath = ()

    @property
    def label(self) -> str:
        """Return the path as people write it."""
        inner = dotted(tuple(step for step in self.below if isinstance(step, str)))
        return f"{dotted(self.path)}: {inner}" if inner else dotted(self.path)


def read_complaints(data: object, error: ValidationError) -> list[Complaint]:
    """Return everything that is wrong, in the order of the record's fields."""
    return [
        _read(data, found["type"], found["loc"], found["input"], found.get("ctx", {}), found["msg"])
        for found in error.errors(include_url=False)
    ]


def _read(
    data: object,
    kind: str,
    loc: Sequence[str | int],
    value: object,
    limits: Mapping[str, object],
    told: str,
) -> Complaint:
    path: DocumentPath = ()
    union: DocumentPath | None = None
    branch: str | None = None
    here: object = data
    below: DocumentPath = ()
    for position, step in enumerate(loc):
        last = position == len(loc) - 1
        if not below and isinstance(here, Mapping) and step in here:
            here = here[step]
            path = (*path, step)
        elif not below and isinstance(here, (list, tuple)) and isinstance(step, int):
            here = here[step] if step < len(here) else None
            path = (*path, step)
        elif last and kind == "missing":
            path = (*path, step)
        elif not below and isinstance(step, str):
            union, branch = path, step
        else:
            below = (*below, step)
    seen = here if not below and kind != "missing" else value
    own = limits.get("error")
    return Complaint(
        kind=kind,
        path=path,
        value=seen,
        limits=limits,
        union=union,
        branch=branch,
        below=below,
        told=one_line(str(own) if isinstance(own, Exception) else told),
    )


_SHOULD: Mapping[str, str] = {
    "string_type": "text",
    "string_unicode": "text without broken characters",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a whole number of at most 18 digits",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "date_type": "a date such as '2026-11-01'",
    "date_parsing": "a date such as '2026-11-01'",
    "date_from_datetime_parsing": "a date such as '2026-11-01'",
    "date_from_datetime_inexact": "a date such as '2026-11-01'",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


def sentence(complaint: Complaint, kind: str) -> tuple[str, str | None]:
    """Return what is wrong and, where it isn't said by that, what would be right.

    `kind` describes what the field takes, in words.
    """
    name = complaint.label
    value = shown(complaint.value)
    what = complaint.kind
    if what == "value_error":
        starts_with_place = complaint.told.startswith((name, "pool["))
        return (
            complaint.told if not name or starts_with_place else f"{name}: {complaint.told}",
            None,
        )
    if what in ("enum", "literal_error"):
        choices = kind.replace("'", "").split(" or ")
        hint = did_you_mean(str(complaint.value), choices)
        return (
            f"{name} should be {kind}, not {value}",
            hint if hint.startswith("did you mean") else None,
        )
    if what in _BOUNDS:
        limit, words = _BOUNDS[what]
        return f"{name} should be {words} {complaint.limits[limit]}, not {value}", None
    return _shape_sentence(complaint, name, value, kind)


def _shape_sentence(
    complaint: Complaint, name: str, value: str, kind: str
) -> tuple[str, str | None]:
    what, limits = complaint.kind, complaint.limits
    if what in _SHOULD:
        shaped = what in ("model_type", "tuple_type") and not complaint.below
        should = kind if shaped and kind != "a value" else None
        name = name or "the top level"
        return f"{name} should be {should or _SHOULD[what]}, not {value}", None
    if what == "string_pattern_mismatch":
        spaceless = limits.get("pattern") == r"^\S+$"
        should = (
            "a name without spaces"
            if spaceless
            else "a name of letters, digits and . _ + - that starts with a letter or digit"
        )
        return f"{name} should be {should}, not {value}", None
    if what in ("string_too_short", "string_too_long"):
        if what == "string_too_short":
            return f"{name} should not be empty", None
        return f"{name} should have at most {limits['max_length']} characters", None
    if what in ("too_short", "too_long"):
        few = what == "too_short"
        count = limits["min_length" if few else "max_length"]
        entries = "entry" if count == 1 else "entries"
        should = f"at {'least' if few else 'most'} {count} {entries}"
        return f"{name} should have {should}, not {limits['actual_length']}", None
    if what == "missing":
        return f"{name} is missing", f"add {kind}"
    if what == "invalid_key":
        return f"the key {value} is not text", "write keys as text"
    return f"{name}: {complaint.told[:1].lower()}{complaint.told[1:]}", None
