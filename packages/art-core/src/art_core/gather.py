"""Run rollouts in parallel: results in input order, failures as data."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from art_core.errors import ConfigError
from art_core.trajectories import Trajectory
from art_core.types import RolloutError


async def gather_rollouts(
    rollouts: Sequence[Callable[[], Awaitable[Trajectory]]],
    *,
    max_concurrency: int,
    timeout_s: float | None = None,
    failed: Callable[[int, RolloutError], Trajectory],
    fatal: Callable[[Exception], bool] = lambda _: False,
    on_done: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Run `rollouts`, at most `max_concurrency` at a time, and return their trajectories in input order.

    A rollout that raises, or takes longer than `timeout_s`, becomes `failed(index, error)`; the others go on. An
    exception that is `fatal` cancels all and is raised. Cancelling this call cancels every rollout. `on_done` is
    called for each trajectory as it arrives, in order of arrival.
    """
    if max_concurrency < 1:
        raise ConfigError(f"max_concurrency is {max_concurrency}; wanted 1 or more")
    slots = asyncio.Semaphore(max_concurrency)
    results: list[Trajectory | None] = [None] * len(rollouts)

    async def run(index: int) -> None:
        async with slots:
            try:
                async with asyncio.timeout(timeout_s) as limit:
                    trajectory = await rollouts[index]()
            except Exception as error:
                late = isinstance(error, TimeoutError) and limit.expired()
                if not late and fatal(error):
                    raise
                message = f"no result after {timeout_s} s" if late and not str(error) else str(error)
                trajectory = failed(index, RolloutError(kind=type(error).__name__, message=message))
        results[index] = trajectory
        on_done(trajectory)

    try:
        async with asyncio.TaskGroup() as tasks:
            for index in range(len(rollouts)):
                tasks.create_task(run(index))
    except BaseExceptionGroup as group:
        raise _first_leaf(group) from group
    return [trajectory for trajectory in results if trajectory is not None]


def _first_leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
