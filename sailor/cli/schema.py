"""`sailor schema`: JSON Schemas, for editors and checkers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from sailor.cli.output import data

if TYPE_CHECKING:
    from sailor.model.base import Record

KINDS = ("job", "plan", "result")


@click.command()
@click.argument("kind", type=click.Choice(KINDS), metavar="job|plan|result")
def command(kind: str) -> None:
    """Print the JSON Schema of a job, plan or result file."""
    data(json.dumps(schema_of(kind), indent=2) + "\n")


def schema_of(kind: str) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of one kind of file."""
    from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

    class TypedText(GenerateJsonSchema):
        """Allows what validators turn into numbers and lists: `40 GiB`, a source's short forms."""

        def function_before_schema(self, schema: Any) -> JsonSchemaValue:
            inner = super().function_before_schema(schema)
            kind_of_value = inner.get("type")
            if kind_of_value in ("integer", "number"):
                return {"anyOf": [inner, {"type": "string"}]}
            if kind_of_value == "array":
                return {"anyOf": [inner, {"type": "string"}, {"type": "object"}]}
            return inner

    found = _record(kind).model_json_schema(schema_generator=TypedText)
    return {"$schema": GenerateJsonSchema.schema_dialect, **found}


def _record(kind: str) -> type[Record]:
    if kind == "job":
        from sailor.model.job import Job

        return Job
    if kind == "plan":
        from sailor.model.plan import Plan

        return Plan
    from sailor.model.result import Result

    return Result
