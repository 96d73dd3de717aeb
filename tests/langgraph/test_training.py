"""`train`: the loop around rollouts, its evaluations, its judge, and how it goes on."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from pydantic import BaseModel

import art_core as art
import art_langgraph
from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.testing import InProcessBackend
from art_core.types import RolloutError
from art_langgraph import ArtChatModel, Evaluation, TrainingResult, current_trajectory
from art_langgraph.stats import Interval, interval
from tests.langgraph.graphs import last, serving

Served = tuple[art.TrainableModel, InProcessBackend]


def in_turn() -> Any:
    """Answers `good` and `bad` by turns, whatever is asked."""
    numbers = itertools.count()
    return lambda _: ("good", "bad")[next(numbers) % 2]


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(in_turn()) as made:
        yield made


def graph_of(model: art.TrainableModel) -> Any:
    llm = ArtChatModel(model)

    async def answer(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile()


def attempt_with(model: art.TrainableModel) -> Any:
    graph = graph_of(model)

    async def attempt(task: str) -> float:
        state = await graph.ainvoke({"messages": [("user", task)]})
        return float(state["messages"][-1].content == "good")

    return attempt


QUIET: Any = {"show_progress": False, "group_size": 4, "groups_per_step": 2, "max_concurrent": 1}


async def test_it_makes_the_steps_and_logs_what_they_were_made_of(served: Served) -> None:
    model, backend = served
    result = await art_langgraph.train(
        model, attempt_with(model), ["a", "b", "c"], steps=3, learning_rate=3e-4, clip_low=0.1, **QUIET
    )
    assert (result.step, result.rewards, result.num_skipped) == (3, (0.5, 0.5, 0.5), 0)
    assert (result.before, result.after, result.gain, str(result)) == (None, None, None, "step 3")
    objectives = [objective for _, objective in backend.trainer.steps]
    assert {(o.learning_rate, o.clip_low) for o in objectives} == {(3e-4, 0.1)}
    groups = [entry for entry in backend.logged if entry.groups]
    assert [(entry.split, entry.step) for entry in groups] == [("train", 0), ("train", 1), ("train", 2)]
    assert [[len(group) for group in entry.groups] for entry in groups] == [[4, 4]] * 3
    seen = [group.scenario_id for entry in groups for group in entry.groups]
    assert sorted(seen[:3]) == sorted(seen[3:]) == ["task-0", "task-1", "task-2"]


async def test_it_evaluates_before_after_and_between(served: Served) -> None:
    model, backend = served
    result = await art_langgraph.train(
        model,
        attempt_with(model),
        ["a", "b"],
        steps=4,
        validation=["v", "w", "x"],
        eval_every=2,
        eval_samples=2,
        **QUIET,
    )
    assert [evaluation.step for evaluation in result.evaluations] == [0, 2, 4]
    assert all(evaluation.rewards == (0.5, 0.5, 0.5) for evaluation in result.evaluations)
    assert result.gain == Interval(0.0, 0.0, 0.0)
    assert str(result) == (
        "step 4: reward 0.500 [0.500, 0.500] before, 0.500 [0.500, 0.500] after, gain 0.000 [0.000, 0.000]"
    )
    val = [entry for entry in backend.logged if entry.split == "val"]
    assert [(entry.step, entry.metrics["val/reward"], len(entry.groups)) for entry in val] == [
        (0, 0.5, 3),
        (2, 0.5, 3),
        (4, 0.5, 3),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [1, 2, 3])
async def test_called_again_it_goes_on_with_the_same_tasks_as_without_a_stop(stop_after: int) -> None:
    async def run(*steps: int) -> tuple[list[list[str]], list[TrainingResult]]:
        async with serving(in_turn()) as (model, backend):
            results = [
                await art_langgraph.train(
                    model, attempt_with(model), list("abcde"), steps=count, validation=["v"], seed=7, **QUIET
                )
                for count in steps
            ]
            train = [entry.groups for entry in backend.logged if entry.split == "train" and entry.groups]
            return [[group.scenario_id for group in groups] for groups in train], results

    whole, _ = await run(4)
    parts, results = await run(stop_after, 4, 4)
    assert parts == whole
    assert [result.step for result in results] == [stop_after, 4, 4]
    assert [len(result.rewards) for result in results] == [stop_after, 4 - stop_after, 0]
    firsts = [result.before for result in results]
    assert firsts[0] == firsts[1] == firsts[2]
    assert results[1].after is not None
    assert results[1].after.step == 4


async def test_steps_made_before_are_none_of_its_batches(served: Served) -> None:
    model, _ = served
    attempt = art_langgraph.rollout(attempt_with(model), model=model)
    await model.train([art.TrajectoryGroup([await attempt("a"), await attempt("a")])])
    result = await art_langgraph.train(model, attempt, ["a"], steps=2, **QUIET)
    assert (result.step, len(result.rewards)) == (3, 2)


async def test_batches_that_teach_nothing_count_as_batches(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "good") as (model, _):
        result = await art_langgraph.train(model, attempt_with(model), ["a"], steps=3, **QUIET)
        assert (result.step, result.num_skipped, result.rewards) == (0, 3, (1.0, 1.0, 1.0))
        again = await art_langgraph.train(model, attempt_with(model), ["a"], steps=3, **QUIET)
        assert (again.step, again.rewards) == (0, ())
    told = [record.getMessage() for record in caplog.records if "learned nothing" in record.getMessage()]
    assert len(told) == 1
    assert "each of the 3 batches was skipped, the last because in 1 of 1 groups all rewards are equal" in told[0]


async def test_what_was_learned_in_part_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    answers = itertools.chain(["good"] * 4, itertools.cycle(["good", "bad"]))
    async with serving(lambda _: next(answers)) as (model, _):
        result = await art_langgraph.train(model, attempt_with(model), ["a"], steps=2, **QUIET)
    assert (result.step, result.num_skipped) == (1, 1)
    assert "learned nothing" not in caplog.text


async def test_the_reward_of_an_attempt_that_says_it_failed_does_not_count(served: Served) -> None:
    model, _ = served
    numbers = itertools.count()

    async def attempt(task: str) -> None:
        reward = float(await attempt_with(model)(task))
        current_trajectory().reward = reward
        if next(numbers) == 0:
            current_trajectory().reward = 100.0
            current_trajectory().error = RolloutError(kind="Closed", message="the shop is closed")

    result = await art_langgraph.train(model, attempt, ["a"], steps=1, **QUIET)
    assert result.rewards == (1 / 3,)


async def test_a_failed_attempt_is_counted_and_never_a_reward(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    model, backend = served
    numbers = itertools.count()

    async def attempt(task: str) -> float:
        if next(numbers) % 4 == 3:
            raise ConnectionError("mail server down")
        return float(await attempt_with(model)(task))

    result = await art_langgraph.train(model, attempt, ["a"], steps=1, **{**QUIET, "show_progress": True})
    assert result.rewards == (2 / 3,)
    told = capsys.readouterr().err
    assert re.search(r"batch 1 of 1: step 1 · reward 0\.667 · .* tokens/s · .* · failed: ConnectionError 1\n", told)
    assert len(backend.trainer.steps[0][0]) == 3


async def test_what_is_wrong_with_a_step_is_told_once(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(lambda _: "good") as (model, _):
        await art_langgraph.train(
            model, attempt_with(model), list("abcd"), steps=1, **{**QUIET, "show_progress": True, "groups_per_step": 4}
        )
    of_this_process = [record for record in caplog.records if record.name == "art_core.model"]  # not of the server
    told = "".join(f"{record.getMessage()}\n" for record in of_this_process) + capsys.readouterr().err
    assert told.count("no-signal") == 1


async def test_a_batch_in_which_every_attempt_failed_ends_it(served: Served) -> None:
    model, _ = served

    async def attempt(task: str) -> float:
        raise ConnectionError(f"mail server down for {task}")

    told = (
        r"batch 1 of 20: every attempt failed \(ConnectionError 4\), so nothing was trained; the first: "
        r"ConnectionError: mail server down for a \(at test_training\.py:\d+ in attempt\)"
    )
    with pytest.raises(InfrastructureError, match=told):
        await art_langgraph.train(model, attempt, ["a"], **QUIET)
    with pytest.raises(InfrastructureError, match="1 rollouts failed, and max_exceptions is 0"):
        await art_langgraph.train(model, attempt, ["a"], max_exceptions=0, **QUIET)


async def test_what_takes_too_long_is_a_failure(served: Served) -> None:
    model, _ = served

    async def attempt(task: str) -> float:
        await asyncio.sleep(60)
        return 1.0

    with pytest.raises(InfrastructureError, match="TimeoutError 4"):
        await art_langgraph.train(model, attempt, ["a"], timeout_s=0.05, **QUIET)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"learnig_rate": 1.0}, r"train has no option 'learnig_rate'"),
        ({"group_sze": 4}, r"no option 'group_sze': did you mean 'group_size'\?; its options are .*'learning_rate'"),
        ({"zzz": 1}, r"train has no option 'zzz'; its options are .*'group_size'.*'validation'"),
        ({"temperature": 1}, r"no option 'temperature': how attempts are sampled .*ArtChatModel\(model\)"),
        ({"backend": None}, r"no option 'backend': it is where .*await model\.register\(backend\)"),
        ({"normalize_advantages": True}, "use scale_rewards"),
        ({"loss": "sft"}, "learns from demonstrations"),
        ({"group_size": 1}, "group_size is 1; wanted a whole number, 2 or more: attempts are compared"),
        ({"groups_per_step": 0}, "groups_per_step is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"eval_samples": 0}, "eval_samples is 0"),
        ({"eval_every": 2}, "eval_every is 2 with 0 validation tasks"),
        ({"judge": "openai/gpt-5-mini"}, "judge is a str; wanted an async function"),
        ({"roles": "worker"}, r"wanted names of roles"),
        ({"steps": 2.5}, r"steps is 2\.5; wanted a whole number"),
        ({"group_size": "8"}, "group_size is '8'; wanted a whole number"),
        ({"groups_per_step": True}, "groups_per_step is True; wanted a whole number"),
        ({"seed": None}, "seed is None; wanted a whole number"),
        ({"eval_every": True, "validation": ["v"]}, "eval_every is True"),
        ({"max_concurrent": 0}, "max_concurrent is 0"),
        ({"timeout_s": -1}, "timeout_s is -1"),
        ({"max_retries": -1}, "max_retries is -1"),
        ({"max_exceptions": -1}, "max_exceptions is -1"),
        ({"validation": (x for x in "ab")}, "validation is a generator; wanted a list"),
        ({"validation": {"v": 1}}, "validation is a dict; wanted a list"),
    ],
)
async def test_what_cannot_be_is_refused_before_anything_starts(
    options: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(art_langgraph.training, "LocalBackend", None)  # would be called
    model = art.TrainableModel(name="m", project="p", base_model="none such")
    with pytest.raises(ConfigError, match=told):
        await art_langgraph.train(model, lambda task: 1.0, ["a"], path=tmp_path / "runs", **options)


async def test_tasks_are_a_list_with_something_in_it(served: Served) -> None:
    model, _ = served
    with pytest.raises(ConfigError, match="tasks is empty"):
        await art_langgraph.train(model, lambda task: 1.0, [])
    with pytest.raises(ConfigError, match="tasks is a generator"):
        await art_langgraph.train(model, lambda task: 1.0, (x for x in "ab"))  # type: ignore[arg-type]
    wrong: Any
    for wrong in ({"a": 1}, "a task", {"a", "b"}, None):
        with pytest.raises(ConfigError, match=f"tasks is a {type(wrong).__name__}; wanted a list"):
            await art_langgraph.train(model, lambda task: 1.0, wrong)


async def test_an_attempt_takes_a_task_and_nothing_else(served: Served) -> None:
    model, _ = served

    async def by_keyword(*, task: str) -> float:
        return 1.0

    async def of_two(task: str, model: Any) -> float:
        return 1.0

    async def of_none() -> float:
        return 1.0

    for function in (by_keyword, of_two, of_none):
        with pytest.raises(ConfigError, match=r"train calls it with a task: .*; wanted a function of the task alone"):
            await art_langgraph.train(model, function, ["a"], **QUIET)

    async def with_default(task: str, *more: Any, strict: bool = True) -> float:
        return float(await attempt_with(model)(task))

    assert (await art_langgraph.train(model, with_default, ["a"], steps=1, **QUIET)).step == 1


async def test_a_task_may_be_anything(served: Served) -> None:
    model, _ = served

    class Task(BaseModel):
        question: str = "what?"

    tasks: list[Any] = [{"q": 1}, "text", Task(), np.float32(2), None, (1, 2)]
    seen = set()

    async def attempt(task: Any) -> float:
        seen.add(type(task))
        return float(await attempt_with(model)(str(task)))

    await art_langgraph.train(model, attempt, tasks, steps=3, **QUIET)
    assert seen == {type(task) for task in tasks}
    arrays: dict[str, Any] = {"tasks": np.array(["a", "b"]), "validation": np.array(["v", "w"])}
    async with serving(in_turn()) as (other, _):
        result = await art_langgraph.train(other, attempt_with(other), steps=4, **arrays, **QUIET)
    assert result.after is not None
    assert len(result.after.rewards) == 2


async def test_fewer_steps_than_were_made_are_no_steps(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = served
    await art_langgraph.train(model, attempt_with(model), ["a"], steps=2, **QUIET)
    again = await art_langgraph.train(
        model, attempt_with(model), ["a"], steps=1, validation=["v"], **{**QUIET, "show_progress": True}
    )
    assert (again.step, again.rewards, len(again.evaluations)) == (2, (), 1)
    told = "going on after 2 batches, at step 2; with steps=1 there is nothing left to do\n"
    assert told in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("stop_at", [0, 3, 9, 13, 27])
async def test_interrupted_in_a_batch_it_goes_on_with_that_batch(stop_at: int) -> None:
    async def run(stop_at: int | None) -> list[list[str]]:
        async with serving(in_turn()) as (model, backend):
            attempts, made = itertools.count(), attempt_with(model)

            async def attempt(task: str) -> float:
                if next(attempts) == stop_at:
                    running.cancel()
                    await asyncio.sleep(60)
                return float(await made(task))

            async def train() -> None:
                await art_langgraph.train(model, attempt, list("abcde"), steps=4, seed=7, **QUIET)

            running = asyncio.ensure_future(train())
            if stop_at is not None:
                with pytest.raises(asyncio.CancelledError):
                    await running
                running = asyncio.ensure_future(train())
            await running
            assert await model.get_step() == 4
            train_logs = [entry.groups for entry in backend.logged if entry.split == "train" and entry.groups]
            return [[group.scenario_id for group in groups] for groups in train_logs]

    assert await run(stop_at) == await run(None)


async def test_a_rollout_of_another_model_is_refused(served: Served) -> None:
    model, _ = served
    other = art.TrainableModel(name="other", project="p", base_model="b")
    with pytest.raises(ConfigError, match="is a rollout of TrainableModel"):
        await art_langgraph.train(model, art_langgraph.rollout(attempt_with(model), model=other), ["a"], **QUIET)


# Figures


def test_intervals_of_means() -> None:
    assert interval([0.5] * 9) == Interval(0.5, 0.5, 0.5)
    one = interval([1.0])
    assert (one.mean, one.low, one.high) == (1.0, float("-inf"), float("inf"))
    many = interval([0.0, 1.0] * 50)
    assert many.mean == 0.5
    assert 0.38 < many.low < 0.42
    assert 0.58 < many.high < 0.62
    assert interval([0.0, 1.0] * 50) == many


def test_one_task_has_no_interval_and_says_so() -> None:
    assert str(interval([1.0])) == "1.000 (1 task: no interval)"
    assert str(interval([1.0, 1.0])) == "1.000 [1.000, 1.000]"
    assert str(Evaluation(3, (0.5, None))) == "0.500 (1 task: no interval) on 1 of 2 tasks"
    one = TrainingResult(1, before=Evaluation(0, (0.0,)), after=Evaluation(1, (1.0,)))
    assert str(one) == (
        "step 1: reward 0.000 (1 task: no interval) before, 1.000 (1 task: no interval) after, "
        "gain 1.000 (1 task: no interval)"
    )


def test_a_gain_is_of_the_same_tasks() -> None:
    before, after = Evaluation(0, (0.0, None, 0.5, 0.0)), Evaluation(3, (1.0, 1.0, 1.0, None))
    assert after.gain_over(before).mean == 0.75
    assert before.interval.mean == pytest.approx(1 / 6)
    assert re.fullmatch(r"0\.750 \[0\.500, 1\.000\]", str(after.gain_over(before)))


def test_what_has_no_task_in_common_has_no_gain_and_can_be_printed() -> None:
    before, after = Evaluation(0, (1.0, None), 1), Evaluation(3, (None, 1.0), 1)
    result = TrainingResult(3, evaluations=(before, after), before=before, after=after)
    assert result.gain is not None
    assert not result.gain.low > 0
    assert "gain unknown (before: 1 of 2 tasks, 1 attempt failed; after: 1 of 2 tasks" in str(result)
    assert str(Evaluation(0, (None,), 2)) == "unknown on 0 of 1 task, 2 attempts failed"
    with pytest.raises(DataError, match="evaluations of 2 and 1 tasks"):
        Evaluation(1, (1.0,)).gain_over(before)


async def test_roles_are_an_option_of_the_step(served: Served) -> None:
    model, backend = served
    workers = {role: ArtChatModel(model, role=role) for role in ("planner", "worker")}

    async def attempt(task: str) -> float:
        answers: list[BaseMessage] = [await llm.ainvoke([HumanMessage(task)]) for llm in workers.values()]
        return float(answers[0].content == "good") + 0.1 * len(backend.trainer.steps)

    async def attempts_differ(task: str) -> float:
        numbers.append(await attempt(task))
        return float(len(numbers) % 2)

    numbers: list[float] = []
    await art_langgraph.train(model, attempts_differ, ["a"], steps=1, roles=("worker",), **QUIET)
    assert [row.num_trained for row in backend.trainer.steps[0][0]] == [len("bad") + 1] * 4
    with pytest.raises(DataError, match="no call of these groups has the role 'wroker'"):
        await art_langgraph.train(model, attempts_differ, ["a"], steps=2, roles=("wroker",), **QUIET)


def test_prompts_end_with_what_was_said_last() -> None:
    assert last("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n") == ("user", "hi")


async def test_a_line_tells_the_time_that_is_left(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = served
    await art_langgraph.train(model, attempt_with(model), ["a"], steps=2, **{**QUIET, "show_progress": True})
    first, second = [line for line in capsys.readouterr().err.splitlines() if line.startswith("batch")]
    assert re.search(r" · about \d+s left$", first)
    assert "left" not in second
