"""Laws of the wire: a stream joined is the plain answer; what is rendered, extended and parsed comes back."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from art_core.render.hermes import call_text
from art_core.serve.chat import ChatCall
from art_core.serve.chat_request import ChatRequest
from art_core.serve.retries import Attempt
from art_core.serve.sampled import Progress, side_by_side
from art_core.serve.served import Served
from art_core.serve.session import Session
from art_core.testing import ScriptedEngine
from tests.core.serve.support import CALL, END, RENDERER, TOKENIZER, TOOLS, USER, Kept, LineEngine

pytestmark = pytest.mark.slow
pieces = st.sampled_from(
    [
        *(CALL, "<tool_call>", "</tool_call>", '{"name": "f"}', "<tool_call>no</tool_call>", "<tool_", "{", '"'),
        *(" ", "\n", "é€😀", "a", "word ", "STOP", "ST", "OP", "<think>", "</think>"),
    ]
)


@st.composite
def completions(draw: st.DrawFn) -> list[int]:
    """Text, calls, malformed calls, characters cut off in the middle, with or without an end of the turn."""
    ids = TOKENIZER.encode("".join(draw(st.lists(pieces, max_size=8))))
    ids += draw(st.lists(st.integers(3, 258), max_size=3))
    return [*ids, END] if draw(st.booleans()) or not ids else ids


options = st.fixed_dictionaries(
    {},
    optional={
        "stop": st.lists(st.sampled_from(["STOP", "\n", "€", "a", "</tool_call>", "é€"]), min_size=1, max_size=3),
        "parallel_tool_calls": st.booleans(),
        "tools": st.just(TOOLS),
        "logprobs": st.just(True),
        "n": st.integers(1, 3),
    },
)


async def answered(
    lines: list[list[int]], chunk_size: int, session: Session | None, *, together: int = 1, **fields: Any
) -> ChatCall:
    """The call, sampled; in its stream each choice's steps come `together` at a time."""
    engine: Any = LineEngine(lines=[list(line) for line in lines], chunk_size=chunk_size)
    request = ChatRequest(model="m", messages=[USER], **fields)
    call = ChatCall(request, model=Served("m", engine, RENDERER, Kept()), session=session, attempt=Attempt())
    call_events = []
    waiting: dict[int, list[Progress]] = {}
    async for index, step in side_by_side([choice.progress() for choice in call.choices]):
        waiting.setdefault(index, []).append(step)
        if len(waiting[index]) == together or step.chunk.finish_reason is not None:
            call_events += call.events(index, Progress.merged(waiting.pop(index)))
    assert not waiting
    call.record()
    call.streamed = [*call.opening(), *call_events, *call.closing()]  # type: ignore[attr-defined]
    return call


def joined(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
    """What a client makes of the events of one choice, in the shape of a plain choice."""
    whole: dict[str, Any] = {"index": index, "token_ids": [], "token_logprobs": [], "logprobs": None}
    message: dict[str, Any] = {"content": None}
    for choice in (choice for event in events for choice in event["choices"] if choice["index"] == index):
        delta = dict(choice["delta"])
        for key in ("content", "reasoning_content"):
            if key in delta:
                message[key] = (message.get(key) or "") + delta.pop(key)
        for call in delta.pop("tool_calls", ()):
            calls = message.setdefault("tool_calls", [])
            assert call["index"] == len(calls)
            calls.append({key: value for key, value in call.items() if key != "index"})
        message |= delta
        for key in ("token_ids", "token_logprobs"):
            whole[key] += choice.get(key, [])
        if choice["logprobs"]:
            so_far = whole["logprobs"] or {"content": [], "refusal": None}
            whole["logprobs"] = {**so_far, "content": so_far["content"] + choice["logprobs"]["content"]}
        joined_above = ("delta", "token_ids", "token_logprobs", "logprobs", "index")
        rest = {key: value for key, value in choice.items() if key not in joined_above}
        whole |= rest
    return {**whole, "message": message}


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(completions(), min_size=3, max_size=3), st.integers(1, 9), st.integers(1, 5), options)
async def test_a_stream_joined_is_the_plain_answer(
    lines: list[list[int]], chunk_size: int, together: int, fields: dict[str, Any]
) -> None:
    if "tools" not in fields:
        fields.pop("parallel_tool_calls", None)
    session = Session("t")
    call = await answered(lines, chunk_size, session, together=together, **fields)
    body, events = call.body(), call.streamed  # type: ignore[attr-defined]
    assert [joined(events, choice["index"]) for choice in body["choices"]] == body["choices"]
    whole = await answered(lines, 1000, None, **fields)
    for one, other, exchange in zip(body["choices"], whole.body()["choices"], session.exchanges, strict=True):
        assert one["token_ids"] == other["token_ids"] == list(exchange.completion_ids), "whatever the chunks"
        texts = [[c["function"] for c in m["message"].get("tool_calls", ())] for m in (one, other)]
        assert texts[0] == texts[1]
        assert one["message"]["content"] == other["message"]["content"]
        assert one["message"] == exchange.response
        assert all(stop not in (one["message"]["content"] or "") for stop in fields.get("stop", ()) if stop != "\n")
        if fields.get("parallel_tool_calls") is False:
            assert len(texts[0]) <= 1


texts = st.text(st.characters(codec="utf-8", exclude_characters="\ufffd"), max_size=12)
arguments = st.dictionaries(texts, st.integers(-9, 9) | texts | st.lists(st.booleans(), max_size=2), max_size=2)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "a", "é€ b"]), st.lists(arguments, max_size=2), texts), max_size=4))
async def test_render_extend_parse_goes_round(turns: list[tuple[str, list[Any], str]]) -> None:
    """A conversation in which the model says what was rendered: each turn extends the ids, and reads back the same."""
    session = Session("t")
    messages: list[Any] = [USER]
    for text, calls, reply in turns:
        said = "\n".join([*([text] if text else []), *(call_text({"name": "f", "arguments": a}) for a in calls)])
        engine: Any = ScriptedEngine([[*TOKENIZER.encode(said), END]], max_context_tokens=10**6)
        request = ChatRequest(model="m", messages=messages, tools=TOOLS)
        call = ChatCall(request, model=Served("m", engine, RENDERER), session=session, attempt=Attempt())
        assert call.prompt.ids == tuple(RENDERER.render_ids(messages, tools=TOOLS, add_generation_prompt=True))
        async for _ in side_by_side([choice.progress() for choice in call.choices]):
            pass
        call.record()
        message = call.choices[0].message
        assert (message["content"] or "") == text
        assert len(message.get("tool_calls", ())) == len(calls)
        results = [
            {"role": "tool", "tool_call_id": each["id"], "content": reply} for each in message.get("tool_calls", ())
        ]
        messages = [*messages, message, *(results or [{"role": "user", "content": reply}])]
    assert not any(exchange.forked for exchange in session.exchanges)
    for earlier, later in itertools.pairwise(session.exchanges):
        whole = earlier.prompt_ids + earlier.completion_ids
        assert later.prompt_ids[: len(whole)] == whole
