from __future__ import annotations

import random
from collections import Counter
from itertools import combinations, pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from art_ruler.consensus import (
    average,
    choose_anchors,
    chunk_sizes,
    is_settled,
    num_anchors,
    on_scale,
    orders,
    weighted,
)

unit = st.floats(0, 1)


@given(st.integers(0, 12), st.integers(1, 30), st.integers(0, 5), st.booleans())
def test_each_pass_shows_each_member_once(count: int, passes: int, seed: int, in_turn: bool) -> None:
    made = orders(count, passes, random.Random(seed), in_turn=in_turn)
    assert len(made) == passes
    assert all(sorted(order) == list(range(count)) for order in made)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8])
def test_a_full_cycle_shows_each_member_at_each_place_once(count: int) -> None:
    made = orders(count, count, random.Random(0))
    for place in range(count):
        assert sorted(order[place] for order in made) == list(range(count))


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 7, 8])
def test_two_passes_are_an_order_and_its_reverse(count: int) -> None:
    for in_turn in (False, True):
        first, second = orders(count, 2, random.Random(0), in_turn=in_turn)
        assert second == first[::-1]


@pytest.mark.parametrize("count", [3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("num_passes", [2, 4, 6])
def test_any_even_number_of_passes_in_turn_evens_out_places(count: int, num_passes: int) -> None:
    made = orders(count, num_passes, random.Random(0), in_turn=True)
    sums = [sum(order.index(member) for order in made) for member in range(count)]
    assert sums == [num_passes * (count - 1) / 2] * count


@pytest.mark.parametrize("count", [3, 5, 7])
def test_passes_over_an_odd_group_even_out_places(count: int) -> None:
    for num_passes in range(1, 3 * count):
        made = orders(count, num_passes, random.Random(0))
        sums = [sum(order.index(member) for order in made) for member in range(count)]
        assert max(sums) - min(sums) <= (0 if num_passes % 2 == 0 else count - 1)


@pytest.mark.parametrize("count", [3, 5, 7, 9])
def test_a_full_design_of_an_odd_group_has_each_member_after_each_other_equally_often(count: int) -> None:
    made = orders(count, 2 * count, random.Random(0))
    followers = Counter(pair for order in made for pair in pairwise(order))
    assert len(followers) == count * (count - 1)
    assert set(followers.values()) == {2}


def test_three_passes_even_out_places() -> None:
    made = orders(6, 3, random.Random(0))
    sums = [sum(order.index(member) for order in made) for member in range(6)]
    assert sorted(sums) == [7, 7, 7, 8, 8, 8]  # of 7.5 on average


def test_orders_are_drawn_from_the_seed() -> None:
    assert orders(6, 3, random.Random(1)) == orders(6, 3, random.Random(1))
    assert orders(6, 3, random.Random(1)) != orders(6, 3, random.Random(2))


def test_averages_are_of_the_passes_that_scored_everybody() -> None:
    assert average([{0: 0.25, 1: 1.0}, {0: 0.75}, {0: 0.75, 1: 0.5}]) == {0: 0.5, 1: 0.75}
    assert average([]) == {}
    assert average([{}, {0: 0.5}]) == {0: 0.5}


def test_a_pass_on_a_lower_scale_that_left_out_the_worst_does_not_make_it_the_best() -> None:
    averages = average([{0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.3, 1: 0.2}])
    assert sorted(averages, key=lambda member: -averages[member]) == [0, 1, 2]


def test_passes_that_left_out_others_each_meet_on_one_scale() -> None:
    averages = average([{0: 0.9, 1: 0.8, 2: 0.7}, {0: 0.3, 1: 0.2, 3: 0.1}])
    assert averages == pytest.approx({0: 0.6, 1: 0.5, 2: 0.7 / 0.8 * 0.5, 3: 0.25})
    assert average([{0: 0.9, 1: 0.8}, {2: 0.9}]) == {0: 0.9, 1: 0.8}  # they share no scale


@pytest.mark.slow
@given(st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=4), st.data())
def test_passes_of_one_opinion_never_average_to_another(omitted: list[set[int]], data: st.DataObject) -> None:
    """Whatever scale each pass has, and whomever it leaves out: of those all passes that count scored, and between
    them and the others, nobody overtakes."""
    passes = []
    for left_out in omitted:
        low, width = data.draw(st.floats(0, 0.5)), data.draw(st.floats(0.1, 0.5))
        passes.append({m: low + width * m / 5 for m in range(6) if m not in left_out})
    averages = average(passes)
    common = set(averages).intersection(*[set(scores) for scores in passes if scores])
    for a in common:
        for b in averages:
            if a < b:
                assert averages[a] <= averages[b] + 1e-9
            if a > b:
                assert averages[a] >= averages[b] - 1e-9


@pytest.mark.parametrize(
    ("passes", "settled"),
    [
        ([], False),
        ([{0: 0.9, 1: 0.1}], False),
        ([{0: 0.9, 1: 0.1}, {0: 0.6, 1: 0.5}], True),
        ([{0: 0.9, 1: 0.1}, {0: 0.5, 1: 0.6}], False),
        ([{0: 0.9, 1: 0.1}, {0: 0.5, 1: 0.6}, {0: 0.9, 1: 0.1}], True),  # no one pass decides any more
        ([{0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.6}], False),
        ([{0: 0.5, 1: 0.5}, {0: 0.5, 1: 0.5}], True),
        ([{0: 0.9}, {0: 0.9, 1: 0.1}], False),
    ],
)
def test_an_order_is_settled_when_no_single_pass_decides_it(passes: list[dict[int, float]], settled: bool) -> None:
    assert is_settled(passes) is settled


def test_judges_are_weighted_for_members_that_all_of_them_scored() -> None:
    assert weighted([{0: 1.0, 1: 0.5}, {0: 0.5}], [3.0, 1.0]) == {0: 0.875}
    assert weighted([{0: 1.0, 1: 0.5}, {}], [3.0, 1.0]) == {0: 1.0, 1: 0.5}
    assert weighted([{}, {}], [1.0, 1.0]) == {}


def test_a_judge_alone_keeps_its_scores_whatever_its_weight() -> None:
    scores = {member: member / 100 for member in range(101)}
    assert weighted([scores], [0.3]) == scores


@given(st.integers(0, 200), st.integers(2, 12))
def test_chunks_hold_everybody_and_fit(count: int, group_size: int) -> None:
    sizes = chunk_sizes(count, group_size)
    assert sum(sizes) == count
    assert sizes[0] <= group_size
    assert all(1 <= size <= group_size - num_anchors(group_size) for size in sizes[1:])


def test_anchors_span_the_scale() -> None:
    assert choose_anchors({4: 0.5, 2: 0.9, 7: 0.1}, 2) == [7, 2]
    assert choose_anchors({4: 0.5, 2: 0.9, 7: 0.1}, 1) == [4]
    assert choose_anchors({4: 0.5}, 2) == [4]
    assert choose_anchors({}, 2) == []


def test_a_chunk_is_put_on_the_scale_of_its_anchors() -> None:
    # Anchors 0 and 1 have 0.4 and 0.6 on the scale; the chunk saw 0.2 and 0.8 in them.
    scaled = on_scale({0: 0.2, 1: 0.8, 2: 0.5, 3: 0.9, 4: 0.1, 5: 1.0, 6: 0.0}, {0: 0.4, 1: 0.6, 9: 1.0})
    assert scaled == pytest.approx({0: 0.4, 1: 0.6, 2: 0.5, 3: 0.8, 4: 0.2, 5: 1.0, 6: 0.0})


def test_anchors_in_the_opposite_order_are_pooled() -> None:
    assert on_scale({0: 0.8, 1: 0.2, 2: 0.5, 3: 0.75}, {0: 0.4, 1: 0.6}) == pytest.approx(
        {0: 0.8, 1: 0.2, 2: 0.5, 3: 0.75}
    )
    assert on_scale({0: 0.5, 1: 0.5, 2: 0.25}, {0: 0.2, 1: 0.6})[2] == pytest.approx(0.2)


def test_without_a_shared_member_there_is_no_scale() -> None:
    assert on_scale({2: 0.5}, {0: 0.4}) == {}


@pytest.mark.slow
@example({0: 0.0, 1: 0.0, 2: 5e-324, 3: 0.5}, {0: 0.0, 1: 0.0, 2: 0.75})
@example({0: 0.0, 1: 5e-324, 2: 0.0}, {0: 0.0, 1: 1.0, 2: 0.5})
@given(st.dictionaries(st.integers(0, 9), unit, min_size=1), st.dictionaries(st.integers(0, 3), unit, min_size=1))
def test_a_scaled_chunk_keeps_its_order_and_its_range(chunk: dict[int, float], reference: dict[int, float]) -> None:
    scaled = on_scale(chunk, reference)
    assert bool(scaled) == bool(set(chunk) & set(reference))
    assert all(0 <= score <= 1 for score in scaled.values())
    for a, b in combinations(scaled, 2):
        if chunk[a] < chunk[b]:
            assert scaled[a] <= scaled[b] + 1e-12
        if chunk[a] == chunk[b]:
            assert scaled[a] == scaled[b]
