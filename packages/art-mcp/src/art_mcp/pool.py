"""Server processes for many rollouts at once: some started ahead, each used by one rollout at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter, deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from art_core.errors import ConfigError, InfrastructureError
from art_mcp.connect import DEFAULT_NICE, Log, ServerCommand, ServerStartError, ToolSession, start_session

_logger = logging.getLogger("art_mcp")
_MAX_NOTICES = 20


class ServerPool:
    """Hands out sessions with a server, at most `size` at once; further callers wait their turn.

    Without `reuse`, nobody has used a session before: each one handed out is a process (and a `{workdir}`) of its own,
    and up to `warm` more are started ahead. With `reuse`, for servers whose callable tools all are read-only, a session
    that is still healthy goes to the next caller, and there are never more than `size` processes.

    The first start is made alone, so that a package runner downloads once and not `size` times at once; later ones
    overlap by the number of CPUs. After `max_start_failures` failed starts in a row the pool gives up for good.
    """

    def __init__(
        self,
        command: ServerCommand,
        *,
        size: int,
        warm: int = 2,
        reuse: bool = False,
        start_timeout_s: float = 30.0,
        call_timeout_s: float = 30.0,
        max_result_chars: int = 20_000,
        nice: int = DEFAULT_NICE,
        max_start_failures: int = 5,
        log: Log = _logger.warning,
    ) -> None:
        for name, value, least in (("size", size, 1), ("warm", warm, 0), ("max_start_failures", max_start_failures, 1)):
            if value < least:
                raise ConfigError(f"server pool: {name} is {value}; wanted at least {least}")
        self._command = command
        self._size = size
        self._warm = min(warm, size) if reuse else warm
        self._reuse = reuse
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self._max_result_chars = max_result_chars
        self._nice = nice
        self._max_start_failures = max_start_failures
        self._log = log
        self._notices: set[str] = set()
        self._mode = "auto"
        self._idle: deque[ToolSession] = deque()
        self._waiting: deque[asyncio.Future[ToolSession]] = deque()
        self._starting: set[asyncio.Task[None]] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._in_use: set[ToolSession] = set()
        self._first_start = asyncio.Lock()
        self._start_slots = asyncio.Semaphore(max(2, os.cpu_count() or 2))
        self._proven = False
        self._failures_in_a_row = 0
        self._fatal: Exception | None = None
        self.num_started = 0
        self.num_start_failures = 0
        self.num_replaced = 0
        """Sessions that were given up because they died, timed out or were interrupted in a call."""
        self._noise_lines_before = 0  # of sessions that are closed

    async def __aenter__(self) -> Self:
        self._pump()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @property
    def counts(self) -> Counter[str]:
        """What went wrong with the servers so far."""
        open_sessions = [*self._idle, *self._in_use]
        return Counter(
            servers_replaced=self.num_replaced,
            server_start_failures=self.num_start_failures,
            noise_lines=self._noise_lines_before + sum(session.num_noise_lines for session in open_sessions),
        )

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[ToolSession]:
        """A session for the caller alone, while inside.

        Raises:
            InfrastructureError: the server did not start this time.
            ServerStartError: it failed to start so often that the pool has given up.
        """
        session = await self._acquire()
        try:
            yield session
        finally:
            self._release(session)

    async def aclose(self) -> None:
        """End all servers, in parallel, and wait for it. May be called twice.

        Cancelled while waiting, it ends them the hard way, still waits for that, and passes the cancellation on.
        """
        self._give_up(InfrastructureError("the server pool is closed; open another one"))
        for session in [*self._idle, *self._in_use]:
            self._close(session)
        self._idle.clear()
        self._in_use.clear()
        for task in self._starting:
            task.cancel()
        cancelled: asyncio.CancelledError | None = None
        while busy := self._starting | self._closing:
            try:
                await asyncio.wait(busy)
            except asyncio.CancelledError as error:
                cancelled = error
                for task in busy:
                    task.cancel()
        if cancelled is not None:
            raise cancelled

    async def _acquire(self) -> ToolSession:
        if self._fatal is not None:
            raise self._fatal
        turn: asyncio.Future[ToolSession] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._pump()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._release(turn.result())  # it was our turn in the same moment
            raise

    def _release(self, session: ToolSession) -> None:
        if session not in self._in_use:
            return  # the pool was closed in the meantime
        self._in_use.discard(session)
        if self._reuse and session.healthy and self._fatal is None:
            self._idle.append(session)
        else:
            if not session.healthy:
                self.num_replaced += 1
            self._close(session)
        self._pump()

    def _pump(self) -> None:
        """Hand out what is ready, then start what is missing. Called after every change."""
        if self._fatal is not None:
            return
        while self._idle and len(self._in_use) < self._size and (turn := self._next_waiting()) is not None:
            session = self._idle.popleft()
            if not session.healthy:
                self._waiting.appendleft(turn)
                self.num_replaced += 1
                self._close(session)
                continue
            self._in_use.add(session)
            turn.set_result(session)
        self._waiting = deque(turn for turn in self._waiting if not turn.done())
        wanted_now = min(len(self._waiting), self._size - len(self._in_use))
        ahead = self._warm if self._failures_in_a_row == 0 else 0
        missing = wanted_now + ahead - len(self._idle) - len(self._starting)
        if self._reuse:
            num_processes = len(self._in_use) + len(self._idle) + len(self._starting)
            missing = min(missing, self._size - num_processes)
        for _ in range(missing):
            task = asyncio.create_task(self._start())
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)  # also when it is cancelled before it has begun

    def _next_waiting(self) -> asyncio.Future[ToolSession] | None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn
        return None

    async def _start(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            async with self._start_slots:
                session = await self._start_one()
        except (ServerStartError, OSError) as error:
            self._starting.discard(task)
            self._note_failure(error)
        except BaseException as error:
            if isinstance(error, Exception):  # a defect of ours: nobody may wait for what will never come
                self._give_up(error)
            raise
        else:
            self._starting.discard(task)
            self.num_started += 1
            self._failures_in_a_row = 0
            if session.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
                self._mode = "legacy"  # spares the next ones a question that this server does not understand
            if self._fatal is not None:
                self._close(session)
            else:
                self._idle.append(session)
                self._pump()

    async def _start_one(self) -> ToolSession:
        if not self._proven:
            async with self._first_start:
                # Those who waited here for a first start that went well go on without the lock.
                if not self._proven:
                    session = await self._start_session()
                    self._proven = True
                    return session
        return await self._start_session()

    async def _start_session(self) -> ToolSession:
        return await start_session(
            self._command,
            start_timeout_s=self._start_timeout_s,
            call_timeout_s=self._call_timeout_s,
            max_result_chars=self._max_result_chars,
            nice=self._nice,
            mode=self._mode,
            log=self._notice,
        )

    def _note_failure(self, error: Exception) -> None:
        self.num_start_failures += 1
        self._failures_in_a_row += 1
        if self._failures_in_a_row >= self._max_start_failures:
            self._give_up(
                ServerStartError(
                    f"{self._failures_in_a_row} starts of the server failed in a row, the last one: {error}"
                )
            )
            return
        turn = self._next_waiting()
        if turn is not None:
            failure = InfrastructureError(str(error))
            failure.__cause__ = error
            turn.set_exception(failure)
        self._pump()

    def _give_up(self, reason: Exception) -> None:
        """Refuse everybody who waits or comes later, for the first reason there was."""
        self._fatal = self._fatal or reason
        while (turn := self._next_waiting()) is not None:
            turn.set_exception(self._fatal)

    def _close(self, session: ToolSession) -> None:
        self._noise_lines_before += session.num_noise_lines
        task = asyncio.create_task(session.aclose())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _notice(self, message: str) -> None:
        """Pass each notice on once: all servers of a pool run the same command, and say the same."""
        if message not in self._notices and len(self._notices) < _MAX_NOTICES:
            self._notices.add(message)
            self._log(message)
