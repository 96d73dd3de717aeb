"""Groups without signal, replaced by further ones up to a bound: what is run, where it stands, what is told."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.gather import gather_trajectory_groups
from art_core.outcomes import group_averages
from art_core.refill import arranged
from art_core.trajectories import PendingGroup, Trajectory, TrajectoryGroup


async def rollout(reward: float | None, delay_s: float = 0.0) -> Trajectory:
    await asyncio.sleep(delay_s)
    if reward is not None and reward < 0:
        raise ConnectionError("the shop is closed")
    return Trajectory(reward=reward)


def group(name: str, *rewards: float | None, delay_s: float = 0.0) -> PendingGroup:
    """Rollouts with these rewards; a negative one is that of a rollout that fails."""
    return TrajectoryGroup([functools.partial(rollout, reward, delay_s) for reward in rewards], scenario_id=name)


def names(groups: Iterable[TrajectoryGroup]) -> list[str]:
    return [one.scenario_id for one in groups]


gather: Callable[..., Awaitable[list[TrajectoryGroup]]] = functools.partial(gather_trajectory_groups, pbar_desc=None)


async def test_a_group_without_signal_is_followed_by_the_one_in_its_place() -> None:
    found = await gather(
        [group("a", 0, 1), group("b", 1, 1), group("c", 0, 1)],
        refill=[group("r", 1, 0), group("s", 1, 0)],
        max_refills=4,
    )
    assert names(found) == ["a", "b", "r", "c"]
    assert [one.metrics["refill"] for one in found] == [0, 0, 1, 0]
    assert [one.logs for one in found] == [
        [],
        ["its rewards do not differ, and a further group was run in its place"],
        [],
        [],
    ]
    assert group_averages(found)["group_refill"] == (0.25, 4)


async def test_without_refill_nothing_is_added_to_the_groups() -> None:
    found = await gather([group("a", 1, 1), group("b", 0, 1)])
    assert names(found) == ["a", "b"]
    assert [(dict(one.metrics), one.logs) for one in found] == [({}, []), ({}, [])]


async def test_a_refill_without_signal_is_replaced_in_turn_up_to_the_bound() -> None:
    made: list[int] = []

    def more() -> Iterator[PendingGroup]:
        for number in itertools.count():
            made.append(number)
            yield group(f"r{number}", 1, 1)

    found = await gather([group("a", 1, 1), group("b", 0, 0)], refill=more(), max_refills=5)
    assert names(found) == ["a", "r0", "r2", "r4", "b", "r1", "r3"]
    assert made == [0, 1, 2, 3, 4]
    assert [one.logs[-1].partition(", and ")[2].split(" was")[0] for one in found] == [
        "a further group",
        "a further group",
        "a further group",
        "no further group",
        "a further group",
        "a further group",
        "no further group",
    ]


async def test_an_iterator_that_runs_dry_leaves_the_rest_as_it_is() -> None:
    found = await gather(
        [group("a", 1, 1), group("b", 1, 1), group("c", 1, 1)], refill=iter([group("r", 0, 1)]), max_refills=9
    )
    assert names(found) == ["a", "r", "b", "c"]
    assert await gather([group("a", 1, 1)], refill=[], max_refills=9)


async def test_a_judge_scores_before_anything_is_replaced() -> None:
    async def judge(whole: TrajectoryGroup) -> TrajectoryGroup:
        await asyncio.sleep(0.001)
        for trajectory, reward in zip(whole, (0.0, 1.0 if whole.scenario_id != "b" else 0.0), strict=True):
            trajectory.reward = reward
        return whole

    found = await gather(
        [group("a", None, None), group("b", None, None)],
        refill=(group(f"r{number}", None, None) for number in itertools.count()),
        max_refills=3,
        after_each=judge,
    )
    assert names(found) == ["a", "b", "r0"]


async def test_what_after_each_leaves_out_or_splits_is_one_place() -> None:
    async def filtered(whole: TrajectoryGroup) -> Any:
        if whole.scenario_id == "gone":
            return None
        halves = [TrajectoryGroup(list(whole)[at : at + 2], scenario_id=f"{whole.scenario_id}{at}") for at in (0, 2)]
        return halves if whole.scenario_id == "split" else whole

    found = await gather(
        [group("gone", 0, 1), group("split", 1, 1, 0, 1)],
        refill=[group("r", 0, 1), group("never", 0, 1)],
        max_refills=9,
        after_each=filtered,
    )
    assert names(found) == ["r", "split0", "split2"]


async def test_failed_members_do_not_count_and_a_group_of_failures_has_no_signal() -> None:
    found = await gather(
        [group("one left", 1, -1), group("two left", 0, 1, -1), group("none", -1, -1)],
        refill=(group(f"r{number}", 0, 1) for number in itertools.count()),
        max_refills=9,
    )
    assert names(found) == ["one left", "r0", "two left", "none", "r1"]
    with pytest.raises(InfrastructureError, match="2 rollouts failed"):
        await gather([group("a", 1, 1)], refill=[group("r", -1, -1)], max_refills=1, max_exceptions=1)


async def test_a_share_of_failures_is_that_of_all_rollouts_with_the_refills() -> None:
    groups = [group("a", 1, 1), group("b", 0, 1)]
    found = await gather(groups, refill=[group("r", 0, 1, -1, -1)], max_refills=1, max_exceptions=0.25)
    assert names(found) == ["a", "r", "b"]
    with pytest.raises(InfrastructureError, match=r"2 rollouts failed, and max_exceptions is 0\.2"):
        await gather(
            [group("a", 1, 1), group("b", 0, 1)], refill=[group("r", 0, 1, -1, -1)], max_refills=1, max_exceptions=0.2
        )


async def test_rewards_that_are_not_known_are_asked_for() -> None:
    with pytest.raises(DataError, match=r"no reward on 2 of 2 trajectories .* score it in after_each"):
        await gather([group("a", None, None)], refill=[group("r", 0, 1)], max_refills=1)
    assert len(await gather([group("a", None, None)])) == 1


async def test_finished_groups_are_replaced_as_well() -> None:
    done = TrajectoryGroup([Trajectory(reward=1), Trajectory(reward=1)], scenario_id="done")
    found = await gather([done], refill=[done, group("r", 0, 1)], max_refills=2)
    assert names(found) == ["done", "done", "r"]


async def test_a_refill_starts_while_other_groups_still_run() -> None:
    order: list[str] = []

    async def noted(name: str, reward: float, wait_for: str | None = None) -> Trajectory:
        while wait_for is not None and wait_for not in order:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        order.append(name)
        return Trajectory(reward=reward)

    def of(name: str, *rewards: float, wait_for: str | None = None) -> PendingGroup:
        return TrajectoryGroup([functools.partial(noted, name, r, wait_for) for r in rewards], scenario_id=name)

    found = await asyncio.wait_for(
        gather([of("slow", 0, 1, wait_for="r"), of("equal", 1, 1)], refill=[of("r", 0, 1)], max_refills=1), 20
    )
    assert names(found) == ["slow", "equal", "r"]


@pytest.mark.parametrize("limit", [1, 2, None])
async def test_refills_keep_to_the_limit_of_rollouts(limit: int | None) -> None:
    running = peak = 0

    async def counted(reward: float) -> Trajectory:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await asyncio.sleep(0.001)
        running -= 1
        return Trajectory(reward=reward)

    def of(*rewards: float) -> PendingGroup:
        return TrajectoryGroup([functools.partial(counted, reward) for reward in rewards])

    found = await asyncio.wait_for(
        gather([of(1, 1), of(1, 1)], refill=(of(1, 1) for _ in itertools.count()), max_refills=5, max_concurrent=limit),
        20,
    )
    assert len(found) == 7
    assert peak <= (limit or 99)


cases = st.lists(st.booleans(), min_size=1, max_size=6)


@given(
    cases,
    cases,
    st.integers(1, 6),
    st.lists(st.integers(0, 3), min_size=12, max_size=12),
    st.sampled_from([1, 2, None]),
)
@settings(max_examples=60, deadline=None)
def test_what_is_run_and_where_it_stands_does_not_depend_on_what_finishes_first(
    inputs: Sequence[bool], refills: Sequence[bool], bound: int, delays: Sequence[int], limit: int | None
) -> None:
    """Against what one group after the other would give."""

    def run(delay_of: Callable[[int], float], max_concurrent: int | None) -> list[str]:
        all_ = [*inputs, *refills]
        pending = [
            group(f"{'i' if number < len(inputs) else 'r'}{number}", 1, float(not signal), delay_s=delay_of(number))
            for number, signal in enumerate(all_)
        ]
        return names(
            asyncio.run(
                gather_trajectory_groups(
                    pending[: len(inputs)],
                    refill=iter(pending[len(inputs) :]),
                    max_refills=bound,
                    max_concurrent=max_concurrent,
                    pbar_desc=None,
                )
            )
        )

    one_by_one = run(lambda _: 0.0, 1)
    assert run(lambda number: 0.001 * delays[number], limit) == one_by_one
    num_taken = 0
    while num_taken < min(bound, len(refills), [*inputs, *refills[:num_taken]].count(False)):
        num_taken += 1
    taken = sorted(int(name[1:]) - len(inputs) for name in one_by_one if name[0] == "r")
    assert taken == list(range(num_taken))
    assert [name for name in one_by_one if name[0] == "i"] == [f"i{number}" for number in range(len(inputs))]


def test_the_nth_refill_stands_for_the_nth_place_without_signal() -> None:
    places = [[TrajectoryGroup([], scenario_id=name)] for name in ("a", "b", "c", "r0", "r1", "r2")]
    found = arranged(places, [True, False, True, True, False, False], num_inputs=3)
    assert names(found) == ["a", "r0", "r2", "b", "c", "r1"]


async def test_a_stream_of_tasks_serves_inputs_and_refills_and_goes_on_after_the_call() -> None:
    stream = (group(str(number), 1, float(number % 3 == 0)) for number in itertools.count())
    first = await gather(itertools.islice(stream, 2), refill=stream, max_refills=9)
    assert names(first) == ["0", "2", "1"]
    assert names(await gather(itertools.islice(stream, 1), refill=stream, max_refills=9)) == ["3", "4"]


async def test_cancelled_it_cancels_refills_and_closes_what_was_not_run() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def endless() -> Trajectory:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return Trajectory(reward=0)

    refill = [TrajectoryGroup([endless(), endless()]), TrajectoryGroup([rollout(0), rollout(1)])]
    task = asyncio.ensure_future(gather([group("a", 1, 1)], refill=refill, max_refills=2))
    await asyncio.wait_for(started.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled.is_set()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del refill
        gc.collect()


async def test_refills_that_were_not_needed_are_closed() -> None:
    found = await gather(
        [group("a", 0, 1)], refill=[TrajectoryGroup([rollout(0), rollout(1)]), rollout(2)], max_refills=2
    )
    assert names(found) == ["a"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gc.collect()


async def test_an_error_in_the_source_of_refills_ends_it() -> None:
    def broken() -> Iterator[PendingGroup]:
        yield group("r", 1, 1)
        raise DataError("no more tasks")

    with pytest.raises(DataError, match="no more tasks"):
        await gather([group("a", 1, 1)], refill=broken(), max_refills=3)
    with pytest.raises(DataError, match="rollout 1 is a str"):
        await gather([group("a", 1, 1)], refill=["r"], max_refills=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"refill": []}, "refill is given without max_refills"),
        ({"max_refills": 3}, "max_refills is given without refill"),
        ({"refill": [], "max_refills": 0}, "max_refills is 0; wanted a whole number, 1 or more"),
        ({"refill": [], "max_refills": True}, "max_refills is True"),
        ({"refill": [], "max_refills": 1.5}, "max_refills is 1.5"),
        ({"refill": 3, "max_refills": 1}, "refill is a int; wanted groups"),
        ({"refills": []}, r"no argument 'refills': did you mean 'refill'\?"),
    ],
)
async def test_half_of_the_option_and_other_kinds_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await gather([group("a", 1, 1)], **options)
