"""Engines for older steps: opened when one is asked for, few at a time, closed when nobody asks any more."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Hashable

from art_core.hosting.watch import WatchedEngine
from art_core.serve.wire import ApiError

_log = logging.getLogger(__name__)
_SETTLE_S = 1.0
"""An engine that was just given out is not closed before its call can have begun."""


class PinnedEngines:
    """At most `max_open` engines, by key. One that is in use is never closed for another."""

    def __init__(self, *, max_open: int, idle_s: float) -> None:
        self._max_open = max_open
        self._idle_s = idle_s
        self._opening: dict[Hashable, asyncio.Task[WatchedEngine]] = {}
        self._turn = asyncio.Lock()
        self._sweeper: asyncio.Task[None] | None = None

    async def get(
        self, key: Hashable, opener: Callable[[], Awaitable[WatchedEngine]], *, what: str, max_wait_s: float
    ) -> WatchedEngine:
        """The engine of `key`; `opener` opens it where it is not open.

        Raises:
            ApiError: 503, when that takes longer than `max_wait_s`; the engine is opened all the same.
        """
        if self._max_open == 0:
            raise ApiError(
                404,
                f"{what} is not the newest, and this server opens no engines for older steps; "
                "start it with max_pinned 1 or more",
                code="model_not_found",
                param="model",
            )
        deadline = time.monotonic() + max_wait_s
        task = self._usable(key)
        if task is None:
            try:
                async with asyncio.timeout(max_wait_s), self._turn:
                    task = self._usable(key)
                    if task is None:
                        await self._make_room()
                        task = self._opening[key] = asyncio.create_task(_opened(opener))
            except TimeoutError:
                raise _later(what, max_wait_s) from None
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        await asyncio.wait({task}, timeout=max(0.0, deadline - time.monotonic()))
        if not task.done():
            raise _later(what, max_wait_s)
        engine = task.result()
        engine.last_used = time.monotonic()
        return engine

    async def close(self, drop: Callable[[Hashable], bool] = lambda _: True) -> None:
        """Close the engines whose key `drop` accepts, also those in use."""
        for key in [key for key in self._opening if drop(key)]:
            await self._close(key)
        if not self._opening and self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def _usable(self, key: Hashable) -> asyncio.Task[WatchedEngine] | None:
        """The engine of `key` that is open or being opened; one that failed or ended is forgotten."""
        task = self._opening.get(key)
        if task is not None and task.done() and (task.cancelled() or task.exception() or task.result().ended):
            del self._opening[key]
            return None
        return task

    async def _make_room(self) -> None:
        """Close engines until one more may be opened; wait where all are in use."""
        while len(self._opening) >= self._max_open:
            idle = self._idle_since()
            if idle and time.monotonic() - idle[0][0] >= _SETTLE_S:
                await self._close(idle[0][1])
            else:
                await asyncio.sleep(0.05)

    def _idle_since(self) -> list[tuple[float, Hashable]]:
        """Last use and key of engines without a call, longest idle first; those that failed to open come first."""
        result: list[tuple[float, Hashable]] = []
        for key, task in self._opening.items():
            if not task.done():
                continue
            if task.cancelled() or task.exception() is not None:
                result.append((0.0, key))
            elif task.result().num_active == 0:
                result.append((task.result().last_used, key))
        return sorted(result, key=lambda pair: pair[0])

    async def _close(self, key: Hashable) -> None:
        task = self._opening.pop(key)
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is None:
            await task.result().aclose()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(self._idle_s / 4, 30.0))
            async with self._turn:
                for last_used, key in self._idle_since():
                    if time.monotonic() - last_used >= self._idle_s:
                        _log.info("closing the engine of %s: nobody has asked for it", key)
                        await self._close(key)


async def _opened(opener: Callable[[], Awaitable[WatchedEngine]]) -> WatchedEngine:
    return await opener()


def _later(what: str, waited_s: float) -> ApiError:
    return ApiError(
        503,
        f"the weights of {what} were still being loaded after {waited_s:g} s; send the call again",
        code="weights_are_changing",
        retry_after_s=5,
    )


def step_number(name: str, step: str) -> int:
    """The step that `name` pins, which ends with `@step`.

    Raises:
        ApiError: 404, it is no number.
    """
    if not step.isdecimal() or len(step) > 12:
        raise ApiError(
            404, f"model {name!r}: {step!r} is no step; wanted a number after the @", code="model_not_found",
            param="model",
        )  # fmt: skip
    return int(step)
