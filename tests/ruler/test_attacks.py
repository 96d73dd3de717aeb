"""The shipped attacks change the last answer, nothing else, and are the same for the same seed."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_ruler.attacks import ATTACK_KINDS, Attack, draw_attacks

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TRAJECTORY: list[dict[str, Any]] = [
    {"role": "user", "content": "What is 2 + 2?"},
    {"role": "assistant", "content": "I will look.", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c", "content": "4"},
    {"role": "assistant", "content": "It is 5."},
]


@given(st.integers())
def test_one_attack_of_each_kind_the_same_for_the_same_seed(seed: int) -> None:
    attacks = draw_attacks(seed)
    assert tuple(attack.kind for attack in attacks) == ATTACK_KINDS
    assert attacks == draw_attacks(seed)


def test_the_draw_of_a_kind_does_not_depend_on_which_others_are_asked_for() -> None:
    for seed in range(20):
        assert draw_attacks(seed, ["padding"]) == tuple(a for a in draw_attacks(seed) if a.kind == "padding")


@pytest.mark.parametrize("kind", ATTACK_KINDS)
def test_seeds_differ(kind: Any) -> None:
    assert len({draw_attacks(seed, [kind])[0].text for seed in range(60)}) >= 6


@given(st.integers(), st.sampled_from(ATTACK_KINDS))
def test_only_the_last_answer_changes_and_what_was_given_stays(seed: int, kind: Any) -> None:
    before = copy.deepcopy(TRAJECTORY)
    (attack,) = draw_attacks(seed, [kind])
    attacked = attack.on(TRAJECTORY)
    assert before == TRAJECTORY
    assert attacked[:-1] == TRAJECTORY[:-1]
    expected = attack.text if kind == "master_key" else f"It is 5.\n\n{attack.text}"
    assert attacked[-1] == {"role": "assistant", "content": expected}


def test_an_answer_before_the_end_is_found_and_its_tool_calls_are_kept() -> None:
    attacked = Attack("instruction", "X").on(TRAJECTORY[:3])
    assert attacked[1] == {"role": "assistant", "content": "I will look.\n\nX", "tool_calls": [CALL]}
    assert [attacked[0], attacked[2]] == [TRAJECTORY[0], TRAJECTORY[2]]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "X"),
        ("", "X"),
        ([{"type": "text", "text": "a"}], [{"type": "text", "text": "a"}, {"type": "text", "text": "X"}]),
    ],
)
def test_contents_of_every_kind(content: Any, expected: Any) -> None:
    attacked = Attack("instruction", "X").on([{"role": "assistant", "content": content}])
    assert attacked == [{"role": "assistant", "content": expected}]


def test_a_conversation_without_an_answer_gets_one() -> None:
    assert Attack("instruction", "X").on([{"role": "user", "content": "q"}])[1:] == [
        {"role": "assistant", "content": "X"}
    ]
    assert Attack("instruction", "X").on([]) == [{"role": "assistant", "content": "X"}]
