"""The JSON Schema of schema.json, so that editors complete and check it. It is made from the classes of columns."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from kme_jax.table.columns import DROP, KINDS, SECONDS
from kme_jax.table.constraints import KINDS as CONSTRAINTS
from kme_jax.table.schema import SCHEMA_VERSION, WITH_CONSTRAINTS, WITH_WRITTEN, WRITTEN

_VALUE: dict[str, Any] = {"type": ["string", "number", "boolean"]}
_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"},
    "str | None": {"type": "string"},
    "bool": {"type": "boolean"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "float | None": {"type": "number"},
    "tuple[float, ...]": {"type": "array", "items": {"type": "number"}},
    "tuple[str, ...]": {"type": "array", "items": {"type": "string"}, "uniqueItems": True},
}
# What the types of fields do not say.
_FIELDS: dict[str, dict[str, Any]] = {
    "categories": {"type": "array", "items": {"type": ["string", "boolean"]}, "minItems": 1, "uniqueItems": True},
    "default": _VALUE,
    "value": _VALUE,
    "resolution": {"enum": list(SECONDS)},
    "scale": {"enum": ["linear", "log"]},
    "follows": {"enum": ["smaller", "larger"]},
    "decimal": {"enum": [".", ","]},
    "missing": {"type": "array", "items": {"type": ["string", "number"]}, "uniqueItems": True},
    "step": {"type": "number", "exclusiveMinimum": 0},
    "largest_gap": {"type": "number", "exclusiveMinimum": 0},
    "values": {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean", "null"]}},
}


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a schema that is filled in, as plain JSON values.

    It knows names, types and required fields. What it cannot know, such as that bounds are in order, is checked by
    ``Schema.from_json``.
    """
    dropped = {
        "type": "object",
        "title": DROP,
        "description": "A column that the file has, and that is never looked at nor released, such as free text.",
        "properties": {"name": {"type": "string"}, "kind": {"const": DROP}},
        "required": ["name", "kind"],
    }
    columns = [*map(_entry, KINDS.values()), *map(_entry, WRITTEN.values()), dropped]
    is_written = {"properties": {"kind": {"enum": list(WRITTEN)}}, "required": ["kind"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Schema of a table for kme_jax",
        "type": "object",
        "properties": {
            "$schema": {"type": "string"},
            "comment": {"type": "string"},
            "schema_version": {"enum": [SCHEMA_VERSION, WITH_CONSTRAINTS, WITH_WRITTEN]},
            "filled_from_data": {"type": "boolean"},
            "columns": {"type": "array", "minItems": 1, "items": _one_of(columns)},
            "constraints": {"type": "array", "items": _one_of([*map(_entry, CONSTRAINTS.values())])},
        },
        "required": ["schema_version", "columns"],
        "additionalProperties": False,
        "allOf": [
            _needs({"constraints": {"minItems": 1}}, WITH_CONSTRAINTS),
            _needs({"columns": {"contains": is_written}}, WITH_WRITTEN),
        ],
    }


def _needs(properties: dict[str, Any], version: int) -> dict[str, Any]:
    """The rule that a schema with certain properties has a version, or a later one."""
    return {
        "if": {"properties": properties, "required": list(properties)},
        "then": {"properties": {"schema_version": {"minimum": version}}},
    }


def _one_of(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Any of several entries. The kind decides which, so that an editor speaks of the fields of this kind alone."""
    kinds = [entry["properties"]["kind"]["const"] for entry in entries]
    return {
        "type": "object",
        "required": ["kind"],
        "properties": {"kind": {"enum": kinds}},
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": entry}
            for kind, entry in zip(kinds, entries, strict=True)
        ],
    }


def _entry(cls: type[Any]) -> dict[str, Any]:
    """An entry of a kind of column, or of constraint, with the fields and the words of its class."""
    fields, words = dataclasses.fields(cls), _words(cls)
    properties: dict[str, Any] = {"kind": {"const": cls.kind}}
    for field in fields:
        known = _FIELDS.get(field.name) or _TYPES[str(field.type)]
        properties[field.name] = known | {"description": words[field.name]}
    return {
        "type": "object",
        "title": cls.kind,
        "description": words[""],
        "properties": properties,
        "required": ["kind", *(field.name for field in fields if field.default is dataclasses.MISSING)],
        "additionalProperties": False,
    }


def _words(cls: type[Any]) -> dict[str, str]:
    """What the docstrings of a class and of its bases say of it (by ""), and of its fields (by their names)."""
    words: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        text = inspect.cleandoc(base.__doc__ or "")
        words[""] = text.partition("\n")[0]
        listed = re.search(r"^Attributes:\n((?:  .*\n?|\n)*)", text, re.MULTILINE)
        for entry in re.split(r"\n  (?=\w)", "\n" + listed[1].rstrip())[1:] if listed else ():
            name, _, said = entry.partition(":")
            words[name] = " ".join(said.split()).replace("``", "")
    return words
