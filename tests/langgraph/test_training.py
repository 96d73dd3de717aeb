"""`train`: the loop around rollouts, its evaluations, its judge, and how it goes on."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import art_core as art
import art_langgraph
from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.testing import InProcessBackend
from art_langgraph import ArtChatModel, Evaluation, TrainingResult
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
    assert [len(group) for entry in groups for group in entry.groups] == [
        4
    ] * 5  # the last batch of an epoch is smaller
    seen = [group.scenario_id for entry in groups for group in entry.groups]
    assert sorted(seen[:3]) == ["task-0", "task-1", "task-2"]


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


async def test_a_step_whose_mark_was_lost_is_not_made_again(served: Served) -> None:
    model, backend = served
    await art_langgraph.train(model, attempt_with(model), ["a", "b", "c"], steps=2, **QUIET)
    assert backend.logged.pop().metrics == {"langgraph/batches_done": 2.0}
    result = await art_langgraph.train(model, attempt_with(model), ["a", "b", "c"], steps=3, **QUIET)
    assert (result.step, len(result.rewards)) == (3, 1)


async def test_batches_that_teach_nothing_count_as_batches(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(lambda _: "good") as (model, _):
        result = await art_langgraph.train(model, attempt_with(model), ["a"], steps=3, **QUIET)
        assert (result.step, result.num_skipped, result.rewards) == (0, 3, (1.0, 1.0, 1.0))
        again = await art_langgraph.train(model, attempt_with(model), ["a"], steps=3, **QUIET)
        assert (again.step, again.rewards) == (0, ())
    assert "all rewards are equal" in caplog.text


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
    assert "batch 1 of 1: step 1  reward 0.667  failed: ConnectionError 1\n" in capsys.readouterr().err
    assert len(backend.trainer.steps[0][0]) == 3


async def test_a_batch_in_which_every_attempt_failed_ends_it(served: Served) -> None:
    model, _ = served

    async def attempt(task: str) -> float:
        raise ConnectionError(f"mail server down for {task}")

    told = r"batch 1 of 20: every attempt failed \(ConnectionError 4\), .* the first: mail server down for a"
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
        ({"normalize_advantages": True}, "use scale_rewards"),
        ({"loss": "sft"}, "learns from demonstrations"),
        ({"group_size": 1}, "group_size is 1; wanted 2 or more: attempts are compared"),
        ({"groups_per_step": 0}, "groups_per_step is 0"),
        ({"steps": -1}, "steps is -1"),
        ({"eval_samples": 0}, "eval_samples is 0"),
        ({"eval_every": 2}, "eval_every is 2 with 0 validation tasks"),
        ({"judge": "openai/gpt-5-mini"}, "judge is a str; wanted an async function"),
        ({"roles": "worker"}, r"wanted names of roles"),
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


async def test_a_rollout_of_another_model_is_refused(served: Served) -> None:
    model, _ = served
    other = art.TrainableModel(name="other", project="p", base_model="b")
    with pytest.raises(ConfigError, match="is a rollout of TrainableModel"):
        await art_langgraph.train(model, art_langgraph.rollout(attempt_with(model), model=other), ["a"], **QUIET)


# Judges


async def test_a_judge_is_shown_the_messages_of_the_final_states(served: Served) -> None:
    model, backend = served
    graph, shown = graph_of(model), []

    async def attempt(task: str) -> Any:
        state = await graph.ainvoke({"messages": [("user", task)]})
        return state if task == "whole" else state["messages"]

    async def judge(attempts: Any) -> list[float]:
        shown.append(attempts)
        return [float(messages[-1].content == "good") for messages in attempts]

    result = await art_langgraph.train(model, attempt, ["whole", "messages"], steps=1, judge=judge, **QUIET)
    assert (result.step, result.rewards) == (1, (0.5,))
    assert len(shown) == 2
    for messages in itertools.chain.from_iterable(shown):
        assert [type(message) for message in messages] == [HumanMessage, AIMessage]
    assert [row.advantage > 0 for row in backend.trainer.steps[0][0]] == [True, False] * 4


async def test_a_judge_of_trajectories_and_one_with_scores_in_a_field(served: Served) -> None:
    model, _ = served

    class OfCore:
        async def score(self, trajectories: Any) -> list[float | None]:
            assert all(isinstance(trajectory, art.Trajectory) for trajectory in trajectories)
            return [float(len(t.messages()[-1]["content"])) for t in trajectories]

    class LikeRuler:
        async def score(self, trajectories: Any) -> Any:
            class Result:
                scores = tuple(float(len(t.messages()[-1]["content"])) for t in trajectories)

            return Result()

    judge: Any
    for judge in (OfCore(), LikeRuler()):
        result = await art_langgraph.train(model, attempt_with(model), ["a"], steps=2, judge=judge, **QUIET)
        assert set(result.rewards) <= {3.5}
    assert await model.get_step() == 2


async def test_what_the_judge_cannot_score_is_left_out_and_what_it_fails_at_too(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    model, backend = served
    calls = itertools.count()

    async def judge(attempts: Any) -> list[float | None]:
        match next(calls):
            case 0:
                return [1.0, None, 0.0, 0.5]
            case 1:
                raise TimeoutError("the judge is away")
            case _:
                return [0.0]

    options = {**QUIET, "groups_per_step": 3, "show_progress": True}
    result = await art_langgraph.train(model, attempt_with(model), ["a", "b", "c"], steps=1, judge=judge, **options)
    assert result.rewards == (0.5,)
    assert len(backend.trainer.steps[0][0]) == 3
    errors = [e for entry in backend.logged for group in entry.groups for e in group.errors]
    assert sorted(error.kind for error in errors) == ["DataError"] * 4 + ["TimeoutError"] * 4 + ["Unscored"]
    assert {error.message for error in errors if error.kind == "TimeoutError"} == {
        "the judge failed: the judge is away"
    }
    own = [t.metrics["own_reward"] for entry in backend.logged for group in entry.groups for t in group]
    assert sorted(own) == [0.0] * 6 + [1.0] * 6


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


def test_a_gain_is_of_the_same_tasks() -> None:
    before, after = Evaluation(0, (0.0, None, 0.5, 0.0)), Evaluation(3, (1.0, 1.0, 1.0, None))
    assert after.gain_over(before).mean == 0.75
    assert before.interval.mean == pytest.approx(1 / 6)
    assert re.fullmatch(r"0\.750 \[0\.500, 1\.000\]", str(after.gain_over(before)))


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
