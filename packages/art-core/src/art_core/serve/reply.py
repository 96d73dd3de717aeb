"""Sends the answer of one call, plain or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from art_core.errors import EngineClosedError
from art_core.serve.requests import Request
from art_core.serve.retries import Attempt
from art_core.serve.sampled import Progress, Sampled, side_by_side
from art_core.serve.wire import SSE_DONE, ApiError, as_api_error, sse

_logger = logging.getLogger(__name__)


def told(error: Exception) -> ApiError:
    """How `error` is told to a client; what is our fault is logged with its traceback."""
    api_error = as_api_error(error)
    if api_error.status >= 500:
        _logger.error("a call failed: %s", api_error, exc_info=error)
    return api_error


def error_response(error: ApiError) -> Response:
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
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
        gone = asyncio.create_task(_hung_up(receive))
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
            async with contextlib.aclosing(self._steps()) as steps:
                async for index, step in steps:
                    if not self._stream_begun:
                        await self._begin_stream(send)
                        await self._events(send, self._call.opening())
                    await self._events(send, self._call.events(index, step))
            self._call.record()
        await self._events(send, self._call.closing())
        options = self._call.request.stream_options
        if options is not None and options.include_usage:
            await self._events(send, [self._call.usage_event()])
        await send({"type": "http.response.body", "body": SSE_DONE, "more_body": False})

    def _steps(self) -> AsyncGenerator[tuple[int, Progress], None]:
        return side_by_side([choice.progress() for choice in self._call.choices])

    async def _begin_stream(self, send: Send) -> None:
        self._stream_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _events(self, send: Send, events: Sequence[dict[str, Any]]) -> None:
        for event in events:
            await send({"type": "http.response.body", "body": sse(event), "more_body": True})

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream_begun:
            await send({"type": "http.response.body", "body": sse(error.body()), "more_body": False})
        else:
            await error_response(error)(scope, receive, send)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
