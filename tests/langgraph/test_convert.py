"""Messages both ways."""

from __future__ import annotations

import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)

from art_core.errors import DataError
from art_core.messages import message_key
from art_langgraph import from_wire, to_wire

LETTERS = 'aé日𝄞 \n"{}<>\\'
TEXT = st.text(LETTERS, max_size=6)
NAMED = st.text(LETTERS, min_size=1, max_size=5)
PARTS = st.lists(st.builds(lambda text: {"type": "text", "text": text}, TEXT), min_size=1, max_size=3)
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
CONTENT = TEXT | PARTS | PARTS.map(lambda parts: [*parts, IMAGE])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=3).map(lambda value: json.dumps(value, ensure_ascii=False))
BROKEN = st.sampled_from(['{"a": ', "[1]", '"text"', "3", "no json"])


def optional(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


@st.composite
def calls(draw: st.DrawFn) -> list[dict[str, Any]]:
    arguments = [*draw(st.lists(ARGUMENTS, max_size=2)), *draw(st.lists(BROKEN, max_size=2))]
    made = []
    for number, text in enumerate(arguments):
        function = {"name": draw(NAMED), "arguments": text}
        made.append({"id": f"call_{number}", "type": "function", "function": function})
    return made


@st.composite
def wire_messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A conversation in the wire shape, in the spelling in which it is sent."""
    made: list[dict[str, Any]] = []
    for role in draw(
        st.lists(st.sampled_from(["user", "system", "developer", "assistant", "tool", "critic"]), max_size=6)
    ):
        message: dict[str, Any] = {"role": role, "content": draw(CONTENT)}
        if role in ("user", "system", "developer", "assistant"):
            message |= draw(optional(name=NAMED))
        if role == "assistant":
            message |= draw(optional(reasoning_content=NAMED))
            if called := draw(calls()):
                message["tool_calls"] = called
                message["content"] = message["content"] or None
        if role == "tool":
            message |= {"tool_call_id": draw(st.sampled_from(["call_0", "call_9"]))}
        made.append(message)
    return made


@given(wire_messages())
def test_what_comes_from_the_wire_goes_back_to_it_as_it_was(messages: list[dict[str, Any]]) -> None:
    assert to_wire(from_wire(messages)) == messages


def visible(message: BaseMessage) -> dict[str, Any]:
    """What a model reads of a message."""
    read = message.model_dump(include={"type", "content", "name", "role", "tool_call_id"})
    if isinstance(message, AIMessage):
        read["calls"] = [(call["name"], call["args"], call["id"]) for call in message.tool_calls]
        read["unread"] = [(call["name"], call["args"], call["id"]) for call in message.invalid_tool_calls]
        read["reasoning"] = message.additional_kwargs.get("reasoning_content")
    return read


@given(wire_messages())
def test_what_langchain_has_comes_back_as_it_was(messages: list[dict[str, Any]]) -> None:
    made = from_wire(messages)
    assert [visible(message) for message in from_wire(to_wire(made))] == [visible(message) for message in made]


def test_each_kind_has_its_shape() -> None:
    call: Any = {"name": "f", "args": {"a": 1}, "id": "1", "type": "tool_call"}
    messages = [
        SystemMessage("s"),
        SystemMessage("d", additional_kwargs={"__openai_role__": "developer"}),
        HumanMessage([{"type": "text", "text": "a", "annotations": []}, "b"], name="ann"),
        AIMessage("", tool_calls=[call]),
        ToolMessage([{"type": "text", "text": "19C"}, {"type": "text", "text": "windy"}], tool_call_id="1", name="f"),
        ToolMessage("late", tool_call_id="gone", name="g"),
        ChatMessage(content="x", role="critic"),
        FunctionMessage(content="y", name="old"),
        AIMessage([]),
    ]
    function = {"name": "f", "arguments": '{"a": 1}'}
    assert to_wire(messages) == [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]},
        {
            "role": "tool",
            "content": [{"type": "text", "text": "19C"}, {"type": "text", "text": "windy"}],
            "tool_call_id": "1",
        },
        {"role": "tool", "content": "late", "tool_call_id": "gone", "name": "g"},
        {"role": "critic", "content": "x"},
        {"role": "function", "content": "y", "name": "old"},
        {"role": "assistant", "content": ""},
    ]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "reasoning_content", "reasoning_content": {"text": "hm"}},
        {"type": "reasoning_content", "reasoning_content": "hm"},
    ],
)
def test_reasoning_is_sent_in_whatever_block_it_comes(block: dict[str, Any]) -> None:
    (sent,) = to_wire([AIMessage([block, {"type": "text", "text": "4"}])])
    assert sent == {"role": "assistant", "content": [{"type": "text", "text": "4"}], "reasoning_content": "hm"}


def test_an_empty_reasoning_block_says_nothing() -> None:
    assert to_wire([AIMessage([{"type": "reasoning"}])]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("kind", ["tool_call", "tool_use", "function_call"])
def test_calls_among_the_content_are_sent_once_and_never_dropped(kind: str) -> None:
    key = "call_id" if kind == "function_call" else "id"
    block: Any = {"type": kind, "name": "f", key: "1"}
    call: Any = {"name": "f", "args": {}, "id": "1", "type": "tool_call"}
    (sent,) = to_wire([AIMessage([block], tool_calls=[call])])
    assert (sent["content"], len(sent["tool_calls"])) == (None, 1)
    with pytest.raises(DataError, match="tool_calls"):
        to_wire([AIMessage([block])])


def test_pictures_are_sent_in_the_wire_shape_whoever_wrote_them() -> None:
    url = "data:image/png;base64,AAAA"
    blocks: list[Any] = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "image", "base64": "AAAA", "mime_type": "image/png"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    ]
    (sent,) = to_wire([HumanMessage(blocks)])
    assert [part["image_url"]["url"] for part in sent["content"]] == [url] * 3


RAW_CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_a_chat_message_is_sent_as_what_its_role_says() -> None:
    sent = to_wire(
        [
            ChatMessage(content="q", role="user"),
            ChatMessage(content="", role="assistant", additional_kwargs={"tool_calls": [RAW_CALL]}),
            ChatMessage(content="r", role="tool", additional_kwargs={"tool_call_id": "1"}),
        ]
    )
    assert sent == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "tool_calls": [RAW_CALL]},
        {"role": "tool", "content": "r", "tool_call_id": "1"},
    ]


@pytest.mark.parametrize(
    "message",
    [
        RemoveMessage(id="1"),
        HumanMessage([{"type": "mystery", "value": 1}]),
        HumanMessage([{"type": "text"}]),
        HumanMessage("half of \ud83d"),
        HumanMessage([{"type": "text", "text": "half of \ud83d"}]),
        ToolMessage("file \udcff", tool_call_id="1"),
        AIMessage("", tool_calls=[{"name": "f", "args": {"a": "\ud83d"}, "id": "1", "type": "tool_call"}]),
        AIMessage("", tool_calls=[{"name": "f", "args": {"day": date(2026, 1, 1)}, "id": "1", "type": "tool_call"}]),
        AIMessage("", tool_calls=[{"name": "f", "args": {"set": {1}}, "id": "1", "type": "tool_call"}]),
        HumanMessage([{"type": "reasoning", "reasoning": "not a user's"}]),
        AIMessage([{"type": "redacted_thinking", "data": "x"}]),
        ChatMessage(content="x", role="tool"),
        AIMessage(
            "",
            tool_calls=[{"name": "f", "args": {}, "id": "1"}],
            additional_kwargs={"tool_calls": [RAW_CALL, {**RAW_CALL, "id": "2"}]},
        ),
        AIMessage(
            "", invalid_tool_calls=[{"name": None, "args": "{", "id": "1", "error": "", "type": "invalid_tool_call"}]
        ),
    ],
)
def test_what_cannot_be_sent_is_shown(message: BaseMessage) -> None:
    with pytest.raises(DataError, match=type(message).__name__):
        to_wire([HumanMessage("fine"), message])


@pytest.mark.parametrize(
    "message",
    [
        {"content": "x"},
        {"role": "user", "content": "x", "sender": "y"},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "type": "custom", "custom": {"name": "f"}}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "1", "function": {"arguments": "{}"}}]},
    ],
)
def test_what_langchain_has_no_place_for_is_shown(message: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"'content': 'x'"):
        from_wire([message])


def test_nothing_but_its_name_tells_a_name() -> None:
    plain, named = {"role": "assistant", "content": "x"}, {"role": "assistant", "content": "x", "name": "clerk"}
    assert message_key(plain) == message_key(named)
    user = [{"role": "user", "content": "x", "name": name} for name in ("a", "b")]
    assert message_key(user[0]) != message_key(user[1])


def test_a_chunk_is_a_message() -> None:
    whole = AIMessageChunk(content="a") + AIMessageChunk(content="b")
    assert to_wire([whole]) == [{"role": "assistant", "content": "ab"}]


@pytest.mark.parametrize("other", [{"role": "user", "content": "x"}, ("user", "x"), "x", None])
def test_what_is_no_message_is_shown(other: Any) -> None:
    with pytest.raises(DataError, match="is nothing that can be sent to a model"):
        to_wire([other])


def test_fields_that_say_nothing_are_no_loss() -> None:
    """As a client dumps an answer."""
    dumped: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "tool_calls": None,
        "audio": None,
    }
    assert to_wire(from_wire([dumped])) == [{"role": "assistant", "content": "x"}]


def test_arguments_that_are_read_already_are_arguments() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    (message,) = from_wire([{"role": "assistant", "content": None, "tool_calls": [call]}])
    assert isinstance(message, AIMessage)
    assert message.tool_calls[0]["args"] == {"a": 1}
