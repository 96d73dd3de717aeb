"""Connections of a transport that nobody holds any more."""

from __future__ import annotations

import asyncio
import gc
import warnings

import httpx2

import art_core as art
from art_core.testing import InProcessBackend
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


def test_connections_of_a_model_that_goes_as_its_loop_ends_are_closed() -> None:
    async def asked() -> None:
        async with InProcessBackend(lambda _: "yes") as backend:
            model = art.TrainableModel(name="m", project="p", base_model="scripted")
            await model.register(backend)
            await asyncio.gather(
                *(
                    model.openai_client().chat.completions.create(
                        model=model.get_inference_name(), messages=[{"role": "user", "content": "?"}]
                    )
                    for _ in range(4)
                )
            )

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            asyncio.run(asked())
            gc.collect()
    assert [str(warning.message) for warning in caught if issubclass(warning.category, ResourceWarning)] == []
