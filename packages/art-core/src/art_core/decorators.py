"""`retry` and `limit_concurrency`, for functions and for coroutine functions."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ParamSpec, TypeGuard, TypeVar, cast

from art_core.errors import ConfigError
from art_core.options import check_value, number, whole

P = ParamSpec("P")
R = TypeVar("R")
_logger = logging.getLogger(__name__)


def retry(
    max_attempts: int = 3,
    delay: float = 0.25,
    backoff_factor: float = 2.0,
    exceptions: tuple[type[Exception], ...] = (Exception,),
    on_retry: Callable[[Exception, int], None] | None = None,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, or a coroutine function, to be called again when it raises one of `exceptions`.

    It is called at most `max_attempts` times; what the last call raises is raised. Between calls it waits `delay`
    seconds, each time `backoff_factor` times longer. `on_retry(error, attempt)` is told of each failed call but the
    last; without it, a warning is logged. Cancelling is no failure.

    Raises:
        ConfigError: a number out of range, or used without parentheses.
    """
    if callable(max_attempts):
        raise ConfigError("retry is used without parentheses; write @retry()")
    for name, value, kind in (
        ("max_attempts", max_attempts, whole(1)),
        ("delay", delay, number(0.0)),
        ("backoff_factor", backoff_factor, number(0.0)),
    ):
        check_value(f"{name} of retry", value, kind)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def failed(error: Exception, attempt: int) -> float:
            """Tell of the failure; seconds to wait. Raises the last one."""
            if attempt == max_attempts:
                raise error
            if on_retry is not None:
                on_retry(error, attempt)
            else:
                name = getattr(function, "__qualname__", repr(function))
                kind = type(error).__name__
                _logger.warning("attempt %d of %d of %s: %s: %s", attempt, max_attempts, name, kind, error)
            return float(delay * backoff_factor ** (attempt - 1))

        if _is_async(function, "retry"):

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                for attempt in range(1, max_attempts + 1):
                    try:
                        return await function(*args, **kwargs)
                    except exceptions as error:
                        pause_s = failed(error, attempt)
                    await asyncio.sleep(pause_s)
                raise AssertionError("the last attempt raises")

            return cast("Callable[P, R]", call_async)

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            for attempt in range(1, max_attempts + 1):
                try:
                    result = function(*args, **kwargs)
                except exceptions as error:
                    pause_s = failed(error, attempt)
                else:
                    return _finished(result, function, "retry")
                time.sleep(pause_s)
            raise AssertionError("the last attempt raises")

        return call

    return decorate


class _Limits:
    """A semaphore per key, kept while somebody uses it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._in_use: dict[Any, tuple[Any, int]] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def of(self, key: Any) -> Iterator[Any]:
        with self._lock:
            semaphore, users = self._in_use.get(key) or (self._make(), 0)
            self._in_use[key] = (semaphore, users + 1)
        try:
            yield semaphore
        finally:
            with self._lock:
                _, users = self._in_use.pop(key)
                if users > 1:
                    self._in_use[key] = (semaphore, users - 1)


def limit_concurrency(
    n: int, derive_key: Callable[..., Any] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function, or a coroutine function, so that at most `n` calls of it run at once.

    `derive_key`, called with the call's arguments, gives each key a limit of its own. Calls of a coroutine function
    are counted per event loop, calls of a function over all threads.

    Raises:
        ConfigError: `n` is below 1.
    """
    check_value("n of limit_concurrency", n, whole(1))

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        def key_of(*args: P.args, **kwargs: P.kwargs) -> Any:
            return None if derive_key is None else derive_key(*args, **kwargs)

        if _is_async(function, "limit_concurrency"):
            loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Limits] = weakref.WeakKeyDictionary()

            @functools.wraps(function)
            async def call_async(*args: P.args, **kwargs: P.kwargs) -> Any:
                limits = loops.setdefault(asyncio.get_running_loop(), _Limits(lambda: asyncio.Semaphore(n)))
                with limits.of(key_of(*args, **kwargs)) as semaphore:
                    async with semaphore:
                        return await function(*args, **kwargs)

            return cast("Callable[P, R]", call_async)

        limits = _Limits(lambda: threading.Semaphore(n))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with limits.of(key_of(*args, **kwargs)) as semaphore, semaphore:
                return _finished(function(*args, **kwargs), function, "limit_concurrency")

        return call

    return decorate


def _is_async(function: Callable[..., Any], decorator: str) -> TypeGuard[Callable[..., Awaitable[Any]]]:
    """Whether `function` is a coroutine function, or an object that is called like one.

    Raises:
        ConfigError: it is a generator function, whose work is done when `decorator` no longer sees it.
    """
    called = function if inspect.isroutine(function) or isinstance(function, type) else function.__call__  # type: ignore[operator]
    for candidate in (function, called):
        if inspect.isgeneratorfunction(candidate) or inspect.isasyncgenfunction(candidate):
            raise ConfigError(
                f"{decorator} cannot decorate a generator, whose work is done while it is iterated; decorate a "
                "function that returns what is wanted"
            )
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _finished(result: R, function: Callable[..., Any], decorator: str) -> R:
    """`result`, unless its work is still to be done, which `decorator` would not see.

    Raises:
        ConfigError: it is a coroutine.
    """
    if inspect.iscoroutine(result):
        result.close()
        raise ConfigError(
            f"{decorator} decorates {getattr(function, '__qualname__', function)!r}, which is no coroutine function "
            "and returns a coroutine; decorate the coroutine function itself, or define this one with `async def`"
        )
    return result
