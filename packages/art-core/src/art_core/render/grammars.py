"""Grammars for constrained decoding, as text for `Sampling.grammar`: llguidance's dialect of Lark. Pure.

Whether a grammar can be followed is for the engine to say, before the first token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from art_core.errors import ConfigError

_WHITESPACE = r"[ ]|\n[ ]{0,16}"
"""Between two tokens of JSON: nothing, a space, or a new line with its indentation. A weak model that may write any
amount of whitespace can go on with it for ever."""


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """The JSON texts that `schema` describes, properties in the order in which the schema names them.

    Where the schema leaves `additionalProperties` open, others may follow. Keywords that cannot be enforced (`not`,
    `if`, `uniqueItems`, ...) are refused by the engine, by name; annotations are ignored.

    Raises:
        ConfigError: `schema` is not a JSON object.
    """
    return f"start: {json_rule(schema)}"


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for a JSON value of `schema` on the right of a rule. Raises what `json_schema_grammar` raises."""
    if not isinstance(schema, Mapping):
        raise ConfigError(f"a JSON schema is {type(schema).__name__}; wanted an object such as {{'type': 'object'}}")
    options = {"whitespace_flexible": True, "whitespace_pattern": _WHITESPACE}
    try:
        text = json.dumps({**schema, "x-guidance": options}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"a JSON schema holds what JSON cannot say: {error}; wanted plain JSON values") from error
    return f"%json {text}"


def text_rule(text: str) -> str:
    """What stands for exactly `text` on the right of a rule."""
    return json.dumps(text, ensure_ascii=False)


def json_object_grammar() -> str:
    """Any JSON object."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """The texts that `pattern` matches from beginning to end.

    The syntax is that of Rust's `regex`: no look-around, no back references; the classes for digits, words and space
    are those of Unicode, and a dot matches all but a new line.

    Raises:
        ConfigError: the pattern is empty.
    """
    if not pattern:
        raise ConfigError("the regular expression is empty; wanted one that matches some text")
    escaped = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            escaped.append(_escape_ends(character + next(characters, "")))
        else:
            escaped.append(_escape_ends(character))
    return f"start: /{''.join(escaped)}/"


def _escape_ends(unit: str) -> str:
    """A character, or one behind a backslash, so that it can stand between the two slashes of a Lark expression."""
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n", "\r": r"\r", "\\\r": r"\r"}.get(unit, unit)
