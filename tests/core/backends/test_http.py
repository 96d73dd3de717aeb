"""What the client half does with a server's answers, names of hosts and keys: against real sockets, without a model."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

import art_core as art
from art_core.backends import RemoteBackend
from art_core.config import TrainConfig
from art_core.errors import BackendError, ConfigError, DataError
from art_core.scope import ServedModel
from art_core.testing import InProcessBackend
from art_core.transport import AsyncModelTransport, LoopsTransport

STATE = {
    "project": "p",
    "name": "m",
    "base_model": "b",
    "inference_name": "p/m",
    "step": 3,
    "checkpoint_steps": [],
    "folder": "",
}


@asynccontextmanager
async def answering(*pieces: bytes, host: str = "127.0.0.1", family: int = socket.AF_INET) -> AsyncIterator[Any]:
    """The port of a server that answers every request with `pieces`, and the heads of the requests it got."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        heads.append(head)
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.close()

    server = await asyncio.start_server(answer, host, 0, family=family)
    async with server:
        yield server.sockets[0].getsockname()[1], heads


async def held(go: threading.Event) -> list[asyncio.Future[bool]]:
    """Every thread of asyncio's own pool is a synchronous rollout that waits."""
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(2))
    return [loop.run_in_executor(None, go.wait, 30.0) for _ in range(4)]


async def test_a_host_is_found_by_name_while_synchronous_rollouts_hold_every_thread() -> None:
    go = threading.Event()
    waiting = await held(go)
    try:
        async with answering(json.dumps(STATE).encode()) as (port, heads), asyncio.timeout(10):
            async with RemoteBackend(f"http://localhost:{port}") as backend:
                assert (await backend.state("p", "m")).step == 3
            served = ServedModel(f"http://localhost:{port}", "p", "m")
            async with httpx2.AsyncClient(transport=AsyncModelTransport(served)) as client:
                assert (await client.get(f"http://localhost:{port}/v1/models")).json() == STATE
    finally:
        go.set()
        await asyncio.gather(*waiting)
    assert all(f"host: localhost:{port}\r\n" in head.lower() for head in heads)


async def test_every_address_of_a_host_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    async with answering(json.dumps(STATE).encode()) as (port, heads):
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in ("127.0.0.9", "127.0.0.1")]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
        async with RemoteBackend(f"http://gpu-box:{port}") as backend:
            assert (await backend.state("p", "m")).step == 3
        assert len(heads) == 1
        assert f"host: gpu-box:{port}" in heads[0].lower()


async def test_a_host_that_nobody_knows_is_named() -> None:
    async with RemoteBackend("http://no-such-host.invalid:1") as backend:
        with pytest.raises(BackendError, match=r"the host 'no-such-host\.invalid' is not known"):
            await backend.state("p", "m")


def test_addresses_keep_their_port_and_brackets() -> None:
    from art_core.transport import _at

    request = httpx2.Request("GET", "https://gpu-box:8400/api?x=1")
    assert str(_at("::1", request).url) == "https://[::1]:8400/api?x=1"
    assert str(_at("10.0.0.1", request).url) == "https://10.0.0.1:8400/api?x=1"
    assert _at("::1", request).extensions["sni_hostname"] == "gpu-box"
    assert _at("::1", request).headers["host"] == "gpu-box:8400"


async def test_a_line_of_a_step_ends_where_it_ends_whatever_characters_are_in_it() -> None:
    strange = "a\u2028b\u2029c\x85d"
    events: list[dict[str, Any]] = [
        {"event": "progress", "phase": strange},
        {"event": "error", "error": {"message": f"trajectory {strange!s}", "code": "DataError"}},
    ]
    text = "".join(json.dumps(event, ensure_ascii=False) + "\n" for event in events).encode()
    for cut in (1, len(text) // 3, len(text) - 1):  # also in the middle of a character
        async with answering(text[:cut], text[cut:]) as (port, _), RemoteBackend(f"http://127.0.0.1:{port}") as backend:
            phases: list[str] = []
            with pytest.raises(DataError, match=f"trajectory {strange}"):
                await backend.train("p", "m", [], TrainConfig(), on_progress=phases.append)
            assert phases == [strange]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RemoteBackend("http://box:port"), "url is 'http://box:port'"),
        (lambda: RemoteBackend("http://box:99999"), "url is 'http://box:99999'"),
        (lambda: RemoteBackend("box:8400"), "url is 'box:8400'"),
        (lambda: RemoteBackend("http://me:secret@box:8400"), "the url holds a user"),
        (lambda: RemoteBackend("http://box:8400?key=1"), "the url holds a user, a query"),
        (lambda: RemoteBackend("http://box:8400", "secret\n"), "api_key holds what no header can"),
        (lambda: RemoteBackend("http://box:8400", "geheimnis-ü"), "api_key holds what no header can"),
        (lambda: RemoteBackend("http://box:8400", timeout_s=float("nan")), "timeout_s is nan"),
    ],
)
def test_what_no_request_could_be_made_of_is_refused_at_once(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "secret" not in str(caught.value)


async def test_connections_of_a_model_that_is_dropped_are_closed_when_the_loop_ends() -> None:
    async with InProcessBackend() as backend:
        model: art.TrainableModel | None = art.TrainableModel(name="m", project="p", base_model="b")
        assert model is not None
        await model.register(backend)
        await model.openai_client().models.list()
        model = None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            gc.collect()
            await asyncio.sleep(0)


async def test_a_transport_closes_its_connections_and_opens_new_ones() -> None:
    async with answering(b"{}") as (port, heads):
        transport = LoopsTransport(f"http://127.0.0.1:{port}")
        for _ in range(2):
            async with httpx2.AsyncClient(transport=transport) as client:
                assert (await client.get(f"http://127.0.0.1:{port}/")).status_code == 200
        assert len(heads) == 2
