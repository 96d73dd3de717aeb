"""Which scenarios the next step trains on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_mcp.curriculum import choose, observed
from art_mcp.scenarios import Scenario


def scenarios(tool: str, count: int) -> list[Scenario]:
    return [
        Scenario(id=f"{tool}-{number}", split="train", tool=tool, arguments={"n": number}, task=f"Do {number}.")
        for number in range(count)
    ]


POOL = [*scenarios("easy", 20), *scenarios("hard", 20)]


def shown(easy: float, hard: float) -> dict[str, float]:
    """The metrics of a step with three groups of each tool, whose spreads add up to `easy` and `hard`."""
    counts = {f"tool_{what}/{tool}": 3.0 for what in ("groups", "scored") for tool in ("easy", "hard")}
    return {**counts, "tool_spread/easy": easy, "tool_spread/hard": hard}


MASTERED = shown(easy=0.0, hard=1.2)


def tools_of(chosen: list[Scenario]) -> Counter[str]:
    return Counter(scenario.tool for scenario in chosen)


def test_what_a_step_showed_is_counted_by_tool() -> None:
    easy, hard = POOL[0], POOL[-1]
    metrics = observed([(easy, [1.0, 1.0]), (hard, [0.0, 1.0]), (hard, [0.2, 0.2, 0.8, 0.8]), (hard, [1.0])])
    assert metrics == pytest.approx(
        {
            **{"tool_groups/easy": 1.0, "tool_scored/easy": 1.0, "tool_spread/easy": 0.0},
            **{"tool_groups/hard": 3.0, "tool_scored/hard": 2.0, "tool_spread/hard": 0.8},
        }
    )


def test_before_anything_is_known_all_tools_get_the_same() -> None:
    assert tools_of(choose(POOL, [], num_groups=6, seed=0)) == {"easy": 3, "hard": 3}


def test_a_tool_whose_attempts_no_longer_differ_makes_room_for_the_others() -> None:
    # Guess and observation: (0.25 * 0.8 + 0) / (0.8 + 3) = 0.053 for easy, (0.2 + 1.2) / 3.8 = 0.368 for hard.
    counts = tools_of(choose(POOL, [MASTERED], num_groups=8, seed=0))
    assert counts["hard"] == 7
    assert counts["easy"] == 1


def test_what_is_long_ago_is_forgotten() -> None:
    counts = tools_of(choose(POOL, [MASTERED, *[shown(easy=1.2, hard=0.0)] * 6], num_groups=8, seed=0))
    assert counts["easy"] > counts["hard"]


def test_a_tool_that_failures_of_the_infrastructure_hit_loses_nothing() -> None:
    lost = {**shown(easy=0.75, hard=0.0), "tool_scored/hard": 0.0}
    assert tools_of(choose(POOL, [lost] * 5, num_groups=8, seed=0)) == {"easy": 4, "hard": 4}


def test_no_tool_is_given_up_for_good() -> None:
    # 0.1 of the heaviest weight is 1 group in 11.
    counts = [tools_of(choose(POOL, [MASTERED] * steps, num_groups=11, seed=0))["easy"] for steps in (5, 50, 5000)]
    assert counts == [1, 1, 1]


def test_when_no_attempts_differ_any_more_all_tools_get_the_same() -> None:
    assert tools_of(choose(POOL, [shown(easy=0.0, hard=0.0)] * 5000, num_groups=4, seed=0)) == {"easy": 2, "hard": 2}


@pytest.mark.parametrize(("size", "share"), [(7, 2), (5, 3), (7, 4), (3, 2), (3, 3)])
def test_every_scenario_of_a_tool_comes_before_one_comes_again(size: int, share: int) -> None:
    pool = scenarios("only", size)
    for seed in range(20):
        earlier: list[dict[str, float]] = []
        times = Counter({scenario.id: 0 for scenario in pool})
        for _ in range(20):
            chosen = choose(pool, earlier, num_groups=share, seed=seed)
            assert len({scenario.id for scenario in chosen}) == share
            times.update(scenario.id for scenario in chosen)
            assert max(times.values()) - min(times.values()) <= 1
            earlier.append(observed((scenario, [0.0, 1.0]) for scenario in chosen))


def test_another_seed_is_another_order() -> None:
    assert choose(POOL, [], num_groups=6, seed=0) == choose(POOL, [], num_groups=6, seed=0)
    assert choose(POOL, [], num_groups=6, seed=0) != choose(POOL, [], num_groups=6, seed=1)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    steps=st.lists(st.lists(st.floats(0.0, 0.5), min_size=5, max_size=5), max_size=4),
    num_groups=st.integers(1, 12),
    seed=st.integers(0, 3),
)
def test_a_step_has_as_many_different_scenarios_as_there_are_up_to_the_number_asked_for(
    sizes: list[int], steps: list[list[float]], num_groups: int, seed: int
) -> None:
    pool = [each for index, size in enumerate(sizes) for each in scenarios(f"t{index}", size)]
    earlier = [
        {
            key: value
            for i, s in enumerate(step)
            for key, value in ((f"tool_groups/t{i}", 1.0), (f"tool_spread/t{i}", s))
        }
        for step in steps
    ]
    chosen = choose(pool, earlier, num_groups=num_groups, seed=seed)
    assert len({scenario.id for scenario in chosen}) == len(chosen) == min(num_groups, len(pool))
