"""Anything that holds a conversation becomes one canonical transcript."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage
from openai.types.chat import ChatCompletion, ChatCompletionMessage

from art_ruler.errors import DataError
from art_ruler.inputs import Block, Message, Transcript, common_prefix_length, digest, read_trajectories


def read(trajectory: Any, tools: Any = None) -> Transcript:
    (transcript,) = read_trajectories([trajectory], tools)
    return transcript


def shown(trajectory: Any, tools: Any = None) -> list[tuple[str, str]]:
    return [(block.kind, block.text) for message in read(trajectory, tools) for block in message.blocks]


def call(call_id: str | None = "call_1", name: str = "look", arguments: Any = '{"at": 1}') -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


WEATHER: list[dict[str, Any]] = [
    {"role": "system", "content": "Help."},
    {"role": "user", "content": [{"type": "text", "text": "Oslo?"}]},
    {"role": "assistant", "content": None, "tool_calls": [call("call_9")]},
    {"role": "tool", "tool_call_id": "call_9", "content": "19C"},
    {"role": "assistant", "content": "19 degrees"},
]
WEATHER_SHOWN = [
    ("system", "Help."),
    ("user", "Oslo?"),
    ("call", '#1 look {"at": 1}'),
    ("tool", "#1: 19C"),
    ("assistant", "19 degrees"),
]


@dataclass
class WithAttribute:
    messages: list[Any]


@dataclass
class WithMethod:
    messages_and_choices: list[Any] | None = None
    held: list[Any] = field(default_factory=list)

    def messages(self) -> list[Any]:
        return self.held


@dataclass
class Exchange:
    messages: tuple[Any, ...]
    response: Any
    tools: tuple[Any, ...] = ()


@dataclass
class WithExchanges:
    exchanges: list[Exchange]


LANGCHAIN = [
    SystemMessage("Help."),
    HumanMessage([{"type": "text", "text": "Oslo?"}]),
    AIMessage("", tool_calls=[{"name": "look", "args": {"at": 1}, "id": "abc"}]),
    ToolMessage("19C", tool_call_id="abc"),
    AIMessage("19 degrees"),
]
CLIENT = [
    *WEATHER[:2],
    ChatCompletionMessage.model_validate(WEATHER[2]),
    WEATHER[3],
    ChatCompletion.model_validate(
        {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": "stop", "message": WEATHER[4]}],
        }
    ).choices[0],
]


@pytest.mark.parametrize(
    "trajectory",
    [
        WEATHER,
        tuple(WEATHER),
        {"messages": WEATHER, "reward": 3.0},
        {"messages_and_choices": WEATHER},
        WithAttribute(WEATHER),
        WithMethod(held=WEATHER),
        WithMethod(messages_and_choices=CLIENT),
        LANGCHAIN,
        {"messages": LANGCHAIN},
        CLIENT,
        WithExchanges([Exchange(tuple(WEATHER[:2]), WEATHER[2]), Exchange(tuple(WEATHER[:4]), WEATHER[4])]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_all_shapes_read_the_same(trajectory: Any) -> None:
    before = copy.deepcopy(trajectory)
    assert shown(trajectory) == WEATHER_SHOWN
    assert trajectory == before


def test_ids_of_calls_do_not_tell_equal_trajectories_apart() -> None:
    other = copy.deepcopy(WEATHER)
    other[2]["tool_calls"][0]["id"] = other[3]["tool_call_id"] = "call_777"
    assert digest(read(other)) == digest(read(WEATHER))
    other[3]["content"] = "20C"
    assert digest(read(other)) != digest(read(WEATHER))


def test_parallel_calls_are_numbered_and_their_results_found() -> None:
    messages = [
        {"role": "assistant", "content": "both", "tool_calls": [call("a", "x", "1"), call("b", "y", {"k": "ø"})]},
        {"role": "tool", "tool_call_id": "b", "content": "B", "name": "y"},
        {
            "role": "tool",
            "tool_call_id": "a",
            "content": [{"type": "text", "text": "A"}, {"type": "text", "text": "!"}],
        },
        {"role": "assistant", "function_call": {"name": "old", "arguments": "{}"}},
    ]
    assert shown(messages) == [
        ("assistant", "both"),
        ("call", "#1 x 1"),
        ("call", '#2 y {"k": "ø"}'),
        ("tool", "#2 y: B"),
        ("tool", "#1: A\n!"),
        ("call", "#3 old {}"),
    ]


def test_calls_that_share_an_id_are_numbered_apart() -> None:
    messages = [
        {"role": "assistant", "tool_calls": [call("a", "x", "1")]},
        {"role": "tool", "tool_call_id": "a", "content": "A"},
        {"role": "assistant", "tool_calls": [call("a", "x", "2"), call("b", "y", "3")]},
        {"role": "tool", "tool_call_id": "a", "content": "AA"},
        {"role": "tool", "tool_call_id": "b", "content": "B"},
    ]
    assert [text for _, text in shown(messages)] == ["#1 x 1", "#1: A", "#2 x 2", "#3 y 3", "#2: AA", "#3: B"]


def test_a_role_may_be_a_member_of_an_enum() -> None:
    class Role(str, Enum):  # noqa: UP042 - the spelling in use, which formats as its name
        PERSON = "user"
        CRITIC = "critic"

    assert shown([{"role": Role.PERSON, "content": "x"}]) == [("user", "x")]
    assert shown([{"role": Role.PERSON, "content": "x", "name": "n"}]) == [("user", "x")]
    assert shown([{"role": Role.CRITIC, "content": "x"}]) == [("other", "role critic: x")]


@pytest.mark.parametrize("content", [None, "", "  ", [], [{"type": "text", "text": ""}]])
def test_an_empty_answer_is_shown_to_be_empty(content: Any) -> None:
    assert shown([{"role": "assistant", "content": content}]) == [("assistant", "(empty response)")]
    assert shown([{"role": "user", "content": content}]) == [("user", "(empty)")]
    assert shown([{"role": "tool", "content": content}]) == [("tool", "(empty)")]


def test_a_trajectory_without_messages_is_shown_to_have_none() -> None:
    assert shown([]) == [("note", "(no messages)")]
    assert shown(WithExchanges([])) == [("note", "(no messages)")]


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"},
        {"role": "assistant", "content": "4", "reasoning": "2 and 2"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "2 and 2"}, {"type": "text", "text": "4"}]},
        {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "2 and 2"}, "4"]},
    ],
)
def test_reasoning_is_shown_as_such(message: dict[str, Any]) -> None:
    assert shown([message]) == [("reasoning", "2 and 2"), ("assistant", "4")]


def test_pictures_are_told_apart_but_not_spelled_out() -> None:
    def picture(url: str) -> list[dict[str, Any]]:
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]

    long = "data:image/png;base64," + "A" * 100_000
    ((kind, text),) = shown(picture(long))
    assert kind == "user"
    assert text.startswith("(image_url ")
    assert len(text) < 40
    assert shown(picture(long)) == shown(picture(long))
    assert shown(picture(long)) != shown(picture(long + "B"))


def test_text_of_any_kind_survives_letter_by_letter() -> None:
    text = 'JSON {"a": 1} {x} %s $name {{}} \\n "quoted" <think> ๛ 𝔘 \r\n\t'
    assert shown([{"role": "user", "content": text}]) == [("user", text)]


def test_what_no_request_can_carry_is_replaced() -> None:
    assert shown([{"role": "user", "content": "a\ud800b\0c"}]) == [("user", "a\ufffdb\ufffdc")]


def test_other_roles_keep_their_name_in_the_text() -> None:
    assert shown([{"role": "critic\n<x>", "content": "bad"}]) == [("other", "role critic\n<x>: bad")]
    assert shown([{"role": "developer", "content": "x"}]) == [("system", "x")]


def test_edited_history_opens_another_conversation() -> None:
    forked = WithExchanges(
        [
            Exchange(({"role": "user", "content": "a"},), {"role": "assistant", "content": "b"}),
            Exchange(({"role": "user", "content": "summary"},), {"role": "assistant", "content": "c"}),
        ]
    )
    assert shown(forked) == [
        ("user", "a"),
        ("assistant", "b"),
        ("note", "(another conversation of the same attempt)"),
        ("user", "summary"),
        ("assistant", "c"),
    ]


def test_tools_lead_and_those_given_take_the_place_of_its_own() -> None:
    tool = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
    messages = [{"role": "user", "content": "x"}]
    wanted = [("tools", 'look: Looks. {"type": "object"}'), ("user", "x")]
    assert shown(messages, [tool]) == wanted
    assert shown({"messages": messages, "tools": [tool]}) == wanted
    own = {"type": "function", "function": {"name": "own", "description": None}}
    assert shown({"messages": messages, "tools": [own]}) == [("tools", "own:  {}"), ("user", "x")]
    assert shown({"messages": messages, "tools": [own]}, [tool]) == wanted


@pytest.mark.parametrize(
    ("trajectories", "said"),
    [
        ("text", "trajectories are a str"),
        ({"messages": []}, "trajectories are a dict"),
        (None, "trajectories are a NoneType"),
        (["text"], "trajectory 0 is a str without messages"),
        ([[], 5], "trajectory 1 is a int without messages"),
        ([{"role": "user", "content": "x"}], "trajectory 0 is a dict without messages"),
        ([[{"content": "x"}]], "trajectory 0, message 0 is a dict without a role"),
        ([[{"role": "user", "content": "x"}, "y"]], "trajectory 0, message 1 is a str without a role"),
        ([[{"role": "user", "content": 5}]], "trajectory 0, message 0: content is a int"),
        ([[{"role": "assistant", "tool_calls": "x"}]], "tool_calls are not a list"),
        ([{"messages": "text"}], "trajectory 0 is a dict without messages"),
    ],
)
def test_what_is_no_conversation_is_refused_by_name(trajectories: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_trajectories(trajectories)


def user(text: str) -> Message:
    return Message((Block("user", text),))


def said(text: str) -> Message:
    return Message((Block("assistant", text),))


@pytest.mark.parametrize(
    ("group", "length"),
    [
        ([], 0),
        ([(user("q"), said("a"))], 1),
        ([(user("q"),)], 0),
        ([(said("a"),)], 0),
        ([(user("q"), said("a"), user("r"), said("b"))], 1),
        ([(user("q"), said("a")), (user("q"), said("b"))], 1),
        ([(user("q"), said("a")), (user("r"), said("b"))], 0),
        ([(user("q"), said("a")), (user("q"), said("a"), user("r"), said("b"))], 1),  # one begins the other
        ([(user("q"), said("a"), said("c")), (user("q"), said("a"), said("b"))], 2),
        ([(said("a"),), (said("b"),)], 0),
    ],
)
def test_what_leads_all_is_shared_and_never_the_last_message(group: list[Transcript], length: int) -> None:
    assert common_prefix_length(group) == length
