"""`rollout`: what it records, what it takes as reward, and what it refuses."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

import art_core as art
import art_langgraph
from art_core.errors import ConfigError, DataError
from art_core.types import RolloutError
from art_langgraph import ArtChatModel, Rollout, current_trajectory, rollout, wrap_rollout
from tests.langgraph.graphs import last, said, serving


@pytest.fixture
async def model() -> AsyncIterator[art.TrainableModel]:
    async with serving(lambda prompt: last(prompt)[1].upper()) as (made, _):
        yield made


async def ask(model: art.TrainableModel, text: str) -> str:
    return str((await ArtChatModel(model).ainvoke(text)).content)


async def asynchronous(model: art.TrainableModel, text: str) -> float:
    return float(await ask(model, text) == text.upper())


def synchronous(model: art.TrainableModel, text: str) -> float:
    return float(str(ArtChatModel(model).invoke(text).content) == text.upper())


class WithCall:
    async def __call__(self, model: art.TrainableModel, text: str) -> float:
        return await asynchronous(model, text)


class Method:
    def run(self, model: art.TrainableModel, text: str) -> float:
        return synchronous(model, text)


@pytest.mark.parametrize(
    "function",
    [
        asynchronous,
        synchronous,
        lambda model, text: asynchronous(model, text),
        functools.partial(asynchronous),
        WithCall(),
        Method().run,
    ],
    ids=["async", "sync", "lambda", "partial", "object", "method"],
)
async def test_every_way_to_write_and_to_wrap_gives_a_recorded_trajectory(
    model: art.TrainableModel, function: Any
) -> None:
    unbound = rollout(function)
    made: list[Rollout] = [
        unbound.of(model),
        rollout(model)(function),
        rollout(model=model)(function),
        rollout(function, model=model),
        wrap_rollout(model, function),
        wrap_rollout(model, unbound),
    ]
    for one in made:
        trajectory = await one(model, text="hi")
        assert (said(trajectory), trajectory.reward, trajectory.error) == (["HI"], 1.0, None)
        assert [message["content"] for message in trajectory.messages()] == ["hi", "HI"]
        assert trajectory.metrics == {}


@pytest.mark.parametrize("how", ["invoke", "stream", "n"])
async def test_a_synchronous_call_that_would_hold_up_the_loop_is_refused(model: art.TrainableModel, how: str) -> None:
    llm = ArtChatModel(model)

    async def attempt(text: str) -> float:
        if how == "stream":
            list(llm.stream(text))
        elif how == "n":
            llm.invoke(text, n=2)
        else:
            llm.invoke(text)
        return 1.0

    with pytest.raises(ConfigError, match=r"on the event loop.*every other attempt; write `await agent\.ainvoke"):
        await rollout(attempt, model=model)("hi")


async def test_a_synchronous_call_in_a_thread_may_have_a_loop_of_its_own(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)

    async def inner(text: str) -> str:
        return str(llm.invoke(text).content)

    def own_loop(text: str) -> float:
        return float(asyncio.run(inner(text)) == text.upper())

    async def in_thread(text: str) -> float:
        return float((await asyncio.to_thread(llm.invoke, text)).content == text.upper())

    def node(state: MessagesState) -> Any:
        return {"messages": [llm.invoke(state["messages"])]}

    graph: Any = StateGraph(MessagesState)
    graph.add_node("node", node)
    graph.add_edge(START, "node")
    compiled = graph.compile()

    async def in_node(text: str) -> float:
        return float((await compiled.ainvoke({"messages": [("user", text)]}))["messages"][-1].content == text.upper())

    for function in (own_loop, in_thread, in_node):
        trajectory = await rollout(function, model=model)("hi")
        assert (said(trajectory), trajectory.reward) == (["HI"], 1.0)


async def test_the_decorated_function_keeps_its_name(model: art.TrainableModel) -> None:
    @rollout(model)
    async def solve(text: str) -> float:
        """Says it."""
        return await asynchronous(model, text)

    assert (solve.__name__, solve.__doc__) == ("solve", "Says it.")  # type: ignore[attr-defined]
    assert (await solve("a")).reward == 1.0


@pytest.mark.parametrize("is_async", [True, False])
async def test_reward_and_metrics_may_be_set_on_the_current_trajectory(
    model: art.TrainableModel, is_async: bool
) -> None:
    def note(content: str) -> None:
        current_trajectory().reward = 0.25
        current_trajectory().metrics["length"] = len(content)
        current_trajectory().metadata["task"] = "t"

    async def by_async() -> None:
        note(await ask(model, "abc"))

    def by_sync() -> None:
        note(str(ArtChatModel(model).invoke("abc").content))

    trajectory = await rollout(by_async if is_async else by_sync, model=model)()
    assert (trajectory.reward, trajectory.metrics, trajectory.metadata) == (0.25, {"length": 3}, {"task": "t"})
    with pytest.raises(ConfigError, match=r"inside a function that is decorated with @art_langgraph\.rollout"):
        current_trajectory()


@pytest.mark.parametrize("given", [True, 1, 1.0])
async def test_any_number_is_a_reward(model: art.TrainableModel, given: Any) -> None:
    async def attempt() -> Any:
        await ask(model, "a")
        return given

    trajectory = await rollout(attempt, model=model)()
    assert (trajectory.reward, type(trajectory.reward)) == (1.0, float)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, r"refused_attempt' gave no reward; return a number, or set current_trajectory\(\)\.reward"),
        (float("nan"), r"the reward that rollout '.*refused_attempt' returned is nan; wanted a finite number"),
        (float("-inf"), "returned is -inf; wanted a finite number"),
        ("1", "returned is '1'; wanted a finite number, a Trajectory, or None"),
        ({"messages": []}, r"the final state of a graph is for a judge: train\(\.\.\., judge=\.\.\.\)"),
    ],
)
async def test_a_reward_that_is_none_is_refused(model: art.TrainableModel, given: Any, told: str) -> None:
    async def refused_attempt() -> Any:
        await ask(model, "a")
        return given

    with pytest.raises(DataError, match=told):
        await rollout(refused_attempt, model=model)()


async def test_a_reward_of_nan_set_by_hand_is_refused_where_it_is_set(model: art.TrainableModel) -> None:
    async def attempt() -> None:
        await ask(model, "a")
        current_trajectory().reward = float("nan")

    with pytest.raises(ValueError, match="nan is not a finite number"):
        await rollout(attempt, model=model)()


async def test_an_attempt_may_say_itself_that_it_failed(model: art.TrainableModel) -> None:
    async def attempt() -> None:
        await ask(model, "a")
        current_trajectory().error = RolloutError(kind="Closed", message="the shop is closed")

    trajectory = await rollout(attempt, model=model)()
    assert (trajectory.reward, trajectory.error and trajectory.error.kind) == (None, "Closed")


async def test_an_exception_goes_through(model: art.TrainableModel) -> None:
    async def attempt() -> None:
        await ask(model, "a")
        raise LookupError("no mail")

    with pytest.raises(LookupError, match="no mail"):
        await rollout(attempt, model=model)()
    (group,) = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollout(attempt, model=model)() for _ in range(2))], pbar_desc=None
    )
    assert [error.kind for error in group.errors] == ["LookupError"] * 2


async def test_a_trajectory_of_ones_own_gets_what_was_recorded(model: art.TrainableModel) -> None:
    async def returned() -> art.Trajectory:
        await ask(model, "a")
        return art.Trajectory(reward=0.5, metadata={"k": 1}, metrics={"m": 2})

    trajectory = await rollout(returned, model=model)()
    assert (said(trajectory), trajectory.reward, trajectory.metadata) == (["A"], 0.5, {"k": 1})
    assert [message["content"] for message in trajectory.messages()] == ["a", "A"]

    async def the_current_one() -> art.Trajectory:
        await ask(model, "b")
        trajectory = current_trajectory()
        trajectory.reward = 1.0
        return trajectory

    assert said(await rollout(the_current_one, model=model)()) == ["B"]

    async def own_capture() -> art.Trajectory:
        async with art.capture(model) as trajectory:
            await ask(model, "c")
            trajectory.reward = 0.0
        return trajectory

    assert said(await rollout(own_capture, model=model)()) == ["C"]


# B071: nothing was recorded


async def test_b071_a_rollout_that_calls_another_model_is_refused_and_named(model: art.TrainableModel) -> None:
    unwrapped = FakeListChatModel(responses=["hi"])

    async def attempt() -> float:
        await unwrapped.ainvoke("a")
        await asyncio.to_thread(unwrapped.invoke, "b")
        return 1.0

    with pytest.raises(DataError, match=r"it called other models \(a model without name 2\); build the graph with"):
        await rollout(attempt, model=model)()


async def test_b071_a_plain_client_of_the_same_server_is_named_too(model: art.TrainableModel) -> None:
    plain = ChatOpenAI(
        model="graphs/agent", base_url=model.inference_base_url, api_key=SecretStr("none"), use_responses_api=False
    )

    async def attempt() -> float:
        await plain.ainvoke("a")
        return 1.0

    with pytest.raises(DataError, match=r"outside the attempt's address \(graphs/agent 1\); use .*ArtChatModel"):
        await rollout(attempt, model=model)()


async def test_b071_a_rollout_that_returns_before_it_calls_is_refused(model: art.TrainableModel) -> None:
    def attempt() -> float:
        return 1.0

    with pytest.raises(DataError, match="it returned before it called the model, or called it by a client that"):
        await rollout(attempt, model=model)()


async def test_b071_a_thread_started_by_hand_is_named(model: art.TrainableModel) -> None:
    def attempt() -> float:
        thread = threading.Thread(target=ArtChatModel(model).invoke, args=("a",))
        thread.start()
        thread.join()
        return 1.0

    with pytest.raises(DataError, match="1 calls of the model were made in no rollout meanwhile; a thread"):
        await rollout(attempt, model=model)()


async def test_threads_with_the_context_of_the_rollout_are_recorded(model: art.TrainableModel) -> None:
    def attempt() -> float:
        with ThreadPoolExecutor() as pool:
            contexts = [contextvars.copy_context() for _ in "ab"]
            futures = [
                pool.submit(context.run, ArtChatModel(model).invoke, text)
                for context, text in zip(contexts, "ab", strict=True)
            ]
            return float(len([future.result() for future in futures]))

    assert sorted(said(await rollout(attempt, model=model)())) == ["A", "B"]


async def test_b071_nothing_is_trained_when_no_attempt_was_recorded(model: art.TrainableModel) -> None:
    with pytest.raises(DataError, match=r"every attempt failed \(DataError 16\), so nothing was trained; the first: "):
        await art_langgraph.train(model, lambda task: 1.0, ["a", "b"], groups_per_step=2, show_progress=False)
    assert await model.get_step() == 0


# What surrounds it


async def test_another_model_beside_ours_is_left_alone_and_counted_as_context(model: art.TrainableModel) -> None:
    other = FakeListChatModel(responses=["from elsewhere"])

    async def attempt() -> float:
        advice = (await other.ainvoke("advise")).content
        return float(await ask(model, str(advice)) == "FROM ELSEWHERE")

    trajectory = await rollout(attempt, model=model)()
    assert (said(trajectory), trajectory.reward) == (["FROM ELSEWHERE"], 1.0)
    assert trajectory.metrics == {"other_models/calls": 1}
    assert trajectory.logs == ["calls of models that are not trained: a model without name 1"]


async def test_a_plain_chat_model_at_the_address_of_the_trajectory_is_ours(model: art.TrainableModel) -> None:
    async def attempt() -> float:
        here = current_trajectory()
        key = SecretStr(here.api_key)
        plain = ChatOpenAI(model="graphs/agent", base_url=here.base_url, api_key=key, use_responses_api=False)
        await plain.ainvoke("plain")
        return float("".join([str(chunk.content) async for chunk in plain.astream("streamed")]) == "STREAMED")

    trajectory = await rollout(attempt, model=model)()
    assert (said(trajectory), trajectory.metrics) == (["PLAIN", "STREAMED"], {})


async def test_a_rollout_in_a_rollout_keeps_its_calls(model: art.TrainableModel) -> None:
    @rollout(model)
    async def inner() -> float:
        return float(await ask(model, "inner") == "INNER")

    async def outer() -> float:
        await ask(model, "before")
        assert said(await inner()) == ["INNER"]
        await ask(model, "after")
        return 1.0

    assert said(await rollout(outer, model=model)()) == ["BEFORE", "AFTER"]


async def test_a_rollout_that_returns_that_of_an_inner_one_has_the_calls_and_notes_of_both(
    model: art.TrainableModel,
) -> None:
    @rollout(model)
    async def inner() -> float:
        current_trajectory().metadata.update(who="inner", inner=1)
        return float(await ask(model, "inner") == "INNER")

    @rollout(model)
    async def outer() -> art.Trajectory:
        await ask(model, "before")
        made = await inner()
        await ask(model, "after")
        current_trajectory().metadata.update(who="outer", outer=2)
        current_trajectory().metrics["tries"] = 3
        return made

    trajectory = await outer()
    assert said(trajectory) == ["BEFORE", "INNER", "AFTER"]
    assert (trajectory.reward, trajectory.metrics) == (1.0, {"tries": 3})
    assert trajectory.metadata == {"who": "inner", "inner": 1, "outer": 2}
    histories = [trajectory, *trajectory.additional_histories]
    assert [[m["content"] for m in history.messages()] for history in histories] == [
        ["inner", "INNER"],
        ["before", "BEFORE"],
        ["after", "AFTER"],
    ]
    others = [await outer() for _ in range(2)]
    others[0].reward = 0.0
    assert (await model.train([art.TrajectoryGroup(others)])).step == 1


async def test_a_reward_set_on_the_current_trajectory_holds_where_the_returned_one_has_none(
    model: art.TrainableModel,
) -> None:
    async def attempt() -> art.Trajectory:
        await ask(model, "a")
        current_trajectory().reward = 0.25
        return art.Trajectory(metadata={"k": 1})

    assert (await rollout(attempt, model=model)()).reward == 0.25


async def test_an_object_may_have_attributes_of_any_name(model: art.TrainableModel) -> None:
    class Agent:
        def __init__(self) -> None:
            self.model, self.function = "gpt-5", "search"

        async def __call__(self, text: str) -> float:
            return await asynchronous(model, text)

    agent = Agent()
    made = wrap_rollout(model, agent)
    assert (made.model, made.function) == (model, agent)
    assert said(await made("hi")) == ["HI"]


def test_a_rollout_needs_a_function_and_a_model_that_is_registered() -> None:
    model = art.TrainableModel(name="new", project="graphs", base_model="scripted")
    wrong: Any
    for wrong in (1, "f"):
        with pytest.raises(ConfigError, match="wanted a function that runs the agent"):
            rollout(wrong)
    with pytest.raises(ConfigError, match=r"wanted wrap_rollout\(model, function\)"):
        wrap_rollout(asynchronous, model)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"does not know its model; write @rollout\(model\)"):
        asyncio.run(rollout(asynchronous)(model, "a"))
    with pytest.raises(ConfigError, match=r"is not registered; call `await model\.register"):
        asyncio.run(rollout(asynchronous, model=model)(model, "a"))
    other = art.TrainableModel(name="other", project="graphs", base_model="scripted")
    with pytest.raises(ConfigError, match=r"is a rollout of TrainableModel\(name='new'"):
        rollout(asynchronous, model=model).of(other)


async def test_many_synchronous_rollouts_run_at_once(model: art.TrainableModel) -> None:
    all_there = threading.Barrier(40)

    def attempt(text: str) -> float:
        all_there.wait(20)
        return float(str(ArtChatModel(model).invoke(text).content) == text.upper())

    made = await asyncio.gather(*(rollout(attempt, model=model)(f"t{number}") for number in range(40)))
    assert [said(trajectory) for trajectory in made] == [[f"T{number}"] for number in range(40)]
