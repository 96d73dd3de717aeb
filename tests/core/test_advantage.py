from __future__ import annotations

import math
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.advantage import group_advantages, has_signal, step_advantages
from art_core.errors import ConfigError, DataError
from art_core.objective import Baseline, ScaleRewards
from art_core.samples import to_samples
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange, RolloutError, Sampling

rewards = st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12)


def test_two_rewards_by_hand() -> None:
    assert group_advantages([1.0, 0.0]) == pytest.approx([1.0, -1.0], abs=1e-5)
    assert group_advantages([1.0, 0.0], scale_rewards="none") == [0.5, -0.5]


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


groups = st.lists(rewards, min_size=1, max_size=5)
scales = st.sampled_from(get_args(ScaleRewards))
baselines = st.sampled_from(get_args(Baseline))


@given(groups, scales, baselines)
def test_advantages_of_each_group_sum_to_zero(
    values: list[list[float]], scale: ScaleRewards, baseline: Baseline
) -> None:
    advantages = step_advantages(values, scale_rewards=scale, baseline=baseline)
    assert [len(of_group) for of_group in advantages] == [len(of_group) for of_group in values]
    for of_group in advantages:
        assert math.fsum(of_group) == pytest.approx(0.0, abs=1e-6)


@given(groups, scales, baselines, st.randoms())
def test_who_stands_where_in_a_group_or_a_step_changes_nothing(
    values: list[list[float]], scale: ScaleRewards, baseline: Baseline, random: Random
) -> None:
    plain = step_advantages(values, scale_rewards=scale, baseline=baseline)
    order = [random.sample(range(len(of_group)), len(of_group)) for of_group in values]
    places = random.sample(range(len(values)), len(values))
    shuffled = [[values[place][index] for index in order[place]] for place in places]
    found = step_advantages(shuffled, scale_rewards=scale, baseline=baseline)
    for place, of_group in zip(places, found, strict=True):
        assert of_group == pytest.approx([plain[place][index] for index in order[place]], rel=1e-6, abs=1e-6)


@given(
    st.lists(st.lists(st.integers(-8, 8), min_size=2, max_size=6), min_size=1, max_size=4).filter(
        lambda groups: any(len(set(group)) > 1 for group in groups)
    ),
    st.sampled_from(["group", "batch"]),
    baselines,
    st.sampled_from([2.0, 3.0, 1e3, 1e5]),
)
def test_scaled_advantages_do_not_depend_on_the_unit_of_rewards(
    values: list[list[int]], scale: ScaleRewards, baseline: Baseline, unit: float
) -> None:
    plain = step_advantages(values, scale_rewards=scale, baseline=baseline)
    scaled = step_advantages(
        [[unit * value for value in group] for group in values], scale_rewards=scale, baseline=baseline
    )
    for ours, theirs in zip(plain, scaled, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-5)


@given(groups, baselines, st.floats(-1e3, 1e3))
def test_advantages_that_are_not_scaled_grow_with_rewards(
    values: list[list[float]], baseline: Baseline, unit: float
) -> None:
    plain = step_advantages(values, scale_rewards="none", baseline=baseline)
    scaled = step_advantages(
        [[unit * value for value in group] for group in values], scale_rewards="none", baseline=baseline
    )
    for ours, theirs in zip(plain, scaled, strict=True):
        assert theirs == pytest.approx([unit * value for value in ours], abs=1e-6)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8))
def test_leave_one_out_compares_with_the_mean_of_the_others(values: list[float]) -> None:
    found = group_advantages(values, scale_rewards="none", baseline="leave_one_out")
    for index, advantage in enumerate(found):
        others = values[:index] + values[index + 1 :]
        assert advantage == pytest.approx(values[index] - math.fsum(others) / len(others), abs=1e-9)


def test_leave_one_out_by_hand() -> None:
    """Rewards 1, 0, 0, 1: the others of a 1 have the mean 1/3, those of a 0 the mean 2/3."""
    assert group_advantages([1, 0, 0, 1], scale_rewards="none", baseline="leave_one_out") == pytest.approx(
        [2 / 3, -2 / 3, -2 / 3, 2 / 3]
    )
    assert group_advantages([3.0], scale_rewards="none", baseline="leave_one_out") == [0.0]


def test_the_deviation_of_the_batch_is_that_of_the_centred_rewards_of_all_groups() -> None:
    """Centred: 1, -1 and 2, -2, 0. Mean of squares (1+1+4+4+0)/5 = 2. The means of groups, 1 and 102, play no part."""
    found = step_advantages([[2.0, 0.0], [104.0, 100.0, 102.0]], scale_rewards="batch", epsilon=0.0)
    root = math.sqrt(2)
    assert found[0] == pytest.approx([1 / root, -1 / root])
    assert found[1] == pytest.approx([2 / root, -2 / root, 0.0])


def test_the_batch_with_leave_one_out_divides_by_the_deviation_of_those_differences() -> None:
    """Groups of 2 and 3: differences 2, -2 and 3, -3, 0; mean of squares (4+4+9+9+0)/5 = 5.2."""
    found = step_advantages(
        [[2.0, 0.0], [104.0, 100.0, 102.0]], scale_rewards="batch", baseline="leave_one_out", epsilon=0.0
    )
    assert found[0] == pytest.approx([2 / math.sqrt(5.2), -2 / math.sqrt(5.2)])
    assert found[1] == pytest.approx([3 / math.sqrt(5.2), -3 / math.sqrt(5.2), 0.0])


def test_a_step_without_groups_or_members_has_no_advantages() -> None:
    for scale in get_args(ScaleRewards):
        assert step_advantages([], scale_rewards=scale) == []
        assert step_advantages([[], [1.0, 1.0]], scale_rewards=scale) == [[], [0.0, 0.0]]


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
        ([1e6, 1e6 + 1e-9], False),
        ([-1e6, -1e6 + 1e-3], True),
        ([1e10, math.nextafter(1e10, math.inf)], False),  # a unit in the last place, which is 1.9e-6
        ([1e10, 1e10 + 1.0], True),
        ([1e300, math.nextafter(1e300, math.inf)], False),
        ([0.0, 5e-324], False),
        ([0.0, -0.0], False),
        ([0.0, 1e-6], False),
        ([0.0, 1.1e-6], True),
    ],
)
def test_signal_is_a_spread_beyond_rounding(values: list[float], expected: bool) -> None:
    assert has_signal(values) is expected


@given(st.floats(-1e12, 1e12), st.lists(st.integers(-2, 2), min_size=2, max_size=6))
def test_rewards_that_differ_by_rounding_only_have_no_signal_however_large(reward: float, places: list[int]) -> None:
    assert not has_signal([reward + place * math.ulp(reward) for place in places])


@given(st.floats(-1e9, 1e9), st.floats(0.01, 10.0))
def test_rewards_far_from_zero_have_the_advantages_of_those_near_it(offset: float, spread: float) -> None:
    values = [offset, offset + spread, offset]
    exact = [(value - offset) / (values[1] - offset) for value in values]  # 0, 1, 0
    assert has_signal(values)
    assert group_advantages(values) == pytest.approx(group_advantages(exact), rel=1e-3)


@pytest.mark.parametrize("values", [[math.inf, 0.0], [math.nan, 0.0], [0.0, math.nan], [math.inf, math.inf]])
def test_rewards_that_are_not_finite_are_never_taken_for_no_signal(values: list[float]) -> None:
    assert has_signal(values)
    for scale in get_args(ScaleRewards):
        with pytest.raises(DataError, match="too far apart"):
            group_advantages(values, scale_rewards=scale)


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
    advantages = group_advantages(scored.rewards, scale_rewards="none")
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
        for scale in get_args(ScaleRewards):
            with pytest.raises(DataError, match="too far apart"):
                group_advantages(rewards, scale_rewards=scale)


def test_words_of_options_are_checked_and_booleans_mean_the_group_or_nothing() -> None:
    assert group_advantages([0.0, 2.0], scale_rewards=False) == [-1.0, 1.0]
    assert group_advantages([0.0, 2.0], scale_rewards=True) == group_advantages([0.0, 2.0])
    wrong: Any
    for name, wrong in (("scale_rewards", "std"), ("baseline", "loo")):
        with pytest.raises(ConfigError, match=f"{name} is '{wrong}'; wanted one of"):
            group_advantages([0.0, 2.0], **{name: wrong})
