"""Routes below `/api`, and `/metrics`: what `art_core.control` lists, answered by a `Control`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from art_core.config import TrainConfig
from art_core.control import (
    DeleteRequest,
    ExchangeList,
    ForkRequest,
    GroupBody,
    LogRequest,
    LookupRequest,
    MetricHistory,
    MetricRecord,
    ModelState,
    OpenRequest,
    RegisterRequest,
    SftRequest,
    TrainEvent,
    TrainRequest,
)
from art_core.errors import (
    ArtError,
    ConfigError,
    DataError,
    EngineClosedError,
    ModelNotFoundError,
    RunLockedError,
    StorageError,
    UnknownTrajectoryError,
    WeightSyncError,
)
from art_core.serve.metrics import CONTENT_TYPE
from art_core.serve.reply import error_response, hung_up, told
from art_core.serve.wire import ApiError
from art_core.trajectories import TrajectoryGroup
from art_core.types import Exchange, StepReport

_Body = TypeVar("_Body", bound=BaseModel)
_STATUS: tuple[tuple[type[ArtError], int], ...] = (
    (ModelNotFoundError, 404),
    (UnknownTrajectoryError, 404),
    (RunLockedError, 409),
    (StorageError, 507),
    (ConfigError, 400),
    (DataError, 400),
    (EngineClosedError, 503),
    (WeightSyncError, 503),
)


class Control(Protocol):
    """Who registers, records and trains: the methods of `art_core.protocols.Backend` on the side of the server."""

    async def register(self, request: RegisterRequest) -> ModelState: ...

    def models(self) -> list[ModelState]: ...

    async def state(self, project: str, name: str) -> ModelState: ...

    async def open_trajectory(self, project: str, name: str, trajectory_id: str) -> None: ...

    async def close_trajectory(self, trajectory_id: str) -> list[Exchange]: ...

    async def find_exchanges(
        self, project: str, name: str, ids: Sequence[str], *, missing_ok: bool = False
    ) -> list[Exchange]: ...

    async def train(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        *,
        on_progress: Callable[[str], None],
    ) -> StepReport: ...

    async def train_sft(
        self, project: str, name: str, request: SftRequest, *, on_progress: Callable[[str], None]
    ) -> StepReport: ...

    async def log(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        *,
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None: ...

    async def logged_metrics(self, project: str, name: str) -> list[MetricRecord]: ...

    async def delete_checkpoints(self, project: str, name: str, *, keep: Sequence[int]) -> ModelState: ...

    async def fork(self, project: str, name: str, request: ForkRequest) -> ModelState: ...

    def metrics_text(self) -> bytes:
        """What Prometheus reads."""
        ...


def add_control(app: Starlette, control: Control, *, closing: asyncio.Event, progress_every_s: float = 5.0) -> None:
    """Add the routes to `app`. A step in progress sends a line at least every `progress_every_s`."""
    route = functools.partial(_add, app)

    async def models(_: Request) -> Response:
        return JSONResponse({"models": [state.model_dump(mode="json") for state in control.models()]})

    async def register(request: Request) -> Response:
        return _json(await control.register(await _body(request, RegisterRequest)))

    async def state(request: Request) -> Response:
        return _json(await control.state(*_model(request)))

    async def open_trajectory(request: Request) -> Response:
        body = await _body(request, OpenRequest)
        await control.open_trajectory(*_model(request), body.id)
        return JSONResponse({})

    async def close_trajectory(request: Request) -> Response:
        return await _exchanges(await control.close_trajectory(request.path_params["trajectory_id"]))

    async def find_exchanges(request: Request) -> Response:
        body = await _body(request, LookupRequest)
        found = await control.find_exchanges(*_model(request), body.ids, missing_ok=body.missing_ok)
        return await _exchanges(found)

    async def train(request: Request) -> Response:
        project, name = _model(request)
        await control.state(project, name)  # an unknown model is told by the status
        body = await _body(request, TrainRequest)
        config = TrainConfig.made(None, body.options)
        groups = [_group(group) for group in body.groups]

        async def work(on_progress: Callable[[str], None]) -> StepReport:
            return await control.train(project, name, groups, config, on_progress=on_progress)

        return TrainReply(work, closing, progress_every_s)

    async def train_sft(request: Request) -> Response:
        project, name = _model(request)
        await control.state(project, name)
        body = await _body(request, SftRequest)

        async def work(on_progress: Callable[[str], None]) -> StepReport:
            return await control.train_sft(project, name, body, on_progress=on_progress)

        return TrainReply(work, closing, progress_every_s)

    async def log(request: Request) -> Response:
        body = await _body(request, LogRequest)
        groups = [_group(group) for group in body.groups]
        await control.log(*_model(request), groups, split=body.split, step=body.step, metrics=body.metrics)
        return JSONResponse({})

    async def logged_metrics(request: Request) -> Response:
        return _json(MetricHistory(records=await control.logged_metrics(*_model(request))))

    async def delete_checkpoints(request: Request) -> Response:
        body = await _body(request, DeleteRequest)
        return _json(await control.delete_checkpoints(*_model(request), keep=body.keep))

    async def fork(request: Request) -> Response:
        return _json(await control.fork(*_model(request), await _body(request, ForkRequest)))

    async def metrics(_: Request) -> Response:
        return Response(control.metrics_text(), media_type=CONTENT_TYPE)

    model = "/api/models/{project}/{name}"
    route("GET", "/api/models", models)
    route("POST", "/api/models", register)
    route("GET", model, state)
    route("POST", f"{model}/trajectories", open_trajectory)
    route("POST", "/api/trajectories/{trajectory_id:path}/close", close_trajectory)
    route("POST", f"{model}/exchanges", find_exchanges)
    route("POST", f"{model}/train", train)
    route("POST", f"{model}/train_sft", train_sft)
    route("POST", f"{model}/log", log)
    route("GET", f"{model}/metrics", logged_metrics)
    route("POST", f"{model}/checkpoints/delete", delete_checkpoints)
    route("POST", f"{model}/fork", fork)
    route("GET", "/metrics", metrics)


def control_error(error: Exception) -> ApiError:
    """How `error` is told below `/api`: its code is the name of its class, where that is one of ours."""
    if isinstance(error, ArtError) and not isinstance(error, ApiError):
        status = next((status for kind, status in _STATUS if isinstance(error, kind)), 500)
        return ApiError(status, str(error), code=type(error).__name__)
    return told(error)


class TrainReply(Response):
    """Sends `TrainEvent` lines while `work` runs. When the client hangs up, or the server closes, it is cancelled."""

    def __init__(
        self,
        work: Callable[[Callable[[str], None]], Awaitable[StepReport]],
        closing: asyncio.Event,
        progress_every_s: float,
    ) -> None:
        super().__init__(media_type="application/x-ndjson")
        self._work = work
        self._closing = closing
        self._every_s = progress_every_s
        self._phases: asyncio.Queue[str] = asyncio.Queue()

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._work(self._phases.put_nowait))
        gone = asyncio.create_task(hung_up(receive))
        closing = asyncio.create_task(self._closing.wait())
        try:
            headers = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await self._tell_progress({work, gone, closing}, send)
            if gone.done():
                return
            if not work.done():
                work.cancel()
                await asyncio.wait({work})
            await self._send(send, _outcome(work), more=False)
        finally:
            for task in (work, gone, closing):
                task.cancel()
            await asyncio.gather(work, gone, closing, return_exceptions=True)

    async def _tell_progress(self, ends: set[asyncio.Future[Any]], send: Send) -> None:
        phase = ""
        while not any(end.done() for end in ends):
            changed = asyncio.create_task(self._phases.get())
            try:
                await asyncio.wait({*ends, changed}, timeout=self._every_s, return_when=asyncio.FIRST_COMPLETED)
                if changed.done():
                    phase = changed.result()
            finally:
                changed.cancel()
            if not any(end.done() for end in ends):
                await self._send(send, TrainEvent(event="progress", phase=phase), more=True)

    async def _send(self, send: Send, event: TrainEvent, *, more: bool) -> None:
        body = event.model_dump_json().encode() + b"\n"
        await send({"type": "http.response.body", "body": body, "more_body": more})


def _outcome(work: asyncio.Future[StepReport]) -> TrainEvent:
    error: Exception | None
    if work.cancelled():
        error = EngineClosedError("the server is shutting down; the step was not finished, ask for it again")
    else:
        problem = work.exception()
        if problem is not None and not isinstance(problem, Exception):
            raise problem
        error = problem
    if error is not None:
        return TrainEvent(event="error", error=control_error(error).body()["error"])
    report = work.result()
    return TrainEvent(event="result", step=report.step, metrics=report.metrics, findings=list(report.findings))


def _add(app: Starlette, method: str, path: str, handler: Callable[[Request], Awaitable[Response]]) -> None:
    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except ArtError as error:
            return error_response(control_error(error))

    app.add_route(path, guarded, methods=[method])


def _model(request: Request) -> tuple[str, str]:
    return request.path_params["project"], request.path_params["name"]


async def _body(request: Request, kind: type[_Body]) -> _Body:
    data = await request.body()
    media_type = request.headers.get("content-type", "")
    if media_type.partition(";")[0].strip().lower() != "application/json":  # which no web page can send unasked
        raise ApiError(
            415,
            f"the content type is {media_type!r}; send the body with 'content-type: application/json'",
            code="unsupported_media_type",
        )
    try:
        return await asyncio.to_thread(kind.model_validate_json, data)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "the body"
        raise DataError(
            f"{where}: {problem['msg']}; wanted {kind.__name__} as art_core.control describes it"
        ) from error


def _group(body: GroupBody) -> TrajectoryGroup:
    return TrajectoryGroup(
        body.trajectories,
        scenario_id=body.scenario_id,
        metadata=body.metadata,
        metrics=body.metrics,
        logs=body.logs,
    )


def _json(body: BaseModel) -> Response:
    return Response(body.model_dump_json(), media_type="application/json")


async def _exchanges(exchanges: list[Exchange]) -> Response:
    text = await asyncio.to_thread(ExchangeList.model_construct(exchanges=exchanges).model_dump_json)
    return Response(text, media_type="application/json")
