"""Where the requests of a chat model go: to the server of its model, into the capture they are made in."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Protocol
from urllib.parse import urlsplit

import httpx2

from art_core import TrainableModel
from art_core.capturing import NO_KEY, served_model
from art_core.errors import ConfigError
from art_core.scope import ServedModel, address_of_call, current_scope
from art_core.transport import AsyncModelTransport, ModelTransport

PLACEHOLDER = "http://server-of-the-model.invalid"
"""Root that requests are made to before it is known where the model is served. The transports put the real one in."""


loop_of_rollout: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("art_langgraph_loop", default=None)
"""The event loop that the rollout around this code is awaited on, and others with it."""


class Place(Protocol):
    """Where a model is served. What it says may change between two calls: a model can be registered again."""

    def served(self) -> ServedModel:
        """Raises ConfigError while nobody serves the model."""
        ...

    def api_key(self) -> str: ...

    def inference_name(self) -> str:
        """What requests call the model, without a step."""
        ...

    def records(self) -> bool:
        """Whether a call made here, in this context, becomes part of a trajectory."""
        ...


class OfModel:
    """The place where a `TrainableModel` is registered."""

    def __init__(self, model: TrainableModel) -> None:
        self.model = model

    def served(self) -> ServedModel:
        return served_model(self.model.backend(), self.model.project, self.model.name)

    def api_key(self) -> str:
        return self.model.inference_api_key

    def inference_name(self) -> str:
        return self.model.get_inference_name()

    def records(self) -> bool:
        return current_scope(self.served()) is not None


class OfUrl:
    """A server's address, or that of a trajectory there, and the name of a model.

    Raises:
        ConfigError: the address is not one of HTTP.
    """

    def __init__(self, base_url: str, name: str, api_key: str) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"base_url is {base_url!r}; wanted an address like 'http://gpu-box:8400/v1'")
        project, _, short = name.rpartition("/")
        self._served = ServedModel(base_url.rstrip("/").removesuffix("/v1"), project, short)
        self._name = name
        self._api_key = api_key or NO_KEY

    def served(self) -> ServedModel:
        return self._served

    def api_key(self) -> str:
        return self._api_key

    def inference_name(self) -> str:
        return self._name

    def records(self) -> bool:
        return "/t/" in urlsplit(self._served.root).path or current_scope(self._served) is not None


# Chat models of the same server share its connections, which are kept for as long as the process lives.
_async_transports: dict[str, AsyncModelTransport] = {}
_transports: dict[str, ModelTransport] = {}
_lock = threading.Lock()


class AsyncPlaceTransport(httpx2.AsyncBaseTransport):
    """Connections to where `place` says, usable from every event loop."""

    def __init__(self, place: Place) -> None:
        self._place = place

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        origin = _address(request, self._place.served(), self._place.api_key())
        with _lock:
            if (transport := _async_transports.get(origin)) is None:
                transport = _async_transports[origin] = AsyncModelTransport(ServedModel(origin, "", ""))
        return await transport.handle_async_request(request)


class PlaceTransport(httpx2.BaseTransport):
    """Connections to where `place` says, usable from every thread."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        _refuse_to_hold_up_the_loop()
        origin = _address(request, self._place.served(), self._place.api_key())
        with _lock:
            if (transport := _transports.get(origin)) is None:
                transport = _transports[origin] = ModelTransport(ServedModel(origin, "", ""))
        return transport.handle_request(request)


def _refuse_to_hold_up_the_loop() -> None:
    """A loop of the rollout's own, in a thread, may be held up; outside rollouts that is the caller's to decide."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return
    if running is loop_of_rollout.get():
        raise ConfigError(
            "the agent, or a model in it, was called with invoke or stream on the event loop, where it would hold up "
            "every other attempt; write `await agent.ainvoke(...)` or `async for ... in agent.astream(...)` (and give "
            "middleware the asynchronous form of its hook), or make the attempt a plain `def`, which runs in a thread"
        )


def _address(request: httpx2.Request, served: ServedModel, api_key: str) -> str:
    """Put server, trajectory and key into a request that was made to `PLACEHOLDER`. Returns the server's origin."""
    path = str(request.url).removeprefix(PLACEHOLDER)
    recorded_at = address_of_call(served) if path.startswith("/v1/") else None
    url = served.root + path if recorded_at is None else recorded_at + path.removeprefix("/v1")
    request.url = httpx2.URL(url)
    host = request.url.netloc.decode("ascii")
    request.headers["Host"] = host
    request.headers["Authorization"] = f"Bearer {api_key}"
    return f"{request.url.scheme}://{host}"
