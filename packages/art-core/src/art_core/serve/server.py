"""A model server inside the running event loop, on loopback only."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from types import TracebackType
from typing import Self
from urllib.parse import quote

import uvicorn

from art_core.protocols import Engine
from art_core.render.base import ChatRenderer
from art_core.serve.app import create_app
from art_core.serve.served import OneModel, Served
from art_core.serve.session import Sessions
from art_core.types import Exchange

_HOST = "127.0.0.1"
_SHUTDOWN_TIMEOUT_S = 2


class _Server(uvicorn.Server):
    """Leaves the signal handlers of the process alone, and tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()


class ModelServer:
    """Serves `engine` under `model_name` while it is entered, and records by trajectory.

    It listens on 127.0.0.1 and a free port. The engine belongs to the caller and stays open. On leaving, calls still
    running are answered with 503 and records that were not closed are dropped.
    """

    def __init__(self, engine: Engine, renderer: ChatRenderer, *, model_name: str) -> None:
        self._engine = engine
        self._renderer = renderer
        self._model_name = model_name
        self._sessions = Sessions()
        self._url: str | None = None

    async def __aenter__(self) -> Self:
        self._closing = asyncio.Event()
        model = Served(self._model_name, self._engine, self._renderer)
        app = create_app(OneModel(model), self._sessions, closing=self._closing)
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
        )
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._socket.bind((_HOST, 0))
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="art-core model server")
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
        self._url = f"http://{_HOST}:{self._socket.getsockname()[1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.should_exit = True
        try:
            await self._task
        finally:
            self._url = None
            self._sessions.close_all()
            self._socket.close()

    @property
    def url(self) -> str:
        """Root of the server, without `/v1`."""
        if self._url is None:
            raise RuntimeError("the model server is not running; use it as `async with ModelServer(...) as server:`")
        return self._url

    def base_url(self, trajectory_id: str | None = None) -> str:
        """What an OpenAI client takes as `base_url`: calls are recorded under `trajectory_id`, if one is given."""
        if trajectory_id is None:
            return f"{self.url}/v1"
        return f"{self.url}/t/{quote(trajectory_id, safe='')}/v1"

    def open_trajectory(self, trajectory_id: str) -> str:
        """Begin to record under `trajectory_id`, and return its base URL.

        Raises:
            ConfigError: the id is empty, or is open already.
        """
        self._sessions.open(trajectory_id)
        return self.base_url(trajectory_id)

    def exchanges(self, trajectory_id: str) -> list[Exchange]:
        """What is recorded so far under `trajectory_id`, which stays open.

        Raises:
            UnknownTrajectoryError: it is not open.
        """
        return list(self._sessions.get(trajectory_id).exchanges)

    def close_trajectory(self, trajectory_id: str) -> list[Exchange]:
        """End the record of `trajectory_id` and return its exchanges in the order in which they finished.

        Raises:
            UnknownTrajectoryError: it is not open.
        """
        return self._sessions.close(trajectory_id)
