"""Run functions in parallel, so many at once: results in input order, failures as data."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TypeVar

from art_core.errors import ConfigError
from art_core.types import RolloutError

T = TypeVar("T")


async def gather_rollouts(
    rollouts: Iterable[Callable[[], Awaitable[T]]] | AsyncIterator[Callable[[], Awaitable[T]]],
    *,
    max_concurrency: int | None,
    timeout_s: float | None = None,
    max_retries: int = 0,
    failed: Callable[[int, RolloutError], T],
    fatal: Callable[[Exception], bool] = lambda _: False,
    on_done: Callable[[T], None] = lambda _: None,
    on_retry: Callable[[int, RolloutError], None] = lambda _, __: None,
) -> list[T]:
    """Run `rollouts`, at most `max_concurrency` at a time, and return what they give in input order.

    `rollouts` is consumed as places become free; its next item may wait for what is running. A rollout that raises, or
    takes longer than `timeout_s`, is run again up to `max_retries` times, each time told to `on_retry(index, error)`,
    and then becomes `failed(index, error)`; the others go on. An exception that is `fatal`, or that `on_done` raises,
    cancels all and is raised. Cancelling this call cancels every rollout. `on_done` is called for each result as it
    arrives, in order of arrival.
    """
    if max_concurrency is not None and max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}; wanted 1 or more")
    slots = None if max_concurrency is None else asyncio.Semaphore(max_concurrency)
    results: dict[int, T] = {}

    async def attempt(rollout: Callable[[], Awaitable[T]]) -> T | RolloutError:
        try:
            async with asyncio.timeout(timeout_s) as limit:
                return await rollout()
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return RolloutError.of(error, otherwise="something inside was cancelled")
        except Exception as error:
            late = isinstance(error, TimeoutError) and limit.expired()
            if not late and fatal(error):
                raise
            return RolloutError.of(error, otherwise=f"no result after {timeout_s} s" if late else "")

    async def run(index: int, rollout: Callable[[], Awaitable[T]]) -> None:
        try:
            outcome = await attempt(rollout)
            for _ in range(max_retries):
                if not isinstance(outcome, RolloutError):
                    break
                on_retry(index, outcome)
                outcome = await attempt(rollout)
        finally:
            if slots is not None:
                slots.release()
        results[index] = failed(index, outcome) if isinstance(outcome, RolloutError) else outcome
        on_done(results[index])

    try:
        async with asyncio.TaskGroup() as tasks:
            waiting = rollouts if isinstance(rollouts, AsyncIterator) else iter(rollouts)
            index = 0
            while True:
                if slots is not None:
                    await slots.acquire()
                try:
                    rollout = await anext(waiting) if isinstance(waiting, AsyncIterator) else next(waiting)
                except (StopIteration, StopAsyncIteration):
                    break
                tasks.create_task(run(index, rollout))
                index += 1
    except BaseExceptionGroup as group:
        raise first_leaf(group) from group
    return [results[index] for index in range(len(results))]


def first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first exception in `group` that is none."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
