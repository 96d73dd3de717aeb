"""`train` with a judge: what it is shown, and what becomes of its verdict."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

import art_core as art
import art_langgraph
from art_core.errors import ConfigError, DataError
from art_core.runs import Run
from art_langgraph import ArtChatModel, Evaluation
from art_langgraph.stats import Interval
from tests.langgraph.graphs import serving
from tests.langgraph.test_training import QUIET, Served, attempt_with, graph_of, in_turn


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(in_turn()) as made:
        yield made


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


class OfCore:
    """Says how long the last message is; has a `score` of trajectories, as a judge of `art_core`."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def score(self, trajectories: Any) -> Any:
        self.num_asked += 1
        assert all(isinstance(trajectory, art.Trajectory) for trajectory in trajectories)
        return [float(len(t.messages()[-1]["content"])) for t in trajectories]


class LikeRuler(OfCore):
    """The same with the scores in a field."""

    async def score(self, trajectories: Any) -> Any:
        return SimpleNamespace(scores=tuple(await super().score(trajectories)))


@pytest.mark.parametrize("judge", [OfCore(), LikeRuler()], ids=["list", "field"])
async def test_a_judge_of_trajectories(served: Served, judge: OfCore) -> None:
    model, _ = served
    result = await art_langgraph.train(model, attempt_with(model), ["a"], steps=2, judge=judge, **QUIET)
    assert (result.step, result.rewards, judge.num_asked) == (2, (3.5, 3.5), 2)


async def test_with_a_judge_the_gain_is_of_attempts_that_were_compared_with_each_other(served: Served) -> None:
    model, backend = served
    shown: list[list[str]] = []

    async def attempt(task: str) -> Any:
        answer = await ArtChatModel(model).ainvoke(task)
        return [HumanMessage(task), AIMessage(f"step {answer.response_metadata['policy_version']}")]

    async def judge(attempts: Any) -> list[float]:
        """Ranks within the group, from 0 to 1: what other groups were given says nothing."""
        said = [str(messages[-1].content) for messages in attempts]
        if not attempts[0][0].content.startswith("train"):
            shown.append(said)
            ranks = sorted(set(said))
            return [ranks.index(text) / max(1, len(ranks) - 1) for text in said]
        return [float(index) for index, _ in enumerate(attempts)]

    options = {**QUIET, "judge": judge, "eval_samples": 2}
    result = await art_langgraph.train(model, attempt, ["train"], steps=1, validation=["v", "w"], **options)
    assert [evaluation.rewards for evaluation in result.evaluations] == [(0.0, 0.0), (0.0, 0.0)]
    assert shown[:4] == [["step 0"] * 2] * 2 + [["step 1"] * 2] * 2
    assert shown[4:] == [["step 0"] * 2 + ["step 1"] * 2, ["step 1"] * 2 + ["step 0"] * 2]
    assert (result.before, result.after) == (Evaluation(0, (0.0, 0.0)), Evaluation(1, (1.0, 1.0)))
    assert result.gain == Interval(1.0, 1.0, 1.0)
    later = await art_langgraph.train(model, attempt, ["train"], steps=2, validation=["v", "w"], **options)
    assert (later.before, later.gain) == (None, None)
    val = [entry for entry in backend.logged if entry.split == "val"]
    assert [[member.reward for group in entry.groups for member in group] for entry in val] == [[0.0] * 4] * 3


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


@pytest.mark.parametrize(
    ("verdict", "told"),
    [
        ([float("nan")] * 4, "score 0 is nan; wanted a finite number"),
        ([0.0, float("-inf"), 0.0, 0.0], "score 1 is -inf"),
        (None, "scores are a NoneType; wanted a list"),
        ({"a": 1.0}, "scores are a dict"),
        (["1"] * 4, "score 0 is '1'"),
        ([1.0] * 5, "5 scores for 4 trajectories"),
    ],
)
async def test_what_is_no_verdict_ends_it_by_name(served: Served, verdict: Any, told: str) -> None:
    model, _ = served

    async def judge(attempts: Any) -> Any:
        return verdict

    with pytest.raises(DataError, match=f"every attempt failed .*: the judge failed: group 'task-0': {told}"):
        await art_langgraph.train(model, attempt_with(model), ["a"], steps=1, judge=judge, **QUIET)
    assert await model.get_step() == 0


async def test_a_judge_that_is_not_asynchronous_is_refused(served: Served) -> None:
    model, _ = served
    judge: Any = lambda attempts: [1.0] * len(attempts)  # noqa: E731
    with pytest.raises(ConfigError, match="the judge gave a list when it was called; wanted an async function"):
        await art_langgraph.train(model, attempt_with(model), ["a"], steps=1, judge=judge, **QUIET)


async def test_what_a_judge_has_cost_is_a_metric_of_the_step(served: Served) -> None:
    model, backend = served

    async def judge(attempts: Any) -> Any:
        usage = SimpleNamespace(calls=2, total_tokens=100, cost_usd=0.25)
        return SimpleNamespace(scores=[float(number) for number, _ in enumerate(attempts)], usage=usage)

    async def unpriced(attempts: Any) -> Any:
        usage = SimpleNamespace(calls=1, total_tokens=10, cost_usd=None)
        return SimpleNamespace(scores=[float(number) for number, _ in enumerate(attempts)], usage=usage)

    for asked, costs in (
        (judge, {"cost/judge_usd": 0.5, "cost/judge_tokens": 200, "cost/judge_calls": 4}),
        (unpriced, {"cost/judge_tokens": 20, "cost/judge_calls": 2}),
    ):
        step = await model.get_step() + 1
        await art_langgraph.train(model, attempt_with(model), ["a", "b"], steps=step, judge=asked, **QUIET)
        (*_, report) = Run(backend.folder(model.project, model.name)).steps()
        assert {name: value for name, value in report.metrics.items() if name.startswith("cost/")} == costs
