from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from art_core.errors import ConfigError, StorageError
from art_core.parallel import gather_rollouts
from art_core.trajectories import Trajectory
from art_core.types import RolloutError


def _failed(index: int, error: RolloutError) -> Trajectory:
    return Trajectory(id=f"t{index}", scenario_id="s", error=error)


def _after(delay_s: float, index: int) -> Callable[[], Awaitable[Trajectory]]:
    async def run() -> Trajectory:
        await asyncio.sleep(delay_s)
        return Trajectory(id=f"t{index}", scenario_id="s", reward=float(index))

    return run


def _raising(error: BaseException) -> Callable[[], Awaitable[Trajectory]]:
    async def run() -> Trajectory:
        raise error

    return run


async def test_results_come_in_input_order_and_on_done_in_order_of_arrival() -> None:
    arrived: list[str] = []
    results = await gather_rollouts(
        [_after(0.04, 0), _after(0.0, 1), _after(0.02, 2)],
        max_concurrency=3,
        failed=_failed,
        on_done=lambda trajectory: arrived.append(trajectory.id),
    )
    assert [trajectory.id for trajectory in results] == ["t0", "t1", "t2"]
    assert arrived == ["t1", "t2", "t0"]


async def test_a_failure_is_an_entry_with_its_error_and_no_reward() -> None:
    results = await gather_rollouts(
        [_after(0, 0), _raising(ValueError("broken")), _after(0, 2)], max_concurrency=2, failed=_failed
    )
    assert [trajectory.reward for trajectory in results] == [0.0, None, 2.0]
    assert results[1].error == RolloutError(kind="ValueError", message="broken")


async def test_a_rollout_that_takes_too_long_fails_and_the_others_count() -> None:
    results = await gather_rollouts([_after(60, 0), _after(0, 1)], max_concurrency=2, timeout_s=0.05, failed=_failed)
    assert results[0].error == RolloutError(kind="TimeoutError", message="no result after 0.05 s")
    assert results[1].reward == 1.0


async def test_no_more_than_the_limit_run_at_once() -> None:
    running = peak = 0

    async def run() -> Trajectory:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.005)
        running -= 1
        return Trajectory(id="t", scenario_id="s")

    await gather_rollouts([run] * 10, max_concurrency=3, failed=_failed)
    assert peak == 3


async def test_a_fatal_error_cancels_the_others_and_is_raised_as_itself() -> None:
    cancelled = asyncio.Event()

    async def slow() -> Trajectory:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError("was not cancelled")

    with pytest.raises(StorageError, match="full"):
        await gather_rollouts(
            [slow, _raising(StorageError("full"))],
            max_concurrency=2,
            failed=_failed,
            fatal=lambda error: isinstance(error, StorageError),
        )
    assert cancelled.is_set()


async def test_cancelling_the_gather_cancels_every_rollout() -> None:
    started = 0
    ended = 0

    async def slow() -> Trajectory:
        nonlocal started, ended
        started += 1
        try:
            await asyncio.sleep(60)
        finally:
            ended += 1
        raise AssertionError("was not cancelled")

    task = asyncio.create_task(gather_rollouts([slow] * 4, max_concurrency=4, failed=_failed))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (started, ended) == (4, 4)


async def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_concurrency is 0"):
        await gather_rollouts([], max_concurrency=0, failed=_failed)
