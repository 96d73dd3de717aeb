"""`train`: the loop around rollouts, its evaluations, its judge, and how it goes on."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph

import art_core as art
import art_langgraph
from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.testing import InProcessBackend
from art_core.types import RolloutError
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


@pytest.mark.parametrize("say", [in_turn(), lambda _: "good"], ids=["made", "skipped"])
async def test_a_batch_after_which_it_was_killed_is_not_made_again(say: Any) -> None:
    async with serving(say) as (model, backend):

        class Killed(BaseException):
            pass

        async def train(*args: Any) -> Any:
            await art.TrainableModel.train(model, *args)
            raise Killed

        model.train = train  # type: ignore[assignment]
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
        assert str(result) == "step 0: reward 1.000 [-inf, inf] before"


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
    assert " on 1 of 2 tasks, 3 attempts failed\n" in capsys.readouterr().err
    again = await art_langgraph.train(model, attempt, ["a"], steps=1, validation=["v", "never"], **options)
    assert again.before == result.before


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
