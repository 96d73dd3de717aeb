"""Groups made by graded damage have the order that they claim."""

from __future__ import annotations

import json
from itertools import pairwise
from statistics import mean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_ruler.errors import DataError
from art_ruler.synthetic import CORRUPTIONS, SyntheticGroup, corrupt

ANSWER = "The train to Lyon leaves at 17:42 from platform 9, and a seat in second class costs 54 euros today."


def call(arguments: Any, name: str = "c") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "find", "arguments": arguments}}


def conversation(answer: Any = ANSWER, arguments: Any = '{"to": "Lyon", "day": 3}') -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": "When does the train leave?"},
        {"role": "assistant", "content": None, "tool_calls": [call(arguments)]},
        {"role": "tool", "tool_call_id": "c", "content": "17:42"},
        {"role": "assistant", "content": answer},
    ]


def by_quality(group: SyntheticGroup) -> list[list[dict[str, Any]]]:
    order = sorted(range(len(group.labels)), key=lambda i: -group.labels[i])
    return [group.trajectories[i] for i in order]


def kept(trajectory: list[dict[str, Any]]) -> set[int]:
    """Positions of the words of ANSWER that are still in place, for `alter`, where positions do not move."""
    words = trajectory[-1]["content"].split()
    return {i for i, (a, b) in enumerate(zip(words, ANSWER.split(), strict=True)) if a == b}


@given(st.integers(), st.integers(2, 8))
def test_the_original_is_the_best_and_labels_fall_evenly_to_zero(seed: int, size: int) -> None:
    original = conversation()
    group = corrupt(original, size=size, seed=seed)
    assert sorted(group.labels, reverse=True) == pytest.approx([1 - k / (size - 1) for k in range(size)])
    ranked = by_quality(group)
    assert ranked[0] == original == conversation()
    texts = [json.dumps(t) for t in ranked]
    assert len(set(texts)) == size
    assert group == corrupt(original, size=size, seed=seed)


@given(st.integers())
def test_each_level_damages_what_the_level_before_it_damaged_and_more(seed: int) -> None:
    ranked = by_quality(corrupt(conversation(arguments="{}"), size=6, seed=seed, corruption="alter"))
    intact = [kept(t) for t in ranked]
    assert all(more > fewer for more, fewer in pairwise(intact))
    assert intact[-1] == set()


@given(st.integers())
def test_omit_is_shorter_with_each_level_and_bury_longer(seed: int) -> None:
    lengths = {
        kind: [
            len(t[-1]["content"])
            for t in by_quality(corrupt(conversation(arguments="{}"), size=5, seed=seed, corruption=kind))
        ]
        for kind in CORRUPTIONS
    }
    assert lengths["omit"] == sorted(set(lengths["omit"]), reverse=True)
    assert lengths["omit"][-1] == 0
    assert min(lengths["bury"][1:]) > lengths["bury"][0]


def test_over_many_groups_length_says_little_about_quality() -> None:
    def slope(seed: int) -> float:
        ranked = by_quality(corrupt(conversation(), size=4, seed=seed))
        best, worst = (len(ranked[place][-1]["content"]) for place in (0, -1))
        return 0 if abs(best - worst) < 0.4 * best else (best > worst) - (best < worst)

    assert abs(mean(slope(seed) for seed in range(300))) < 0.15
    assert {corrupt(conversation(), seed=seed).corruption for seed in range(30)} == set(CORRUPTIONS)


def test_a_damaged_tool_call_has_a_wrong_argument_and_fails() -> None:
    original = conversation(answer="", arguments='{"day": 3, "to": "Lyon"}')
    best, worst = by_quality(corrupt(original, size=2, seed=1))
    assert best == original
    function = worst[1]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"day": 20, "to": "Lyon"}
    assert worst[2] == {"role": "tool", "tool_call_id": "c", "content": "error: not found"}


@pytest.mark.parametrize("value", [3, 2.5, True, False, "Lyon", "", " ", None, [1], {"a": 1}])
def test_arguments_of_every_kind_are_damaged(value: Any) -> None:
    original = conversation(answer=None, arguments={"x": value})
    _, worst = by_quality(corrupt(original, size=2, seed=1))
    assert worst[1]["tool_calls"][0]["function"]["arguments"]["x"] != value
    assert original == conversation(answer=None, arguments={"x": value})


def test_a_short_answer_gives_a_smaller_group() -> None:
    original = [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "42"}]
    for kind in CORRUPTIONS:
        ranked = by_quality(corrupt(original, size=6, seed=3, corruption=kind))
        assert len(ranked) == 3
        assert len({t[1]["content"] for t in ranked}) == 3


@given(st.text(min_size=1).filter(str.strip), st.integers(), st.sampled_from(CORRUPTIONS))
def test_any_text_is_damaged_at_every_level(text: str, seed: int, kind: Any) -> None:
    group = corrupt([{"role": "assistant", "content": text}], seed=seed, corruption=kind)
    assert len({json.dumps(t) for t in group.trajectories}) == len(group.trajectories) >= 2


def test_content_parts_other_than_text_are_kept() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    parts = [{"type": "text", "text": "one two three"}, image]
    for trajectory in by_quality(corrupt(conversation(answer=parts), size=4, seed=2))[1:]:
        assert image in trajectory[-1]["content"] or trajectory[-1]["content"] == parts


@pytest.mark.parametrize(
    "messages", [[], [{"role": "user", "content": "hi"}], conversation("", "{}"), conversation(None, "x")]
)
def test_what_cannot_be_damaged_is_refused(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(DataError, match="nothing in this trajectory can be damaged"):
        corrupt(messages)


@pytest.mark.parametrize("size", [-1, 0, 1, 65])
def test_sizes_that_make_no_group_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"size is {size}"):
        corrupt(conversation(), size=size)
