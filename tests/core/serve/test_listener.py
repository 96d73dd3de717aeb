"""The socket that a server listens on."""

from __future__ import annotations

import socket
from typing import Any

import httpx

from art_core.serve.listener import Listener


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_no_answer_waits_for_the_clients_acknowledgement() -> None:
    async with Listener(app) as server, httpx.AsyncClient() as client:
        assert (await client.get(server.url)).text == "ok"
        (connection,) = server._server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
