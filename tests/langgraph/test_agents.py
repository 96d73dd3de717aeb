"""Agents with middleware, options that are bound before, and other ways to build and run a graph."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    SummarizationMiddleware,
    wrap_model_call,
)
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField, RunnableParallel
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.types import Command
from pydantic import BaseModel

import art_core as art
from art_langgraph import ArtChatModel, current_trajectory, rollout
from tests.langgraph.graphs import call, said, serving
from tests.langgraph.test_graphs import Served, add, agent_of, asking, both_factories, clerk, user


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(clerk) as made:
        yield made


class Sum(BaseModel):
    """A sum."""

    total: int


# Options that are bound before


@both_factories
async def test_agents_keep_what_was_bound_before(factory: str, served: Served) -> None:
    model, backend = served
    llm: Any = ArtChatModel(model)
    options: dict[str, Any] = {"stop": ["zzz"], "temperature": 0.5}
    forms: list[Any] = [
        llm.bind(**options),
        llm.bind(**options).bind(max_tokens=900),
        llm.bind(**options).with_config(tags=["x"]),
        llm.with_config(tags=["x"]).bind(**options),
        llm.bind_tools([add], **options),
        llm.bind(**options).bind_tools([add]),
    ]
    for form in forms:
        backend.engine.requests.clear()
        attempt = rollout(lambda form: agent_of(factory, form, [add]).invoke(user("2 + 3")) and 1.0, model=model)
        trajectory = await attempt(form)
        assert said(trajectory) == [[("add", {"a": 2, "b": 3})], "It is 5."]
        assert {sampling.temperature for _, sampling in backend.engine.requests} == {0.5}
        assert [len(exchange.tools) for exchange in trajectory.exchanges] == [1, 1]


async def test_a_config_that_was_given_before_reaches_the_calls_of_an_agent(served: Served) -> None:
    model, _ = served
    llm: Any = ArtChatModel(model).with_config(tags=["mine"])
    agent = create_agent(llm, [add])
    events = [event async for event in agent.astream_events(user("2 + 3"), version="v2")]
    tags = [event["tags"] for event in events if event["event"] == "on_chat_model_end"]
    assert len(tags) == 2
    assert all("mine" in given for given in tags)


@pytest.mark.parametrize("method", ["function_calling", "json_schema"])
@pytest.mark.parametrize("include_raw", [False, True])
async def test_structured_output_keeps_what_was_bound_before(method: str, include_raw: bool) -> None:
    total = '{"total": 5}' if method == "json_schema" else call("Sum", total=5)
    async with serving(lambda _: total) as (model, backend):
        llm = ArtChatModel(model)
        for form in (llm.bind(temperature=0.5), llm.bind_tools([add], tool_choice="add", temperature=0.5)):
            backend.engine.requests.clear()
            chain: Any = form.with_structured_output(Sum, method=method, include_raw=include_raw)  # type: ignore[attr-defined]
            async with art.capture(model) as trajectory:
                made = await chain.ainvoke("5")
            assert (made["parsed"] if include_raw else made) == Sum(total=5)
            assert [sampling.temperature for _, sampling in backend.engine.requests] == [0.5]
            assert len(trajectory.exchanges) == 1


async def test_alternatives_and_parallels_are_recorded(served: Served) -> None:
    model, backend = served
    llm = ArtChatModel(model)
    either = llm.configurable_alternatives(
        ConfigurableField(id="llm"), default_key="cold", hot=ArtChatModel(model, temperature=0.7)
    )
    both: Any = RunnableParallel(plain=llm, tools=llm.bind_tools([add]))
    async with art.capture(model) as trajectory:
        await either.with_config(configurable={"llm": "hot"}).ainvoke("hi")
        await either.ainvoke("hi")
        await both.ainvoke("hi")
    assert [sampling.temperature for _, sampling in backend.engine.requests][:2] == [0.7, 1.0]
    assert len(trajectory.exchanges) == 4


# Middleware


async def test_a_summary_is_a_history_of_its_own(served: Served) -> None:
    model, _ = served
    summary = SummarizationMiddleware(
        ArtChatModel(model, role="summary"),
        trigger=("messages", 4),
        keep=("messages", 1),
        summary_prompt="Sum up: {messages}",
    )
    agent = create_agent(ArtChatModel(model), [add], middleware=[summary])

    async def attempt(text: str) -> float:
        state = await agent.ainvoke(user(text))
        state = await agent.ainvoke({"messages": [*state["messages"], HumanMessage("more")]})
        assert len(state["messages"]) == 3
        return 1.0

    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert [(exchange.role, exchange.forked) for exchange in trajectory.exchanges] == [
        ("", False),
        ("", False),
        ("summary", True),  # each opens a row
        ("", True),
    ]
    assert [history.role for history in trajectory.additional_histories] == ["summary", ""]
    assert trajectory.metrics == {}


async def test_a_human_may_change_a_call(served: Served) -> None:
    model, _ = served
    agent = create_agent(
        ArtChatModel(model),
        [add],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True})],
        checkpointer=InMemorySaver(),
    )
    edited = {"type": "edit", "edited_action": {"name": "add", "args": {"a": 4, "b": 4}}}

    async def attempt(text: str) -> float:
        config: Any = {"configurable": {"thread_id": text}}
        assert (await agent.ainvoke(user(text), config))["__interrupt__"]
        state = await agent.ainvoke(Command(resume={"decisions": [edited]}), config)
        return float("8" in state["messages"][-1].text)

    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert trajectory.reward == 1.0
    assert len(trajectory.exchanges) == 2
    assert said(trajectory)[0] == [("add", {"a": 2, "b": 3})]
    for sample in art.to_samples(trajectory, 1.0):
        assert sample.num_trained > 0
    assert sum(sample.num_trained for sample in art.to_samples(trajectory, 1.0)) == trajectory.num_trained_tokens


async def test_middleware_may_swap_the_model_and_edit_the_context(served: Served) -> None:
    model, _ = served
    other = ArtChatModel(model, role="other")

    @wrap_model_call
    async def swap(request: Any, handler: Callable[[Any], Any]) -> Any:
        return await handler(request.override(model=other))

    cleared: Any = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=1, keep=0)])
    agent: Any = create_agent(ArtChatModel(model), [add], middleware=[swap, cleared])

    async def attempt(text: str) -> float:
        await agent.ainvoke(user(text))
        return 1.0

    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert said(trajectory) == [[("add", {"a": 2, "b": 3})], "It is [cleared]."]
    assert [exchange.role for exchange in trajectory.exchanges] == ["other", "other"]
    assert [message["content"] for message in trajectory.messages() if message["role"] == "tool"] == ["[cleared]"]


# Other ways to build and to run


async def test_tasks_of_the_functional_api_are_recorded(served: Served) -> None:
    model, _ = served
    llm = ArtChatModel(model)

    @task
    async def one(text: str) -> str:
        return (await llm.ainvoke(text)).text

    @task
    def two(text: str) -> str:
        return llm.invoke(text).text

    @entrypoint()
    async def asynchronous(text: str) -> list[str]:
        return await asyncio.gather(*(one(f"{text}{number}") for number in range(5)))

    @entrypoint()
    def synchronous(text: str) -> list[str]:
        return [future.result() for future in [two(f"{text}{number}") for number in range(5)]]

    async def attempt(text: str) -> float:
        await asynchronous.ainvoke(text)
        await asyncio.to_thread(synchronous.invoke, text)
        return 1.0

    trajectory = await rollout(attempt, model=model)("w")
    assert sorted(said(trajectory)) == sorted([f"W{number}" for number in range(5)] * 2)
    assert trajectory.metrics == {}


async def test_every_stream_mode_is_recorded_and_comes_in_pieces(served: Served) -> None:
    model, _ = served
    agent = create_agent(ArtChatModel(model), [add])
    modes: list[Any] = ["values", "updates", "messages", "custom"]

    async def attempt(text: str) -> float:
        seen = [mode async for mode, _ in agent.astream(user(text), stream_mode=modes)]
        assert set(seen) == {"values", "updates", "messages"}
        events = [event async for event in agent.astream_events(user(text), version="v2")]
        pieces = [event["data"]["chunk"].text for event in events if event["event"] == "on_chat_model_stream"]
        assert len([piece for piece in pieces if piece]) > 1
        return 1.0

    trajectory = await rollout(attempt, model=model)("hello to the whole world")
    assert said(trajectory) == ["HELLO TO THE WHOLE WORLD"] * 2
    assert trajectory.metrics == {}
    for exchange in trajectory.exchanges:
        assert len(exchange.completion_ids) == len(exchange.logprobs) == len("HELLO TO THE WHOLE WORLD") + 1


async def test_a_graph_of_another_server_is_led_by_its_config(served: Served) -> None:
    """As `langgraph dev` runs it: made elsewhere, told in its config where the trajectory is."""
    model, _ = served
    elsewhere = ArtChatModel(base_url=model.inference_base_url, model="graphs/agent")
    configurable = elsewhere.configurable_fields(openai_api_base=ConfigurableField(id="base_url"))

    def make_graph(config: Any) -> Any:
        return create_agent(ArtChatModel(base_url=config["configurable"]["base_url"], model="graphs/agent"), [add])

    async def attempt(text: str) -> float:
        config: Any = {"configurable": {"base_url": current_trajectory().base_url}}
        await make_graph(config).ainvoke(user(text))
        await configurable.ainvoke("by a field", config)
        return 1.0

    made = await asyncio.gather(*(rollout(attempt, model=model)(f"{number} + 3") for number in range(3)))
    for number, trajectory in enumerate(made):
        assert said(trajectory) == [[("add", {"a": number, "b": 3})], f"It is {number + 3}.", "BY A FIELD"]


async def test_an_interrupt_may_be_resumed_in_another_rollout(served: Served) -> None:
    model, _ = served
    graph = asking(ArtChatModel(model), InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}

    async def attempt(given: Any) -> float:
        await graph.ainvoke(given, config)
        return 1.0

    given_in_turn: list[Any] = [user("one"), Command(resume="two")]
    made = [await rollout(attempt, model=model)(given) for given in given_in_turn]
    assert [said(trajectory) for trajectory in made] == [["ONE"], ["TWO"]]
    assert [trajectory.metrics for trajectory in made] == [{}, {"history/answers_from_elsewhere": 1}]
    (row,) = art.to_samples(made[1], 1.0)
    assert row.num_trained == len("TWO") + 1


async def test_a_tool_that_raises_and_a_graph_without_end_are_failures() -> None:
    @tool("add")
    def failing(a: int, b: int) -> int:
        """Add two numbers."""
        raise OSError("the disk is full")

    async with serving(lambda _: call("add", a=1, b=2)) as (model, _):
        graphs = [create_agent(ArtChatModel(model), [failing]), create_agent(ArtChatModel(model), [add])]

        async def attempt(graph: Any) -> float:
            await graph.ainvoke(user("hi"), {"recursion_limit": 6})
            return 1.0

        (group,) = await art.gather_trajectory_groups(
            [art.TrajectoryGroup(rollout(attempt, model=model)(graph) for graph in graphs)], pbar_desc=None
        )
    assert [error.kind for error in group.errors] == ["OSError", "GraphRecursionError"]
    assert [trajectory.reward for trajectory in group] == [None, None]
