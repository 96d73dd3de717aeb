"""HTTP to a server from any event loop; for the clients of a model, each request is led to its trajectory."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
import urllib.request
import weakref
from collections.abc import AsyncGenerator

import httpx2

from art_core.scope import ServedModel, address_of_call
from art_core.threads import in_thread

# How many calls run at once is for the rollouts to say, not for the client.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=200, keepalive_expiry=5.0)

_ADDRESSES_FOR_S = 30.0


class LoopsTransport(httpx2.AsyncBaseTransport):
    """Connections to the server at `root`, usable from every event loop.

    Each loop has a pool of its own, which is closed when the loop's runner ends, or when nobody holds this any more.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._proxied = _proxy(root) is not None
        self._found: dict[str, tuple[list[str], float]] = {}
        self._pools: _Pools = weakref.WeakKeyDictionary()
        weakref.finalize(self, _close_all, self._pools).atexit = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        pool = await self._pool()
        host = request.url.host
        if self._proxied or _is_address(host):
            return await pool.handle_async_request(request)
        found = await self._addresses(host)
        for number, address in enumerate(found, 1):
            try:
                return await pool.handle_async_request(_at(address, request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                if number == len(found):
                    self._found.pop(host, None)
                    raise
        raise AssertionError("a host that is found has an address")

    async def _addresses(self, host: str) -> list[str]:
        """The addresses of `host`. Not looked up by asyncio, whose threads may all be synchronous rollouts."""
        found, until = self._found.get(host, ([], 0.0))
        if time.monotonic() >= until:
            try:
                infos = await in_thread(socket.getaddrinfo, host, None, 0, socket.SOCK_STREAM)
            except (OSError, UnicodeError) as error:
                raise httpx2.ConnectError(f"the host {host!r} is not known: {error}") from error
            found = list(dict.fromkeys(str(info[4][0]) for info in infos))
            self._found[host] = found, time.monotonic() + _ADDRESSES_FOR_S
        return found

    async def aclose(self) -> None:
        """Close the pool of the loop that runs."""
        found = self._pools.get(asyncio.get_running_loop())
        if found is not None:
            await found[1].aclose()

    async def _pool(self) -> httpx2.AsyncHTTPTransport:
        loop = asyncio.get_running_loop()
        found = self._pools.get(loop)
        if found is not None:
            return found[0]
        pool = httpx2.AsyncHTTPTransport(limits=_LIMITS, proxy=_proxy(self._root), verify=_verify(self._root))
        # A runner closes the asynchronous generators that are left when it closes its loop: the one place where
        # connections that outlive every call can still be closed.
        closer = _until_the_loop_ends(self._pools, weakref.ref(loop), pool)
        self._pools[loop] = (pool, closer)
        await anext(closer)
        return pool


_Pools = weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, tuple[httpx2.AsyncHTTPTransport, AsyncGenerator[None, None]]
]


async def _until_the_loop_ends(
    pools: _Pools, loop: weakref.ref[asyncio.AbstractEventLoop], pool: httpx2.AsyncHTTPTransport
) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        _kept.pop(id(pool), None)
        if (ended := loop()) is not None:
            pools.pop(ended, None)
        await pool.aclose()


def _close_all(pools: _Pools) -> None:
    """Close the pools of a transport that is gone, each in its loop. Sockets that are only dropped are warned about.

    A little later: a loop that is about to end cancels its tasks, and with them what they were closing; until then the
    pool is kept, so that the loop's end closes it.
    """
    for loop, (pool, closer) in list(pools.items()):
        _kept[id(pool)] = closer
        try:
            loop.call_soon_threadsafe(loop.call_later, _CLOSE_AFTER_S, _begin_closing, loop, closer)
        except RuntimeError:  # the loop has ended meanwhile, and closed it
            _kept.pop(id(pool), None)


def _begin_closing(loop: asyncio.AbstractEventLoop, closer: AsyncGenerator[None, None]) -> None:
    task = loop.create_task(closer.aclose())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


_CLOSE_AFTER_S = 0.05
_kept: dict[int, AsyncGenerator[None, None]] = {}
_closing: set[asyncio.Task[None]] = set()


class AsyncModelTransport(LoopsTransport):
    """Connections to the server of `model`, usable from every event loop and for as long as the process lives."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model.root)
        self._model = model

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        _lead(request, self._model)
        return await super().handle_async_request(request)

    async def aclose(self) -> None:
        """Nothing: clients share these connections."""


class ModelTransport(httpx2.BaseTransport):
    """Connections to the server of `model`, usable from every thread and for as long as the process lives."""

    def __init__(self, model: ServedModel) -> None:
        self._model = model
        self._lock = threading.Lock()
        self._pool: httpx2.HTTPTransport | None = None

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        _lead(request, self._model)
        with self._lock:
            if self._pool is None:
                self._pool = httpx2.HTTPTransport(
                    limits=_LIMITS, proxy=_proxy(self._model.root), verify=_verify(self._model.root)
                )
                weakref.finalize(self, self._pool.close)
        return self._pool.handle_request(request)

    def close(self) -> None:
        """Nothing: clients share these connections."""


def _lead(request: httpx2.Request, model: ServedModel) -> None:
    """Lead a request to the model's own `/v1` to the capture that it is made in; others stay as they are."""
    own = str(httpx2.URL(f"{model.root}/v1/"))
    url = str(request.url)
    if url.startswith(own) and (base_url := address_of_call(model)) is not None:
        request.url = httpx2.URL(f"{base_url}/{url.removeprefix(own)}")
        request.headers["Host"] = request.url.netloc.decode("ascii")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _at(address: str, request: httpx2.Request) -> httpx2.Request:
    """`request`, sent to `address`; its header and its certificate are still those of the host."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )


def _verify(root: str) -> bool:
    """Certificates take a while to load and play no part without TLS."""
    return root.startswith("https:")


def _proxy(root: str) -> str | None:
    """The proxy that the environment names for `root`; none for this machine itself."""
    url = httpx2.URL(root)
    if url.host in ("127.0.0.1", "::1", "localhost") or urllib.request.proxy_bypass(url.host):
        return None
    return urllib.request.getproxies().get(url.scheme)
