"""A tool as a model is shown it: OpenAI's function format, with a schema that wastes no tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from art_mcp.types import McpTool

# Where sub-schemas live. Everything that is not listed here is data (enum, const, default, examples, …) and is copied
# as it is; the keys under a map of schemas are names that the server chose, never keywords.
_SCHEMA = frozenset(
    {
        *("additionalProperties", "additionalItems", "contains", "not", "if", "then", "else"),
        *("items", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "contentSchema"),
    }
)
_SCHEMA_LIST = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SCHEMA_MAP = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
_NOISE = frozenset({"$schema", "title", "$comment"})
_DEFINITIONS = ("$defs", "definitions")
_MAX_INLINED_CHARS = 600

Schema = dict[str, Any]


def openai_tool(tool: McpTool) -> dict[str, Any]:
    """`tool` as an OpenAI function: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description:
        function["description"] = tool.description
    function["parameters"] = clean_parameters(tool.input_schema)
    return {"type": "function", "function": function}


def clean_parameters(schema: Mapping[str, Any]) -> Schema:
    """`schema` without what says nothing to a model, accepting the same arguments; valid under JSON Schema 2020-12.

    Titles, comments and `$schema` go; keywords of older drafts are written the present way; a reference to a small
    definition that does not contain itself is replaced by it, and definitions that are not referred to any more are
    left out. Parts that are no valid schema at all are left out too, together with what they would have demanded.
    """
    older = _modern(dict(schema))
    cleaned = _clean(older)
    inlined = _drop_unused(_inline(cleaned, cleaned, ()))
    result = inlined if _resolves(inlined) else cleaned
    if not _is_valid(result):
        result = _salvaged(result)
    if "$ref" not in result:
        result.setdefault("type", "object")
        result.setdefault("properties", {})
    return {key: result[key] for key in sorted(result, key=lambda key: (key != "type", key in _DEFINITIONS))}


def _map_children(schema: Schema, change: Any) -> Schema:
    """A copy of `schema` with `change` applied to each direct sub-schema."""
    result: Schema = {}
    for key, value in schema.items():
        if key in _SCHEMA_MAP and isinstance(value, Mapping):
            result[key] = {name: change(child) for name, child in value.items()}
        elif key in _SCHEMA_LIST and isinstance(value, list):
            result[key] = [change(child) for child in value]
        elif key in _SCHEMA and isinstance(value, Mapping):
            result[key] = change(value)
        else:
            result[key] = value
    return result


def _modern(schema: Any) -> Any:
    """`schema` with the keywords of drafts 4 to 7 that 2020-12 gave another form or meaning."""
    if not isinstance(schema, Mapping):
        return schema
    result = _map_children(dict(schema), _modern)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(result.get(exclusive), bool) and result.pop(exclusive) and limit in result:
            result[exclusive] = result.pop(limit)
    if isinstance(result.get("items"), list):
        result["prefixItems"] = result.pop("items")
        if "additionalItems" in result:
            result["items"] = result.pop("additionalItems")
    dependencies = result.pop("dependencies", None)
    if isinstance(dependencies, Mapping):
        for name, needs in dependencies.items():
            kind = "dependentRequired" if isinstance(needs, list) else "dependentSchemas"
            result.setdefault(kind, {})[name] = needs if isinstance(needs, list) else _modern(needs)
    return result


def _clean(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return _map_children({key: value for key, value in schema.items() if key not in _NOISE}, _clean)


def _inline(schema: Any, root: Schema, open_refs: tuple[str, ...]) -> Any:
    """`schema` with references to small, non-recursive definitions of `root` replaced by them."""
    if not isinstance(schema, Mapping):
        return schema
    ref = schema.get("$ref")
    if isinstance(ref, str) and ref.startswith(tuple(f"#/{name}/" for name in _DEFINITIONS)) and ref not in open_refs:
        target = _target(ref, root)
        if isinstance(target, Mapping):
            whole = _inline(target, root, (*open_refs, ref))
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            small = len(json.dumps(whole)) <= _MAX_INLINED_CHARS
            # What stands beside a reference is demanded in addition; only remarks may replace the target's own.
            compatible = all(key in ("description", "default", "examples") or key not in target for key in beside)
            if small and compatible and not _contains_ref(whole, ref):
                return {**whole, **_map_children(beside, lambda child: _inline(child, root, open_refs))}
    return _map_children(dict(schema), lambda child: _inline(child, root, open_refs))


def _drop_unused(schema: Schema) -> Schema:
    """`schema` without definitions that nothing refers to, directly or through others."""
    body = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
    used: set[str] = set()
    pending = list(_refs(body))
    while pending:
        ref = pending.pop()
        if not ref.startswith("#/"):
            return schema  # an anchor, or another document: it could mean anything
        name = "/".join(ref.split("/")[:3])
        if name not in used:
            used.add(name)
            pending.extend(_refs(_target(name, schema)))
    for key in _DEFINITIONS:
        kept = {
            name: value
            for name, value in (schema.get(key) or {}).items()
            if f"#/{key}/{name.replace('~', '~0').replace('/', '~1')}" in used
        }
        if kept:
            body[key] = kept
    return body


def _refs(schema: Any) -> Iterator[str]:
    if isinstance(schema, Mapping):
        for key in ("$ref", "$dynamicRef"):
            if isinstance(schema.get(key), str):
                yield schema[key]
        found: list[str] = []
        _map_children(dict(schema), lambda child: found.extend(_refs(child)))
        yield from found


def _contains_ref(schema: Any, ref: str) -> bool:
    return ref in _refs(schema)


def _target(ref: str, root: Schema) -> Any:
    """What the JSON pointer `ref` (`#/…`) points to, None where there is nothing."""
    node: Any = root
    for step in ref.removeprefix("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, Mapping) and step in node:
            node = node[step]
        elif isinstance(node, list) and step.isdigit() and int(step) < len(node):
            node = node[int(step)]
        else:
            return None
    return node


def _resolves(schema: Schema) -> bool:
    return all(_target(ref, schema) is not None for ref in _refs(schema) if ref == "#" or ref.startswith("#/"))


def _is_valid(schema: Any) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except (SchemaError, RecursionError):
        return False
    return True


def _salvaged(schema: Schema) -> Schema:
    """The parts of an invalid `schema` that are valid: its keywords one by one, and properties one by one."""
    result: Schema = {}
    for key, value in schema.items():
        if key == "properties" and isinstance(value, Mapping):
            result[key] = {name: child if _is_valid(child) else _salvaged_child(child) for name, child in value.items()}
        elif _is_valid({key: value}):
            result[key] = value
    return result


def _salvaged_child(child: Any) -> Any:
    return _salvaged(dict(child)) if isinstance(child, Mapping) else {}
