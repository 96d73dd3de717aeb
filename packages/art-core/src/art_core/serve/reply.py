"""Sends the answer of one call, plain or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Protocol, Self

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from art_core.errors import EngineClosedError
from art_core.serve.requests import Request
from art_core.serve.retries import Attempt
from art_core.serve.sampled import Progress, Sampled, side_by_side
from art_core.serve.wire import SSE_DONE, ApiError, as_api_error, sse

_logger = logging.getLogger(__name__)
_LEAST_GAP_S = 0.04
"""Tokens of a stream that come closer together than this share an event: nobody reads faster, and events cost more than
tokens do."""


def told(error: Exception) -> ApiError:
    """How `error` is told to a client. What is no fault of theirs is logged; what may be ours with its traceback."""
    api_error = as_api_error(error)
    if api_error.status >= 500:
        _logger.error("a call failed: %s", api_error, exc_info=None if api_error.code == "storage_error" else error)
    return api_error


def error_response(error: ApiError) -> Response:
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    if error.status == 408:
        headers["connection"] = "close"  # the rest of the body is not waited for
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


class Call(Protocol):
    """An accepted call as it is answered; `ChatCall` and `CompletionCall` are such."""

    @property
    def request(self) -> Request: ...
    @property
    def attempt(self) -> Attempt: ...
    @property
    def choices(self) -> list[Sampled]: ...
    def record(self) -> None: ...
    def body(self) -> dict[str, Any]: ...
    def opening(self) -> list[dict[str, Any]]: ...
    def events(self, index: int, step: Progress) -> list[dict[str, Any]]: ...
    def closing(self) -> list[dict[str, Any]]: ...
    def usage_event(self) -> dict[str, Any]: ...


class Reply(Response):
    """Samples and sends the answer, in one task, for as long as the client listens.

    When the client hangs up, sampling is cancelled and nothing is recorded. A streamed call is recorded when all but
    the last event of each choice has been sent, so whoever has seen the end of an answer finds it in the record.
    """

    def __init__(self, call: Call, closing: asyncio.Event) -> None:
        super().__init__()
        self._call = call
        self._closing = closing
        self._stream_begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.create_task(
            self._stream(send) if self._call.request.stream else self._plain(scope, receive, send)
        )
        gone = asyncio.create_task(hung_up(receive))
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({work, gone, closing}, return_when=asyncio.FIRST_COMPLETED)
            finished, left = work.done(), gone.done()
        finally:
            for task in (work, gone, closing):
                task.cancel()
            await asyncio.gather(work, gone, closing, return_exceptions=True)
        if finished and (error := work.exception()) is not None:
            if not isinstance(error, Exception):
                raise error
            await self._fail(told(error), scope, receive, send)
        elif not finished and not left:
            shut_down = EngineClosedError("the server is shutting down; this call was not finished")
            await self._fail(as_api_error(shut_down), scope, receive, send)

    async def _plain(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._call.attempt.begun():
            async with contextlib.aclosing(self._steps()) as steps:
                async for _ in steps:
                    pass
            self._call.record()
        await JSONResponse(self._call.body())(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        with self._call.attempt.begun():
            async with contextlib.aclosing(self._steps()) as steps, _Events(self._call, send) as events:
                async for index, step in steps:
                    if not self._stream_begun:
                        await self._begin_stream(send)
                        await send(_body(self._call.opening()))
                    await events.add(index, step)
            self._call.record()
        last = self._call.closing()
        options = self._call.request.stream_options
        if options is not None and options.include_usage:
            last.append(self._call.usage_event())
        await send({"type": "http.response.body", "body": _body(last)["body"] + SSE_DONE, "more_body": False})

    def _steps(self) -> AsyncGenerator[tuple[int, Progress], None]:
        return side_by_side([choice.progress() for choice in self._call.choices])

    async def _begin_stream(self, send: Send) -> None:
        self._stream_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream_begun:
            await send({"type": "http.response.body", "body": sse(error.body()), "more_body": False})
        else:
            await error_response(error)(scope, receive, send)


class _Events:
    """Sends the steps of a call as events: the first at once, and then what has come in each `_LEAST_GAP_S` together.

    Left normally or with an error of the call, it has sent all steps; when it is cancelled, the rest is dropped.
    """

    def __init__(self, call: Call, send: Send) -> None:
        self._call = call
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, list[Progress]] = {}
        self._sent_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._sending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        try:
            if error is None or isinstance(error, Exception):
                if self._sending is not None:
                    await self._sending
                await self._send_waiting()
        finally:
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.gather(self._sending, return_exceptions=True)

    async def add(self, index: int, step: Progress) -> None:
        self._waiting.setdefault(index, []).append(step)
        if self._sending is not None:
            if not self._sending.done():
                return  # the client reads slowly: this goes with what comes next
            self._sending.result()
        wait_s = self._sent_at + _LEAST_GAP_S - self._loop.time()
        if wait_s <= 0.0:
            await self._send_waiting()
        elif self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._begin_sending)

    def _begin_sending(self) -> None:
        self._timer = None
        if self._sending is None or self._sending.done():
            self._sending = asyncio.create_task(self._send_waiting())

    async def _send_waiting(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, {}
            self._sent_at = self._loop.time()
            merged = [(index, Progress.merged(steps)) for index, steps in waiting.items()]
            await self._send(_body([event for index, step in merged for event in self._call.events(index, step)]))


def _body(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"".join(map(sse, events)), "more_body": True}


async def hung_up(receive: Receive) -> None:
    """Return when the client has gone; to be called when its body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass
