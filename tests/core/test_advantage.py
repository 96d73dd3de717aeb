from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.advantage import group_advantages, has_signal
from art_core.errors import DataError
from art_core.samples import to_samples
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange, RolloutError, Sampling

rewards = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12)


def test_two_rewards_by_hand() -> None:
    assert group_advantages([1.0, 0.0]) == pytest.approx([1.0, -1.0], abs=1e-5)
    assert group_advantages([1.0, 0.0], scale_by_std=False) == [0.5, -0.5]


def test_the_deviation_is_that_of_the_population() -> None:
    """Rewards 0, 0, 3: mean 1, squared differences 1, 1 and 4, so the deviation is sqrt(2), not sqrt(3)."""
    assert group_advantages([0.0, 0.0, 3.0], epsilon=0.0) == pytest.approx(
        [-1 / math.sqrt(2), -1 / math.sqrt(2), 2 / math.sqrt(2)]
    )


def test_epsilon_is_added_to_the_deviation() -> None:
    assert group_advantages([1.0, 0.0], epsilon=0.5) == [0.5, -0.5]


def test_equal_rewards_have_no_advantage() -> None:
    assert group_advantages([0.7, 0.7, 0.7]) == pytest.approx([0.0, 0.0, 0.0], abs=1e-9)


def test_nothing_and_a_group_of_one() -> None:
    assert group_advantages([]) == []
    assert group_advantages([3.0]) == [0.0]


@given(rewards, st.booleans())
def test_advantages_of_a_group_sum_to_zero(values: list[float], scale: bool) -> None:
    advantages = group_advantages(values, scale_by_std=scale)
    assert len(advantages) == len(values)
    assert math.fsum(advantages) == pytest.approx(0.0, abs=1e-6)


@given(rewards)
def test_a_better_reward_never_has_a_smaller_advantage(values: list[float]) -> None:
    advantages = group_advantages(values)
    for left, first in zip(values, advantages, strict=True):
        for right, second in zip(values, advantages, strict=True):
            assert left <= right or first >= second


@given(st.lists(st.integers(-8, 8), min_size=2, max_size=8), st.integers(-100, 100))
def test_a_reward_added_to_all_changes_nothing(values: list[int], shift: int) -> None:
    plain = group_advantages([float(value) for value in values])
    assert group_advantages([float(value + shift) for value in values]) == pytest.approx(plain, abs=1e-6)


@given(st.lists(st.integers(-8, 8), min_size=2, max_size=8))
def test_the_mirrored_rewards_have_the_mirrored_advantages(values: list[int]) -> None:
    plain = group_advantages([float(value) for value in values])
    assert group_advantages([float(-value) for value in values]) == pytest.approx([-a for a in plain])


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=12).filter(lambda values: max(values) - min(values) > 1e-2))
def test_scaled_advantages_have_unit_variance(values: list[float]) -> None:
    advantages = group_advantages(values)
    assert math.fsum(a * a for a in advantages) / len(advantages) == pytest.approx(1.0, rel=1e-2)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([], False),
        ([1.0], False),
        ([0.5, 0.5], False),
        ([0.1 + 0.2, 0.3], False),
        ([0.0, 1e-3], True),
        ([1.0, 1.0, 0.0], True),
    ],
)
def test_signal_is_a_spread_beyond_rounding(values: list[float], expected: bool) -> None:
    assert has_signal(values) is expected


def _exchange(trajectory_id: str, prompt_ids: tuple[int, ...], completion_ids: tuple[int, ...]) -> Exchange:
    return Exchange(
        id=f"{trajectory_id}/{len(prompt_ids)}",
        trajectory_id=trajectory_id,
        messages=(),
        response={},
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=(-1.0,) * len(completion_ids),
        finish_reason="stop",
        sampling=Sampling(max_tokens=8),
        policy_version=0,
        started_at=0.0,
        ended_at=0.0,
    )


def test_a_trajectory_of_many_rows_counts_once_in_the_statistics() -> None:
    """A (reward 1) gives three rows and B (reward 0) one: the mean is 0.5, and all rows of A carry A's advantage."""
    many = Trajectory(
        id="A", scenario_id="s", exchanges=[_exchange("A", prompt, (9,)) for prompt in ((1,), (2, 2), (3, 3, 3))]
    )
    one = Trajectory(id="B", scenario_id="s", exchanges=[_exchange("B", (1,), (8,))])
    scored = TrajectoryGroup((many, one), scenario_id="s").with_scores([1.0, 0.0])
    advantages = group_advantages(scored.rewards, scale_by_std=False)
    assert advantages == [0.5, -0.5]
    rows = [
        [row.advantage for row in to_samples(trajectory, advantage)]
        for (trajectory, _), advantage in zip(scored.members, advantages, strict=True)
    ]
    assert rows == [[0.5, 0.5, 0.5], [-0.5]]


def test_an_unscored_rollout_is_not_a_zero_among_failures() -> None:
    trajectories = tuple(Trajectory(id=str(number), scenario_id="s") for number in range(4))
    scored = TrajectoryGroup(trajectories, scenario_id="s").with_scores([None, -1.0, -1.0, -1.0])
    assert scored.num_excluded == 1
    assert [trajectory.id for trajectory, _ in scored.members] == ["1", "2", "3"]
    assert not has_signal(scored.rewards)


def test_a_failed_rollout_is_left_out_whatever_its_score() -> None:
    failed = Trajectory(id="failed", scenario_id="s", error=RolloutError(kind="InfrastructureError", message="died"))
    others = tuple(Trajectory(id=name, scenario_id="s") for name in "ab")
    scored = TrajectoryGroup((failed, *others), scenario_id="s").with_scores([0.0, 1.0, 0.5])
    assert scored.num_excluded == 1
    assert scored.rewards == [1.0, 0.5]


def test_rewards_beyond_what_a_float_can_compare_are_refused_and_give_no_silent_zero() -> None:
    for rewards in ([1e200, -1e200], [1e308, 1e308, -1e308]):
        for scale in (True, False):
            with pytest.raises(DataError, match="too far apart"):
                group_advantages(rewards, scale_by_std=scale)
