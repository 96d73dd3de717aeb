from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.checkpoints.keeping import KeepCheckpoints, kept_steps, kept_while_training
from art_core.control import MetricRecord
from art_core.errors import ConfigError

NAN, INF = float("nan"), float("inf")
STEPS = [1, 2, 3, 4, 5, 6]


def records(*values: tuple[int, float], metric: str = "val/reward") -> list[MetricRecord]:
    return [MetricRecord(step=step, metrics={metric: value}) for step, value in values]


def keep(**values: Any) -> KeepCheckpoints:
    return KeepCheckpoints.made(values)


def test_each_kept_step_says_why() -> None:
    logged = records((2, 0.9), (3, 0.1), (6, 0.5))
    assert kept_steps(keep(best="val/reward", last=2, every=3), STEPS, logged) == {
        2: ("best val/reward",),
        3: ("every 3",),
        5: ("newest",),
        6: ("newest", "every 3"),
    }
    assert kept_steps(keep(best="val/reward", lowest=True), STEPS, logged) == {
        3: ("lowest val/reward",),
        6: ("newest",),
    }
    assert kept_steps(keep(last=99), STEPS, []) == dict.fromkeys(STEPS, ("newest",))
    assert kept_steps(keep(best="val/reward"), [], []) == {}


@pytest.mark.parametrize(
    ("values", "lowest", "best"),
    [
        ([(3, 0.9), (5, NAN)], False, 3),
        ([(3, 0.9), (5, NAN)], True, 3),
        ([(3, 0.9), (5, INF)], False, 3),
        ([(3, 0.9), (5, -INF)], True, 3),
        ([(3, 0.9), (3, 0.1), (5, 0.6)], False, 5),  # the mean of a step counts
        ([(3, 0.9), (5, 0.9)], True, 5),  # of equal ones the newest
        ([(3, 0.9), (4, 0.2), (9, 0.1)], True, 4),  # the checkpoint of step 9 is gone
    ],
)
def test_b036_the_best_is_that_of_the_named_direction_and_nan_never_wins(
    values: list[tuple[int, float]], lowest: bool, best: int
) -> None:
    kept = kept_steps(keep(best="val/reward", lowest=lowest), STEPS, records(*values))
    assert set(kept) == {best, 6}


@pytest.mark.parametrize("values", [[], [(3, NAN)], [(99, 1.0)]])
def test_b036_a_metric_that_no_checkpoint_has_is_an_error(values: list[tuple[int, float]]) -> None:
    with pytest.raises(ConfigError, match=r"no checkpoint has a value of the metric 'val/reward'.*nothing was deleted"):
        kept_steps(keep(best="val/reward"), STEPS, records(*values))


def test_while_training_what_may_still_be_the_best_stays() -> None:
    policy = keep(best="val/reward", last=1)
    assert kept_while_training(policy, STEPS, []) == dict.fromkeys(STEPS, ("not evaluated yet",))
    assert kept_while_training(policy, STEPS, records((2, 0.9), (4, 0.1), (9, 5.0))) == {
        2: ("best val/reward",),
        5: ("not evaluated yet",),
        6: ("newest",),
    }
    assert kept_while_training(keep(last=2), STEPS, []) == {5: ("newest",), 6: ("newest",)}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"last": 0}, "option 'last': Input should be greater than or equal to 1; got 0"),
        ({"last": True}, "option 'last': Input should be a valid integer; got True"),
        ({"every": -1}, "option 'every': .*; got -1"),
        ({"best": ""}, "option 'best': .*; got ''"),
        ({"lowest": True}, "lowest is a direction of best"),
        (
            {"newest": 3},
            r"keep_checkpoints has no option 'newest': did you mean 'lowest'\?; its options are \['best'",
        ),
    ],
)
def test_what_cannot_be_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        keep(**values)


@given(
    st.sets(st.integers(1, 40), min_size=1),
    st.integers(1, 5),
    st.none() | st.integers(1, 7),
    st.lists(st.tuples(st.integers(1, 40), st.floats(allow_nan=True))),
    st.booleans(),
)
def test_the_newest_and_the_best_always_stay_and_nothing_is_invented(
    steps: set[int], last: int, every: int | None, values: list[tuple[int, float]], lowest: bool
) -> None:
    policy = keep(best="val/reward", lowest=lowest, last=last, every=every)
    logged = records(*values)
    during = kept_while_training(policy, steps, logged)
    assert max(steps) in during
    assert set(during) <= steps
    try:
        kept = kept_steps(policy, steps, logged)
    except ConfigError:
        assert set(during) == steps, "without a value nothing is deleted"
        return
    assert set(sorted(steps)[-last:]) <= set(kept) <= set(during)
    assert all(step in kept for step in steps if every and step % every == 0)
