"""Which exchange a request continues, and what is recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from renderers import RenderedTokens

from art_core.errors import ConfigError, UnknownTrajectoryError
from art_core.serve.session import Session, Sessions
from art_core.types import ChatMessage, Exchange, Sampling, ToolSpec

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
SYSTEM: ChatMessage = {"role": "system", "content": "s"}
USER: ChatMessage = {"role": "user", "content": "u"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a":1,"b":[2]}'}}
ANSWER: ChatMessage = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT: ChatMessage = {"role": "tool", "tool_call_id": "call_1", "content": "r"}


class Renderer:
    """Renders anew to 900, 901, ...; bridges by appending 7 for each new message, unless told not to."""

    def __init__(self, *, bridges: bool = True, rendered: Sequence[int] = (900, 901)) -> None:
        self.bridges = bridges
        self.rendered = rendered

    def render_ids(self, messages: Any, **_: Any) -> list[int]:
        return list(self.rendered)

    def bridge_to_next_turn(self, prompt: Any, completion: Any, new: Any, **_: Any) -> RenderedTokens | None:
        return RenderedTokens(token_ids=[*prompt, *completion, *[7] * len(new)]) if self.bridges else None


def exchange(
    messages: Sequence[ChatMessage],
    *,
    response: ChatMessage = ANSWER,
    tools: Sequence[ToolSpec] = (TOOL,),
    ids: Sequence[int] = (1, 2),
    name: str = "e",
) -> Exchange:
    return Exchange(
        id=name,
        trajectory_id="t",
        messages=tuple(messages),
        tools=tuple(tools),
        response=response,
        prompt_ids=tuple(ids),
        completion_ids=(3,),
        logprobs=(-0.5,),
        finish_reason="stop",
        sampling=Sampling(max_tokens=4),
        policy_version=0,
        started_at=0.0,
        ended_at=1.0,
    )


def prompt(session: Session, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec] = (TOOL,), **kind: Any) -> Any:
    made = session.prompt(Renderer(**kind), messages, tools)  # type: ignore[arg-type]
    return list(made.ids), made.forked


def one_turn() -> Session:
    session = Session("t")
    session.record(exchange([SYSTEM, USER]))
    return session


def test_the_first_prompt_is_rendered_whole_and_is_no_fork() -> None:
    assert prompt(Session("t"), [USER]) == ([900, 901], False)


def test_the_next_turn_extends_the_recorded_ids_by_the_new_messages() -> None:
    assert prompt(one_turn(), [SYSTEM, USER, ANSWER, RESULT]) == ([1, 2, 3, 7], False)


def echo(**changed: Any) -> ChatMessage:
    return {"role": "assistant", "content": None, "tool_calls": [CALL], **changed}


def with_arguments(arguments: Any, **extra: Any) -> list[dict[str, Any]]:
    return [{"function": {"arguments": arguments, "name": "f"}, **extra}]


@pytest.mark.parametrize(
    "spelling",
    [
        echo(content=""),
        {"tool_calls": [CALL], "role": "assistant"},
        echo(refusal=None, annotations=[], audio=None, function_call=None, reasoning_content=None),
        echo(tool_calls=with_arguments('{ "b": [2],\n "a": 1 }', id="call_1", type="function")),
        echo(tool_calls=with_arguments({"a": 1, "b": [2]}, id="renamed", index=0)),
        echo(tool_calls=with_arguments(json.dumps('{"a":1,"b":[2]}'))),
    ],
)
def test_an_answer_is_recognised_in_every_spelling_that_clients_echo(spelling: ChatMessage) -> None:
    assert prompt(one_turn(), [SYSTEM, USER, spelling, RESULT]) == ([1, 2, 3, 7], False)


def test_key_order_of_tools_and_messages_does_not_count() -> None:
    tool = {"function": {"parameters": {"properties": {}, "type": "object"}, "name": "f"}, "type": "function"}
    messages: list[ChatMessage] = [
        {"content": "s", "role": "system"},
        {"content": [{"type": "text", "text": "u"}], "role": "user"},
    ]
    assert prompt(one_turn(), [*messages, ANSWER, RESULT], [tool])[0] == [1, 2, 3, 7]


@pytest.mark.parametrize(
    "messages",
    [
        [SYSTEM, {"role": "user", "content": "edited"}, ANSWER, RESULT],
        [SYSTEM, USER, echo(tool_calls=with_arguments('{"a":2,"b":[2]}')), RESULT],
        [SYSTEM, USER, echo(content="x"), RESULT],
        [SYSTEM, USER, {"role": "assistant", "content": None}, RESULT],
        [USER, ANSWER, RESULT],
        [SYSTEM, USER],
    ],
)
def test_an_edited_history_forks(messages: list[ChatMessage]) -> None:
    assert prompt(one_turn(), messages) == ([900, 901], True)


def test_other_tools_fork() -> None:
    assert prompt(one_turn(), [SYSTEM, USER, ANSWER, RESULT], []) == ([900, 901], True)


def test_the_longest_recorded_conversation_is_continued() -> None:
    session = one_turn()
    session.record(
        exchange([SYSTEM, USER, ANSWER, RESULT], response={"role": "assistant", "content": "x"}, ids=[1, 2, 3, 7])
    )
    longer = [SYSTEM, USER, ANSWER, RESULT, {"role": "assistant", "content": "x"}, USER]
    assert prompt(session, longer) == ([1, 2, 3, 7, 3, 7], False)
    assert prompt(session, [SYSTEM, USER, ANSWER, RESULT, USER]) == ([1, 2, 3, 7, 7], False)


def test_a_renderer_that_cannot_bridge_renders_whole_and_forks_only_if_the_ids_differ() -> None:
    messages = [SYSTEM, USER, ANSWER, RESULT]
    assert prompt(one_turn(), messages, bridges=False) == ([900, 901], True)
    assert prompt(one_turn(), messages, bridges=False, rendered=[1, 2, 3, 9]) == ([1, 2, 3, 9], False)


def test_records_are_returned_in_the_order_they_finished() -> None:
    sessions = Sessions()
    session = sessions.open("t")
    for name in "abc":
        session.record(exchange([USER], name=name))
    assert [item.id for item in sessions.close("t")] == ["a", "b", "c"]


def test_an_id_is_open_once_and_then_unknown() -> None:
    sessions = Sessions()
    sessions.open("t")
    with pytest.raises(ConfigError, match="'t' is open already"):
        sessions.open("t")
    sessions.close("t")
    for call in (sessions.get, sessions.close):
        with pytest.raises(UnknownTrajectoryError, match="'t' is not open"):
            call("t")
    sessions.open("t")


def test_an_empty_id_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        Sessions().open("")


def test_nothing_is_recorded_after_the_end() -> None:
    sessions = Sessions()
    session = sessions.open("t")
    sessions.close_all()
    with pytest.raises(UnknownTrajectoryError, match="was closed while"):
        session.record(exchange([USER]))
    assert session.exchanges == []
