"""Each option of supervised training changes what is trained, at what rate, or which checkpoints there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from art_core.control import SftExample
from art_core.sft.preparing import prepare
from art_core.sft_config import SftConfig
from tests.core.sft.families import renderer_of
from tests.core.sft.test_run import process, steps

Options = dict[str, Any]

CHANGES: dict[str, tuple[Options, Options]] = {
    "learning_rate": ({}, {"learning_rate": 1.0}),
    "epochs": ({}, {"epochs": 2}),
    "batch_size": ({}, {"batch_size": 3}),
    "schedule": ({}, {"schedule": "cosine"}),
    "warmup_ratio": ({}, {"warmup_ratio": 0.9}),
    "shuffle": ({}, {"shuffle": False}),
    "seed": ({}, {"seed": 5}),
    "max_row_tokens": ({"overlong": "cut"}, {"max_row_tokens": 55}),
    "overlong": ({"overlong": "cut", "max_row_tokens": 55}, {"overlong": "drop"}),
    "train_on": ({}, {"train_on": "last"}),
    "save_every": ({}, {"save_every": 1}),
    "restart": ({}, {"restart": True}),
}
"""For each option where it is changed, and to what."""


async def done(folder: Path, options: Options) -> object:
    """What two runs of the same training train, at what rates, and the checkpoints behind them."""
    config = SftConfig(**{"batch_size": 2, **options})
    turns = [("U", "one"), ("V", "two"), ("W", "three"), ("X", "four"), ("Y" * 9, "a longer answer than the others")]
    examples = [
        SftExample(
            source=f"d:{index}",
            messages=[
                {"role": role, "content": text}
                for question, answer in (turns[index], turns[index - 1])
                for role, text in (("user", question), ("assistant", answer))
            ],
        )
        for index in range(len(turns))
    ]
    training = prepare(examples, renderer_of("chatml"), config, max_context_tokens=1000)
    trained = []
    async with process(folder) as first:
        await first.run(training, config)
        trained += [(rows, objective.learning_rate) for rows, objective in first.trainer.steps]
    async with process(folder) as second:
        await second.run(training, config)
        trained += [(rows, objective.learning_rate) for rows, objective in second.trainer.steps]
        return trained, steps(second.store)


def test_no_option_is_left_out() -> None:
    assert list(CHANGES) == [field.name for field in dataclasses.fields(SftConfig)]


@pytest.mark.parametrize("option", CHANGES)
async def test_it_changes_the_training(option: str, tmp_path: Path) -> None:
    before, change = CHANGES[option]
    assert await done(tmp_path / "with", {**before, **change}) != await done(tmp_path / "without", before)


async def test_without_a_change_it_is_the_same(tmp_path: Path) -> None:
    """Or the tests above would say nothing."""
    assert await done(tmp_path / "first", {}) == await done(tmp_path / "again", {})
