from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_ruler.stats import (
    flip_rate,
    kendall_tau,
    mean_kendall_tau,
    num_beaten,
    pairwise_accuracy,
    pearson,
    ranks,
    spearman,
)

values = st.lists(st.integers(0, 5).map(float), min_size=2, max_size=8)


@pytest.mark.parametrize(
    ("xs", "ys", "tau"),
    [
        ([1, 2, 3], [1, 2, 3], 1.0),
        ([1, 2, 3], [3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 1 / 3),
        ([1, 2, 2], [1, 2, 3], 2 / math.sqrt(2 * 3)),
        ([1, 1, 1], [1, 2, 3], None),
        ([1, None, 3], [1, 2, 3], 1.0),
        ([1], [1], None),
        ([], [], None),
    ],
)
def test_kendalls_tau_by_hand(xs: list[float | None], ys: list[float | None], tau: float | None) -> None:
    assert kendall_tau(xs, ys) == (None if tau is None else pytest.approx(tau))


def test_tau_and_flips_over_passes() -> None:
    passes = [[1.0, 2.0, 3.0], [1.0, 3.0, 2.0], [1.0, 2.0, 3.0]]
    assert mean_kendall_tau(passes) == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    assert flip_rate(passes) == pytest.approx(2 / 9)
    assert flip_rate([[1.0, 2.0], [2.0, 1.0]]) == 1.0
    assert flip_rate([[1.0, 1.0], [2.0, 1.0]]) is None
    assert flip_rate([[1.0, 2.0]]) is None
    assert mean_kendall_tau([[1.0, 2.0]]) is None


def test_ranks_and_how_many_are_beaten() -> None:
    scores = [0.5, 0.9, None, 0.5, 0.1]
    assert ranks(scores) == [2, 1, None, 2, 4]
    assert num_beaten(scores) == [1.5, 3.0, None, 1.5, 0.0]
    assert num_beaten([0.3]) == [0.0]


@given(values)
def test_all_pairs_are_shared_out(scores: list[float]) -> None:
    beaten = [count for count in num_beaten(scores) if count is not None]
    assert sum(beaten) == len(scores) * (len(scores) - 1) / 2


def test_pairwise_accuracy_by_hand() -> None:
    assert pairwise_accuracy([0.9, 0.5, 0.1], [3, 2, 1]) == 1.0
    assert pairwise_accuracy([0.1, 0.5, 0.9], [3, 2, 1]) == 0.0
    assert pairwise_accuracy([0.5, 0.5, 0.1], [3, 2, 1]) == pytest.approx(2.5 / 3)
    assert pairwise_accuracy([0.9, 0.1, 0.5], [1, 1, 0]) == pytest.approx(0.5)
    assert pairwise_accuracy([0.9, None, 0.5], [1, 2, 0]) == 1.0
    assert pairwise_accuracy([0.9, 0.1], [1, 1]) is None


def test_correlations_by_hand() -> None:
    assert pearson([1, 2, 3, 4], [2, 4, 6, 8]) == pytest.approx(1.0)
    assert pearson([1, 2, 3], [1, 0, 1]) == pytest.approx(0.0)
    assert pearson([0, 0, 1, 1], [0, 1, 1, 1]) == pytest.approx(1 / math.sqrt(3))
    assert pearson([1, 1], [1, 2]) is None
    assert pearson([1], [1]) is None
    assert spearman([1, 10, 100], [1, 2, 3]) == pytest.approx(1.0)
    assert spearman([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486832980505138)
    assert spearman([1, None, 3], [3, 5, 1]) == pytest.approx(-1.0)


@given(values, st.data())
def test_figures_are_in_range_and_blind_to_order(xs: list[float], data: st.DataObject) -> None:
    ys = data.draw(st.lists(st.integers(0, 5).map(float), min_size=len(xs), max_size=len(xs)))
    order = data.draw(st.permutations(range(len(xs))))
    for figure, low in ((kendall_tau, -1.0), (pearson, -1.0), (spearman, -1.0), (pairwise_accuracy, 0.0)):
        value = figure(xs, ys)
        moved = figure([xs[i] for i in order], [ys[i] for i in order])
        assert (value is None) == (moved is None)
        if value is not None:
            assert low - 1e-9 <= value <= 1 + 1e-9
            assert moved == pytest.approx(value)
