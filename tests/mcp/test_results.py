"""What a model is shown of a tool's answer."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult
from pydantic import JsonValue

from art_core.errors import ConfigError
from art_mcp.results import cut_middle, error_result, to_tool_result
from art_mcp.types import ToolResult

FACTS: dict[str, JsonValue] = {"name": "Zoë", "ids": [1, 2], "open": True}


def result(*content: dict[str, Any] | str, **extra: Any) -> CallToolResult:
    blocks = [{"type": "text", "text": block} if isinstance(block, str) else block for block in content]
    return CallToolResult.model_validate({"content": blocks} | extra)


def shown(*content: dict[str, Any] | str, **extra: Any) -> ToolResult:
    return to_tool_result(result(*content, **extra), max_chars=20_000)


def test_text_parts_are_joined() -> None:
    assert shown("one", "two") == ToolResult("one\ntwo")


def test_json_text_is_also_data() -> None:
    assert shown('{"a": [1]}') == ToolResult('{"a": [1]}', {"a": [1]})
    assert shown("NaN").structured is None
    assert shown("not json").structured is None


def test_text_that_repeats_the_structured_content_is_shown_on_one_line() -> None:
    pretty = json.dumps(FACTS, indent=2)
    compact = '{"name": "Zoë", "ids": [1, 2], "open": true}'
    assert shown(pretty, structuredContent=FACTS) == ToolResult(compact, FACTS)
    wrapped: dict[str, JsonValue] = {"result": FACTS}
    assert shown(pretty, structuredContent=wrapped) == ToolResult(compact, wrapped)


def test_text_that_says_something_else_is_left_as_it_is() -> None:
    pretty = json.dumps(FACTS, indent=2)
    assert shown(pretty).text == pretty
    assert shown(pretty, structuredContent={"other": 1}).text == pretty
    assert shown("[1]", structuredContent={"result": [True]}).text == "[1]"
    assert shown("Two rows.", structuredContent={"rows": 2}) == ToolResult("Two rows.", {"rows": 2})


def test_structured_content_without_text_is_shown() -> None:
    assert shown(structuredContent=FACTS).text == json.dumps(FACTS, ensure_ascii=False)


def test_nothing_is_said_in_words() -> None:
    assert shown() == ToolResult("(empty result)")
    assert shown("  ").text == "(empty result)"
    assert shown(isError=True) == ToolResult("(the tool failed and did not say why)", is_error=True)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "image", "data": "A" * 16_000, "mimeType": "image/png"}, "[image: image/png, 12 kB, not shown]"),
        ({"type": "audio", "data": "A" * 4_000_000, "mimeType": "audio/wav"}, "[audio: audio/wav, 3.0 MB, not shown]"),
        ({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}, "[resource: file:///a]\ninside"),
        (
            {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "application/pdf", "blob": "AAAA"}},
            "[resource: file:///a, application/pdf, 3 B, not shown]",
        ),
        ({"type": "resource", "resource": {"uri": "x:y", "blob": "AA=="}}, "[resource: x:y, 1 B, not shown]"),
        (
            {"type": "resource_link", "uri": "file:///b", "name": "b", "mimeType": "text/csv", "description": "rows"},
            "[link: b, file:///b, text/csv, rows]",
        ),
    ],
)
def test_what_a_text_model_cannot_read_becomes_a_placeholder(block: dict[str, Any], text: str) -> None:
    assert shown("before", block, "after").text == f"before\n{text}\nafter"
    assert shown(block).text == text


def test_errors_keep_their_text() -> None:
    assert shown("no such city", isError=True) == ToolResult("no such city", is_error=True)
    assert error_result("nope", max_chars=100) == ToolResult("nope", is_error=True)


def test_lone_surrogates_are_replaced() -> None:
    assert error_result("a\ud800b", max_chars=100).text == "a?b"


def test_a_long_text_keeps_its_head_and_tail_and_says_what_is_missing() -> None:
    text, num_cut = cut_middle("a" * 500 + "b" * 500, 100)
    assert (text, num_cut) == ("a" * 54 + "\n[… 927 characters cut …]\n" + "b" * 19, 927)


@given(st.text(max_size=400), st.integers(100, 300))
def test_cutting_accounts_for_every_character(text: str, max_chars: int) -> None:
    cut, num_cut = cut_middle(text, max_chars)
    assert len(cut) <= max_chars
    if num_cut == 0:
        assert cut == text
    else:
        head, _, tail = cut.partition(f"\n[… {num_cut} characters cut …]\n")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + num_cut + len(tail) == len(text)


def test_a_limit_without_room_for_a_note_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 100"):
        cut_middle("text", 99)
