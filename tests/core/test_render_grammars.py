"""Grammars as text. That they mean what they say is tested on the engine's side, in engines/test_grammar.py."""

from __future__ import annotations

import json
from typing import Any

import pytest

from art_core.errors import ConfigError
from art_core.render.grammars import json_object_grammar, json_schema_grammar, regex_grammar

OPTIONS = {"whitespace_flexible": True, "whitespace_pattern": r"[ ]|\n[ ]{0,16}"}


def test_a_schema_keeps_its_order_and_gets_bounded_whitespace() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
    assert json_schema_grammar(schema) == f"start: %json {json.dumps({**schema, 'x-guidance': OPTIONS})}"


def test_a_schema_cannot_bring_options_of_its_own() -> None:
    grammar = json_schema_grammar({"x-guidance": {"whitespace_pattern": ".*", "lenient": True}})
    assert json.loads(grammar.removeprefix("start: %json ")) == {"x-guidance": OPTIONS}


def test_any_object_is_the_schema_of_an_object() -> None:
    assert json_object_grammar() == json_schema_grammar({"type": "object"})


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{}", "a JSON schema is str; wanted an object"),
        (True, "a JSON schema is bool; wanted an object"),
        (None, "a JSON schema is NoneType; wanted an object"),
        ({"const": float("nan")}, "holds what JSON cannot say"),
        ({"const": {1, 2}}, "holds what JSON cannot say"),
    ],
)
def test_what_is_no_schema_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        json_schema_grammar(schema)


@pytest.mark.parametrize(
    ("pattern", "grammar"),
    [
        (r"\d+|a", r"start: /\d+|a/"),
        ("a/b", r"start: /a\/b/"),
        (r"a\/b", r"start: /a\/b/"),
        (r"a\\/b", r"start: /a\\\/b/"),
        ("a\nb", r"start: /a\nb/"),
        ("a\\\nb", r"start: /a\nb/"),
        (r"a\nb", r"start: /a\nb/"),
    ],
)
def test_a_pattern_stands_between_slashes(pattern: str, grammar: str) -> None:
    assert regex_grammar(pattern) == grammar


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match="expression is empty"):
        regex_grammar("")
