"""`gather_trajectories` and `gather_trajectory_groups`."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.gather import gather_trajectories, gather_trajectory_groups
from art_core.progress import Progress
from art_core.trajectories import PendingGroup, Trajectory, TrajectoryGroup
from art_core.types import RolloutError


async def _after(delay_s: float, reward: float) -> Trajectory:
    await asyncio.sleep(delay_s)
    return Trajectory(reward=reward)


async def _fail(error: BaseException) -> Trajectory:
    raise error


def _rewards(groups: list[TrajectoryGroup]) -> list[list[float | None]]:
    return [[trajectory.reward for trajectory in group] for group in groups]


def _no_warnings_of_forgotten_coroutines() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()


async def test_groups_and_their_members_come_in_input_order() -> None:
    groups = await gather_trajectory_groups(
        [
            TrajectoryGroup([_after(0.04, 0), _after(0.0, 1)], scenario_id="a", metadata={"k": 1}),
            TrajectoryGroup([_after(0.02, 2), _after(0.0, 3)], scenario_id="b"),
        ]
    )
    assert _rewards(groups) == [[0, 1], [2, 3]]
    assert [(group.scenario_id, group.metadata) for group in groups] == [("a", {"k": 1}), ("b", {})]


@given(
    st.lists(st.lists(st.sampled_from([0.0, 0.001, 0.002]), min_size=1, max_size=4), max_size=5),
    st.one_of(st.none(), st.integers(1, 4)),
)
@settings(max_examples=30, deadline=None)
def test_order_is_kept_whatever_takes_how_long(delays: list[list[float]], limit: int | None) -> None:
    wanted = [[float(10 * i + j) for j in range(len(row))] for i, row in enumerate(delays)]

    async def run() -> list[TrajectoryGroup]:
        return await gather_trajectory_groups(
            (
                TrajectoryGroup(_after(delay_s, 10 * i + j) for j, delay_s in enumerate(row))
                for i, row in enumerate(delays)
            ),
            max_concurrent=limit,
        )

    assert _rewards(asyncio.run(run())) == wanted


async def test_a_failed_rollout_is_an_entry_with_its_error_and_never_a_zero() -> None:
    (group,) = await gather_trajectory_groups([TrajectoryGroup([_after(0, 1), _fail(ValueError("broken"))])])
    assert [trajectory.reward for trajectory in group] == [1, None]
    assert group.errors == [RolloutError(kind="ValueError", message="broken")]
    assert group.with_rewards().num_excluded == 1


async def test_a_rollout_whose_inside_was_cancelled_failed_and_the_order_stays() -> None:
    made = await gather_trajectories([_after(0, 0), _fail(asyncio.CancelledError()), _after(0, 2)])
    assert [trajectory.reward for trajectory in made] == [0, None, 2]
    assert made[1].error is not None
    assert made[1].error.kind == "CancelledError"


async def test_the_limit_counts_rollouts_over_all_groups() -> None:
    running = peak = 0

    async def rollout() -> Trajectory:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.002)
        running -= 1
        return Trajectory(reward=0)

    await gather_trajectory_groups((TrajectoryGroup(rollout() for _ in range(3)) for _ in range(4)), max_concurrent=5)
    assert peak == 5


@pytest.mark.slow
async def test_a_generator_of_groups_is_consumed_as_places_become_free() -> None:
    made: list[int] = []
    release = asyncio.Event()

    async def rollout() -> Trajectory:
        await release.wait()
        return Trajectory(reward=0)

    def groups() -> Iterator[PendingGroup]:
        for number in range(1000):
            made.append(number)
            yield TrajectoryGroup(rollout() for _ in range(2))

    task = asyncio.create_task(gather_trajectory_groups(groups(), max_concurrent=4))
    await asyncio.sleep(0.01)
    assert made == [0, 1]
    release.set()
    assert len(await task) == 1000


async def test_a_rollout_that_takes_too_long_fails_alone() -> None:
    made = await gather_trajectories([_after(60, 0), _after(0, 1)], timeout_s=0.05)
    assert made[0].error == RolloutError(kind="TimeoutError", message="no result after 0.05 s")
    assert made[1].reward == 1


async def test_cancelling_cancels_what_runs_and_closes_what_waits() -> None:
    ended: list[int] = []

    async def rollout(number: int) -> Trajectory:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(number)
        raise AssertionError("was not cancelled")

    groups = [TrajectoryGroup(rollout(10 * i + j) for j in range(2)) for i in range(3)]
    task = asyncio.create_task(gather_trajectory_groups(groups, max_concurrent=3))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sorted(ended) == [0, 1, 10]
    del groups
    _no_warnings_of_forgotten_coroutines()


async def test_cancelled_before_the_first_step_closes_every_coroutine() -> None:
    task = asyncio.create_task(gather_trajectories([_after(0, 0), _after(0, 1)]))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    _no_warnings_of_forgotten_coroutines()


async def test_retries_run_functions_again_and_are_counted() -> None:
    calls = 0

    async def flaky() -> Trajectory:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise OSError(f"down {calls}")
        return Trajectory(reward=1)

    (made,) = await gather_trajectories([flaky], max_retries=2)
    assert (made.reward, made.metrics, calls) == (1, {"retries": 2}, 3)
    assert made.logs == ["attempt 1 failed: OSError: down 1", "attempt 2 failed: OSError: down 2"]


async def test_the_last_failure_stays_when_retries_are_used_up() -> None:
    (group,) = await gather_trajectory_groups([TrajectoryGroup([partial(_fail, OSError("down"))])], max_retries=1)
    assert group.errors == [RolloutError(kind="OSError", message="down")]
    assert group.trajectories[0].metrics == {"retries": 1}


async def test_retries_of_a_coroutine_are_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"rollout 0 of group 0 is a coroutine.*functools\.partial"):
        await gather_trajectory_groups([TrajectoryGroup([_after(0, 0), _after(0, 1)])], max_retries=1)
    _no_warnings_of_forgotten_coroutines()


@pytest.mark.parametrize("value", [None, [Trajectory()], "text"])
async def test_a_rollout_that_gives_no_trajectory_ends_it_by_name(value: Any) -> None:
    async def rollout() -> Any:
        return value

    with pytest.raises(DataError, match=rf"rollout 1 of group 0 gave {type(value).__name__}; wanted a Trajectory"):
        await gather_trajectory_groups([TrajectoryGroup([_after(60, 0), rollout()])])


async def test_something_that_cannot_be_run_is_refused() -> None:
    with pytest.raises(DataError, match="rollout 0 is a int"):
        await gather_trajectories([7])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("allowed", "ends"), [(None, False), (2, False), (1, True), (0, True), (0.5, False), (0.4, True)]
)
async def test_max_exceptions_is_a_number_or_a_share(allowed: float | None, ends: bool) -> None:
    rollouts = [_after(0, 0), _fail(ValueError("a")), _after(0, 2), _fail(ValueError("b"))]
    if ends:
        with pytest.raises(InfrastructureError, match=r"\d rollouts failed, and max_exceptions is .*ValueError: "):
            await gather_trajectories(rollouts, max_exceptions=allowed)
    else:
        assert len(await gather_trajectories(rollouts, max_exceptions=allowed)) == 4
    _no_warnings_of_forgotten_coroutines()


async def test_after_each_scores_drops_or_splits_groups_in_place() -> None:
    async def after_each(group: TrajectoryGroup) -> Any:
        (reward,) = [trajectory.reward for trajectory in group]
        return {0: None, 1: group, 2: [group, group]}[int(reward or 0)]

    groups = [TrajectoryGroup([_after(0.01 * (2 - number), number)]) for number in range(3)]
    assert _rewards(await gather_trajectory_groups(groups, after_each=after_each)) == [[1], [2], [2]]


async def test_what_after_each_raises_ends_it_and_cancels_the_rest() -> None:
    async def after_each(group: TrajectoryGroup) -> None:
        raise RuntimeError("judge is down")

    with pytest.raises(RuntimeError, match="judge is down"):
        await gather_trajectory_groups(
            [TrajectoryGroup([_after(0, 0)]), TrajectoryGroup([_after(60, 1)])], after_each=after_each
        )


async def test_finished_groups_and_awaitables_of_groups_are_taken_too() -> None:
    async def whole() -> TrajectoryGroup:
        return TrajectoryGroup([Trajectory(reward=5)])

    async def broken() -> TrajectoryGroup:
        raise OSError("down")

    groups = await gather_trajectory_groups([TrajectoryGroup([Trajectory(reward=4)]), whole(), broken()])
    assert _rewards(groups) == [[4], [5], [None]]
    assert groups[2].errors == [RolloutError(kind="OSError", message="down")]


async def test_on_done_hears_of_each_trajectory_as_it_arrives() -> None:
    arrived: list[float | None] = []
    await gather_trajectories([_after(0.03, 0), _after(0, 1)], on_done=lambda t: arrived.append(t.reward))
    assert arrived == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_concurrent": 0}, "max_concurrent is 0"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_exceptions": -1}, "max_exceptions is -1"),
        ({"pbar_total_completion_tokens": True}, "num_trained_tokens"),
        ({"concurrency": 3}, "no argument 'concurrency'"),
    ],
)
@pytest.mark.parametrize("gather", [gather_trajectories, gather_trajectory_groups])
async def test_impossible_arguments_are_refused(
    gather: Callable[..., Awaitable[Any]], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        await gather([], **arguments)


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_core.progress._LINE_EVERY_S", 0.0)
    with Progress("gather") as progress:
        progress.expect(2)
        progress.advance(failed=True)
    assert capsys.readouterr().err.splitlines() == [
        "gather: 0 of 2 rollouts",
        "gather: 1 of 2 rollouts · 1 failed",
    ]
    with Progress(None) as silent:
        silent.expect(1)
    assert capsys.readouterr().err == ""


async def test_a_function_that_gives_no_coroutine_ends_it_by_name_and_is_no_failed_rollout() -> None:
    def rollout() -> Any:
        return Trajectory(reward=1.0)

    for retries in (0, 2):
        with pytest.raises(DataError, match=r"rollout 1 of group 0 gave Trajectory when it was called.*async def"):
            await gather_trajectory_groups([TrajectoryGroup([partial(_after, 0.0, 1), rollout])], max_retries=retries)
    with pytest.raises(DataError, match=r"rollout 0 gave Trajectory.*asyncio.to_thread"):
        await gather_trajectories([rollout])
    (made,) = await gather_trajectories([partial(asyncio.to_thread, rollout)])
    assert made.reward == 1.0


async def test_a_coroutine_that_would_run_twice_is_refused() -> None:
    coroutine = _after(0.0, 1)
    with pytest.raises(DataError, match=r"_after\(\) is to be run a second time"):
        await gather_trajectory_groups([TrajectoryGroup([coroutine, coroutine])])
    pending = TrajectoryGroup([_after(0.0, 1), _after(0.0, 2)])
    with pytest.raises(DataError, match="is to be run a second time"):
        await gather_trajectory_groups([pending, pending])
    again = TrajectoryGroup([_after(0.0, 3)])
    assert _rewards(await gather_trajectory_groups([again])) == [[3]]
    with pytest.raises(DataError, match="is to be run a second time"):
        await gather_trajectories(again.rollouts)
    _no_warnings_of_forgotten_coroutines()


async def test_an_error_that_cannot_be_printed_or_written_is_an_entry_like_any_other() -> None:
    class SilentError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("broken as well")

    errors = [SilentError(), OSError("half \ud83d of it"), TimeoutError()]
    (group,) = await gather_trajectory_groups([TrajectoryGroup([*(_fail(e) for e in errors), _after(0.0, 1)])])
    assert [error.message for error in group.errors] == [
        "(its message cannot be read: RuntimeError)",
        "half \ufffd of it",
        "",
    ]
    assert TrajectoryGroup(group.trajectories[3:], exceptions=errors).errors == group.errors
    for trajectory in group:
        assert Trajectory.model_validate_json(trajectory.model_dump_json()) == trajectory


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_concurrent": True}, "max_concurrent is True; wanted a whole number"),
        ({"max_concurrent": 2.5}, "max_concurrent is 2.5; wanted a whole number"),
        ({"max_retries": None}, "max_retries is None"),
        ({"max_retries": 1.5}, "max_retries is 1.5"),
        ({"timeout_s": "3"}, "timeout_s is '3'; wanted a number"),
        ({"max_exceptions": True}, "max_exceptions is True"),
        ({"on_done": None}, "on_done is a NoneType"),
        ({"after_each": 1}, "after_each is a int"),
    ],
)
async def test_arguments_of_another_kind_are_refused_before_anything_runs(
    arguments: dict[str, Any], message: str
) -> None:
    began = []

    async def rollout() -> Trajectory:
        began.append(1)
        return Trajectory()

    with pytest.raises(ConfigError, match=message):
        await gather_trajectory_groups([TrajectoryGroup([rollout])], **arguments)
    assert began == []


async def test_after_each_that_is_not_asynchronous_is_told() -> None:
    with pytest.raises(ConfigError, match=r"after_each gave TrajectoryGroup.*async def"):
        await gather_trajectory_groups([TrajectoryGroup([_after(0.0, 1)])], after_each=lambda group: group)  # type: ignore[arg-type, return-value]


async def test_one_group_is_no_list_of_groups() -> None:
    async def rollout() -> Trajectory:
        return Trajectory(reward=1.0)

    one: Any = TrajectoryGroup(rollout() for _ in range(2))
    with pytest.raises(ConfigError, match=r"groups is one group; wanted a list of groups"):
        await gather_trajectory_groups(one)
