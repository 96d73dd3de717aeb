"""Mistakes in a script: what the caller is told of them."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

import art_core as art
import art_langgraph
from art_core.errors import ConfigError
from art_langgraph import ArtChatModel
from tests.langgraph.test_training import QUIET, Served, attempt_with, graph_of, served

__all__ = ["served"]


def test_what_was_probably_meant_is_told() -> None:
    model = art.TrainableModel(name="m", project="p", base_model="b")
    with pytest.raises(ConfigError, match=r"no option 'temprature': did you mean 'temperature'\? what a request"):
        ArtChatModel(model, temprature=1)
    with pytest.raises(ConfigError, match=r"no option 'zzz'; what a request says besides goes into extra_body"):
        ArtChatModel(model, zzz=1)
    with pytest.raises(ConfigError, match=r"the name 'smollm2-135m' without base_url=; wanted art\.TrainableModel\("):
        ArtChatModel("smollm2-135m")
    with pytest.raises(ConfigError, match=r"name='m'.* and model='gpt-4o'; wanted one of them"):
        ArtChatModel(model, model="gpt-4o")
    assert ArtChatModel(model=model).trainable is model


async def test_what_is_no_model_or_no_attempt_is_refused_by_the_name_of_the_argument(served: Served) -> None:
    model, _ = served
    train: Any = art_langgraph.train
    with pytest.raises(ConfigError, match=r"model, the first .*is 'smollm2-135m'; wanted art\.TrainableModel\("):
        await train("smollm2-135m", attempt_with(model), ["a"])
    with pytest.raises(ConfigError, match=r"model, the first .*is a function; the model comes first"):
        await train(attempt_with(model), model, ["a"])
    with pytest.raises(ConfigError, match=r"attempt, the second .*is a CompiledStateGraph; .*await agent\.ainvoke"):
        await train(model, graph_of(model), ["a"])
    with pytest.raises(ConfigError, match=r"attempt, the second .*is a float; wanted a function"):
        await train(model, 1.0, ["a"])


async def test_where_half_of_the_attempts_fail_the_first_is_shown_with_its_place(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = served
    numbers = itertools.count()

    def look_up(task: str) -> None:
        orders: dict[str, int] = {}
        orders[task] += 1  # as an agent fails

    async def attempt(task: str) -> float:
        if next(numbers) % 2:
            look_up(task)
        return float(await attempt_with(model)(task))

    options = {**QUIET, "show_progress": True, "validation": ["v"], "eval_samples": 2}
    await art_langgraph.train(model, attempt, ["ZZ"], steps=1, **options)
    told = capsys.readouterr().err
    place = rf"\(at test_mistakes\.py:{look_up.__code__.co_firstlineno + 2} in look_up\)"
    assert re.search(rf"batch 1 of 1: step 1 · .* · failed: KeyError 2; the first: KeyError: 'ZZ' {place}\n", told)
    assert re.search(rf"evaluation: step 0 · .* · failed: KeyError 1; the first: KeyError: 'v' {place}\n", told)
