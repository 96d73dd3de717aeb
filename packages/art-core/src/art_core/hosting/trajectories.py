"""Which trajectories are open, and whose model answers their calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from art_core.errors import ArtError, StorageError
from art_core.hosting.model import HostedModel
from art_core.protocols import Recorder
from art_core.serve.session import Sessions
from art_core.types import Exchange

_log = logging.getLogger(__name__)
_REMEMBERED = 1000
"""Closed trajectories whose record is given out again to whoever did not get the first answer."""


@dataclass
class _Open:
    model: HostedModel
    last_call: float


class OpenTrajectories:
    """Each has a session in `sessions`, whose calls go to the `recorder` of its model, and stands in that one's log.

    So it is open again, with its record, when its model is opened by a later process.
    """

    def __init__(self, sessions: Sessions, recorder: Callable[[HostedModel], Recorder]) -> None:
        self._sessions = sessions
        self._recorder = recorder
        self._open: dict[str, _Open] = {}
        self._closed: OrderedDict[str, tuple[HostedModel, list[str]]] = OrderedDict()
        self._expected: dict[str, str] = {}  # of models that are not open yet: id -> inference name

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def expect(self, ids: Iterable[str], model_name: str) -> None:
        """`ids` were open when an earlier process ended; they are again once their model is."""
        self._expected.update(dict.fromkeys(ids, model_name))

    def model_to_open(self, trajectory_id: str) -> str | None:
        """The model that is to be opened first; None where there is none."""
        return self._expected.get(trajectory_id)

    def open(self, trajectory_id: str, model: HostedModel) -> None:
        """Record the calls of `trajectory_id`, which are answered by `model`."""
        session = self._sessions.open(trajectory_id)
        session.recorder, session.model_name = self._recorder(model), model.name
        try:
            model.log.opened(trajectory_id)
        except BaseException:
            self._sessions.close(trajectory_id)
            raise
        self._open[trajectory_id] = _Open(model, time.monotonic())

    def restore(self, model: HostedModel) -> None:
        """Open those again that were open when `model` was last served."""
        for trajectory_id, exchanges in model.log.open_trajectories().items():
            with contextlib.suppress(ArtError):  # the id is open already: the other record goes on
                session = self._sessions.open(trajectory_id)
                for exchange in exchanges:
                    session.record(exchange)
                session.recorder, session.model_name = self._recorder(model), model.name
                self._open[trajectory_id] = _Open(model, time.monotonic())
            self._expected.pop(trajectory_id, None)

    def called(self, trajectory_id: str) -> None:
        """A call was answered, of this trajectory if it is open."""
        if trajectory_id in self._open:
            self._open[trajectory_id].last_call = time.monotonic()

    async def close(self, trajectory_id: str) -> list[Exchange]:
        """The record, in order. Asked again, it is the same.

        Raises:
            UnknownTrajectoryError: no such trajectory is open, or was closed lately.
        """
        if trajectory_id not in self._open and trajectory_id in self._closed:
            model, ids = self._closed[trajectory_id]
            return await asyncio.to_thread(model.log.find, ids)
        exchanges = self._sessions.close(trajectory_id)
        trajectory = self._open.pop(trajectory_id)
        self._closed[trajectory_id] = (trajectory.model, [exchange.id for exchange in exchanges])
        if len(self._closed) > _REMEMBERED:
            self._closed.popitem(last=False)
        try:
            trajectory.model.log.closed(trajectory_id)
        except StorageError as error:  # the record itself is whole; after a restart it is open until it expires
            _log.warning("that trajectory %r was closed could not be noted: %s", trajectory_id, error)
        return exchanges

    async def close_silent(self, ttl_s: float, on_expired: Callable[[], None]) -> None:
        """Give up, until cancelled, those without a call for `ttl_s`, which nobody closes: their client has died."""
        while True:
            await asyncio.sleep(min(60.0, ttl_s / 4))
            now = time.monotonic()
            for trajectory_id in [one for one, open_ in self._open.items() if now - open_.last_call > ttl_s]:
                _log.warning("trajectory %r had no call for long and is closed", trajectory_id)
                on_expired()
                try:
                    await self.close(trajectory_id)
                except Exception:  # noqa: BLE001 - others are still to be given up, and this one is tried again
                    _log.exception("trajectory %r could not be closed; it is tried again", trajectory_id)
