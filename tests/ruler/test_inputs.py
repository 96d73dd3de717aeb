"""Anything that holds a conversation becomes one canonical transcript."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pytest
from langchain_core.load import dumpd
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    HumanMessageChunk,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)
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


LANGCHAIN: list[BaseMessage] = [
    SystemMessage("Help."),
    HumanMessage([{"type": "text", "text": "Oslo?"}]),
    AIMessage("", tool_calls=[{"name": "look", "args": {"at": 1}, "id": "abc"}]),
    ToolMessage("19C", tool_call_id="abc"),
    AIMessage("19 degrees"),
]
ANTHROPIC: list[dict[str, Any]] = [
    *WEATHER[:2],
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"at": 1}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "19C"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "19 degrees"}]},
]
RESPONSES: list[dict[str, Any]] = [
    *WEATHER[:2],
    {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "look", "arguments": '{"at": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "19C"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "19 degrees"}]},
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
        messages_to_dict(LANGCHAIN),
        dumpd(LANGCHAIN),
        [message.model_dump() for message in LANGCHAIN],
        [("system", "Help."), ("human", "Oslo?"), *LANGCHAIN[2:4], AIMessageChunk(content="19 degrees")],
        [SystemMessage("Help."), HumanMessageChunk(content="Oslo?"), *LANGCHAIN[2:]],
        ANTHROPIC,
        RESPONSES,
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


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({"type": "reasoning", "summary": [{"type": "summary_text", "text": "2 and 2"}]}, [("reasoning", "2 and 2")]),
        ({"type": "reasoning", "encrypted_content": "AAAA"}, [("reasoning", "(empty)")]),
        ({"type": "web_search_call", "action": {"query": "x"}}, [("other", '"query": "x"')]),
        (
            {"type": "mcp_call", "name": "look", "arguments": "{}", "output": "19C"},
            [("call", "#1 look {} -> 19C")],
        ),
        ({"type": "custom_tool_call_output", "call_id": "?", "output": [{"text": "a"}]}, [("tool", "a")]),
        (
            {"role": "user", "content": [{"type": "tool_result", "is_error": True, "content": []}, "why"]},
            [("tool", "(error) (empty)"), ("user", "why")],
        ),
        ({"role": "tool", "status": "error", "content": "x"}, [("tool", "(error) x")]),
        (ToolMessage("x", tool_call_id="1", status="error"), [("tool", "(error) x")]),
        ({"role": "assistant", "audio": {"id": "a", "transcript": "yes"}}, [("assistant", "(audio) yes")]),
        (AIMessage("4", additional_kwargs={"reasoning_content": "2"}), [("reasoning", "2"), ("assistant", "4")]),
        (
            {"role": "assistant", "content": "4", "thinking_blocks": [{"type": "thinking", "thinking": "2"}]},
            [("reasoning", "2"), ("assistant", "4")],
        ),
        ({"role": "assistant", "refusal": {"why": "no"}}, [("assistant", '(refusal) {"why": "no"}')]),
        ({"role": "assistant", "tool_calls": ["rm -rf"]}, [("call", "#1 (no name) rm -rf")]),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "sh", "input": "ls"}}]},
            [("call", "#1 sh ls")],
        ),
        (
            {"role": "user", "content": [{"type": "novel", "said": "x"}]},
            [("user", '(novel) {"type": "novel", "said": "x"}')],
        ),
    ],
)
def test_nothing_that_was_said_or_done_is_lost(message: Any, wanted: list[tuple[str, str]]) -> None:
    found = shown([message])
    assert [kind for kind, _ in found] == [kind for kind, _ in wanted]
    for (_, text), (_, said) in zip(found, wanted, strict=True):
        assert said == text or (said in text and wanted[0][0] == "other")


def test_calls_that_stand_in_content_and_in_the_list_are_shown_once() -> None:
    content: list[dict[str, Any]] = [
        {"type": "text", "text": "now"},
        {"type": "tool_use", "id": "1", "name": "look", "input": {"at": 1}},
    ]
    message = AIMessage(content, tool_calls=[{"name": "look", "args": {"at": 1}, "id": "1"}])  # type: ignore[arg-type]
    assert shown([message]) == [("assistant", "now"), ("call", '#1 look {"at": 1}')]
    content[1]["id"] = "2"
    assert shown([AIMessage(content, tool_calls=message.tool_calls)]) == [  # type: ignore[arg-type]
        ("assistant", "now"),
        ("call", '#1 look {"at": 1}'),
        ("call", '#2 look {"at": 1}'),
    ]


@pytest.mark.parametrize("text", ["\u200b", "\u3164", "\ufeff \u2060", "\u202e\u202c", "\u2800", "\x1b"])
def test_an_answer_without_ink_is_empty(text: str) -> None:
    assert shown([{"role": "assistant", "content": text}]) == [("assistant", "(empty response)")]
    assert shown([{"role": "assistant", "content": [{"type": "text", "text": text}]}]) == [
        ("assistant", "(empty response)")
    ]


@pytest.mark.parametrize(
    "text", ["<think>a</think>", " <think>a", "<thinking x='1'>a</thinking>\n", "a</think>\u200b", "<reasoning>"]
)
def test_an_answer_that_is_only_thought_is_empty(text: str) -> None:
    for content in (text, [{"type": "text", "text": text}]):
        assert shown([{"role": "assistant", "content": content}]) == [
            ("reasoning", text),
            ("assistant", "(empty response)"),
        ]
    assert shown([{"role": "assistant", "content": text + "</think>4"}])[-1][0] == "assistant"
    assert shown([{"role": "user", "content": text}]) == [("user", text)]


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


def turns(count: int, *agents: str) -> WithExchanges:
    """Agents that take turns, each with a history of its own."""
    histories: dict[str, list[dict[str, Any]]] = {agent: [{"role": "system", "content": agent}] for agent in agents}
    made = []
    for turn in range(count):
        for agent, history in histories.items():
            history.append({"role": "user", "content": f"{agent} {turn}"})
            answer = {"role": "assistant", "content": f"answer {turn}"}
            made.append(Exchange(tuple(history), answer))
            history.append(answer)
    return WithExchanges(made)


def test_agents_that_take_turns_are_each_shown_once() -> None:
    read_by_turns = read(turns(20, "a", "b", "c"))
    one_by_one = [turns(20, agent) for agent in "abc"]
    separator = (Block("note", "(another conversation of the same attempt)"),)
    assert len(read_by_turns) == 3 * (1 + 40) + 2
    assert [m for m in read_by_turns if m.blocks != separator] == [m for one in one_by_one for m in read(one)]


def test_a_call_continues_the_longest_conversation_it_begins_with() -> None:
    start = {"role": "user", "content": "q"}
    short, long = {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}
    more = {"role": "user", "content": "r"}
    calls = [
        Exchange((start,), short),
        Exchange((start, short, more), long),
        Exchange((start,), short),
        Exchange((start, short, more, long, more), short),
    ]
    assert [text for _, text in shown(WithExchanges(calls))] == [
        *["q", "a", "r", "b", "r", "a"],
        "(another conversation of the same attempt)",
        *["q", "a"],
    ]


def test_thoughts_that_later_calls_leave_out_are_kept() -> None:
    thought = {"role": "assistant", "content": "4", "reasoning_content": "2 and 2"}
    question, again = {"role": "user", "content": "2+2?"}, {"role": "user", "content": "sure?"}
    calls = [
        Exchange((question,), thought),
        Exchange((question, {"role": "assistant", "content": "4"}, again), {"role": "assistant", "content": "yes"}),
    ]
    assert [text for _, text in shown(WithExchanges(calls))] == ["2+2?", "2 and 2", "4", "sure?", "yes"]


def test_tools_of_calls_and_of_further_histories_are_shown_once() -> None:
    def named(name: str) -> dict[str, Any]:
        return {"type": "function", "function": {"name": name}}

    asked = ({"role": "user", "content": "x"},)
    answer = {"role": "assistant", "content": "y"}
    calls = [Exchange(asked, answer, (named("a"),)), Exchange(asked, answer, (named("a"), named("b")))]
    assert shown(WithExchanges(calls))[0] == ("tools", "a:  {}\nb:  {}")
    assert shown(WithExchanges(calls), [named("c")])[0] == ("tools", "c:  {}")
    with_histories = {"messages": asked, "additional_histories": [{"messages": asked, "tools": [named("d")]}]}
    assert shown(with_histories)[0] == ("tools", "d:  {}")


class Raising:
    def __init__(self, error: Exception) -> None:
        self._error = error

    def messages(self) -> list[Any]:
        raise self._error


class RaisingProperty:
    @property
    def messages(self) -> list[Any]:
        raise KeyError("gone")


class WantsArguments:
    def messages(self, since: int) -> list[Any]:
        return [since]


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR


@pytest.mark.parametrize(
    ("trajectory", "said"),
    [
        (Raising(RuntimeError("db gone")), "trajectory 1: `messages` cannot be read: RuntimeError: db gone"),
        (Raising(TypeError("no len")), "trajectory 1: `messages` cannot be read: TypeError: no len"),
        (RaisingProperty(), "trajectory 1: `messages` cannot be read: KeyError"),
        (WantsArguments(), "trajectory 1 is a WantsArguments without messages"),
        ([{"role": "assistant", "tool_calls": [call(arguments=CIRCULAR)]}], "trajectory 1, message 0: .* as JSON"),
        ([{"role": "assistant", "tool_calls": [call(arguments={(1, 2): 3})]}], "trajectory 1, message 0: .* as JSON"),
        ([{"role": "user", "content": [{"type": "file", 1: 2}]}], "trajectory 1, message 0: .* as JSON"),
        (
            {"messages": [], "tools": [{"name": "x", "parameters": CIRCULAR}]},
            "trajectory 1: .* as JSON",
        ),
    ],
)
def test_what_cannot_be_read_is_named(trajectory: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_trajectories([[], trajectory])


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
