from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.control import MetricRecord
from art_core.errors import ConfigError, DataError
from art_core.outcomes import (
    best_step,
    error_counts,
    group_averages,
    named_metrics,
    num_skipped,
    shadowed_metrics,
    skip_reason,
)
from art_core.rows import training_rows
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Sampling, StepReport
from tests.core.runs.building import exchange

NAN = float("nan")


def records(*values: tuple[int, float]) -> list[MetricRecord]:
    return [MetricRecord(step=step, metrics={"val/reward": value}) for step, value in values]


def reported(*steps: int | str) -> list[StepReport]:
    """A log: 3 is a step that was made, "3" a batch that was skipped at that step."""
    return [StepReport(int(step), {"step/skipped": float(isinstance(step, str))}) for step in steps]


@pytest.mark.parametrize(
    ("log", "step", "count"),
    [
        ([], 0, 0),
        (["0", "0", 1, "1", 2, "2"], 2, 4),
        (["0", 1, "1", 2], 2, 2),
        ([1, "1", 2, "2", 3], 1, 1),  # checkpoints 2 and 3 are lost
        ([1, "1", 2, "2", 3, 2], 2, 1),  # and 2 is made again,
        ([1, "1", 2, "2", 3, 2, "2", 3], 3, 2),  # and all else
        ([1, "1", 2, "2", 3, "0"], 0, 1),  # all are lost, and the first batch teaches nothing now
        ([1, "1", 2, "2", 3, "1", "1"], 1, 3),
    ],
)
def test_batches_that_were_skipped_count_once_also_where_they_were_skipped_again(
    log: list[int | str], step: int, count: int
) -> None:
    assert num_skipped(reported(*log), step=step) == count


@given(st.data())
def test_a_script_that_loses_checkpoints_and_goes_on_sees_each_batch(data: st.DataObject) -> None:
    """The log of a script which begins, wherever its checkpoints are lost, at the batch that the count names."""
    teaches = data.draw(st.lists(st.booleans(), min_size=1, max_size=12))
    log: list[StepReport] = []
    step, at, led_by = 0, 0, [0]  # led_by[s]: the batch behind the one that made step s
    for lost in [*data.draw(st.lists(st.integers(0, 3), max_size=4)), None]:
        stop = len(teaches) if lost is None else data.draw(st.integers(at, len(teaches)))
        for batch in range(at, stop):
            step += teaches[batch]
            log += reported(step if teaches[batch] else str(step))
            if teaches[batch]:
                led_by[step:] = [batch + 1]
        if lost is not None:
            step = max(0, step - lost)
            at = step + num_skipped(log, step=step)
            assert at >= led_by[step]
            assert not any(teaches[led_by[step] : at])  # only those that teach nothing are behind it
    assert step + num_skipped(log, step=step) == len(teaches)


@pytest.mark.parametrize(
    ("values", "steps", "best"),
    [
        ([(3, 0.9), (9, 0.1)], [3, 9], 3),
        ([(3, 0.9), (9, NAN)], [3, 9], 3),
        ([(3, -1.0), (9, float("inf"))], [3, 9], 3),
        ([(3, 0.5), (9, 0.5)], [3, 9], 9),  # of equal ones the newest
        ([(3, 0.9), (3, 0.1), (9, 0.6)], [3, 9], 9),  # the mean of a step counts
        ([(3, 0.9), (5, 2.0), (9, 0.1)], [3, 9], 3),  # the checkpoint of step 5 is gone
    ],
)
def test_the_best_step_is_that_of_the_highest_mean(
    values: list[tuple[int, float]], steps: list[int], best: int
) -> None:
    assert best_step(records(*values), "val/reward", steps) == best


@pytest.mark.parametrize("values", [[], [(3, NAN)], [(4, 1.0)]])
def test_without_a_value_no_step_is_the_best(values: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match="nothing was deleted"):
        best_step(records(*values), "val/reward", [3, 9])


def test_metrics_get_the_split_in_front_unless_they_have_an_area() -> None:
    assert named_metrics("val", {"reward": 1, "loss": 2.0}, {"loss": 3.0, "time/s": True}) == {
        "val/reward": 1.0,
        "val/loss": 3.0,
        "time/s": 1.0,
    }
    with pytest.raises(DataError, match="metric 'val/x' is inf"):
        named_metrics("val", {"x": float("inf")})


def test_means_leave_out_failures_and_what_was_not_scored() -> None:
    groups = [
        TrajectoryGroup([Trajectory(reward=1), Trajectory(reward=3), OSError("down"), Trajectory()]),
        TrajectoryGroup([Trajectory(reward=5, metrics={"turns": 4})]),
    ]
    assert group_averages(groups) == {
        "exception_rate": (0.2, 5),
        "reward": (3.0, 3),
        "reward_std_dev": (1.0, 1),
        "turns": (4.0, 1),
    }
    assert shadowed_metrics(groups) == []
    assert group_averages([]) == {}
    assert error_counts(groups) == "OSError 1"
    assert error_counts([]) == ""


def reason(*groups: ScoredGroup) -> str:
    return skip_reason(groups, training_rows(groups, policy_version=0)[1])


def test_the_reason_for_a_skipped_step_names_each_cause() -> None:
    equal = TrajectoryGroup([Trajectory(reward=1), Trajectory(reward=1)]).with_rewards()
    small = TrajectoryGroup([Trajectory(reward=1), OSError("down")]).with_rewards()
    unequal = TrajectoryGroup([Trajectory(reward=1), Trajectory(reward=0)]).with_rewards()
    assert reason() == skip_reason([], {}) == "there are no groups"
    assert reason(equal, small) == (
        "in 1 of 2 groups all rewards are equal; 1 of 2 groups have fewer than two trajectories that can be compared; "
        "1 trajectories failed and are excluded"
    )
    assert reason(unequal) == "2 trajectories have no trained token"
    assert skip_reason([unequal], {}) == "no row has a trained token"


@pytest.mark.parametrize(
    ("sampling", "told"),
    [
        ({}, ""),
        ({"temperature": 0.0}, "; they were sampled at temperature 0; training wants 1"),
        ({"temperature": 0.7, "top_p": 0.9}, "; they were sampled at temperature 0.7; training wants 1"),
        ({"top_p": 0.9}, "; they were sampled at top_p 0.9; training wants none"),
        ({"top_k": 40}, "; they were sampled at top_k 40; training wants none"),
    ],
)
def test_equal_rewards_of_calls_that_were_sampled_otherwise_are_told_so(sampling: dict[str, Any], told: str) -> None:
    def attempt(number: int) -> Trajectory:
        call = exchange(f"e{number}", sampling=Sampling(max_tokens=1, **sampling))
        return Trajectory(reward=1, exchanges=[call])

    group = TrajectoryGroup([attempt(0), attempt(1)]).with_rewards()
    assert reason(group) == f"in 1 of 1 groups all rewards are equal{told}"


def test_a_metric_with_a_name_of_ours_is_not_mixed_into_ours() -> None:
    metrics = {"reward": 50, "exception_rate": 50, "reward_std_dev": 50, "group_judged": 50, "group_size": 50}
    group = TrajectoryGroup([Trajectory(metrics=metrics), Trajectory(reward=1, metrics=metrics)], metrics={"judged": 2})
    assert group_averages([group]) == {
        "reward": (1.0, 1),
        "exception_rate": (0.0, 2),
        "group_judged": (2.0, 1),
        "group_size": (50.0, 2),
    }
    assert shadowed_metrics([group]) == ["exception_rate", "group_judged", "reward", "reward_std_dev"]
