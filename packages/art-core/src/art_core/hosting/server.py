"""A host behind a socket: keys, routes, and an end that leaves nobody without an answer."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import ASGIApp, Receive, Scope, Send

from art_core.errors import ArtError
from art_core.hosting.host import ModelHost
from art_core.serve.app import create_app
from art_core.serve.control import add_control, control_error
from art_core.serve.guard import Guard, check_exposure
from art_core.serve.listener import Listener
from art_core.serve.reply import error_response


class HostServer:
    """Serves `host` while it is entered; the host is started and closed with it.

    Every request but `/healthz` needs `api_key`, where there is one. Leaving it, or `stop`, lets calls in flight finish
    for `grace_s`; those that do not are answered with an error that says so.

    Raises:
        ConfigError: `address` is not loopback and there is no key; or the port is taken.
    """

    def __init__(
        self,
        host: ModelHost,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
        grace_s: float = 10.0,
        progress_every_s: float = 5.0,
    ) -> None:
        check_exposure(address, api_key)
        self.host = host
        self._grace_s = grace_s
        self._closing = asyncio.Event()
        app = create_app(host, host.sessions, closing=self._closing)
        add_control(app, host, closing=self._closing, progress_every_s=progress_every_s)
        self._guard = Guard(_recovering(app, host), api_key=api_key, max_body_bytes=host.options.max_body_bytes)
        self._listener = Listener(host.metrics.counting(self._guard), address=address, port=port)

    async def __aenter__(self) -> Self:
        await self.host.start()
        try:
            await self._listener.__aenter__()
        except BaseException:
            await self.host.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.stop()
            await self._listener.__aexit__(kind, error, traceback)
        finally:
            await self.host.close()

    @property
    def url(self) -> str:
        """Root of the server, without `/v1`."""
        return self._listener.url

    def hurry(self) -> None:
        """Fail what is in flight now, whatever is left of the grace."""
        self._closing.set()

    async def stop(self) -> None:
        """Refuse new requests, and return when none is in flight: at the latest when the grace is over."""
        self._guard.draining = True
        idle = asyncio.create_task(self._guard.idle.wait())
        hurried = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({idle, hurried}, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            hurried.cancel()
            self._closing.set()


def _recovering(app: ASGIApp, host: ModelHost) -> ASGIApp:
    """`app`, for which trajectories that were open before a restart are open again when a call comes in."""

    async def recovering(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/t/"):
            trajectory_id, found, _ = scope["path"][len("/t/") :].rpartition("/v1/")
            if found:
                try:
                    await host.recover(trajectory_id)
                except ArtError as error:
                    await error_response(control_error(error))(scope, receive, send)
                    return
        await app(scope, receive, send)

    return recovering
