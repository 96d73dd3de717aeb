"""Routes: `/v1/chat/completions`, `/v1/models` and `/healthz`, and the same below `/t/<trajectory id>`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from art_core.errors import ArtError, EngineClosedError
from art_core.protocols import Engine
from art_core.render.base import ChatRenderer
from art_core.serve.chat import ChatCall
from art_core.serve.session import Session, Sessions
from art_core.serve.wire import SSE_DONE, ApiError, ChatRequest, as_api_error, sse

_logger = logging.getLogger(__name__)


def create_app(
    engine: Engine,
    renderer: ChatRenderer,
    sessions: Sessions,
    *,
    model_name: str,
    closing: asyncio.Event | None = None,
) -> FastAPI:
    """The server of one model. Calls still running when `closing` is set are answered with 503."""
    app = FastAPI(title="art-core", openapi_url=None)
    stop = closing or asyncio.Event()
    created = int(time.time())

    def session_of(request: Request) -> Session | None:
        trajectory_id = request.path_params.get("trajectory_id")
        return None if trajectory_id is None else sessions.get(trajectory_id)

    async def chat_completions(request: Request) -> Response:
        session = session_of(request)
        chat = ChatRequest.parse(await request.body())
        if chat.model != model_name:
            raise ApiError(
                404,
                f"model {chat.model!r} is not served here; the only one is {model_name!r}",
                code="model_not_found",
                param="model",
            )
        return _Reply(ChatCall(chat, engine=engine, renderer=renderer, session=session), stop)

    async def models(request: Request) -> Response:
        session_of(request)
        model = {"id": model_name, "object": "model", "created": created, "owned_by": "art-core"}
        return JSONResponse({"object": "list", "data": [model]})

    async def healthz(request: Request) -> Response:
        session_of(request)
        return JSONResponse({"status": "ok", "model": model_name, "policy_version": engine.policy_version})

    for prefix in ("", "/t/{trajectory_id:path}"):
        app.add_api_route(f"{prefix}/v1/chat/completions", chat_completions, methods=["POST"], response_model=None)
        app.add_api_route(f"{prefix}/v1/models", models, methods=["GET"], response_model=None)
        app.add_api_route(f"{prefix}/healthz", healthz, methods=["GET"], response_model=None)

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            message = f"{error.detail}: {request.method} {request.url.path}"
            return _error_response(ApiError(error.status_code, message, code="unknown_url"))
        return _error_response(_told(error))

    for kind in (HTTPException, ArtError, RecursionError, Exception):
        app.add_exception_handler(kind, refused)
    app.add_exception_handler(ClientDisconnect, _nobody_listens)
    return app


async def _nobody_listens(_: Request, __: Exception) -> Response:
    return Response(status_code=400)


def _told(error: Exception) -> ApiError:
    api_error = as_api_error(error)
    if api_error.status >= 500:
        _logger.error("a call failed: %s", api_error, exc_info=error)
    return api_error


def _error_response(error: ApiError) -> Response:
    return JSONResponse(error.body(), status_code=error.status)


class _Reply(Response):
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
            await self._fail(_told(error), scope, receive, send)
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
            await _error_response(error)(scope, receive, send)

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
