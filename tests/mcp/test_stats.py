from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_mcp.stats import difference, student_t_975, success_rate


def test_wilson_interval_of_eight_in_ten() -> None:
    estimate = success_rate([[True]] * 8 + [[False]] * 2)
    # The scenarios vary a little less than the design effect's floor of 1 allows for, so n stays near 10.
    assert estimate.value == 0.8
    assert estimate.low == pytest.approx(0.47, abs=0.03)
    assert estimate.high == pytest.approx(0.94, abs=0.02)


def test_never_and_always_have_intervals_of_some_width() -> None:
    never = success_rate([[False] * 4] * 16)
    always = success_rate([[True] * 4] * 16)
    assert (never.value, never.low) == (0.0, 0.0)
    assert never.high == pytest.approx(1.959964**2 / (64 + 1.959964**2), abs=1e-6)
    assert (always.value, always.high) == (1.0, 1.0)
    assert always.low == pytest.approx(1 - never.high)


def test_samples_that_repeat_each_other_count_once() -> None:
    independent = success_rate([[True, False]] * 8)
    repeated = success_rate([[True, True], [False, False]] * 4)
    assert repeated.high - repeated.low > independent.high - independent.low


def test_paired_difference_by_hand() -> None:
    before = [[False, False], [False, True], [False, False]]
    after = [[True, True], [True, True], [False, True]]
    estimate = difference(before, after)
    gains = [1.0, 0.5, 0.5]
    mean = sum(gains) / 3
    half = 4.30265 * math.sqrt(sum((g - mean) ** 2 for g in gains) / 2 / 3)
    assert estimate.value == pytest.approx(mean)
    assert estimate.low == pytest.approx(mean - half, abs=1e-4)
    assert estimate.high == pytest.approx(1.0)


def test_scenarios_without_samples_are_left_out() -> None:
    assert difference([[True], []], [[True], [True]]).value == 0.0
    assert math.isnan(success_rate([]).value)


@pytest.mark.parametrize(
    ("degrees", "quantile", "error"),
    [(1, 12.706, 1e-3), (2, 4.303, 1e-3), (4, 2.776, 1e-2), (15, 2.131, 1e-3), (60, 2.000, 1e-3)],
)
def test_student_quantiles_match_the_tables(degrees: int, quantile: float, error: float) -> None:
    assert student_t_975(degrees) == pytest.approx(quantile, abs=error)


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=20))
def test_the_interval_holds_the_rate_and_stays_within_zero_and_one(outcomes: list[list[bool]]) -> None:
    estimate = success_rate(outcomes)
    assert 0.0 <= estimate.low <= estimate.value + 1e-12
    assert estimate.value - 1e-12 <= estimate.high <= 1.0
