"""How often a stream tells what was sampled: tokens that come fast share events, and none waits for the next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import APIError

from art_core.serve import reply
from tests.core.serve.support import TOOLS, USER, Setup, collected, ids_of

LONG = "abc€😀 " * 40


async def chunks_of(stream: Any) -> list[Any]:
    return [chunk async for chunk in stream]


async def test_tokens_that_come_fast_share_events(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "_LEAST_GAP_S", 60.0)  # only the first token and the end are sent at once
    setup.engine.say(LONG)
    chunks = await chunks_of(await setup.agent("t")([USER], stream=True, logprobs=True))
    assert [len(getattr(c.choices[0], "token_ids", None) or ()) for c in chunks] == [0, 1, len(ids_of(LONG)) - 1, 0]
    assert len(chunks[2].choices[0].logprobs.content) == len(ids_of(LONG)) - 1
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == LONG


async def test_choices_side_by_side_each_keep_their_own(setup: Setup) -> None:
    setup.engine.say(LONG, "x" * 300)
    chunks = await chunks_of(await setup.agent("t")([USER], stream=True, n=2))
    texts = ["", ""]
    for choice in (choice for chunk in chunks for choice in chunk.choices):
        texts[choice.index] += choice.delta.content or ""
    assert texts == [LONG, "x" * 300]
    first, second = setup.server.close_trajectory("t")
    assert list(first.completion_ids) == ids_of(LONG)
    assert list(second.completion_ids) == ids_of("x" * 300)


async def test_no_token_waits_for_the_next(setup: Setup) -> None:
    setup.engine.say("abcdef")
    setup.engine.stall_after = 4
    got: list[int] = []
    stream = await setup.agent("t")([USER], stream=True)
    async with asyncio.timeout(20):
        async for chunk in stream:
            got += getattr(chunk.choices[0], "token_ids", None) or []
            if len(got) == 4:
                break
    assert got == ids_of("abcd", closed=False)
    await stream.close()
    async with asyncio.timeout(20):
        await setup.engine.freed.wait()


async def test_what_was_sampled_before_an_error_comes_before_it(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "_LEAST_GAP_S", 60.0)
    setup.engine.say("abcdef")
    setup.engine.stall_after, setup.engine.error = 4, RuntimeError("broken")
    got: list[int] = []

    async def read() -> None:
        async for chunk in await setup.agent("t")([USER], stream=True):
            got.extend(getattr(chunk.choices[0], "token_ids", None) or [])

    with pytest.raises(APIError, match="broken"):
        await read()
    assert got == ids_of("abcd", closed=False)
    assert setup.server.close_trajectory("t") == []


async def test_a_client_that_hangs_up_while_tokens_wait_frees_the_engine(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply, "_LEAST_GAP_S", 60.0)
    setup.engine.say("abcdef")
    setup.engine.stall_after = 4
    stream = await setup.agent("t")([USER], stream=True)
    await setup.engine.stalled.wait()
    await stream.close()
    async with asyncio.timeout(20):
        await setup.engine.freed.wait()
    assert setup.server.close_trajectory("t") == []


async def test_calls_among_the_text_keep_their_order(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reply, "_LEAST_GAP_S", 60.0)
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    setup.engine.say(f"one {call}\n{call} two")
    joined = await collected(await setup.agent("t")([USER], stream=True, tools=TOOLS))
    assert joined["content"] == "one\ntwo"
    assert [name for _, name, _ in joined["calls"].values()] == ["f", "f"]
