"""Sends the answer of one chat call, plain or as a stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from art_core.errors import EngineClosedError
from art_core.serve.chat import ChatCall
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


class ChatReply(Response):
    """Samples and sends the answer, in one task, for as long as the client listens.

    When the client hangs up, sampling is cancelled and nothing is recorded. A streamed call is recorded when all but
    its last event have been sent, so whoever has seen the end of an answer finds it in the record.
    """

    def __init__(self, call: ChatCall, closing: asyncio.Event) -> None:
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
        async with contextlib.aclosing(self._call.progress()) as steps:
            async for _ in steps:
                pass
        answer = self._call.finish()
        choice = {
            "index": 0,
            "message": answer.message,
            "finish_reason": answer.finish_reason,
            "logprobs": answer.logprobs,
            "token_ids": answer.token_ids,
            **answer.extras,
        }
        body = self._envelope("chat.completion", [choice])
        await JSONResponse({**body, "usage": answer.usage, **self._prompt_ids()})(scope, receive, send)

    async def _stream(self, send: Send) -> None:
        first: dict[str, Any] = {"role": "assistant"}
        async with contextlib.aclosing(self._call.progress()) as steps:
            async for step in steps:
                if not self._stream_begun:
                    await self._begin_stream(send)
                    await self._event(send, [_delta(first)], **self._prompt_ids())
                tokens: dict[str, Any] = {
                    "logprobs": self._call.wire_logprobs(step.token_ids, step.logprobs),
                    "token_ids": list(step.token_ids),
                }
                for delta in step.deltas or [{}]:
                    await self._event(send, [_delta(delta, **tokens)])
                    tokens = {}
        answer = self._call.finish()
        last = {"content": ""} if answer.message["content"] == "" else {}
        await self._event(send, [_delta(last, finish_reason=answer.finish_reason, **answer.extras)])
        options = self._call.request.stream_options
        if options is not None and options.include_usage:
            await self._event(send, [], usage=answer.usage)
        await send({"type": "http.response.body", "body": SSE_DONE, "more_body": False})

    async def _begin_stream(self, send: Send) -> None:
        self._stream_begun = True
        headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def _event(self, send: Send, choices: list[dict[str, Any]], **extra: Any) -> None:
        body = sse({**self._envelope("chat.completion.chunk", choices), **extra})
        await send({"type": "http.response.body", "body": body, "more_body": True})

    async def _fail(self, error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
        if self._stream_begun:
            await send({"type": "http.response.body", "body": sse(error.body()), "more_body": False})
        else:
            await error_response(error)(scope, receive, send)

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        call = self._call
        return {
            "id": f"chatcmpl-{call.id}",
            "object": kind,
            "created": call.created,
            "model": call.request.model,
            "choices": choices,
        }

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self._call.prompt.ids)}


def _delta(delta: dict[str, Any], *, finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None, **extra}


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
