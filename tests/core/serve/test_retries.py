"""A repeat of a call whose answer never arrived is recorded once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, InternalServerError

from art_core.errors import EngineClosedError
from tests.core.serve.support import CALL, SECRET, USER, Setup, collected, raw

RETRY = {"x-stainless-retry-count": "1"}


@asynccontextmanager
async def lossy(setup: Setup, *, lose: int) -> AsyncIterator[str]:
    """A proxy in front of the server that swallows the first `lose` whole answers and hangs up instead."""
    host, port = setup.server.url.removeprefix("http://").split(":")
    left = [lose]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = await reader.readexactly(length)
        upstream, sink = await asyncio.open_connection(host, int(port))
        head = head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        head = b"\r\n".join(line for line in head.split(b"\r\n") if line.lower() != b"connection: keep-alive")
        sink.write(head + body)
        answer = await upstream.read()
        sink.close()
        if left[0] > 0:
            left[0] -= 1
        else:
            writer.write(answer)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        yield "http://{}:{}".format(*proxy.sockets[0].getsockname())


@pytest.mark.parametrize("streaming", [False, True])
async def test_the_openai_client_gets_the_recorded_answer_when_the_first_was_lost(
    setup: Setup, streaming: bool
) -> None:
    setup.engine.say(f"A {CALL}", "never")
    setup.server.open_trajectory("t")
    async with (
        lossy(setup, lose=1) as proxy,
        AsyncOpenAI(base_url=f"{proxy}/t/t/v1", api_key=SECRET, max_retries=1, timeout=20) as client,
    ):
        options: Any = {"model": "m", "messages": [USER], "seed": 4, "stop": ["never"]}
        tools: Any = [{"type": "function", "function": {"name": "f"}}]
        answer = await client.chat.completions.create(**options, tools=tools, stream=streaming)
        if streaming:
            joined = await collected(answer)
            exchange_id, token_ids = joined["exchange_id"], joined["token_ids"]
            call_id = joined["calls"][0][0]
        else:
            choice: Any = answer.choices[0]  # type: ignore[union-attr]
            exchange_id, token_ids = choice.exchange_id, choice.token_ids
            call_id = choice.message.tool_calls[0].id
    (exchange,) = setup.server.close_trajectory("t")
    assert (exchange_id, tuple(token_ids)) == (exchange.id, exchange.completion_ids)
    assert call_id == exchange.response["tool_calls"][0]["id"]
    assert len(setup.engine.prompts) == 1, "nothing was sampled again"


async def post(setup: Setup, *, headers: Any = None, path: str = "/t/t/v1/chat/completions", **fields: Any) -> Any:
    async with raw(setup) as client:
        body = {"model": "m", **({"prompt": "p"} if "chat" not in path else {"messages": [USER]}), **fields}
        return await client.post(path, json=body, headers=headers)


async def test_a_repeat_of_several_choices_with_alternatives_is_the_same_answer(setup: Setup) -> None:
    setup.engine.say("a", "b")
    setup.server.open_trajectory("t")
    options: dict[str, Any] = {"n": 2, "logprobs": True, "top_logprobs": 2}
    first = (await post(setup, **options)).json()
    again = (await post(setup, headers=RETRY, **options)).json()
    assert {**again, "created": 0} == {**first, "created": 0}
    assert len(setup.server.close_trajectory("t")) == 2


async def test_a_text_completion_is_repeated_too(setup: Setup) -> None:
    setup.engine.say("a")
    setup.server.open_trajectory("t")
    path = "/t/t/v1/completions"
    first, again = (await post(setup, path=path)).json(), (await post(setup, path=path, headers=RETRY)).json()
    assert again["choices"] == first["choices"]
    assert len(setup.server.close_trajectory("t")) == 1


async def test_an_idempotency_key_tells_parallel_calls_apart(setup: Setup) -> None:
    setup.engine.say("a", "b")
    setup.server.open_trajectory("t")
    keys = [{"idempotency-key": "one"}, {"idempotency-key": "two"}]
    first = [(await post(setup, headers=key)).json()["choices"][0]["exchange_id"] for key in keys]
    again = [(await post(setup, headers=key)).json()["choices"][0]["exchange_id"] for key in keys]
    assert again == first
    assert len(setup.server.close_trajectory("t")) == 2


@pytest.mark.parametrize("headers", [None, {"x-stainless-retry-count": "0"}])
async def test_a_second_call_of_the_same_words_is_a_call_of_its_own(setup: Setup, headers: Any) -> None:
    setup.engine.say("a", "b")
    setup.server.open_trajectory("t")
    answers = await asyncio.gather(*(post(setup, headers=headers) for _ in range(2)))
    exchanges = setup.server.close_trajectory("t")
    assert {answer.json()["choices"][0]["exchange_id"] for answer in answers} == {e.id for e in exchanges}
    assert len(exchanges) == 2


async def test_a_repeat_after_a_failure_is_sampled_even_if_another_call_of_the_same_words_was_answered(
    setup: Setup,
) -> None:
    setup.engine.say("a")
    setup.server.open_trajectory("t")
    await post(setup)
    setup.engine.say("lost")
    setup.engine.stall_after, setup.engine.error = 0, EngineClosedError("busy")
    assert (await post(setup)).status_code == 503
    setup.engine.stall_after, setup.engine.error = None, None
    setup.engine.say("b")
    repeated = (await post(setup, headers=RETRY)).json()["choices"][0]["message"]["content"]
    assert repeated == "b"
    assert [e.response["content"] for e in setup.server.close_trajectory("t")] == ["a", "b"]


async def test_a_repeat_after_a_time_out_of_the_client_is_sampled_anew_and_recorded_once(setup: Setup) -> None:
    setup.engine.say("abcdef", "second")
    setup.engine.stall_after = 3
    setup.server.open_trajectory("t")
    async with httpx.AsyncClient(base_url=setup.server.url, timeout=0.5) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/t/t/v1/chat/completions", json={"model": "m", "messages": [USER]})
    await asyncio.wait_for(setup.engine.freed.wait(), 5)
    setup.engine.stall_after = None
    answer = (await post(setup, headers=RETRY)).json()
    (exchange,) = setup.server.close_trajectory("t")
    assert answer["choices"][0]["message"]["content"] == exchange.response["content"] == "second"


async def test_another_body_is_no_repeat_and_neither_is_another_trajectory(setup: Setup) -> None:
    setup.engine.say("a", "b", "c")
    setup.server.open_trajectory("t")
    setup.server.open_trajectory("v")
    await post(setup)
    await post(setup, headers=RETRY, seed=1)
    await post(setup, headers=RETRY, path="/t/v/v1/chat/completions")
    assert len(setup.server.close_trajectory("t")) == 2
    assert len(setup.server.close_trajectory("v")) == 1


async def test_the_clients_own_retry_after_an_error_is_recorded_once(setup: Setup) -> None:
    setup.engine.say("lost", "found")
    setup.engine.stall_after, setup.engine.error = 0, EngineClosedError("busy")
    base_url = setup.server.open_trajectory("t")
    client = setup.client.with_options(base_url=base_url, max_retries=0)
    with pytest.raises(InternalServerError):
        await client.chat.completions.create(model="m", messages=[USER])
    setup.engine.stall_after = None
    answer = await client.chat.completions.create(model="m", messages=[USER], extra_headers=RETRY)
    (exchange,) = setup.server.close_trajectory("t")
    assert json.loads(answer.model_dump_json())["choices"][0]["exchange_id"] == exchange.id
