"""Tools as a model is shown them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from art_mcp.inspect import clean_parameters, openai_tool
from art_mcp.types import McpTool

Schema = dict[str, Any]


def test_a_tool_in_openai_form() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "title": "A"}}, "required": ["a"], "title": "T"}
    assert openai_tool(McpTool("add", "Adds.", schema)) == {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds.",
            "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        },
    }
    assert openai_tool(McpTool("now", "", {}))["function"] == {
        "name": "now",
        "parameters": {"type": "object", "properties": {}},
    }


NAMES: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "properties": {"type": "object", "title": "Noise"},
        "required": {"type": "boolean"},
        "title": {"type": "string", "title": "Title", "description": "the title"},
        "$schema": {"type": "string"},
        "items": {"type": "array", "items": {"type": "string", "title": "noise"}},
        "enum": {"enum": ["title", {"title": "kept"}]},
    },
    "required": ["type", "title", "$schema"],
}


def test_properties_named_like_keywords_are_kept() -> None:
    cleaned = clean_parameters(NAMES)
    assert list(cleaned["properties"]) == list(NAMES["properties"])
    assert cleaned["properties"]["properties"] == {"type": "object"}
    assert cleaned["properties"]["title"] == {"type": "string", "description": "the title"}
    assert cleaned["properties"]["items"] == {"type": "array", "items": {"type": "string"}}
    assert cleaned["properties"]["enum"] == {"enum": ["title", {"title": "kept"}]}
    assert cleaned["required"] == ["type", "title", "$schema"]


TREE: Schema = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}}}

CASES: list[tuple[str, Schema, Schema]] = [
    (
        "schema keyword",
        {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "additionalProperties": False},
        {"type": "object", "additionalProperties": False, "properties": {}},
    ),
    (
        "nullable enum",
        {"properties": {"a": {"type": ["string", "null"], "enum": ["a", None], "default": None}}},
        {"type": "object", "properties": {"a": {"type": ["string", "null"], "enum": ["a", None], "default": None}}},
    ),
    (
        "anyOf with null",
        {"properties": {"a": {"anyOf": [{"type": "string", "title": "x"}, {"type": "null"}], "title": "A"}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}},
    ),
    (
        "const and ranges",
        {"properties": {"a": {"const": {"title": 1}}, "b": {"type": "integer", "minimum": 1, "format": "int32"}}},
        {
            "type": "object",
            "properties": {"a": {"const": {"title": 1}}, "b": {"type": "integer", "minimum": 1, "format": "int32"}},
        },
    ),
    (
        "oneOf at the root",
        {"oneOf": [{"required": ["a"], "title": "A"}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
        {"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}], "properties": {"a": {}, "b": {}}},
    ),
    (
        "small reference",
        {
            "$defs": {"Unit": {"type": "string", "enum": ["C", "F"], "title": "Unit", "description": "degrees"}},
            "properties": {"unit": {"$ref": "#/$defs/Unit", "default": "C"}},
        },
        {
            "type": "object",
            "properties": {
                "unit": {"type": "string", "enum": ["C", "F"], "description": "degrees", "default": "C"},
            },
        },
    ),
    (
        "reference through a reference",
        {
            "definitions": {"A": {"items": {"$ref": "#/definitions/B"}}, "B": {"type": "string"}, "C": {}},
            "properties": {"a": {"$ref": "#/definitions/A"}},
        },
        {"type": "object", "properties": {"a": {"items": {"type": "string"}}}},
    ),
    (
        "reference with a demand of its own beside it",
        {"$defs": {"A": {"minimum": 1}}, "properties": {"a": {"$ref": "#/$defs/A", "minimum": 5}}},
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/A", "minimum": 5}},
            "$defs": {"A": {"minimum": 1}},
        },
    ),
    (
        "recursive reference",
        {"$defs": {"Tree": TREE, "Unused": {}}, "properties": {"root": {"$ref": "#/$defs/Tree"}}},
        {"type": "object", "properties": {"root": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": TREE}},
    ),
    (
        "older drafts",
        {
            "properties": {
                "a": {"minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False},
                "b": {"items": [{"type": "string"}, {"type": "integer"}], "additionalItems": False},
            },
            "dependencies": {"a": ["b"], "b": {"required": ["a"]}},
        },
        {
            "type": "object",
            "properties": {
                "a": {"exclusiveMinimum": 0, "maximum": 9},
                "b": {"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
            },
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"b": {"required": ["a"]}},
        },
    ),
    (
        "invalid parts",
        {
            "type": "object",
            "properties": {"a": {"type": "any", "description": "x"}, "b": {"type": "string", "required": True}, "c": 3},
            "required": ["a"],
        },
        {
            "type": "object",
            "properties": {"a": {"description": "x"}, "b": {"type": "string"}, "c": {}},
            "required": ["a"],
        },
    ),
]


@pytest.mark.parametrize(("schema", "cleaned"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_cleaned_schemas(schema: Schema, cleaned: Schema) -> None:
    assert clean_parameters(schema) == cleaned
    Draft202012Validator.check_schema(clean_parameters(schema))
    assert clean_parameters(cleaned) == cleaned


leaves = st.sampled_from([{"type": "string"}, {"type": "integer", "title": "noise"}, {"$ref": "#/$defs/A"}, True, {}])
names = st.sampled_from(["a", "type", "title", "properties", "$ref", "enum", "$defs"])
schemas = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=3)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=2), "title": st.just("noise")}),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner, "$comment": st.just("noise")}),
    ),
    max_leaves=8,
)
values = st.recursive(
    st.one_of(st.integers(0, 3), st.sampled_from(["x", ""]), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(names, inner, max_size=3)),
    max_leaves=6,
)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    st.dictionaries(names, schemas, max_size=3),
    schemas,
    st.lists(st.dictionaries(names, values, max_size=3), max_size=5),
)
def test_cleaning_keeps_what_is_accepted(properties: Schema, definition: Any, samples: list[Schema]) -> None:
    schema = {"type": "object", "properties": properties, "$defs": {"A": definition}}
    cleaned = clean_parameters(schema)
    Draft202012Validator.check_schema(cleaned)
    if definition == {"$ref": "#/$defs/A"}:
        return  # a definition that is nothing but itself has no meaning to keep
    for sample in samples:
        try:
            expected = Draft202012Validator(schema).is_valid(sample)
        except RecursionError:
            continue
        assert Draft202012Validator(cleaned).is_valid(sample) == expected
