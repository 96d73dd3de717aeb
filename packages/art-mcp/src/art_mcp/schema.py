"""JSON Schema as tool servers write it: references, variants, defaults, validity. Names of properties are never taken
for keywords, and nothing is fetched from the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jsonschema
import jsonschema.validators
import referencing
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator
from pydantic import JsonValue
from referencing.exceptions import Unresolvable

from art_mcp.types import McpTool

Schema = Mapping[str, Any]
_MAX_REFERENCES = 16
_MAX_ALTERNATIVES_DEPTH = 4


@dataclass(frozen=True)
class Property:
    """One property of an object schema; `schema` has its references followed."""

    name: str
    schema: Schema
    required: bool


def resolve(schema: object, root: Schema) -> Schema:
    """`schema` with a local `$ref` followed and `allOf` merged; `{}` for anything that is not an object."""
    seen = 0
    merged: dict[str, Any] = dict(schema) if isinstance(schema, Mapping) else {}
    while isinstance(reference := merged.get("$ref"), str) and seen < _MAX_REFERENCES:
        seen += 1
        target = _pointer(reference, root)
        rest = {key: value for key, value in merged.items() if key != "$ref"}
        merged = {**(target if isinstance(target, Mapping) else {}), **rest}
    merged.pop("$ref", None)
    parts = merged.pop("allOf", None)
    for part in parts if isinstance(parts, list) and seen < _MAX_REFERENCES else ():
        merged = _merge(merged, _resolve_part(part, root))
    return merged


def _resolve_part(part: object, root: Schema) -> Schema:
    """A part of an `allOf` that refers back to its own whole would never end: its references are followed once."""
    if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
        target = _pointer(part["$ref"], root)
        return {key: value for key, value in target.items() if key != "allOf"} if isinstance(target, Mapping) else {}
    return part if isinstance(part, Mapping) else {}


def _merge(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**second, **first}
    if "properties" in first and "properties" in second:
        merged["properties"] = {**second["properties"], **first["properties"]}
    if "required" in first and "required" in second:
        merged["required"] = list(dict.fromkeys([*second["required"], *first["required"]]))
    return merged


def _pointer(reference: str, root: Schema) -> object:
    if not reference.startswith("#"):
        return None
    node: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and key in node:
            node = node[key]
        elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
            node = node[int(key)]
        else:
            return None
    return node


def variants(schema: Schema, root: Schema, *, depth: int = 0) -> Iterator[Schema]:
    """The alternatives of a schema, resolved: its `anyOf` / `oneOf` branches and types, those that allow null last.

    Alternatives within alternatives are followed a few levels deep, since a schema may be an alternative of itself.
    """
    branches = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(branches, list):
        rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
        found = [
            variant
            for branch in (branches if depth < _MAX_ALTERNATIVES_DEPTH else ())
            for variant in variants(_merge(resolve(branch, root), rest), root, depth=depth + 1)
        ]
    elif isinstance(schema.get("type"), list):
        found = [{**schema, "type": name} for name in schema["type"]]
    else:
        found = [dict(schema)]
    yield from (variant for variant in found if variant.get("type") != "null")
    yield from (variant for variant in found if variant.get("type") == "null")


def type_of(schema: Schema) -> str:
    """The type of a schema without alternatives, inferred where it is not said; "any" if nothing tells."""
    name = schema.get("type")
    if isinstance(name, str):
        return name
    if isinstance(schema.get("properties"), Mapping):
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    if any(key in schema for key in ("pattern", "format", "minLength", "maxLength")):
        return "string"
    if any(key in schema for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")):
        return "number"
    return "any"


def properties(schema: Schema, root: Schema) -> list[Property]:
    """The properties of an object schema (already resolved), in the server's order."""
    named = schema.get("properties")
    required = schema.get("required")
    names = set(required) if isinstance(required, list) else set()
    if not isinstance(named, Mapping):
        return []
    return [Property(name, resolve(value, root), name in names) for name, value in named.items()]


def tool_properties(tool: McpTool) -> list[Property]:
    """The arguments of a tool. Where the schema has alternatives at its root, those of the first one."""
    root = resolve(tool.input_schema, tool.input_schema)
    return properties(next(variants(root, tool.input_schema), {}), tool.input_schema)


class ArgumentSchema:
    """Checks values against a schema, in the draft that the schema names, without ever reaching for the network."""

    def __init__(self, schema: Schema, root: Schema | None = None) -> None:
        document = dict(schema)
        if root is not None:
            document |= {key: root[key] for key in ("$defs", "definitions", "$schema") if key in root}
        validator_type = jsonschema.validators.validator_for(document, default=jsonschema.Draft202012Validator)
        self.broken: str | None = None
        try:
            validator_type.check_schema(document)
        except SchemaError as error:
            self.broken = error.message
        self._validator: Validator = validator_type(document, registry=referencing.Registry())

    def problem(self, value: JsonValue) -> str | None:
        """What is wrong with `value`, in one line; None if it is valid, or if the schema itself cannot be used."""
        if self.broken is not None:
            return None
        try:
            error = next(iter(self._validator.iter_errors(value)), None)
        except Unresolvable:
            return None
        except RecursionError:
            return None
        if error is None:
            return None
        place = ".".join(str(part) for part in error.absolute_path)
        return f"{place}: {error.message}"[:200] if place else error.message[:200]


def argument_schema(tool: McpTool) -> ArgumentSchema:
    """The checker for a tool's arguments; made once per tool."""
    return _cached(_Identity(tool.input_schema))


class _Identity:
    """Hashable by identity; keeps its mapping alive, so that no other one can take over its id."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def __hash__(self) -> int:
        return id(self.schema)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and other.schema is self.schema


@lru_cache(maxsize=1024)
def _cached(identity: _Identity) -> ArgumentSchema:
    return ArgumentSchema(identity.schema)
