"""A model server inside the running event loop, on loopback only."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self
from urllib.parse import quote

from art_core.protocols import Engine, Recorder
from art_core.render.base import ChatRenderer
from art_core.serve.app import create_app
from art_core.serve.guard import DEFAULT_MAX_BODY_BYTES, Guard
from art_core.serve.listener import Listener
from art_core.serve.served import OneModel, Served
from art_core.serve.session import Sessions
from art_core.types import Exchange


class ModelServer:
    """Serves `engine` under `model_name` while it is entered, and records by trajectory.

    It listens on 127.0.0.1 and a free port. The engine belongs to the caller and stays open. On leaving, calls still
    running are answered with 503 and records that were not closed are dropped.

    `recorder` receives the exchanges of calls outside any trajectory; without one they are not kept.
    """

    def __init__(
        self, engine: Engine, renderer: ChatRenderer, *, model_name: str, recorder: Recorder | None = None
    ) -> None:
        self._sessions = Sessions()
        self._closing = asyncio.Event()
        model = Served(model_name, engine, renderer, recorder)
        app = create_app(OneModel(model), self._sessions, closing=self._closing)
        self._listener = Listener(Guard(app, api_key=None, max_body_bytes=DEFAULT_MAX_BODY_BYTES))

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        try:
            await self._listener.__aexit__(kind, error, traceback)
        finally:
            self._sessions.close_all()

    @property
    def url(self) -> str:
        """Root of the server, without `/v1`."""
        return self._listener.url

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
