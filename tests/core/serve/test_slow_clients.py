"""Requests that are never finished end by themselves: half a head, half a body, a body that drips, a hang-up in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from urllib.parse import urlsplit

import pytest

from art_core.serve import guard, listener
from tests.core.serve.support import USER, Setup, raw

BODY = json.dumps({"model": "m", "messages": [USER]}).encode()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_HEAD_S", 0.2)
    monkeypatch.setattr(guard, "_GRACE_S", 0.2)


def head(length: int | str) -> bytes:
    return f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n".encode()


async def connected(setup: Setup) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    where = urlsplit(setup.server.url)
    return await asyncio.open_connection(where.hostname, where.port)


async def test_a_body_that_never_ends_is_answered_with_408_and_the_connection_closed(setup: Setup) -> None:
    for sent in (head(len(BODY)) + BODY[:-1], head(len(BODY))):
        reader, writer = await connected(setup)
        writer.write(sent)
        answer = await asyncio.wait_for(reader.read(), 10)  # to the end of the connection
        assert answer.startswith(b"HTTP/1.1 408 ")
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert error["code"] == "request_timeout"
        assert f"only {len(sent) - len(head(len(BODY)))} bytes" in error["message"]
        writer.close()
    assert setup.engine.prompts == []


async def test_a_body_that_drips_is_no_better(setup: Setup) -> None:
    reader, writer = await connected(setup)
    writer.write(head(10_000))

    async def drip() -> None:
        while True:
            writer.write(b" ")
            await asyncio.sleep(0.02)

    dripping = asyncio.create_task(drip())
    answer = await asyncio.wait_for(reader.read(), 10)
    assert answer.startswith(b"HTTP/1.1 408 ")
    dripping.cancel()
    writer.close()


async def test_a_body_that_is_slow_but_goes_on_is_taken(setup: Setup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_LEAST_BYTES_PER_S", 100)
    setup.engine.say("hi")
    reader, writer = await connected(setup)
    padded = BODY + b" " * 200
    writer.write(head(len(padded)))
    for start in range(0, len(padded), 64):
        writer.write(padded[start : start + 64])
        await asyncio.sleep(0.1)
    assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat", head(5)[:-2]])
async def test_a_head_that_never_ends_closes_the_connection(setup: Setup, sent: bytes) -> None:
    reader, writer = await connected(setup)
    writer.write(sent)
    with contextlib.suppress(ConnectionResetError):
        assert await asyncio.wait_for(reader.read(), 10) == b""
    writer.close()


async def test_a_head_that_never_ends_on_a_used_connection_closes_it_too(setup: Setup) -> None:
    reader, writer = await connected(setup)
    writer.write(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    writer.write(b"GET /hea")
    await asyncio.wait_for(reader.read(), 10)
    writer.close()


async def test_an_idle_connection_is_kept_and_a_long_answer_has_all_the_time_it_needs(setup: Setup) -> None:
    setup.engine.say("abc", "abc")
    setup.engine.stall_after = 2
    async with raw(setup) as client:
        assert (await client.get("/healthz")).status_code == 200
        await asyncio.sleep(0.5)  # longer than a head or a body may take
        call = asyncio.create_task(client.post("/v1/chat/completions", content=BODY))
        await setup.engine.stalled.wait()
        await asyncio.sleep(0.5)
        assert not call.done()
        call.cancel()
        await setup.engine.freed.wait()


async def test_a_client_that_hangs_up_in_its_body_leaves_nothing(setup: Setup) -> None:
    for size in (0, 1, len(BODY) - 1):
        _, writer = await connected(setup)
        writer.write(head(len(BODY)) + BODY[:size])
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    setup.engine.say("hi")
    async with raw(setup) as client:
        assert (await client.post("/v1/chat/completions", content=BODY)).status_code == 200
    assert len(setup.engine.prompts) == 1
