"""The order of tasks, and fingerprints of them."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from enum import Enum
from itertools import islice, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage

from art_langgraph.plan import batches, fingerprint


@given(st.data(), st.integers(1, 9), st.integers(0, 3))
def test_batches_are_full_and_every_pass_has_all_tasks(data: st.DataObject, num_tasks: int, seed: int) -> None:
    size = data.draw(st.integers(1, num_tasks))
    made = list(islice(batches(num_tasks, size, seed), 3 * num_tasks))  # `3 * size` passes
    assert {len(set(batch)) for batch in made} == {size}
    order = [task for batch in made for task in batch]
    for begin in range(0, len(order), num_tasks):
        assert sorted(order[begin : begin + num_tasks]) == list(range(num_tasks))
    assert set(Counter(order).values()) == {3 * size}
    assert made == list(islice(batches(num_tasks, size, seed), len(made)))


def test_each_pass_and_each_seed_has_an_order_of_its_own() -> None:
    orders = [batch for seed in range(3) for batch in islice(batches(20, 20, seed), 4)]
    assert all(one != other for one, other in pairwise(orders))
    assert list(islice(batches(5, 2, 0), 5)) == [*islice(batches(5, 2, 0), 5)]


@dataclasses.dataclass
class Task:
    question: str
    words: frozenset[str] = frozenset({"a", "b", "c"})


class Plain:
    def __init__(self, text: str) -> None:
        self.text = text


class Colour(Enum):
    RED = 1
    BLUE = 2


VALUES: list[Any] = [
    None, "a", b"a", 1, 2, 1.5, [], ["a"], ["a", "b"], ["ab"], [["a"], "b"], {"a": 1}, {"a": 2}, {"b": 1},
    Task("a"), Task("b"), Task("a", frozenset("d")), Plain("a"), Plain("b"), Colour.RED, Colour.BLUE, len, print,
    Task, HumanMessage("a"), HumanMessage("b"), "\ud800",
]  # fmt: skip


def test_what_differs_has_another_fingerprint() -> None:
    found = [fingerprint(value) for value in VALUES]
    assert len(set(found)) == len(found)
    assert all(number == int(number) and 0 <= number < 2**48 for number in found)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ["a", "b"]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (Task("a"), Task("a")),
        (Plain("a"), Plain("a")),
        (object(), object()),
        (HumanMessage("a"), HumanMessage("a")),
        (lambda: 1, lambda: 1),
    ],
)
def test_what_is_equal_has_the_same(one: Any, other: Any) -> None:
    assert fingerprint([one]) == fingerprint([other])


def test_what_holds_itself_has_one() -> None:
    held: list[Any] = []
    held.append(held)
    assert fingerprint(held) == fingerprint(held)


def test_it_is_the_same_in_each_process() -> None:
    code = """
import dataclasses
from art_langgraph.plan import fingerprint
@dataclasses.dataclass
class Task:
    words: frozenset
class Plain:
    words = None
print(fingerprint([Task(frozenset({"a", "b", "c"})), Plain(), object(), len, lambda: 1]))
"""
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1] != ""
