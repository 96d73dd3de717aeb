"""Connections of a transport that nobody holds any more."""

from __future__ import annotations

import asyncio
import gc

import httpx2

from art_core.transport import LoopsTransport


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    await writer.drain()
    closed.append(await reader.read() == b"")
    writer.close()


closed: list[bool] = []


async def test_its_connections_are_closed_while_the_loop_goes_on() -> None:
    closed.clear()
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    client = httpx2.AsyncClient(transport=LoopsTransport(f"http://127.0.0.1:{port}"))
    assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
    del client
    gc.collect()
    for _ in range(100):
        if closed:
            break
        await asyncio.sleep(0.01)
    assert closed == [True]
    server.close()
