"""From tokens to content and tool calls, whole and in pieces."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from renderers import ParsedToolCall, ToolCallParseStatus
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from art_core.render import ChatMLHermesRenderer, ContentDelta, TextTokenizer, ToolCallDelta
from art_core.render.hermes import HermesSplitter, call_text
from art_core.render.tokenizer import TextStream

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


def _byte_tokenizer() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate([*SPECIAL, *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return TextTokenizer(tokenizer)


TOKENIZER = _byte_tokenizer()
RENDERER = ChatMLHermesRenderer(TOKENIZER)


def split(text: str, cuts: list[int] | None = None) -> tuple[str, list[tuple[str, Any]], list[str]]:
    """Content, calls as (name, arguments), and the raw text of malformed attempts."""
    splitter = HermesSplitter()
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts or []), len(text)]
    events = [e for start, end in itertools.pairwise(borders) for e in splitter.push(text[start:end])]
    events += splitter.finish()
    content = "".join(event for event in events if isinstance(event, str))
    calls = [(str(event.name), event.arguments) for event in events if isinstance(event, ParsedToolCall)]
    return content, calls, [c.raw for c in splitter.attempts if c.status != ToolCallParseStatus.OK]


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("", "", []),
        ("plain <tool", "plain <tool", []),
        (" \n", " \n", []),
        (CALL, "", [("f", {"a": 1})]),
        (f"{CALL}\n{CALL}", "", [("f", {"a": 1})] * 2),
        (f"A \n{CALL}\n", "A", [("f", {"a": 1})]),
        (f"A\n{CALL}\n B {CALL} C ", "A\nB\nC ", [("f", {"a": 1})] * 2),
        ('<tool_call>{"name":"f"}</tool_call>', "", [("f", {})]),
        ('<tool_call>{"name":"f","arguments":"{}"}</tool_call>', "", [("f", "{}")]),
    ],
)
def test_content_and_calls(text: str, content: str, calls: list[tuple[str, Any]]) -> None:
    assert split(text) == (content, calls, [])


def test_b060_the_end_of_the_json_decides_not_the_first_closing_tag() -> None:
    first = '<tool_call>{"name":"write","arguments":{"text":"use </tool_call> to close"}}</tool_call>'
    assert split(first + CALL) == ("", [("write", {"text": "use </tool_call> to close"}), ("f", {"a": 1})], [])


@pytest.mark.parametrize(
    "attempt",
    [
        "<tool_call>no json</tool_call>",
        "<tool_call></tool_call>",
        '<tool_call>{"name": "f", "arguments": {}}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}} and</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": 5}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "\\ud800"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"x": "a\nb"}}</tool_call>',
        '<tool_call>[{"name": "f"}]</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"body": "abc</tool_call>',
        '<tool_call>{"a":' + "[" * 5000 + "</tool_call>",
        f'<tool_call>{{"name": "f", "arguments": {{"x": {"9" * 5000}}}}}</tool_call>',
    ],
)
def test_b097_a_malformed_call_stays_in_the_content_and_the_next_one_is_read(attempt: str) -> None:
    assert split(f"A {attempt} B {CALL}") == (f"A {attempt} B", [("f", {"a": 1})], [attempt])


@pytest.mark.parametrize(
    "attempt",
    [
        "<tool_call>",
        '<tool_call>\n{"name": "f", "arguments": {"body": "abc',
        '<tool_call>{"name": "f", "arguments": {}}',
        '<tool_call>{"name": "f", "arguments": {}}\n</tool_',
    ],
)
def test_an_unterminated_call_stays_in_the_content(attempt: str) -> None:
    assert split(f"{CALL} {attempt}") == (attempt, [("f", {"a": 1})], [attempt])


fragments = st.sampled_from(
    [
        *(CALL, "<tool_call>", "</tool_call>", '{"name": "f"}', '{"name": "f", "arguments": {"x": "</tool_call>"}}'),
        *(" ", "\n", "é", "a", "{", "}", '"', "<", "<tool_", "5", "\\"),
    ]
)
texts = st.lists(fragments, max_size=8).map("".join)


@given(texts, st.lists(st.integers(0, 120), max_size=6))
def test_what_is_read_does_not_depend_on_how_the_text_was_cut(text: str, cuts: list[int]) -> None:
    assert split(text, cuts) == split(text)


@given(texts)
def test_nothing_but_whitespace_next_to_well_formed_calls_is_lost(text: str) -> None:
    splitter = HermesSplitter()
    events = [*splitter.push(text), *splitter.finish()]
    parts = [event.raw if isinstance(event, ParsedToolCall) else event for event in events]
    assert "".join("".join(parts).split()) == "".join(text.split())
    if not any(isinstance(event, ParsedToolCall) for event in events):
        assert "".join(parts) == text


names = st.text(min_size=1, max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(st.tuples(names, st.dictionaries(st.text(max_size=5), values, max_size=3)), min_size=1, max_size=3))
def test_every_call_that_is_rendered_is_read_back(calls: list[tuple[str, dict[str, Any]]]) -> None:
    text = "\n".join(call_text({"name": name, "arguments": arguments}) for name, arguments in calls)
    assert split(text) == ("", calls, [])


token_lists = st.lists(st.one_of(st.integers(3, 258), st.sampled_from(TOKENIZER.encode("é€😀a"))), max_size=24)


@given(token_lists, st.lists(st.integers(0, 24), max_size=4))
def test_text_arrives_as_if_decoded_at_once_even_with_characters_cut_by_tokens(ids: list[int], cuts: list[int]) -> None:
    stream = TextStream(TOKENIZER)
    borders = [0, *sorted(cuts), len(ids)]
    pieces = [stream.push(ids[start:end]) for start, end in itertools.pairwise(borders)]
    assert "".join([*pieces, stream.finish()]) == TOKENIZER.decode(ids)


def test_a_character_comes_out_when_it_is_whole() -> None:
    stream = TextStream(TOKENIZER)
    assert [stream.push([token]) for token in TOKENIZER.encode("a€b")] == ["a", "", "", "€", "b"]
    assert stream.finish() == ""


def test_text_that_may_begin_a_call_is_held_back_until_it_is_decided() -> None:
    splitter = HermesSplitter()
    assert [splitter.push(piece) for piece in ("a", " <", "tool_", "box", "> ")] == [
        ["a"],
        [],
        [],
        [" <tool_box"],
        [">"],
    ]
    assert splitter.finish() == [" "]


def test_the_parser_stops_at_the_end_of_the_turn() -> None:
    parser = RENDERER.completion_parser(tools=TOOLS)
    deltas = [
        *parser.push([*TOKENIZER.encode("hi"), 2, *TOKENIZER.encode("junk")]),
        *parser.push([70]),
        *parser.finish(),
    ]
    assert deltas == [ContentDelta("hi")]


def test_without_tools_nothing_is_taken_for_a_call() -> None:
    parser = RENDERER.completion_parser()
    assert [*parser.push(TOKENIZER.encode(CALL)), *parser.finish()] == [ContentDelta(CALL)]


def test_arguments_come_as_compact_json() -> None:
    parser = RENDERER.completion_parser(tools=TOOLS)
    text = call_text({"name": "f", "arguments": {"b": "é", "a": [1, 2]}})
    assert [*parser.push(TOKENIZER.encode(text)), *parser.finish()] == [ToolCallDelta("f", '{"b":"é","a":[1,2]}')]


def test_parse_response_lists_every_attempt_in_order() -> None:
    text = f"A <tool_call>x</tool_call>{CALL}"
    parsed = RENDERER.parse_response([*TOKENIZER.encode(text), 2], tools=TOOLS)
    assert parsed.content == "A <tool_call>x</tool_call>"
    assert [call.status for call in parsed.tool_calls] == ["invalid_json", "ok"]
    assert json.dumps(parsed.tool_calls[1].arguments) == '{"a": 1}'
