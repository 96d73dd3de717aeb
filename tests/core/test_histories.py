"""Recorded exchanges -> conversations."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from art_core.choices import exchange_id_of, is_answer
from art_core.histories import conversations
from art_core.trajectories import History
from art_core.types import Exchange, Sampling

SYSTEM = {"role": "system", "content": "s"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: str | None, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def exchange(
    name: str, *messages: dict[str, Any], answer: dict[str, Any] | None = None, tools: Any = (), at: float = 0.0
) -> Exchange:
    return Exchange(
        id=name,
        trajectory_id="t",
        messages=messages,
        tools=tools,
        response=answer or said(name),
        prompt_ids=(1,),
        completion_ids=(2,),
        logprobs=(-0.5,),
        finish_reason="stop",
        sampling=Sampling(max_tokens=8),
        policy_version=0,
        started_at=at,
        ended_at=at + 1,
    )


def shown(histories: list[History]) -> list[list[str]]:
    """Each conversation as texts; an answer as `*<exchange id>`."""
    return [
        [
            f"*{exchange_id_of(item)}" if is_answer(item) else str(item["content"])
            for item in history.messages_and_choices
        ]
        for history in histories
    ]


def test_a_conversation_of_two_turns_is_one_history() -> None:
    turns = [exchange("a", SYSTEM, user("1")), exchange("b", SYSTEM, user("1"), said("a"), user("2"), at=1)]
    assert shown(conversations(turns)) == [["s", "1", "*a", "2", "*b"]]


def test_no_exchange_gives_no_conversation() -> None:
    assert conversations([]) == []


def test_an_echo_in_another_spelling_is_the_same_conversation() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    echo = {**call, "function": {"name": "f", "arguments": '{"a":1}'}}
    turns = [
        exchange("a", user("1"), answer=said(None, tool_calls=[call]), tools=(TOOL,)),
        exchange(
            "b",
            user("1"),
            said("", tool_calls=[echo]),
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
            tools=(TOOL,),
            at=1,
        ),
    ]
    (history,) = conversations(turns)
    assert shown([history]) == [["1", "*a", "3", "*b"]]
    assert history.tools == [TOOL]
    assert history.messages_and_choices[1].finish_reason == "tool_calls"
    assert history.messages_and_choices[1].message.tool_calls[0].function.arguments == '{"a": 1}'


def test_sub_agents_and_other_tools_are_conversations_of_their_own() -> None:
    turns = [
        exchange("a", user("1")),
        exchange("sub", SYSTEM, user("1"), at=1),
        exchange("b", user("1"), said("a"), user("2"), tools=(TOOL,), at=2),
        exchange("c", user("1"), said("a"), user("2"), at=3),
    ]
    assert shown(conversations(turns)) == [["1", "*a", "2", "*c"], ["s", "1", "*sub"], ["1", "a", "2", "*b"]]


def test_edited_history_opens_a_conversation_whose_past_is_context() -> None:
    turns = [
        exchange("a", user("1")),
        exchange("b", user("1"), said("a"), user("2"), at=1),
        exchange("c", user("summary"), said("b"), user("3"), at=2),
        exchange("d", user("summary"), said("b"), user("3"), said("c"), user("4"), at=3),
    ]
    assert shown(conversations(turns)) == [["1", "*a", "2", "*b"], ["summary", "b", "3", "*c", "4", "*d"]]


def test_parallel_branches_part_where_they_differ() -> None:
    turns = [
        exchange("a", user("1")),
        exchange("b", user("1"), at=1),
        exchange("c", user("1"), said("b"), user("2"), at=2),
    ]
    assert shown(conversations(turns)) == [["1", "*a"], ["1", "*b", "2", "*c"]]


def test_the_longest_conversation_is_continued() -> None:
    turns = [
        exchange("a", user("1")),
        exchange("b", user("1"), said("a"), user("2"), at=1),
        exchange("x", user("1"), answer=said("a"), at=2),
        exchange("c", user("1"), said("a"), user("2"), said("b"), user("3"), at=3),
    ]
    assert shown(conversations(turns)) == [["1", "*a", "2", "*b", "3", "*c"], ["1", "*x"]]


def test_the_call_that_began_first_is_the_main_conversation_whatever_ended_first() -> None:
    assert shown(conversations([exchange("fast", user("2"), at=1), exchange("slow", user("1"), at=0)])) == [
        ["1", "*slow"],
        ["2", "*fast"],
    ]


@given(st.lists(st.tuples(st.integers(-1, 5), st.sampled_from(["x", "y"])), max_size=8))
def test_each_exchange_is_one_choice_and_its_messages_stand_before_it(plan: list[tuple[int, str]]) -> None:
    """Each entry continues an earlier exchange, or begins a conversation (-1, or one that is not there)."""
    turns: list[Exchange] = []
    for number, (before, text) in enumerate(plan):
        past = [*turns[before].messages, turns[before].response] if 0 <= before < len(turns) else []
        turns.append(exchange(f"e{number}", *past, user(text), at=float(number)))
    found = conversations(turns)
    ids = [exchange_id_of(item) for history in found for item in history.messages_and_choices if is_answer(item)]
    assert sorted(str(each) for each in ids) == sorted(turn.id for turn in turns)
    for history in found:
        for index, item in enumerate(history.messages_and_choices):
            if is_answer(item):
                turn = turns[int(str(exchange_id_of(item))[1:])]
                assert history.messages()[:index] == list(turn.messages)
