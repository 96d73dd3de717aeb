from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_core.dataset import DatasetBatch, iterate_dataset
from art_core.errors import ConfigError


def test_batches_count_steps_over_epochs() -> None:
    batches = list(iterate_dataset("abc", groups_per_step=2, num_epochs=2, shuffle=False))
    assert batches == [
        DatasetBatch(["a", "b"], step=0, epoch=0, epoch_step=0),
        DatasetBatch(["c"], step=1, epoch=0, epoch_step=1),
        DatasetBatch(["a", "b"], step=2, epoch=1, epoch_step=0),
        DatasetBatch(["c"], step=3, epoch=1, epoch_step=1),
    ]


def test_orders_are_fixed_and_differ_between_epochs_and_seeds() -> None:
    def order(epoch: int, seed: int) -> list[int]:
        return [i for b in iterate_dataset(range(8), num_epochs=2, seed=seed) if b.epoch == epoch for i in b.items]

    assert order(0, 0) == [0, 2, 1, 4, 6, 7, 3, 5]
    assert order(0, 0) != order(1, 0)
    assert order(0, 0) != order(0, 1)


@given(
    size=st.integers(0, 20),
    groups_per_step=st.integers(1, 7),
    num_epochs=st.integers(0, 3),
    initial_step=st.integers(0, 40),
    seed=st.integers(0, 3),
)
def test_resuming_gives_exactly_the_rest(
    size: int, groups_per_step: int, num_epochs: int, initial_step: int, seed: int
) -> None:
    def batches(start: int) -> list[DatasetBatch[int]]:
        return list(iterate_dataset(range(size), groups_per_step, num_epochs, start, seed=seed))

    whole = batches(0)
    assert batches(initial_step) == whole[initial_step:]
    for epoch in range(num_epochs):
        assert sorted(i for b in whole if b.epoch == epoch for i in b.items) == list(range(size))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups_per_step": 0}, "groups_per_step is 0"),
        ({"num_epochs": -1}, "num_epochs is -1"),
        ({"initial_step": -1}, "initial_step is -1"),
        ({"groups_per_step": 2.0}, "groups_per_step is 2.0; wanted a whole number"),
        ({"groups_per_step": True}, "groups_per_step is True"),
        ({"initial_step": "1"}, "initial_step is '1'"),
        ({"use_tqdm": False}, "iterate_dataset has no argument 'use_tqdm': no progress is shown"),
    ],
)
def test_impossible_arguments_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        iterate_dataset([1], **arguments)


def test_a_generator_is_refused() -> None:
    with pytest.raises(ConfigError, match="dataset is a generator; wanted a list"):
        iterate_dataset(x for x in "ab")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="dataset is a dict; wanted a list"):
        iterate_dataset({"a": 1})  # type: ignore[arg-type]
