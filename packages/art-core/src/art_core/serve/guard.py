"""What stands before every route: keys, the size of bodies, and a door that closes at shutdown."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import time
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from art_core.errors import ConfigError
from art_core.serve.reply import error_response
from art_core.serve.wire import ApiError

_FREE = "/healthz"
_GRACE_S = 30.0
_LEAST_BYTES_PER_S = 16 << 10
"""A body may take `_GRACE_S`, and longer only as fast as this: whoever sends half of it holds no memory for ever."""
_MEBIBYTE = 1 << 20
DEFAULT_MAX_BODY_BYTES = 256 * _MEBIBYTE
_MOST_BYTES = 16 * _MEBIBYTE
_OF_TRAJECTORIES = ("/train", "/train_sft", "/log")


def check_exposure(address: str, api_key: str | None) -> None:
    """Refuse to listen where others can reach it, without a key.

    Raises:
        ConfigError: `address` is not loopback and there is no key, or the key is empty.
    """
    if api_key is not None and not api_key.strip():
        raise ConfigError("the API key is empty; give one that is hard to guess, or none at all")
    if api_key is None and not _is_loopback(address):
        raise ConfigError(
            f"host {address!r} can be reached from other machines, and there is no API key; "
            "give one with --api-key or ART_API_KEY, or listen on 127.0.0.1"
        )


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class Guard:
    """An app that lets through to `app` what may pass; everything else is answered with an OpenAI error.

    With an `api_key`, all but `/healthz` needs it as bearer token. Without one, a request is refused whose `Host` or
    `Origin` is not this machine: a web page that a browser here has open may have sent it. A body that is larger than
    its route takes (at most `max_body_bytes`, which is for trajectories) is refused as soon as that is known; so is one
    that comes too slowly.

    From `draining` on, new requests are told to come again later. `idle` is set while no request is in flight.
    """

    def __init__(self, app: ASGIApp, *, api_key: str | None, max_body_bytes: int) -> None:
        self._app = app
        self._authorization = None if api_key is None else f"Bearer {api_key}".encode()
        self._max_body_bytes = max_body_bytes
        self.draining = False
        self.idle = asyncio.Event()
        self.idle.set()
        self._num_in_flight = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.lower(): value for name, value in scope["headers"]}
        most_bytes = self._most_bytes(scope["path"])
        error = self._refusal(scope["path"], headers, most_bytes)
        if error is not None:
            response = error_response(error)
            if error.status == 401:
                response.headers["www-authenticate"] = "Bearer"
            await response(scope, receive, send)
            return
        self._num_in_flight += 1
        self.idle.clear()
        try:
            await self._app(scope, self._bounded(receive, most_bytes), send)
        finally:
            self._num_in_flight -= 1
            if not self._num_in_flight:
                self.idle.set()

    def _most_bytes(self, path: str) -> int:
        """What a body for this route may have."""
        return self._max_body_bytes if path.endswith(_OF_TRAJECTORIES) else min(_MOST_BYTES, self._max_body_bytes)

    def _refusal(self, path: str, headers: dict[bytes, bytes], most_bytes: int) -> ApiError | None:
        if self._authorization is not None and path != _FREE:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self._authorization):
                what = "the API key is not this server's" if given else "no API key was given"
                return ApiError(401, f"{what}; send it as 'Authorization: Bearer <key>'", code="invalid_api_key")
        if self._authorization is None and (foreign := _foreign(headers)):
            return ApiError(
                403,
                f"the {foreign} of this request is not this machine, so a web page may have sent it; a server without "
                "a key answers local programs only: start it with --api-key and send the key, or call http://127.0.0.1",
                code="foreign_request",
            )
        if self.draining and path != _FREE:
            return ApiError(
                503, "the server is shutting down; send the call again when it is back", code="shutting_down",
                retry_after_s=5,
            )  # fmt: skip
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most_bytes:
            return _too_large(most_bytes)
        return None

    def _bounded(self, receive: Receive, most_bytes: int) -> Receive:
        size_bytes = 0
        is_whole = False
        started = time.monotonic()

        async def bounded() -> Message:
            nonlocal size_bytes, is_whole
            if is_whole:
                return await receive()  # waits for the client to hang up
            until = started + _GRACE_S + size_bytes / _LEAST_BYTES_PER_S
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    message = await receive()
            except TimeoutError:
                raise _too_slow(size_bytes, time.monotonic() - started) from None
            size_bytes += len(message.get("body", b""))
            if size_bytes > most_bytes:
                raise _too_large(most_bytes)
            is_whole = not message.get("more_body", False)
            return message

        return bounded


def _foreign(headers: dict[bytes, bytes]) -> str:
    """Which header shows that a browser was led here by another site (`Host`) or sends for one (`Origin`); else ''."""
    for header, prefix in ((b"host", "//"), (b"origin", "")):
        given = headers.get(header)
        if given is None:
            continue
        text = given.decode("latin-1")
        try:
            host = urlsplit(prefix + text).hostname
        except ValueError:
            host = None
        if host is None or not _is_loopback(host):
            return f"{header.decode().title()} {text[:100]!r}"
    return ""


def _too_large(most_bytes: int) -> ApiError:
    return ApiError(
        413,
        f"the body has more than {most_bytes} bytes, the most this server takes here; send less at a time",
        code="request_too_large",
    )


def _too_slow(size_bytes: int, seconds: float) -> ApiError:
    return ApiError(
        408,
        f"only {size_bytes} bytes of the body came in {seconds:.0f} s, and not its end; send the request again",
        code="request_timeout",
    )
