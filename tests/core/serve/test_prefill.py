"""Answers that the request has begun, reasoning in a history, and content in parts."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from openai import BadRequestError

from art_core.samples import to_samples
from art_core.trajectories import Trajectory
from tests.core.serve.support import CALL, RENDERER, TOKENIZER, TOOLS, USER, Setup, collected


def begun(text: Any, **extra: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **extra}


def shown(setup: Setup, index: int = -1) -> str:
    return TOKENIZER.decode(setup.engine.prompts[index][0])


@pytest.mark.parametrize("recorded", [True, False])
async def test_the_answer_goes_on_from_a_last_message_of_the_assistant(setup: Setup, recorded: bool) -> None:
    setup.engine.say(" is Paris.", " is Paris.")
    create: Any = setup.agent("t") if recorded else setup.client.chat.completions.create
    options: Any = {"tools": []} if recorded else {"model": "m"}
    answer = await create(messages=[USER, begun("The capital")], **options)
    assert answer.choices[0].message.content == " is Paris."
    prompt = "<|im_start|>user\nu<|im_end|>\n<|im_start|>assistant\nThe capital"
    assert shown(setup) == prompt
    joined = await collected(await create(messages=[USER, begun("The capital")], stream=True, **options))
    assert joined["content"] == " is Paris."
    (exchange, _) = setup.server.close_trajectory("t") if recorded else setup.outside
    assert TOKENIZER.decode(exchange.prompt_ids) == prompt
    assert exchange.messages == (USER, begun("The capital"))
    assert exchange.response["content"] == " is Paris."


@pytest.mark.parametrize(
    "history",
    [
        lambda message: [begun("The capital" + message.content)],
        lambda message: [begun("The capital"), message],
    ],
    ids=["one message", "two messages"],
)
async def test_the_next_turn_extends_a_begun_answer_however_it_is_echoed(setup: Setup, history: Any) -> None:
    setup.engine.say(" is Paris.", "ok")
    agent = setup.agent("t")
    message = (await agent([USER, begun("The capital")])).choices[0].message
    await agent([USER, *history(message), USER])
    first, second = setup.server.close_trajectory("t")
    whole = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(whole)] == whole
    assert not second.forked
    (row,) = to_samples(Trajectory(id="t", exchanges=[first, second]), 1.0)
    assert row.num_trained == len(first.completion_ids) + len(second.completion_ids)


async def test_an_answer_that_was_cut_off_is_continued_by_its_own_ids(setup: Setup) -> None:
    setup.engine.say("one tw", "o thr", closed=False)
    setup.engine.say("ee")
    agent = setup.agent("t")
    text = ""
    for _ in range(3):
        message = (await agent([USER, begun(text)] if text else [USER])).choices[0].message
        text += message.content
    assert text == "one two three"
    exchanges = setup.server.close_trajectory("t")
    assert [exchange.forked for exchange in exchanges] == [False] * 3
    for earlier, later in itertools.pairwise(exchanges):
        assert later.prompt_ids == earlier.prompt_ids + earlier.completion_ids
    assert len(to_samples(Trajectory(id="t", exchanges=exchanges), 1.0)) == 1


async def test_a_finished_answer_that_is_to_go_on_is_a_fork(setup: Setup) -> None:
    setup.engine.say("done", " and more")
    agent = setup.agent("t")
    message = (await agent([USER])).choices[0].message
    await agent([USER, message])
    _, second = setup.server.close_trajectory("t")
    assert second.forked
    assert TOKENIZER.decode(second.prompt_ids).endswith("assistant\ndone")


async def test_a_begun_answer_follows_the_record_of_the_turns_before_it(setup: Setup) -> None:
    setup.engine.say(CALL, "ree")
    agent = setup.agent("t")
    message = (await agent([USER])).choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
    await agent([USER, message, result, begun("th")])
    first, second = setup.server.close_trajectory("t")
    whole = first.prompt_ids + first.completion_ids
    assert second.prompt_ids[: len(whole)] == whole
    added = TOKENIZER.decode(second.prompt_ids[len(whole) :])
    assert added == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\nth"


async def test_calls_without_results_are_refused(setup: Setup) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    with pytest.raises(BadRequestError, match="add their results") as caught:
        await setup.agent("t")([USER, begun(None, tool_calls=[call])])
    assert caught.value.param == "messages[1].tool_calls"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
async def test_b063_reasoning_in_a_history_reaches_the_prompt_under_either_name(setup: Setup, field: str) -> None:
    setup.engine.say("ok", "ok")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "tool_calls": [call], field: "Because."}
    history = [USER, turn, {"role": "tool", "tool_call_id": "c", "content": "3"}]
    await setup.agent("t")(history)
    assert "<think>\nBecause.\n</think>" in shown(setup)
    await setup.agent("v")([USER, begun("x", **{field: "Because."})])
    assert shown(setup).endswith("assistant\n<think>\nBecause.\n</think>\n\nx")


@pytest.mark.parametrize("content", [None, "", [], [{"type": "text", "text": ""}], "absent"])
async def test_b011_a_call_without_text_gives_the_same_ids_in_every_spelling(setup: Setup, content: Any) -> None:
    setup.engine.say("ok")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    turn = {"role": "assistant", "tool_calls": [call], **({} if content == "absent" else {"content": content})}
    history = [USER, turn, {"role": "tool", "tool_call_id": "c", "content": "3"}]
    await setup.agent("t")(history)
    wanted = RENDERER.render_ids([USER, {**turn, "content": ""}, history[2]], tools=TOOLS, add_generation_prompt=True)
    assert list(setup.engine.prompts[0][0]) == wanted
    assert "None" not in shown(setup)


async def test_b001_calls_of_earlier_turns_stand_in_the_prompt_once(setup: Setup) -> None:
    setup.engine.say("3")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1,"b":2}'}}
    history = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
    await setup.agent("t")([*history, {"role": "tool", "tool_call_id": "c1", "content": "3"}], tools=[])
    (exchange,) = setup.server.close_trajectory("t")
    assert TOKENIZER.decode(exchange.prompt_ids).count('{"name":"add","arguments":{"a":1,"b":2}}') == 1
    (row,) = to_samples(Trajectory(id="t", exchanges=[exchange]), 1.0)
    assert row.num_trained == len(exchange.completion_ids)
    assert row.trained == (False,) * len(exchange.prompt_ids) + (True,) * len(exchange.completion_ids), "B010"


async def test_text_parts_are_joined_and_other_parts_refused_by_their_kind(setup: Setup) -> None:
    setup.engine.say("ok")
    agent = setup.agent("t")
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    await agent([{"role": "user", "content": parts}], tools=[])
    assert shown(setup) == "<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\n"
    image = {"type": "image_url", "image_url": {"url": "data:"}}
    with pytest.raises(BadRequestError, match="image_url"):
        await agent([{"role": "user", "content": [image]}])
