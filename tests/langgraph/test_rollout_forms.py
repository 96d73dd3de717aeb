"""`rollout` on whatever can be called, and around whatever may happen in it."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
import threading
from collections.abc import AsyncIterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import CachePolicy

import art_core as art
from art_core.errors import ConfigError, DataError
from art_langgraph import ArtChatModel, current_trajectory, rollout
from tests.langgraph.graphs import last, said, serving


@pytest.fixture
async def model() -> AsyncIterator[art.TrainableModel]:
    async with serving(lambda prompt: last(prompt)[1].upper()) as (made, _):
        yield made


def chat_graph(llm: ArtChatModel, before: Any = None, saver: Any = None) -> Any:
    async def answer(state: MessagesState) -> Any:
        if before is not None:
            await before()
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


# What can be decorated


async def test_methods_of_all_kinds_may_be_decorated(model: art.TrainableModel) -> None:
    class Agent:
        def __init__(self, suffix: str) -> None:
            self.llm = ArtChatModel(model)
            self.suffix = suffix

        @rollout(model)
        async def asynchronous(self, text: str) -> float:
            """Asks."""
            return float((await self.llm.ainvoke(text + self.suffix)).text == text.upper() + self.suffix)

        @rollout
        def synchronous(self, text: str) -> float:
            return float(self.llm.invoke(text + self.suffix).text == text.upper() + self.suffix)

        @staticmethod
        @rollout(model)
        async def static(text: str) -> float:
            return float((await ArtChatModel(model).ainvoke(text)).text == text.upper())

        @classmethod
        @rollout(model)
        async def of_class(cls, text: str) -> float:
            return float((await ArtChatModel(model).ainvoke(text)).text == text.upper())

    for agent in (Agent("!"), Agent("?")):
        methods: list[Any] = [agent.asynchronous, agent.synchronous.of(model), agent.static, agent.of_class]
        for method, asked in zip(methods, [f"HI{agent.suffix}", f"HI{agent.suffix}", "HI", "HI"], strict=True):
            trajectory = await method("hi")
            assert (said(trajectory), trajectory.reward) == ([asked], 1.0)
    assert Agent.asynchronous.__doc__ == "Asks."


async def test_an_object_keeps_what_it_calls_model_and_function(model: art.TrainableModel) -> None:
    class Agent:
        def __init__(self) -> None:
            self.model = ArtChatModel(model)
            self.function = "add"

        async def __call__(self, text: str) -> float:
            return float((await self.model.ainvoke(text)).text == "HI")

    attempt = rollout(Agent(), model=model)
    assert attempt.model is model
    assert (await attempt("hi")).reward == 1.0


@rollout
async def at_module_level(task: str, *, strict: bool = False) -> float:
    """Solves it."""
    return float(bool(task) and strict)


async def plain_function(task: str) -> float:
    return float(bool(task))


def test_it_shows_the_functions_signature_and_is_pickled() -> None:
    assert str(inspect.signature(at_module_level)) == "(task: 'str', *, strict: 'bool' = False) -> 'float'"
    assert at_module_level.__doc__ == "Solves it."
    assert pickle.loads(pickle.dumps(at_module_level)) is at_module_level
    assert copy.deepcopy(at_module_level) is at_module_level
    again = pickle.loads(pickle.dumps(rollout(plain_function)))
    assert again.function is plain_function


def test_generators_are_refused_where_they_are_decorated() -> None:
    async def asynchronous(task: str) -> Any:
        yield 1.0

    def synchronous(task: str) -> Any:
        yield 1.0

    for function in (asynchronous, synchronous):
        with pytest.raises(ConfigError, match=r"onous has a `yield`, .*; wanted a function that runs the agent"):
            rollout(function)


# What it returns and raises


@pytest.mark.parametrize(
    "given", [np.float32(0.5), np.float64(0.5), np.array(0.5), Decimal("0.5"), Fraction(1, 2)], ids=repr
)
async def test_numbers_of_other_libraries_are_rewards(model: art.TrainableModel, given: Any) -> None:
    async def attempt() -> Any:
        await ArtChatModel(model).ainvoke("a")
        return given

    trajectory = await rollout(attempt, model=model)()
    assert (trajectory.reward, type(trajectory.reward)) == (0.5, float)


@pytest.mark.parametrize(
    "given", [(1.0, {}), {"reward": 1.0}, [1.0], np.array([1.0]), 1j, Decimal("nan"), Decimal("Infinity"), object()]
)
async def test_what_is_near_to_a_number_is_refused_and_shown(model: art.TrainableModel, given: Any) -> None:
    async def attempt() -> Any:
        await ArtChatModel(model).ainvoke("a")
        return given

    with pytest.raises(DataError, match="wanted a finite number") as told:
        await rollout(attempt, model=model)()
    assert repr(given)[:100] in str(told.value)
    assert "judge" not in str(told.value)


async def test_a_long_state_is_shown_in_short(model: art.TrainableModel) -> None:
    graph = chat_graph(ArtChatModel(model))

    async def attempt() -> Any:
        return await graph.ainvoke({"messages": [("user", "word " * 500)]})

    with pytest.raises(DataError, match=r"judge=\.\.\.") as told:
        await rollout(attempt, model=model)()
    assert len(str(told.value)) < 700


async def test_a_state_in_its_newer_shape_is_a_state(model: art.TrainableModel) -> None:
    graph = chat_graph(ArtChatModel(model))

    async def attempt() -> Any:
        return await graph.ainvoke({"messages": [("user", "hi")]}, version="v2")

    made = await rollout(attempt, model=model).attempt((), {}, is_judged=True)
    assert made.state["messages"][-1].text == "HI"


async def test_a_synchronous_rollout_that_raises_stop_iteration_does_not_hang(model: art.TrainableModel) -> None:
    def attempt() -> float:
        ArtChatModel(model).invoke("a")
        return next(iter([]))

    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            await rollout(attempt, model=model)()


async def test_a_trajectory_of_ones_own_gets_what_was_set_on_the_current_one(model: art.TrainableModel) -> None:
    async def attempt() -> art.Trajectory:
        await ArtChatModel(model).ainvoke("a")
        current_trajectory().reward = 0.5
        current_trajectory().metadata.update(a=1, b=2)
        current_trajectory().metrics["m"] = 3
        return art.Trajectory(metadata={"b": 0})

    trajectory = await rollout(attempt, model=model)()
    assert (trajectory.reward, trajectory.metadata, trajectory.metrics) == (0.5, {"a": 1, "b": 0}, {"m": 3})


async def test_calls_that_a_returned_trajectory_lacks_are_added(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    inner = rollout(lambda text: llm.invoke(text) and 1.0, model=model)

    async def attempt() -> art.Trajectory:
        await llm.ainvoke("left out")
        return await inner("inner")

    trajectory = await rollout(attempt, model=model)()
    assert (said(trajectory), trajectory.metrics) == (["LEFT OUT", "INNER"], {})


# What happens inside


async def test_a_rollout_inside_a_graph_of_another_is_no_other_model(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    inner = rollout(lambda: llm.invoke("inner") and 1.0, model=model)

    async def captured() -> None:
        await inner()
        async with art.capture(model) as trajectory:
            await llm.ainvoke("captured")
        assert said(trajectory) == ["CAPTURED"]

    graph = chat_graph(llm, before=captured)

    async def outer() -> float:
        await graph.ainvoke({"messages": [("user", "outer")]})
        return 1.0

    trajectory = await rollout(outer, model=model)()
    assert (said(trajectory), trajectory.metrics) == (["OUTER"], {})


async def test_two_trained_models_in_one_rollout(model: art.TrainableModel) -> None:
    second = art.TrainableModel(name="second", project="graphs", base_model="scripted")
    await second.register(model.backend())
    one, two = ArtChatModel(model), ArtChatModel(second)

    async def attempt() -> float:
        await one.ainvoke("a")
        await two.ainvoke("context")
        async with art.capture(second) as of_second:
            await two.ainvoke("b")
            await one.ainvoke("c")
        assert said(of_second) == ["B"]
        return 1.0

    trajectory = await rollout(attempt, model=model)()
    assert (said(trajectory), trajectory.metrics) == (["A", "C"], {"other_models/calls": 2})
    assert trajectory.logs == ["calls of models that are not trained: graphs/second 2"]


async def test_a_rollout_may_train(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    inner = rollout(lambda text: llm.invoke(text) and float(len(text)), model=model)

    async def attempt() -> float:
        await llm.ainvoke("before")
        await model.train([art.TrajectoryGroup([await inner("a"), await inner("bb")])])
        await llm.ainvoke("after")
        return 1.0

    trajectory = await rollout(attempt, model=model)()
    assert [exchange.policy_version for exchange in trajectory.exchanges] == [0, 1]


async def test_a_thread_id_that_rollouts_share_is_told(
    model: art.TrainableModel, caplog: pytest.LogCaptureFixture
) -> None:
    graph = chat_graph(ArtChatModel(model), saver=InMemorySaver())

    async def shared(text: str, thread: str) -> float:
        for turn in (1, 2):
            await graph.ainvoke({"messages": [("user", f"{text}{turn}")]}, {"configurable": {"thread_id": thread}})
        return 1.0

    attempt = rollout(shared, model=model)
    own = [await attempt("a", "1"), await attempt("b", "2")]
    assert [trajectory.metrics for trajectory in own] == [{}, {}]
    assert caplog.text == ""
    for number in (2, 4):
        trajectory = await attempt("c", "1")
        assert trajectory.metrics == {"history/answers_from_elsewhere": number}
        assert "give each rollout a thread_id of its own" in trajectory.logs[0]
    assert caplog.text.count("thread_id of its own") == 1


async def test_a_cancelled_rollout_leaves_nothing_behind(model: art.TrainableModel) -> None:
    llm, called = ArtChatModel(model), asyncio.Event()
    go_on, ended = threading.Event(), asyncio.Event()
    loop, late = asyncio.get_running_loop(), list[Exception]()

    async def asynchronous() -> float:
        await llm.ainvoke("a")
        called.set()
        await asyncio.sleep(60)
        return 1.0

    def synchronous() -> float:
        llm.invoke("a")
        loop.call_soon_threadsafe(called.set)
        go_on.wait(20)
        try:
            llm.invoke("too late")
        except Exception as error:  # noqa: BLE001
            late.append(error)
        loop.call_soon_threadsafe(ended.set)
        return 1.0

    function: Any
    for function in (asynchronous, synchronous):
        called.clear()
        running = asyncio.ensure_future(rollout(function, model=model)())
        await called.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        with pytest.raises(ConfigError, match="no rollout runs here"):
            current_trajectory()
    go_on.set()
    await ended.wait()
    assert "is not open" in str(late[0])


async def test_a_task_that_was_begun_outside_is_named(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    asked: asyncio.Queue[tuple[asyncio.Future[Any], str]] = asyncio.Queue()

    async def work() -> None:
        while True:
            future, text = await asked.get()
            future.set_result(await llm.ainvoke(text))

    worker = asyncio.create_task(work())

    async def by_a_worker() -> float:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        asked.put_nowait((future, "a"))
        return float(bool(await future))

    async def in_part_by_an_executor() -> float:
        await llm.ainvoke("a")
        await asyncio.get_running_loop().run_in_executor(None, llm.invoke, "b")
        return 1.0

    with pytest.raises(DataError, match="1 calls of the model were made in no rollout meanwhile"):
        await rollout(by_a_worker, model=model)()
    trajectory = await rollout(in_part_by_an_executor, model=model)()
    assert (said(trajectory), trajectory.metrics) == (["A"], {"capture/calls_outside": 1})
    worker.cancel()


async def test_batches_are_recorded_whole(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    texts: list[Any] = [f"w{number}" for number in range(50)]

    async def attempt() -> float:
        await llm.abatch(texts)
        await asyncio.to_thread(llm.batch, texts)
        return 1.0

    assert sorted(said(await rollout(attempt, model=model)())) == sorted(text.upper() for text in texts * 2)


@pytest.mark.parametrize("is_async", [True, False])
async def test_streams_that_are_broken_off_are_told(model: art.TrainableModel, is_async: bool) -> None:
    llm = ArtChatModel(model)

    async def by_async(text: str) -> float:
        stream = llm.astream(text * 300)
        await anext(stream)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return 1.0

    def by_sync(text: str) -> float:
        stream = llm.stream(text * 300)
        next(stream)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
        return 1.0

    function: Any = by_async if is_async else by_sync

    async def with_a_whole_one(text: str) -> float:
        assert "".join([chunk.text async for chunk in llm.astream(text)]) == text.upper()
        await (function(text) if is_async else asyncio.to_thread(function, text))
        return 1.0

    trajectory = await rollout(with_a_whole_one, model=model)("word")
    assert trajectory.metrics == {"capture/streams_broken_off": 1}
    assert trajectory.logs[0].startswith("1 streams were not read to their end; a call whose stream is broken off")

    async def with_one_that_fails(text: str) -> float:
        with pytest.raises(Exception, match="max_completion_tokens"):
            [chunk async for chunk in llm.astream(text, max_tokens=-1)]
        await llm.ainvoke(text)
        return 1.0

    assert (await rollout(with_one_that_fails, model=model)("word")).metrics == {}


async def test_a_rollout_of_one_forgotten_stream_is_refused_by_name(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    streams = []

    async def attempt() -> float:
        streams.append(llm.astream("word " * 200))
        await anext(streams[0])
        return 1.0

    with pytest.raises(DataError, match=r"1 streams were not read to their end; .*: read each whole"):
        await rollout(attempt, model=model)()
    with pytest.raises(Exception, match=r"."):  # the server ended it
        [chunk async for chunk in streams[0]]


async def test_the_cache_of_a_node_is_told(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)

    async def first(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    async def second(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke([*state["messages"], ("user", "so?")])]}

    graph = StateGraph(MessagesState)
    policy: Any = CachePolicy(key_func=lambda _: "always")
    graph.add_node("first", first, cache_policy=policy)
    graph.add_edge(START, "first")
    alone = graph.compile(cache=InMemoryCache())
    graph.add_node("second", second)
    graph.add_edge("first", "second")
    both = graph.compile(cache=InMemoryCache())

    async def attempt(graph: Any) -> float:
        await graph.ainvoke({"messages": [("user", "hi")]})
        return 1.0

    made = [await rollout(attempt, model=model)(both) for _ in range(2)]
    assert [said(trajectory) for trajectory in made] == [["HI", "SO?"], ["SO?"]]
    assert [trajectory.metrics for trajectory in made] == [{}, {"history/answers_from_elsewhere": 1}]
    await rollout(attempt, model=model)(alone)
    with pytest.raises(DataError, match="where nodes have a cache_policy leave that out"):
        await rollout(attempt, model=model)(alone)
