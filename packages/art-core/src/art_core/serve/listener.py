"""An app behind a socket, inside the running event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from art_core.errors import ConfigError

_KEEP_ALIVE_S = 75
"""Longer than clients keep idle connections, so that none sends a call into one that is just being closed."""


_HEAD_S = 30
"""Longest time for the head of a request, or for what still comes of a body after it was refused."""


class _Protocol(H11Protocol):
    """Closes a connection that sends something for long without asking anything: uvicorn itself would wait for ever."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._unwatch()  # a request is being answered; its body has a time limit of its own
        elif self._late is None:
            self._late = self.loop.call_later(_HEAD_S, self.transport.abort)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


_CLIENTS_CLOSE_S = 0.01


class _Server(uvicorn.Server):
    """Leaves the signal handlers of the process alone, tells when it listens, and ends at once when told to.

    Uvicorn looks ten times a second whether it is to end, and whether its connections have.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self.ending = asyncio.Event()

    async def main_loop(self) -> None:
        while not self.ending.is_set():
            await self.on_tick(0)  # the header that tells the time
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.ending.wait(), 1.0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listening in sockets or []:
            listening.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                await asyncio.sleep(0)  # connections that were idle are closed now
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110  # sets of the library
                    await asyncio.sleep(0.005)
                for server in self.servers:
                    await server.wait_closed()
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel()
        # Clients on this event loop see that their connections have ended, and close them; nobody may run it again.
        await asyncio.sleep(_CLIENTS_CLOSE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()


class Listener:
    """Serves `app` while it is entered. Port 0 takes a free one. On leaving, what is still running is cancelled after
    `shutdown_timeout_s`.
    """

    def __init__(self, app: ASGIApp, *, address: str = "127.0.0.1", port: int = 0, shutdown_timeout_s: int = 2) -> None:
        self._address = address
        self._port = port
        self._config = uvicorn.Config(
            app,
            http=_Protocol,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=shutdown_timeout_s,
        )
        self._url: str | None = None

    async def __aenter__(self) -> Self:
        self._socket = _bound(self._address, self._port)
        self._server = _Server(self._config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="art-core server")
        listening = asyncio.create_task(self._server.listening.wait())
        try:
            await asyncio.wait({self._task, listening}, return_when=asyncio.FIRST_COMPLETED)
            if self._task.done():
                self._task.result()
        except BaseException:
            self._task.cancel()
            self._socket.close()
            raise
        finally:
            listening.cancel()
        address = f"[{self._address}]" if ":" in self._address else self._address
        self._url = f"http://{address}:{self._socket.getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.ending.set()
        try:
            await self._task
        finally:
            self._url = None
            self._socket.close()

    @property
    def url(self) -> str:
        """Root of the server, without `/v1`."""
        if self._url is None:
            raise RuntimeError("the server is not running; use it inside `async with`")
        return self._url


def _bound(address: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's algorithm off only where the socket says that it is TCP: with it, the body of an answer
        # would wait 40 ms for the client's acknowledgement of the head.
        bound = socket.socket(family, kind, protocol)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(target)
        except BaseException:
            bound.close()
            raise
    except (OSError, OverflowError) as error:
        in_use = getattr(error, "errno", None) == errno.EADDRINUSE
        remedy = "end what listens there, or give another port (0 takes a free one)" if in_use else "give another host"
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {address}, port {port}: {reason}; {remedy}") from error
    return bound
