"""What becomes of truncated and overlong trajectories, and that every member of every group is accounted for."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.config import TrainConfig, Truncated
from art_core.errors import ConfigError, DataError
from art_core.outcomes import skip_reason
from art_core.rows import training_rows
from art_core.samples import to_samples
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Exchange, FinishReason, RolloutError, Sampling, TokenSample


def call(
    prompt: tuple[int, ...], completion: tuple[int, ...], finish_reason: FinishReason = "stop", *, role: str = ""
) -> Exchange:
    return Exchange(
        id="x",
        trajectory_id="t",
        messages=(),
        response={},
        prompt_ids=prompt,
        completion_ids=completion,
        logprobs=tuple(-0.5 - index for index in range(len(completion))),
        finish_reason=finish_reason,
        sampling=Sampling(max_tokens=8),
        policy_version=0,
        metadata={"role": role} if role else {},
        started_at=0.0,
        ended_at=1.0,
    )


def attempt(id: str, *exchanges: Exchange) -> Trajectory:
    return Trajectory(id=id, exchanges=list(exchanges) or [call((1, 2), (3, 4))])


def cut_off(id: str) -> Trajectory:
    """Two turns, the last of which ended at its limit; one row."""
    return attempt(id, call((1,), (2, 3)), call((1, 2, 3, 4), (5, 6, 7), "length"))


def scored(*members: tuple[Trajectory, float]) -> ScoredGroup:
    return TrajectoryGroup([member for member, _ in members]).with_scores([reward for _, reward in members])


def nonzero(counters: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in counters.items() if value and name != "groups/total"}


def made(*groups: ScoredGroup, **options: Any) -> tuple[dict[str, float], dict[str, float]]:
    """The advantage of each trajectory that has rows, and the counters that are not zero."""
    rows, counters = training_rows(groups, policy_version=0, config=TrainConfig(scale_rewards="none", **options))
    return {row.trajectory_id: row.advantage for row in rows}, nonzero(counters)


def test_truncated_trajectories_are_trained_masked_or_dropped() -> None:
    """Rewards 3, 0, 0, the first of an answer that was cut off: the mean is 1 with it, and without it there is none."""
    group = scored((cut_off("cut"), 3.0), (attempt("a"), 0.0), (attempt("b"), 1.5))
    assert made(group) == (
        {"cut": 1.5, "a": -1.5, "b": 0.0},
        {"trajectories/trained": 3, "trajectories/truncated": 1},
    )
    assert made(group, truncated="mask") == (
        {"a": -1.5, "b": 0.0},
        {"trajectories/trained": 2, "trajectories/truncated": 1, "trajectories/masked_truncated": 1},
    )
    assert made(group, truncated="drop") == (
        {"a": -0.75, "b": 0.75},
        {"trajectories/trained": 2, "trajectories/truncated": 1, "trajectories/dropped_truncated": 1},
    )


def test_what_is_dropped_may_leave_a_group_too_small_or_without_signal() -> None:
    small = scored((cut_off("cut"), 1.0), (attempt("a"), 0.0))
    alike = scored((cut_off("cut"), 1.0), (attempt("a"), 0.0), (attempt("b"), 0.0))
    advantages, counters = made(small, alike, truncated="drop")
    assert advantages == {}
    assert counters == {
        "groups/too_small": 1,
        "groups/without_signal": 1,
        "trajectories/truncated": 2,
        "trajectories/dropped_truncated": 2,
    }


def test_a_masked_trajectory_has_no_token_in_any_count() -> None:
    """It gives no row at all, so nothing that is said of rows, tokens or forks can disagree about it."""
    forked = attempt("forked", call((1,), (2, 3)), call((9,), (5,), "length"))
    rows, counters = training_rows(
        [scored((forked, 1.0), (attempt("a"), 0.0))], policy_version=0, config=TrainConfig(truncated="mask")
    )
    assert [(row.trajectory_id, row.num_trained) for row in rows] == [("a", 2)]
    assert counters["trajectories/forks"] == 0
    assert counters["trajectories/masked_truncated"] == 1


@pytest.mark.parametrize("truncated", ["mask", "drop"])
def test_answers_of_roles_that_are_not_trained_may_be_truncated(truncated: Truncated) -> None:
    helped = attempt("helped", call((1,), (2,), role="worker"), call((5,), (6,), "length", role="critic"))
    other = attempt("other", call((1,), (3,), role="worker"))
    group = scored((helped, 1.0), (other, 0.0))
    advantages, counters = made(group, truncated=truncated, roles=("worker",))
    assert advantages == {"helped": 0.5, "other": -0.5}
    assert counters == {"trajectories/trained": 2, "exchanges/other_roles": 1}


def long() -> Trajectory:
    """Two rows: of 6 tokens, trained at 1, 2, 4 and 5; and of 5 tokens, trained at 4 only."""
    return attempt("long", call((1,), (2, 3)), call((1, 2, 3, 4), (5, 6)), call((9, 9, 9, 9), (7,)))


def test_overlong_rows_are_refused_naming_the_trajectory() -> None:
    group = scored((long(), 1.0), (attempt("a"), 0.0))
    for options in ({}, {"overlong": "refuse"}):
        with pytest.raises(
            DataError, match=r"trajectory 'long' has a row of 6 tokens, and max_row_tokens is 5; .*'cut'"
        ):
            made(group, max_row_tokens=5, **options)
    assert made(group, max_row_tokens=6)[0] == {"long": 0.5, "a": -0.5}


def test_overlong_rows_keep_their_first_tokens() -> None:
    group = scored((long(), 1.0), (attempt("a"), 0.0))
    config = TrainConfig(scale_rewards="none", max_row_tokens=4, overlong="cut")
    rows, counters = training_rows([group], policy_version=0, config=config)
    assert rows[0] == TokenSample(
        token_ids=(1, 2, 3, 4),
        trained=(False, True, True, False),
        logprobs=(0.0, -0.5, -1.5, 0.0),
        advantage=0.5,
        policy_version=0,
        trajectory_id="long",
    )
    assert [row.trajectory_id for row in rows] == ["long", "a"]
    assert nonzero(counters) == {
        "trajectories/trained": 2,
        "trajectories/forks": 1,
        "rows/cut": 2,
        "rows/cut_untrained": 1,
        "tokens/cut": 3,
    }


def test_a_trajectory_of_which_the_cut_leaves_nothing_trained_is_counted() -> None:
    group = scored((attempt("late", call((9, 9, 9), (7,))), 1.0), (attempt("a", call((1,), (2,))), 0.0))
    advantages, counters = made(group, max_row_tokens=3, overlong="cut")
    assert advantages == {"a": -0.5}
    assert (counters["rows/cut_untrained"], counters["trajectories/without_tokens"]) == (1, 1)


def test_overlong_trajectories_are_masked_or_dropped_whole() -> None:
    group = scored((long(), 3.0), (attempt("a"), 0.0), (attempt("b"), 1.5))
    assert made(group, max_row_tokens=5, overlong="mask") == (
        {"a": -1.5, "b": 0.0},
        {"trajectories/trained": 2, "trajectories/masked_overlong": 1},
    )
    assert made(group, max_row_tokens=5, overlong="drop") == (
        {"a": -0.75, "b": 0.75},
        {"trajectories/trained": 2, "trajectories/dropped_overlong": 1},
    )


def test_a_truncated_trajectory_that_is_left_out_is_not_looked_at_for_its_length() -> None:
    group = scored((cut_off("cut"), 1.0), (attempt("a"), 0.0), (attempt("b"), 1.0))
    advantages, counters = made(group, truncated="drop", max_row_tokens=4)
    assert advantages == {"a": -0.5, "b": 0.5}
    assert counters["trajectories/dropped_truncated"] == 1


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"truncated": "mask"}, "4 trajectories are masked because an answer ended at its token limit"),
        (
            {"truncated": "drop"},
            "1 of 1 groups have fewer than two trajectories that can be compared; 4 trajectories are dropped because "
            "an answer ended at its token limit",
        ),
        (
            {"max_row_tokens": 2, "overlong": "mask"},
            "4 trajectories are masked because a row is longer than max_row_tokens",
        ),
        (
            {"max_row_tokens": 2, "overlong": "drop"},
            "1 of 1 groups have fewer than two trajectories that can be compared; 4 trajectories are dropped because a "
            "row is longer than max_row_tokens",
        ),
    ],
)
def test_when_nothing_is_left_the_reason_is_told(options: dict[str, Any], reason: str) -> None:
    group = scored(*((cut_off(str(number)), float(number % 2)) for number in range(4)))
    rows, counters = training_rows([group], policy_version=0, config=TrainConfig(**options))
    assert rows == []
    assert skip_reason([group], counters) == reason


def test_rows_cut_down_to_nothing_are_the_reason() -> None:
    group = scored(*((attempt(str(number), call((1, 1, 1), (2,))), float(number)) for number in range(2)))
    config = TrainConfig(max_row_tokens=2, overlong="cut")
    _, counters = training_rows([group], policy_version=0, config=config)
    assert skip_reason([group], counters) == (
        "2 rows have no trained token in their first max_row_tokens tokens; 2 trajectories have no trained token"
    )


def test_defaults_of_the_advantage_are_those_of_the_loss() -> None:
    groups = [scored((attempt("a"), 1.0), (attempt("b"), 0.0)), scored((attempt("c"), 9.0), (attempt("d"), 0.0))]

    def advantages(**options: Any) -> list[float]:
        rows, _ = training_rows(groups, policy_version=0, config=TrainConfig(**options))
        return [row.advantage for row in rows]

    plain, of_group = [0.5, -0.5, 4.5, -4.5], pytest.approx([1, -1, 1, -1], rel=1e-5)
    assert advantages() == advantages(scale_rewards=True) == advantages(scale_rewards="group") == of_group
    assert advantages(loss="dr_grpo") == advantages(scale_rewards=False) == advantages(scale_rewards="none") == plain
    assert advantages(loss="dr_grpo", scale_rewards=True) == of_group
    assert advantages(baseline="leave_one_out") == [1, -1, 9, -9]
    root = ((0.25 + 4.5**2) / 2) ** 0.5
    assert advantages(scale_rewards="batch") == pytest.approx([value / root for value in plain], rel=1e-5)


def test_groups_without_signal_are_no_part_of_the_batch() -> None:
    """Their zeros would make the deviation smaller, and so every advantage larger."""
    mixed = scored((attempt("a"), 1.0), (attempt("b"), 0.0))
    equal = scored((attempt("c"), 0.0), (attempt("d"), 0.0))
    for scale in ("batch", "group", "none"):
        config = TrainConfig(scale_rewards=scale)
        alone, _ = training_rows([mixed], policy_version=0, config=config)
        together, counters = training_rows([equal, mixed, equal], policy_version=0, config=config)
        assert together == alone
        assert counters["groups/without_signal"] == 2


def test_a_trajectory_of_three_rows_counts_once_in_the_statistics() -> None:
    """For each way to compare and to scale: mean and deviation are those of two trajectories, not of four rows."""
    many = attempt("many", *(call((number,), (9,)) for number in (1, 2, 3)))
    group = scored((many, 1.0), (attempt("one"), 0.0))
    for config, wanted in (
        (TrainConfig(scale_rewards="none"), 0.5),
        (TrainConfig(scale_rewards="group"), 1.0),
        (TrainConfig(scale_rewards="batch"), 1.0),
        (TrainConfig(baseline="leave_one_out"), 1.0),
    ):
        rows, _ = training_rows([group], policy_version=0, config=config)
        assert [row.advantage for row in rows] == pytest.approx([wanted, wanted, wanted, -wanted], rel=1e-5)


def test_a_member_that_failed_or_has_no_reward_changes_nobody_elses_advantage() -> None:
    failed = Trajectory(id="failed", error=RolloutError(kind="OSError", message="died"), exchanges=[call((1,), (2,))])
    plain = scored((attempt("a"), 0.0), (attempt("b"), -1.0), (attempt("c"), -1.0))
    members = [attempt("unset"), failed, *(member for member, _ in plain.members)]
    with_both = TrajectoryGroup(members).with_scores([None, 5.0, 0.0, -1.0, -1.0])
    for config in (
        TrainConfig(),
        TrainConfig(scale_rewards="batch"),
        TrainConfig(scale_rewards=False),
        TrainConfig(baseline="leave_one_out"),
    ):
        rows, counters = training_rows([with_both], policy_version=0, config=config)
        assert rows == training_rows([plain], policy_version=0, config=config)[0]
        assert counters["trajectories/excluded"] == 2


def test_an_unset_reward_among_failures_is_no_zero() -> None:
    group = TrajectoryGroup([attempt(name) for name in "abcd"])
    rows, counters = training_rows([group.with_scores([None, -1.0, -1.0, -1.0])], policy_version=0)
    assert rows == []
    assert (counters["trajectories/excluded"], counters["groups/without_signal"]) == (1, 1)
    for trajectory, reward in zip(group, (None, -1.0, -1.0, -1.0), strict=True):
        trajectory.reward = reward
    with pytest.raises(DataError, match="no reward on 1 of 4 trajectories"):
        group.with_rewards()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "leave_one_out", "scale_rewards": "group"}, "keeps a reward out of its own baseline"),
        ({"baseline": "leave_one_out", "scale_rewards": True}, "keeps a reward out of its own baseline"),
        ({"baseline": "median"}, "baseline is 'median'; wanted one of 'mean', 'leave_one_out'"),
        ({"baseline": None}, "baseline is None; wanted one of"),
        ({"scale_rewards": "std"}, "scale_rewards is 'std'; wanted True or False, one of 'group', 'batch', 'none'"),
        ({"overlong": "cut"}, "overlong='cut' has no effect without max_row_tokens"),
        ({"overlong": "refuse"}, "overlong='refuse' has no effect without max_row_tokens"),
        (
            {"max_row_tokens": 9, "overlong": "left"},
            "overlong is 'left'; wanted one of 'refuse', 'cut', 'drop', 'mask'",
        ),
        ({"max_row_tokens": 1}, "max_row_tokens is 1; wanted a whole number, 2 or more"),
        ({"max_row_tokens": 8.0}, "max_row_tokens is 8.0; wanted a whole number"),
        ({"max_row_tokens": True}, "max_row_tokens is True; wanted a whole number"),
        ({"truncated": "cut"}, "truncated is 'cut'; wanted one of 'train', 'mask', 'drop'"),
        ({"truncated": True}, "truncated is True; wanted one of"),
        ({"truncated": ["mask"]}, r"truncated is \['mask'\]; wanted one of"),
    ],
)
def test_options_that_mean_nothing_or_exclude_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**options)
    with pytest.raises(ConfigError, match=message):
        TrainConfig.made(None, options)


# Conversations of a few short turns; a third of the answers ended at their limit, some are empty or longer than others.
answers = st.tuples(st.lists(st.integers(2, 9), max_size=4), st.sampled_from(["stop", "stop", "length"]), st.booleans())


@st.composite
def attempts(draw: st.DrawFn) -> Trajectory:
    exchanges: list[Exchange] = []
    history: tuple[int, ...] = (1,)
    for completion, finish_reason, forgets in draw(st.lists(answers, min_size=1, max_size=3)):
        exchanges.append(call(history, tuple(completion), finish_reason))  # type: ignore[arg-type]
        history = (0,) if forgets else (*history, *completion, 0)
    return Trajectory(exchanges=exchanges)


groups = st.lists(st.tuples(attempts(), st.sampled_from([None, 0.0, 1.0])), max_size=5).map(
    lambda pairs: TrajectoryGroup([member for member, _ in pairs]).with_scores([reward for _, reward in pairs])
)
configs = st.builds(
    lambda truncated, limit, scale, baseline: TrainConfig(
        truncated=truncated,
        max_row_tokens=limit[0],
        overlong=limit[1],
        scale_rewards=None if baseline == "leave_one_out" and scale == "group" else scale,
        baseline=baseline,
    ),
    st.sampled_from(["train", "mask", "drop"]),
    st.just((None, None)) | st.tuples(st.integers(2, 8), st.sampled_from(["cut", "mask", "drop"])),
    st.sampled_from(["group", "batch", "none"]),
    st.sampled_from(["mean", "leave_one_out"]),
)


@given(st.lists(groups, max_size=4), configs)
def test_every_group_member_row_and_token_is_accounted_for(scored: list[ScoredGroup], config: TrainConfig) -> None:
    rows, counters = training_rows(scored, policy_version=0, config=config)
    count = Counter({name: int(value) for name, value in counters.items()})
    whole = {member.id: to_samples(member, 0.0) for group in scored for member, _ in group.members}
    reward_of = {member.id: reward for group in scored for member, reward in group.members}
    assert len({row.trajectory_id for row in rows}) == count["trajectories/trained"]

    # Each row is one of the trajectory's, or the beginning of one.
    limit = config.max_row_tokens or 10**9
    assert all(len(row.token_ids) <= limit for row in rows)
    of_trajectory: dict[str, list[TokenSample]] = {}
    for row in rows:
        of_trajectory.setdefault(row.trajectory_id, []).append(row)
    num_rows = num_tokens = 0
    for name, kept in of_trajectory.items():
        beginnings = [row for row in whole[name] if any(row.trained[:limit])]
        assert [row.token_ids for row in kept] == [row.token_ids[:limit] for row in beginnings]
        assert [row.trained for row in kept] == [row.trained[:limit] for row in beginnings]
        assert [row.logprobs for row in kept] == [row.logprobs[:limit] for row in beginnings]
        assert len({row.advantage for row in kept}) == 1
        num_rows += len(beginnings)
        num_tokens += sum(row.num_trained for row in kept)
    assert num_rows == len(rows)
    assert num_tokens == sum(row.num_trained for row in rows)
    if config.overlong != "cut":
        assert (count["rows/cut"], count["tokens/cut"]) == (0, 0)

    # Each group and each of its members is in one count.
    left_out = count["groups/without_signal"] + count["groups/too_small"]
    seen = sum(count[name] for name in count if name.startswith(("trajectories/masked", "trajectories/dropped")))
    seen += count["trajectories/trained"] + count["trajectories/without_tokens"]
    members = [len(group.members) for group in scored]
    with_signal = [len(g.members) for g in scored if len(set(g.rewards)) > 1]
    assert 0 <= left_out <= count["groups/total"] == len(scored)
    assert seen <= sum(with_signal) <= sum(members)
    if "drop" not in (config.truncated, config.overlong):
        assert seen == sum(with_signal)
    assert count["trajectories/excluded"] == sum(group.num_excluded for group in scored)

    # What is better than the worst of its group is never pushed down harder than it.
    for group in scored:
        ids = [member.id for member, _ in group.members if member.id in of_trajectory]
        for left in ids:
            for right in ids:
                if reward_of[left] > reward_of[right]:
                    assert of_trajectory[left][0].advantage > of_trajectory[right][0].advantage
