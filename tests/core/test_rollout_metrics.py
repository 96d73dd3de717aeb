from __future__ import annotations

from typing import Any, Literal

import pytest

from art_core.rollout_metrics import is_repetitive, rollout_metrics
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import RolloutError
from tests.core.runs.building import exchange


def member(reward: float | None, *, ids: tuple[int, ...] = (4, 5), **fields: Any) -> Trajectory:
    made = exchange(completion_ids=ids, logprobs=(-0.1,) * len(ids), **fields)
    return Trajectory(reward=reward, exchanges=[made])


def failed(kind: str, source: Literal["rollout", "judge"] = "rollout") -> Trajectory:
    return Trajectory(error=RolloutError(kind=kind, message="m", source=source))


@pytest.mark.parametrize(
    ("rewards", "best", "worst", "tied"),
    [
        ([[1.0, 1.0], [0.0, 0.0], [0.5, 0.5], [0.0, 1.0]], 1, 1, 1),
        ([[-1.0, -1.0], [3.0, 3.0], [1.0, 1.0]], 1, 1, 1),  # of another scale than 0 to 1
        ([[7.0], [7.0, 7.0]], 1, 0, 0),
    ],
)
def test_groups_without_signal_are_divided_by_their_reward(
    rewards: list[list[float]], best: int, worst: int, tied: int
) -> None:
    groups = [TrajectoryGroup([member(r, ids=(4, 5 + i)) for i, r in enumerate(some)]) for some in rewards]
    metrics = rollout_metrics(groups)
    assert (metrics["groups/all_best"], metrics["groups/all_worst"], metrics["groups/all_tied"]) == (best, worst, tied)


def test_failures_are_counted_by_kind_and_those_of_the_judge_apart() -> None:
    given = [failed("TimeoutError"), failed("TimeoutError"), failed("Odd/Name"), failed("Unscored", "judge"),
             failed("KeyError", "judge"), member(None), member(0.5)]  # fmt: skip
    metrics = rollout_metrics([TrajectoryGroup(given)])
    assert metrics["trajectories/total"] == 7
    assert metrics["trajectories/failed"] == 3
    assert metrics["trajectories/unscored"] == 3
    assert metrics["errors/TimeoutError"] == 2
    assert metrics["errors/Odd_Name"] == 1
    assert (metrics["reward/min"], metrics["reward/max"], metrics["reward/std"]) == (0.5, 0.5, 0.0)


def test_completions_and_tools_are_counted() -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}, {"id": "2"}]}
    tool = ({"type": "function", "function": {"name": "f"}},)
    members = [
        member(0.0, finish_reason="length"),
        member(1.0, ids=(4, 4), response=call, tools=tool, num_malformed_calls=1),
        member(1.0, ids=tuple([7, 8] * 40)),
    ]
    metrics = rollout_metrics([TrajectoryGroup(members)])
    assert metrics["completions/total"] == 3
    assert metrics["completions/truncated"] == 1
    assert metrics["completions/repetitive"] == 1
    assert (metrics["tools/offered"], metrics["tools/calls"], metrics["tools/malformed"]) == (1, 2, 1)


def test_a_group_that_said_the_same_is_counted_and_one_without_calls_is_not() -> None:
    same = TrajectoryGroup([member(0.0), member(1.0)])
    other = TrajectoryGroup([member(0.0), member(1.0, ids=(9,))])
    silent = TrajectoryGroup([Trajectory(reward=0.0), Trajectory(reward=1.0)])
    assert rollout_metrics([same, other, silent])["groups/identical"] == 1


@pytest.mark.parametrize(
    ("rewards", "not_best"),
    [((1.0, 1.0), 0), ((0.0, 0.0), 1), ((0.5, 0.5), 1), ((0.0, 1.0), 1), ((1.0, 1.0 - 1e-9), 0)],
)
def test_equal_answers_that_all_earn_the_best_reward_are_told_apart(rewards: tuple[float, ...], not_best: int) -> None:
    metrics = rollout_metrics([TrajectoryGroup([member(reward) for reward in rewards])])
    assert (metrics["groups/identical"], metrics["groups/identical_not_best"]) == (1, not_best)


def test_groups_whose_members_share_no_prompt_are_counted() -> None:
    def asked(*prompts: tuple[int, ...]) -> Trajectory:
        made = [exchange(str(n), prompt_ids=prompt) for n, prompt in enumerate(prompts)]
        return Trajectory(reward=0.5, exchanges=made)

    one_task = TrajectoryGroup([asked((1,), (1, 2)), asked((3,), (1,)), asked((1,), (4,))])
    two_tasks = TrajectoryGroup([asked((1,)), asked((1,)), asked((2,))])
    assert rollout_metrics([one_task, two_tasks, TrajectoryGroup([asked((1,))])])["groups/mixed"] == 1


def test_circles_are_repetitive_and_long_texts_short_ones_and_lists_are_not() -> None:
    assert is_repetitive([1, 2, 3] * 20)
    assert not is_repetitive([1, 2, 3] * 10)  # too short to tell
    assert not is_repetitive(range(100))
    assert not is_repetitive([token for row in range(20) for token in (1, 2, row + 10, row + 40)])


def test_nothing_gives_zeros() -> None:
    assert set(rollout_metrics([]).values()) == {0.0}


def areas(metrics: dict[str, float], *areas: str) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if name.partition("/")[0] in areas}


def test_the_rollouts_of_a_step_have_tokens_and_the_time_in_which_one_was_under_way() -> None:
    def called(start: float, end: float, **fields: Any) -> Any:
        return exchange(f"{start}", started_at=start, ended_at=end, **fields)

    groups = [
        TrajectoryGroup(
            [
                Trajectory(reward=1, exchanges=[called(10, 11), called(13, 14, prompt=(1, 2, 3, 4))]),
                Trajectory(reward=0, exchanges=[called(12, 15)]),
            ]
        ),
        TrajectoryGroup([Trajectory(reward=2, exchanges=[called(21, 22)]), OSError("down"), Trajectory()]),
    ]
    metrics = rollout_metrics(groups)
    assert metrics["reward/mean"] == 1.0
    assert areas(metrics, "tokens", "time") == {
        "tokens/sampled": 8.0,
        "tokens/prompt": 13.0,
        "time/rollout_s": 6.0,  # 10 to 15, and 21 to 22
        "tokens/sampled_per_s": pytest.approx(8 / 6),
    }


def test_costs_are_sums_of_what_groups_and_trajectories_carry() -> None:
    groups = [
        TrajectoryGroup([Trajectory(metrics={"judge_cost_usd": 0.5}), Trajectory()], metrics={"judge_tokens": 10}),
        TrajectoryGroup([Trajectory(metrics={"judge_cost_usd": 0.25})], metrics={"judge_tokens": 5, "judge_calls": 2}),
    ]
    metrics = areas(rollout_metrics(groups), "cost")
    assert metrics == {"cost/judge_usd": 0.75, "cost/judge_tokens": 15.0, "cost/judge_calls": 2.0}
