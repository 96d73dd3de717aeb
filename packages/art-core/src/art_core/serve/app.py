"""Routes: chat and text completions, `/tokenize`, `/v1/models`, `/healthz`, and the same below `/t/<trajectory id>`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from art_core.errors import ArtError, ContextLengthError
from art_core.serve.chat import ChatCall, grammar_of
from art_core.serve.chat_request import ChatRequest
from art_core.serve.completions import CompletionCall
from art_core.serve.reply import Call, Reply, error_response, told
from art_core.serve.requests import AnyRequest, CompletionRequest
from art_core.serve.retries import Attempt
from art_core.serve.served import Catalogue
from art_core.serve.session import Session, Sessions
from art_core.serve.tokenize import tokenized
from art_core.serve.wire import ApiError

_BYTES_PER_TOKEN = 64
"""No prompt has more, on average; that of text is about 4, and of text in JSON's escapes about 12."""
_FREE_BYTES = 1 << 20
"""For what a request holds besides its prompt, such as a schema."""
_ANSWERED = ("/chat/completions", "/completions", "/models")
"""Below `/v1`."""


def create_app(catalogue: Catalogue, sessions: Sessions, *, closing: asyncio.Event | None = None) -> Starlette:
    """The server of the models in `catalogue`. Calls still running when `closing` is set are answered with 503."""
    app = Starlette()
    stop = closing or asyncio.Event()

    def session_of(request: Request) -> Session | None:
        trajectory_id = request.path_params.get("trajectory_id")
        return None if trajectory_id is None else sessions.get(trajectory_id)

    async def chat_completions(request: Request) -> Response:
        return await answered(request, ChatRequest, ChatCall)

    async def completions(request: Request) -> Response:
        return await answered(request, CompletionRequest, CompletionCall)

    async def answered(request: Request, kind: type[AnyRequest], call: Callable[..., Call]) -> Response:
        session = session_of(request)
        body = await request.body()
        attempt = session.attempts.begin(request.url.path, request.headers, body) if session else Attempt()
        with attempt.begun():
            asked = kind.parse(body)
            model = await catalogue.find(asked.model)
            _check_size(len(body), model.engine.max_context_tokens)
            if session is not None and session.model_name not in (None, model.name):
                session = None  # an agent that asks a second model at the same address
            if isinstance(asked, ChatRequest) and asked.restricts_answer:
                await asyncio.to_thread(grammar_of, asked, model.renderer)  # so that `call` finds its schemas checked
            return Reply(call(asked, model=model, session=session, attempt=attempt), stop)

    async def tokenize(request: Request) -> Response:
        return JSONResponse(await tokenized(await request.body(), catalogue, _check_size))

    async def models(request: Request) -> Response:
        session_of(request)
        data = [
            {"id": model.name, "object": "model", "created": model.created, "owned_by": "art-core"}
            for model in catalogue.served()
        ]
        return JSONResponse({"object": "list", "data": data})

    async def healthz(request: Request) -> Response:
        session_of(request)
        models = [{"name": model.name, "policy_version": model.engine.policy_version} for model in catalogue.served()]
        return JSONResponse({"status": "ok", "models": models})

    for prefix in ("", "/t/{trajectory_id:path}"):
        app.add_route(f"{prefix}/v1/chat/completions", chat_completions, methods=["POST"])
        app.add_route(f"{prefix}/v1/completions", completions, methods=["POST"])
        app.add_route(f"{prefix}/tokenize", tokenize, methods=["POST"])
        app.add_route(f"{prefix}/v1/models", models, methods=["GET"])
        app.add_route(f"{prefix}/healthz", healthz, methods=["GET"])

    for kind in (HTTPException, ArtError, RecursionError, Exception):
        app.add_exception_handler(kind, _refused)
    app.add_exception_handler(ClientDisconnect, _nobody_listens)
    return app


def _check_size(num_bytes: int, max_context_tokens: int) -> None:
    """Refuse what cannot fit before it is turned into tokens, which would hold up all other calls for that long."""
    if num_bytes > _FREE_BYTES + _BYTES_PER_TOKEN * max_context_tokens:
        raise ContextLengthError(
            f"This model's maximum context length is {max_context_tokens} tokens, but the request has {num_bytes} "
            "bytes; shorten the prompt"
        )


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return error_response(ApiError(error.status_code, _unknown_url(error, request), code="unknown_url"))
    return error_response(told(error))


def _unknown_url(error: HTTPException, request: Request) -> str:
    path = request.url.path
    if path.endswith(_ANSWERED):
        meant = f"use {'POST' if error.status_code == 405 else 'a base URL that ends in /v1'}"
    else:
        meant = f"this server answers {', '.join(f'/v1{end}' for end in _ANSWERED)}"
    return f"{error.detail}: {request.method} {path}; {meant}"


async def _nobody_listens(_: Request, __: Exception) -> Response:
    return Response(status_code=400)
