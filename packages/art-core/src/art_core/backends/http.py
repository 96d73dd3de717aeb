"""The client's half of `art_core.control`: a `Backend` over HTTP, whatever server it turns out to speak to."""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

import art_core.errors as errors
from art_core.backends.training import also_takes_a_model
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
from art_core.errors import ArtError, BackendError, ConfigError, DataError
from art_core.moving import missing_method
from art_core.threads import in_thread
from art_core.trajectories import TrajectoryGroup
from art_core.types import Exchange, StepReport
from art_core.values import check_callable

if TYPE_CHECKING:
    import httpx2

_Answer = TypeVar("_Answer", bound=BaseModel)
_SILENCE_S = 60.0
"""A server at work sends a line every few seconds; one that is silent for so long is taken for dead."""


class HttpBackend(abc.ABC):
    """Satisfies `art_core.protocols.Backend`. Subclasses say where the server is.

    An error of the server is raised as the class of `art_core.errors` that it was there, with its message. Where no
    answer comes, `BackendError` says what to check. Every event loop can use it, each with connections of its own.
    """

    def __init__(self, *, timeout_s: float) -> None:
        if not timeout_s > 0.0:
            raise ConfigError(f"timeout_s is {timeout_s}; wanted a number above 0")
        self._timeout_s = timeout_s
        self._client: httpx2.AsyncClient | None = None
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        raise missing_method(type(self).__name__, name)

    @property
    @abc.abstractmethod
    def base_url(self) -> str:
        """Root of the server, without `/v1`."""

    @property
    @abc.abstractmethod
    def api_key(self) -> str | None:
        """What the server wants as bearer token; None where it wants none."""

    async def start(self) -> None:  # noqa: B027 - a server that runs needs no start
        """Be ready for requests. Called by every method."""

    @abc.abstractmethod
    async def _explained(self, problem: str) -> BackendError:
        """The error for a request that got no answer, because of `problem`."""

    def _check_open(self) -> None:
        """Refuse to begin anew what was closed: a late request must not leave a server, or connections, behind."""
        if self._closed:
            raise ConfigError(f"this {type(self).__name__} was closed; make a new one and register the model with it")

    async def __aenter__(self) -> Self:
        self._check_open()
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the server: nothing can be asked of it afterwards. May be called twice."""
        self._closed = True
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def register(self, request: RegisterRequest) -> ModelState:
        """See `Backend.register`. Waits as long as loading, or downloading, the weights takes."""
        return await self._ask_within(None, "POST", "/api/models", request, ModelState)

    async def state(self, project: str, name: str) -> ModelState:
        """See `Backend.state`."""
        return await self._ask("GET", _model(project, name), None, ModelState)

    async def open_trajectory(self, project: str, name: str, trajectory_id: str) -> str:
        """See `Backend.open_trajectory`."""
        await self._ask("POST", f"{_model(project, name)}/trajectories", OpenRequest(id=trajectory_id), _Nothing)
        return f"{self.base_url.rstrip('/')}/t/{quote(trajectory_id, safe='')}/v1"

    async def close_trajectory(self, trajectory_id: str) -> list[Exchange]:
        """See `Backend.close_trajectory`."""
        path = f"/api/trajectories/{quote(trajectory_id, safe='')}/close"
        return (await self._ask("POST", path, None, ExchangeList)).exchanges

    async def find_exchanges(
        self, project: str, name: str, ids: Sequence[str], *, missing_ok: bool = False
    ) -> list[Exchange]:
        """See `Backend.find_exchanges`."""
        body = LookupRequest(ids=list(ids), missing_ok=missing_ok)
        return (await self._ask("POST", f"{_model(project, name)}/exchanges", body, ExchangeList)).exchanges

    @also_takes_a_model
    async def train(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> StepReport:
        """See `Backend.train`. Takes as long as the step takes; a server that falls silent is given up on."""
        body = TrainRequest(groups=[_group(group) for group in groups], options=dataclasses.asdict(config))
        return await self._trained(f"{_model(project, name)}/train", body, on_progress)

    async def train_sft(
        self, project: str, name: str, request: SftRequest, *, on_progress: Callable[[str], None] = lambda _: None
    ) -> StepReport:
        """See `Backend.train_sft`."""
        return await self._trained(f"{_model(project, name)}/train_sft", request, on_progress)

    async def _trained(self, path: str, body: BaseModel, on_progress: Callable[[str], None]) -> StepReport:
        """What the server reports at the end of the training that `body` asks for."""
        check_callable("on_progress", on_progress, "a function that takes a line of text")
        last: TrainEvent | None = None
        phase = ""
        async with self._sent("POST", path, body, timeout_s=_SILENCE_S) as response:
            if response.status_code != 200:
                await response.aread()
                raise _error_of(response.status_code, response.text)
            async for line in _lines(response):
                last = _event(line)
                if last.event == "progress" and last.phase != phase:
                    phase = last.phase
                    on_progress(phase)
        if last is None or last.event == "progress":
            raise await self._explained("the connection ended before the step did")
        if last.error is not None:
            raise _error(last.error, status=200)
        if last.step is None:
            raise BackendError(f"{self.base_url} ended a step without its number; is it another version of art-core?")
        return StepReport(last.step, last.metrics, tuple(last.findings))

    async def log(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        *,
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """See `Backend.log`."""
        body = LogRequest(
            split=split, step=step, groups=[_group(group) for group in groups], metrics=dict(metrics or {})
        )
        await self._ask("POST", f"{_model(project, name)}/log", body, _Nothing)

    async def logged_metrics(self, project: str, name: str) -> list[MetricRecord]:
        """See `Backend.logged_metrics`."""
        return (await self._ask("GET", f"{_model(project, name)}/metrics", None, MetricHistory)).records

    async def delete_checkpoints(self, project: str, name: str, *, keep: Sequence[int]) -> ModelState:
        """See `Backend.delete_checkpoints`."""
        body = DeleteRequest(keep=list(keep))
        return await self._ask_within(None, "POST", f"{_model(project, name)}/checkpoints/delete", body, ModelState)

    async def fork(self, project: str, name: str, request: ForkRequest) -> ModelState:
        """See `Backend.fork`. Waits as long as loading the weights takes."""
        return await self._ask_within(None, "POST", f"{_model(project, name)}/fork", request, ModelState)

    async def _ask(self, method: str, path: str, body: BaseModel | None, kind: type[_Answer]) -> _Answer:
        """One request and its answer, within the backend's `timeout_s`."""
        return await self._ask_within(self._timeout_s, method, path, body, kind)

    async def _ask_within(
        self, timeout_s: float | None, method: str, path: str, body: BaseModel | None, kind: type[_Answer]
    ) -> _Answer:
        """One request and its answer. `timeout_s` None means no limit."""
        async with self._sent(method, path, body, timeout_s=timeout_s) as response:
            await response.aread()
        if response.status_code != 200:
            raise _error_of(response.status_code, response.text)
        try:
            return kind.model_validate_json(response.content)
        except ValidationError as error:
            raise BackendError(
                f"{self.base_url}{path} answered with something else than {kind.__name__}: {response.text[:200]!r}; "
                "is it an `art serve` of the same version?"
            ) from error

    @asynccontextmanager
    async def _sent(
        self, method: str, path: str, body: BaseModel | None, *, timeout_s: float | None
    ) -> AsyncIterator[httpx2.Response]:
        import httpx2

        self._check_open()
        await self.start()
        timeout = httpx2.Timeout(timeout_s, connect=min(10.0, self._timeout_s), write=self._timeout_s)
        content = None if body is None else await in_thread(_json, body)
        headers = {"content-type": "application/json"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        try:
            async with self._http().stream(
                method, f"{self.base_url.rstrip('/')}{path}", content=content, headers=headers, timeout=timeout
            ) as response:
                yield response
        except httpx2.TimeoutException as error:
            raise await self._explained(f"no answer came in time ({type(error).__name__})") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise await self._explained(str(error) or type(error).__name__) from error

    def _http(self) -> httpx2.AsyncClient:
        import httpx2

        from art_core.transport import LoopsTransport

        if self._client is None:
            self._client = httpx2.AsyncClient(transport=LoopsTransport(self.base_url), trust_env=False)
        return self._client


class _Nothing(BaseModel):
    """An answer that says only that it was done."""


def _model(project: str, name: str) -> str:
    return f"/api/models/{quote(project, safe='')}/{quote(name, safe='')}"


def _group(group: TrajectoryGroup) -> GroupBody:
    return GroupBody(
        scenario_id=group.scenario_id,
        trajectories=list(group.trajectories),
        metadata=dict(group.metadata),
        metrics=dict(group.metrics),
        logs=list(group.logs),
    )


def _json(body: BaseModel) -> str:
    """`body` as JSON.

    Raises:
        DataError: something in it has no JSON form; the message names the trajectory where it is in one.
    """
    try:
        return body.model_dump_json()
    except (ValueError, RecursionError) as error:
        for number, group in enumerate(getattr(body, "groups", ())):
            for position, trajectory in enumerate(group.trajectories):
                try:
                    trajectory.model_dump_json()
                except (ValueError, RecursionError) as cause:
                    where = f"trajectory {position} of group {number} (id {trajectory.id!r})"
                    raise DataError(f"{where} cannot be sent: {_told(cause)}") from error
        raise DataError(f"a {type(body).__name__} cannot be sent: {_told(error)}") from error


def _told(error: Exception) -> str:
    """What `error` says, without what pydantic writes before it."""
    return str(error).rpartition("DataError: ")[2]


async def _lines(response: httpx2.Response) -> AsyncIterator[bytes]:
    """The lines of a body. Not by `aiter_lines`, for which some characters inside a JSON string end a line as well."""
    rest = b""
    async for data in response.aiter_bytes():
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield line
    if rest:
        yield rest


def _event(line: bytes) -> TrainEvent:
    try:
        return TrainEvent.model_validate_json(line)
    except ValidationError as error:
        raise BackendError(f"a step's progress is not readable: {line[:200]!r}") from error


def _error_of(status: int, text: str) -> ArtError:
    try:
        return _error(json.loads(text)["error"], status=status)
    except (ValueError, KeyError, TypeError):
        return BackendError(f"the server answered {status}: {text[:300]!r}; is it an `art serve`?")


def _error(fields: Mapping[str, Any], *, status: int) -> ArtError:
    """The error that an error object of the server stands for."""
    message, code = str(fields["message"]), fields.get("code")
    kind = getattr(errors, code, None) if isinstance(code, str) else None
    if isinstance(kind, type) and issubclass(kind, ArtError):
        return kind(message)
    if code == "invalid_api_key":
        return ConfigError(f"the server refuses: {message}; RemoteBackend(url, api_key=...) sends it")
    if status == 413:
        return DataError(message)
    return BackendError(f"{message} (status {status}, code {code!r})")
