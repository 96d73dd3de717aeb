"""Grammars in llguidance's dialect of Lark, as `Sampling.grammar` takes them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def json_schema_grammar(schema: Mapping[str, Any]) -> str:
    """One JSON value of `schema`."""
    return f"start: {json_rule(schema)}"


def json_object_grammar() -> str:
    """One JSON object, whatever is in it."""
    return json_schema_grammar({"type": "object"})


def regex_grammar(pattern: str) -> str:
    """Text that matches `pattern` as a whole."""
    escaped = pattern.replace("/", "\\/")
    return f"start: /{escaped}/"


def json_rule(schema: Mapping[str, Any]) -> str:
    """What stands for a JSON value of `schema` on the right of a rule."""
    return f"%json {json.dumps(schema, ensure_ascii=False)}"


def text_rule(text: str) -> str:
    """What stands for exactly `text` on the right of a rule."""
    return json.dumps(text, ensure_ascii=False)
