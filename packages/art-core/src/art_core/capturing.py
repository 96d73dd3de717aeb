"""`capture`: everything called inside is recorded into one trajectory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, TypeVar

from pydantic import PrivateAttr

from art_core import scope
from art_core.errors import ConfigError
from art_core.histories import conversations
from art_core.protocols import Backend
from art_core.trajectories import Trajectory
from art_core.types import Exchange, RolloutError

T = TypeVar("T")
_logger = logging.getLogger(__name__)
_told: set[str] = set()


class Capturable(Protocol):
    """A model whose calls can be recorded: `art_core.TrainableModel`, once it is registered."""

    @property
    def project(self) -> str: ...

    @property
    def name(self) -> str: ...

    def backend(self) -> Backend: ...


class CapturedTrajectory(Trajectory):
    """A trajectory whose calls are being recorded.

    `base_url` and `api_key` are what a client in any language takes: its calls are recorded here until the capture
    ends. They are no part of the trajectory's data, are not printed and do not survive copying to another process.
    """

    _base_url: str = PrivateAttr(default="")
    _api_key: str = PrivateAttr(default="")

    @property
    def base_url(self) -> str:
        return self._base_url

    @property
    def api_key(self) -> str:
        return self._api_key

    def __getstate__(self) -> dict[Any, Any]:
        state = dict(super().__getstate__())
        private = state.get("__pydantic_private__") or {}
        state["__pydantic_private__"] = {**private, "_base_url": "", "_api_key": ""}
        return state


class Capture:
    """Used once, as `with` or `async with`; see `capture`."""

    def __init__(self, model: Capturable, trajectory: CapturedTrajectory) -> None:
        self._model = model
        self._trajectory = trajectory
        self._id = trajectory.id  # the record keeps it, whatever the rollout calls its trajectory
        self._scope: scope.Scope | None = None
        self._used = False

    async def __aenter__(self) -> CapturedTrajectory:
        backend = self._begin()
        try:
            opened = await backend.open_trajectory(self._model.project, self._model.name, self._id)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):  # whether the server has opened it is not known
                await backend.close_trajectory(self._id)
            raise
        return self._opened(backend, opened)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(error)
        closing = asyncio.ensure_future(self._backend.close_trajectory(self._id))
        try:
            self._fill(await asyncio.shield(closing))
        except asyncio.CancelledError:
            await asyncio.wait({closing})  # cancelled once more meanwhile: the record is closed all the same
            if not closing.cancelled() and closing.exception() is None:
                self._fill(closing.result())
            raise
        except Exception as failure:  # noqa: BLE001  # raised, unless the rollout itself failed
            self._not_closed(failure, error)

    def __enter__(self) -> CapturedTrajectory:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise ConfigError(
                "`with capture(model)` waits for the server, which would hold up the event loop that runs here; "
                "write `async with capture(model)`, or call the synchronous agent with asyncio.to_thread"
            )
        backend = self._begin()
        project, name = self._model.project, self._model.name
        # In a loop of its own: the one that the model was registered in may wait for the thread that this is.
        return self._opened(backend, asyncio.run(backend.open_trajectory(project, name, self._id)))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave(error)
        try:
            self._fill(asyncio.run(self._backend.close_trajectory(self._id)))
        except Exception as failure:  # noqa: BLE001
            self._not_closed(failure, error)

    def _begin(self) -> Backend:
        if self._used:
            raise ConfigError("this capture was used before; call capture(model) for each rollout")
        self._used = True
        self._backend = self._model.backend()
        return self._backend

    def _opened(self, backend: Backend, base_url: str) -> CapturedTrajectory:
        self._trajectory._base_url = base_url.rstrip("/")
        self._trajectory._api_key = backend.api_key or NO_KEY
        served = served_model(backend, self._model.project, self._model.name)
        self._scope = scope.enter(served, self._trajectory._base_url, owner=self._model)
        return self._trajectory

    def _leave(self, error: BaseException | None) -> None:
        if self._scope is None:
            raise ConfigError("this capture is left without having been entered")
        scope.leave(self._scope)
        scope.keep_record(self._trajectory)
        if error is not None and self._trajectory.error is None:
            self._trajectory.error = RolloutError.of(error)

    def _fill(self, exchanges: list[Exchange]) -> None:
        """Put the record onto the trajectory. Conversations that the rollout wrote down itself stay as they are."""
        trajectory = self._trajectory
        trajectory.exchanges = exchanges
        if exchanges and not trajectory.messages_and_choices and not trajectory.additional_histories:
            main, *others = conversations(exchanges)
            trajectory.messages_and_choices = main.messages_and_choices
            trajectory.tools = main.tools
            trajectory.role = main.role
            trajectory.additional_histories = others
        versions = {exchange.policy_version for exchange in exchanges}
        if len(versions) > 1:
            trajectory.metrics["capture/policy_versions"] = len(versions)
            trajectory.log(f"its calls were answered by the policy versions {sorted(versions)}")
        outside = self._scope.num_outside if self._scope is not None else 0
        if not outside:
            return
        trajectory.metrics["capture/calls_outside"] = outside
        # Rollouts of the explicit style beside this one, or an evaluation, are no mistake: one warning is enough then.
        if not exchanges or self._model.name not in _told:
            _told.add(self._model.name)
            _logger.warning(
                "while trajectory %s was recorded (%d calls), %d calls of model %r were made in no capture; a "
                "thread pool does not hand on the context: where they belong to a rollout, submit "
                "contextvars.copy_context().run, use asyncio.to_thread, or give the client trajectory.base_url",
                trajectory.id,
                len(exchanges),
                outside,
                self._model.name,
            )

    def _not_closed(self, failure: Exception, error: BaseException | None) -> None:
        if error is None:
            raise failure
        _logger.warning("the record of trajectory %s is lost: %s", self._id, failure)


NO_KEY = "none"
"""What clients are given as key where the server wants none: they refuse an empty one."""


def served_model(backend: Backend, project: str, name: str) -> scope.ServedModel:
    return scope.ServedModel(backend.base_url.rstrip("/"), project, name)


def capture(model: Capturable, *, scenario_id: str = "", metadata: Mapping[str, Any] | None = None) -> Capture:
    """Record every call made inside into one trajectory, which `with` and `async with` give.

    `model.openai_client()` finds the trajectory by itself, wherever it was made: in this task, in tasks started
    inside, in threads started by `asyncio.to_thread` or `contextvars.copy_context().run`. A plain
    `ThreadPoolExecutor.submit` does not hand the context on; calls from there, and from clients that are not the
    model's, are recorded when they are made to `trajectory.base_url`. `model.inference_base_url`, read inside, is that
    address. A call that names another model there is answered, and is no part of the trajectory.

    On leaving, also by an exception or a cancellation, the record is closed; the trajectory then has its `exchanges`,
    and, unless the rollout wrote them itself, `messages_and_choices` and `additional_histories`. A call still running
    fails. Where weights changed meanwhile, or a step was pinned, the metric `capture/policy_versions` says how many
    versions answered. An exception becomes the trajectory's `error` and goes on; where a gather runs the rollout, this
    trajectory is then its result. The inner of two captures of the same model wins.

    Raises:
        ConfigError: the model is not registered, or `with` is used where an event loop runs.
    """
    if not hasattr(model, "backend"):
        raise ConfigError(
            f"{model!r} cannot be captured; wanted a TrainableModel that is registered: other models are served "
            "elsewhere, so their calls are recorded by nobody"
        )
    trajectory = CapturedTrajectory(scenario_id=scenario_id, metadata=dict(metadata or {}))
    return Capture(model, trajectory)
