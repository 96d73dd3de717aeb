from __future__ import annotations

import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_ruler.stats import (
    agreement,
    kendall_tau,
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
    tau, flip_rate = agreement(passes)
    assert tau == pytest.approx((1 / 3 + 1 + 1 / 3) / 3)
    assert flip_rate == pytest.approx(2 / 9)
    assert agreement([[1.0, 2.0], [2.0, 1.0]]) == (-1.0, 1.0)
    assert agreement([[1.0, 1.0], [2.0, 1.0]]) == (None, None)
    assert agreement([[1.0, 2.0]]) == (None, None)


@given(values, st.data())
def test_pairs_are_counted_as_by_looking_at_each(xs: list[float], data: st.DataObject) -> None:
    ys = data.draw(st.lists(st.integers(0, 5).map(float), min_size=len(xs), max_size=len(xs)))
    both = list(zip(xs, ys, strict=True))
    pairs = [((x1 > x2) - (x1 < x2), (y1 > y2) - (y1 < y2)) for (x1, y1), (x2, y2) in combinations(both, 2)]
    signs = [x * y for x, y in pairs]
    compared, flips = sum(sign != 0 for sign in signs), signs.count(-1)
    untied = sum(x != 0 for x, _ in pairs) * sum(y != 0 for _, y in pairs)
    tau, rate = agreement([xs, ys])
    assert tau == (pytest.approx(sum(signs) / math.sqrt(untied)) if untied else None)
    assert rate == (pytest.approx(flips / compared) if compared else None)
    told = [(x, y) for x, y in pairs if y]
    accuracy = sum((1 + x * y) / 2 for x, y in told) / len(told) if told else None
    assert pairwise_accuracy(xs, ys) == (None if accuracy is None else pytest.approx(accuracy))


class Counted(float):
    """Counts how often one of them is compared."""

    comparisons = 0

    def __lt__(self, other: float) -> bool:
        Counted.comparisons += 1
        return super().__lt__(other)


def test_a_large_group_is_compared_without_looking_at_each_pair() -> None:
    draw = random.Random(0)
    passes = [[Counted(draw.random()) for _ in range(2000)] for _ in range(2)]
    Counted.comparisons = 0
    agreement(passes)
    num_beaten(passes[0])
    assert 2000 < Counted.comparisons < 2000 * 200  # of two million pairs


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
