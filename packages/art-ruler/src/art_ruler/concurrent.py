"""Running coroutines side by side, and from code that is not async."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


async def together(coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Wait for all. The first that fails cancels the others, and its error is raised as it is."""
    if len(coroutines) == 1:
        await coroutines[0]
        return
    failure: BaseException
    try:
        async with asyncio.TaskGroup() as group:
            for coroutine in coroutines:
                group.create_task(coroutine)
        return
    except BaseExceptionGroup as errors:
        failure = errors.exceptions[0]
    raise failure


class _BackgroundLoop:
    """One event loop on a thread of its own: connections of judges live on between calls, and it does not matter
    whether the caller's thread runs a loop, as notebooks do."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if threading.current_thread() is self._thread:
            coroutine.close()
            raise RuntimeError(
                "score_sync was called by what a score_sync runs, such as a judge's `complete`, and would wait for "
                "itself for ever; there, await score()"
            )
        future = asyncio.run_coroutine_threadsafe(coroutine, self._running_loop())
        try:
            return future.result()
        except BaseException:  # Ctrl-C, too, must not leave calls running that cost money
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # threads do not survive a fork
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=loop.run_forever, name="art-ruler", daemon=True)
                self._thread.start()
                self._loop, self._pid = loop, os.getpid()
            return self._loop


_background = _BackgroundLoop()


def run_sync(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`, from any thread, whether an event loop runs in it or not.

    Raises:
        RuntimeError: the thread is the one that such coroutines run on.
    """
    return _background.run(coroutine)
