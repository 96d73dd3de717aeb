"""How `train` goes on after a stop, and what it calls before and after."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pytest

import art_core as art
import art_langgraph
from art_core.errors import ConfigError
from art_core.types import RolloutError
from art_langgraph import ArtChatModel, Evaluation, TrainingResult
from art_langgraph.stats import Interval
from tests.langgraph.graphs import serving
from tests.langgraph.test_training import QUIET, Served, attempt_with, in_turn


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(in_turn()) as made:
        yield made


@pytest.mark.parametrize("say", [in_turn(), lambda _: "good"], ids=["made", "skipped"])
async def test_a_batch_after_which_it_was_killed_is_not_made_again(say: Any) -> None:
    async with serving(say) as (model, backend):

        class Killed(BaseException):
            pass

        async def train(*args: Any, **options: Any) -> Any:
            await art.TrainableModel.train(model, *args, **options)
            raise Killed

        model.train = train  # type: ignore[method-assign]
        with pytest.raises(Killed):
            await art_langgraph.train(model, attempt_with(model), ["a", "b", "c"], steps=3, **QUIET)
        del model.train
        result = await art_langgraph.train(model, attempt_with(model), ["a", "b", "c"], steps=3, **QUIET)
        assert len(result.rewards) == 2
        assert len([entry for entry in backend.logged if entry.groups]) == 3


async def test_it_goes_on_with_what_it_began_with_only(served: Served) -> None:
    model, backend = served
    attempt = attempt_with(model)
    first = {**QUIET, "groups_per_step": 2, "seed": 1}
    await art_langgraph.train(model, attempt, ["a", "b", "c"], steps=0, **QUIET)  # nothing is begun by this
    await art_langgraph.train(model, attempt, ["a", "b", "c"], steps=1, **first)
    num_logged = len(backend.logged)
    other: Any
    for tasks, other, told in [
        (["x", "y", "z"], {}, "other tasks than"),
        (["c", "b", "a"], {}, "other tasks than"),
        (["a", "b", "c"], {"seed": 2}, "other seed than"),
        (["a", "b", "c", "d"], {"groups_per_step": 3}, "other tasks and groups_per_step than"),
    ]:
        with pytest.raises(ConfigError, match=f"was trained for 1 batches with {told} are given now.*another name"):
            await art_langgraph.train(model, attempt, tasks, steps=2, **{**first, **other})
    assert len(backend.logged) == num_logged
    result = await art_langgraph.train(model, attempt, ("a", "b", "c"), steps=3, **{**first, "group_size": 2})
    assert (result.step, len(result.rewards)) == (3, 2)


async def test_only_what_was_tried_before_the_first_batch_is_before(served: Served) -> None:
    model, backend = served

    async def attempt(task: str) -> float:
        return float(await attempt_with(model)(task)) + len(backend.trainer.steps)

    async def trained(steps: int, *validation: str) -> TrainingResult:
        return await art_langgraph.train(model, attempt, ["a"], steps=steps, validation=validation, **options)

    options = {**QUIET, "eval_samples": 2}
    first = await trained(1, "v", "w")
    assert (first.before, first.after) == (Evaluation(0, (0.5, 0.5)), Evaluation(1, (1.5, 1.5)))
    for others in (("x", "y"), ("v",), ("w", "v")):
        made = await trained(2, *others)
        assert (made.before, made.gain) == (None, None)
        assert made.after == Evaluation(2, (2.5,) * len(others))
        assert str(made).endswith("; gain unknown: not tried on these tasks before the first batch")
    again = await trained(3, "v", "w")
    assert (again.before, again.after, again.gain) == (first.before, Evaluation(3, (3.5, 3.5)), Interval(3, 3, 3))


async def test_weights_that_no_batch_has_changed_are_those_of_before() -> None:
    async with serving(lambda _: "good") as (model, _):
        await art_langgraph.train(model, attempt_with(model), ["a"], steps=1, **QUIET)
        result = await art_langgraph.train(model, attempt_with(model), ["a"], steps=1, validation=["v"], **QUIET)
        assert (result.before, result.after, result.gain) == (Evaluation(0, (1.0,)), None, None)
        assert str(result) == "step 0: reward 1.000 (1 task: no interval) before"


async def test_an_evaluation_is_of_the_weights_that_answered(served: Served) -> None:
    model, backend = served
    newest, pinned = ArtChatModel(model), ArtChatModel(model, step=0)
    used = []

    async def attempt(task: str) -> float:
        answer = await (pinned if task.startswith("pinned") else newest).ainvoke(task)
        used.append((task, answer.response_metadata["policy_version"]))
        return float(answer.content == "good")

    result = await art_langgraph.train(model, attempt, ["a"], steps=2, validation=["pinned"], eval_every=1, **QUIET)
    assert [step for task, step in used if task == "a"] == [0] * 4 + [1] * 4
    assert [step for task, step in used if task == "pinned"] == [0, 0, 0]
    assert (result.step, [evaluation.step for evaluation in result.evaluations]) == (2, [0, 0, 0])
    mixed = await art_langgraph.train(model, attempt, ["a"], steps=2, validation=["pinned", "b"], **QUIET)
    assert [evaluation.step for evaluation in mixed.evaluations] == [2]
    assert [entry.step for entry in backend.logged if entry.split == "val"] == [0, 0, 0, 2]


async def test_fewer_tasks_than_a_batch_has_are_all_in_each(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    model, backend = served
    options = {**QUIET, "groups_per_step": 4, "show_progress": True}
    await art_langgraph.train(model, attempt_with(model), ["a", "b", "c"], steps=2, **options)
    made = [[group.scenario_id for group in entry.groups] for entry in backend.logged if entry.groups]
    assert [sorted(batch) for batch in made] == [["task-0", "task-1", "task-2"]] * 2
    assert "each batch has all tasks: there are 3, and groups_per_step is 4\n" in capsys.readouterr().err


async def test_the_reward_of_a_failed_attempt_counts_nowhere(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    model, _ = served
    numbers = itertools.count()

    async def attempt(task: str) -> None:
        trajectory = art_langgraph.current_trajectory()
        trajectory.reward = await attempt_with(model)(task)
        if task == "never" or next(numbers) % 2:
            trajectory.reward = -100.0
            trajectory.error = RolloutError(kind="Down", message="the mail server is down")

    options = {**QUIET, "show_progress": True, "eval_samples": 2}
    result = await art_langgraph.train(model, attempt, ["a"], steps=1, validation=["v", "never"], **options)
    assert result.before is not None
    assert result.before.num_failed == 3
    assert result.before.rewards[1] is None
    assert all(0 <= reward <= 1 for reward in [*result.rewards, result.before.rewards[0] or 0.0])
    assert str(result).endswith("(before: 1 of 2 tasks, 3 attempts failed; after: 1 of 2 tasks, 3 attempts failed)")
    told = " on 1 of 2 tasks, 3 attempts failed · failed: Down 3; the first: Down: the mail server is down\n"
    assert told in capsys.readouterr().err
    again = await art_langgraph.train(model, attempt, ["a"], steps=1, validation=["v", "never"], **options)
    assert again.before == result.before
