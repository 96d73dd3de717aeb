"""Cases that other trainers and adapters got wrong, with agents of both factories."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import warnings
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import httpx2
import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
    trim_messages,
)
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from pydantic import BaseModel

import art_core as art
from art_core.errors import ConfigError
from art_core.messages import PART_SEPARATOR, message_key
from art_langgraph import ArtChatModel
from art_ruler.messages import read_message
from tests.langgraph.sensible import RawServer, SensibleBackend, call_of, chunks

pytestmark = pytest.mark.slow


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def react(model: Any, tools: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and many use it
        from langgraph.prebuilt import create_react_agent

        return create_react_agent(model, tools)


FACTORIES = [create_agent, react]
ASKED: Any = {"messages": [("user", "add 2 and 3 with the tool")]}


@pytest.mark.parametrize("factory", FACTORIES)
async def test_agents_of_both_factories_are_recorded_with_their_tools(
    factory: Callable[..., Any], model: art.TrainableModel
) -> None:
    agent = factory(ArtChatModel(model), [add])
    made = []
    for run in (agent.ainvoke, lambda asked: asyncio.to_thread(agent.invoke, asked)) * 2:
        async with art.capture(model) as trajectory:
            state = await run(ASKED)
        assert state["messages"][-1].text == "You said: 5"
        made.append(trajectory)
    for trajectory in made:
        first, second = trajectory.exchanges
        assert [t["function"]["name"] for t in first.tools] == [t["function"]["name"] for t in second.tools] == ["add"]
        assert second.forked is False
        assert (
            second.prompt_ids[: len(first.prompt_ids + first.completion_ids)] == first.prompt_ids + first.completion_ids
        )
        assert [message["role"] for message in trajectory.messages()] == ["user", "assistant", "tool", "assistant"]
        assert trajectory.additional_histories == []
    texts = [[m.get("content") for m in trajectory.messages()] for trajectory in made]
    assert texts == [texts[0]] * 4


async def test_an_agents_name_on_its_answers_forks_nothing(model: art.TrainableModel) -> None:
    agent = create_agent(ArtChatModel(model), [add], name="clerk")
    async with art.capture(model) as trajectory:
        await agent.ainvoke(ASKED)
    assert [exchange.forked for exchange in trajectory.exchanges] == [False, False]
    assert trajectory.additional_histories == []


async def test_retries_are_one_turn(model: art.TrainableModel, backend: SensibleBackend) -> None:
    llm = ArtChatModel(model, max_retries=0)
    for wrapped in (
        llm.with_retry(stop_after_attempt=2, wait_exponential_jitter=False),
        llm.with_fallbacks([ArtChatModel(model)]),
        ArtChatModel(model, max_retries=2),
    ):
        backend.planned = [RuntimeError("the engine hiccups")]
        async with art.capture(model) as trajectory:
            answer: Any = await wrapped.ainvoke("hi")
        assert answer.text == "You said: hi"
        assert len(trajectory.exchanges) == 1
        assert [message["role"] for message in trajectory.messages()] == ["user", "assistant"]


async def test_wrapped_models_do_as_in_the_base_library(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    assert isinstance(llm, BaseChatModel)
    with_tools = llm.bind_tools([add])
    fallback: Any = llm.with_fallbacks([ArtChatModel(model)])
    forms = [
        llm.with_retry(),
        with_tools.with_retry(),
        with_tools.with_fallbacks([llm]),
        fallback.bind_tools([add]),
        llm | RunnableLambda(lambda message: message),
        with_tools | RunnableLambda(lambda message: message),
        llm.with_config(tags=["x"]),
    ]
    for form in forms:
        async with art.capture(model) as trajectory:
            await form.ainvoke("hi")
        assert len(trajectory.exchanges) == 1


FORMS: dict[str, Callable[[Any], Any]] = {
    "retry": lambda llm: llm.with_retry(),
    "pipe": lambda llm: llm | RunnableLambda(lambda message: message),
    "fallbacks": lambda llm: llm.with_fallbacks([llm]),
    "tools, retry": lambda llm: llm.bind_tools([add]).with_retry(),
    "tools, pipe": lambda llm: llm.bind_tools([add]) | RunnableLambda(lambda message: message),
    "tools, fallbacks": lambda llm: llm.bind_tools([add]).with_fallbacks([llm.bind_tools([add])]),
}
REFUSED = {
    create_agent: {"retry", "pipe", "tools, retry", "tools, pipe"},
    react: {"retry", "pipe"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("factory", FACTORIES)
async def test_agents_take_wrapped_models_where_the_base_library_does(
    factory: Callable[..., Any], form: str, model: art.TrainableModel
) -> None:
    async with httpx2.AsyncClient() as http:
        plain = ChatOpenAI(
            base_url=model.inference_base_url, api_key=lambda: "k", model="shop/clerk", http_async_client=http
        )
        for llm in (ArtChatModel(model), plain):
            async with art.capture(model) as trajectory:
                if form in REFUSED[factory]:
                    with pytest.raises(AttributeError, match="bind_tools"):
                        await factory(FORMS[form](llm), [add]).ainvoke(ASKED)
                else:
                    state = await factory(FORMS[form](llm), [add]).ainvoke(ASKED)
                    assert state["messages"][-1].text == "You said: 5"
            num_turns = 2 if llm is not plain and form not in REFUSED[factory] else 0
            assert len(trajectory.exchanges) == num_turns


@pytest.mark.parametrize("factory", FACTORIES)
async def test_tools_that_are_bound_before_are_sent_once_with_their_options(
    factory: Callable[..., Any], model: art.TrainableModel, bodies: list[Any]
) -> None:
    llm = ArtChatModel(model)
    once = llm.bind_tools([add], parallel_tool_calls=False, tool_choice="auto", strict=True)
    async with art.capture(model) as trajectory:
        await factory(once, [add]).ainvoke(ASKED)
    assert len(bodies) == 2
    for exchange, body in zip(trajectory.exchanges, bodies, strict=True):
        assert list(exchange.tools) == body["tools"]
        assert [t["function"]["name"] for t in body["tools"]] == ["add"]
        assert (body["parallel_tool_calls"], body["tool_choice"]) == (False, "auto")
        assert body["tools"][0]["function"]["strict"] is True
    forced = factory(llm.bind_tools([add], tool_choice="any"), [add])
    with contextlib.suppress(GraphRecursionError):  # a required call never ends such an agent
        await forced.ainvoke(ASKED, {"recursion_limit": 4})
    assert bodies[-1]["tool_choice"] == "required"
    with pytest.raises(ConfigError, match="no option"):
        ArtChatModel(model, parallel_tool_calls=False)


class Sum(BaseModel):
    """A sum."""

    total: int


class SumDict(TypedDict):
    """A sum."""

    total: Annotated[int, ..., "the sum"]


class OptionalSum(BaseModel):
    """A sum, and what is carried over."""

    total: int
    carry: int | None = None


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
@pytest.mark.parametrize(
    "schema", [Sum, SumDict, Sum.model_json_schema()], ids=["pydantic", "TypedDict", "JSON schema"]
)
@pytest.mark.parametrize("include_raw", [False, True])
async def test_structured_output_in_all_forms(
    method: Any, schema: Any, include_raw: bool, model: art.TrainableModel, backend: SensibleBackend, bodies: list[Any]
) -> None:
    llm = ArtChatModel(model)
    chain = llm.with_structured_output(schema, method=method, include_raw=include_raw)
    if method == "json_mode":
        backend.planned = ['{"total": 5}']
    async with art.capture(model) as trajectory:
        got: Any = await chain.ainvoke("5")
    parsed = got["parsed"] if include_raw else got
    assert (parsed.total if isinstance(parsed, Sum) else parsed["total"]) == 5
    (exchange,) = trajectory.exchanges
    if include_raw:
        assert got["raw"].response_metadata["exchange_id"] == exchange.id
    (body,) = bodies
    if method == "function_calling":
        assert body["tool_choice"]["type"] == "function"
        assert body["parallel_tool_calls"] is False
    else:
        assert body["response_format"]["type"] == {"json_schema": "json_schema", "json_mode": "json_object"}[method]


async def test_bound_options_and_agents_with_a_format(
    model: art.TrainableModel, backend: SensibleBackend, bodies: list[Any]
) -> None:
    llm = ArtChatModel(model)
    assert (await llm.bind(stop=["said"]).ainvoke("hi")).text == "You "
    assert bodies[-1]["stop"] == ["said"]
    for strategy in (ToolStrategy(Sum), ProviderStrategy(Sum), Sum, OptionalSum):
        backend.planned = [
            call_of("Sum", {"total": 5}) if isinstance(strategy, ToolStrategy) else '{"total": 5, "carry": null}'
        ]
        async with art.capture(model) as trajectory:
            state: Any = await create_agent(llm, [add], response_format=strategy).ainvoke(ASKED)
        assert state["structured_response"].total == 5
        assert len(trajectory.exchanges) == 1


async def test_parallel_streamed_calls_under_one_index_stay_apart() -> None:
    def part(id_: str | None, name: str | None, arguments: str, index: int = 0) -> dict[str, Any]:
        call = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}
        return {"tool_calls": [call]}

    scripts = [
        [part("a", "f", "{}"), part("b", "g", "{}")],
        [part("a", "f", '{"x"'), part(None, None, ": 1}"), part("b", "g", '{"y"'), part(None, None, ": 2}")],
        [part("a", "f", '{"x"'), part("a", None, ": 1}"), part("b", "g", '{"y": '), part("b", None, "2}")],
        [
            part("a", "f", '{"x"', 0),
            part("b", "g", '{"y": ', 1),
            part(None, None, ": 1}", 0),
            part(None, None, "2}", 1),
        ],
    ]
    nothing: list[dict[str, int]] = [{}, {}]
    wanted = [nothing] + [[{"x": 1}, {"y": 2}]] * 3
    for script, arguments in zip(scripts, wanted, strict=True):
        async with RawServer(chunks({"role": "assistant"}, *script), chunks({"role": "assistant"}, *script)) as server:
            llm = ArtChatModel(base_url=server.url, model="p/m")
            parts = [chunk async for chunk in llm.astream("hi")]
            generated = await llm.model_copy(update={"streaming": True}).ainvoke("hi")
        whole: Any = parts[0]
        for chunk in parts[1:]:
            whole = whole + chunk
        for message in (whole, generated):
            assert [(c["name"], c["id"], c["args"]) for c in message.tool_calls] == [
                ("f", "a", arguments[0]),
                ("g", "b", arguments[1]),
            ]
            assert message.invalid_tool_calls == []


async def test_our_server_gives_each_streamed_call_an_index(
    model: art.TrainableModel, backend: SensibleBackend
) -> None:
    llm = ArtChatModel(model).bind_tools([add])
    backend.planned = [call_of("add", {"a": 1, "b": 2}) + "\n" + call_of("add", {"a": 3, "b": 4})]
    async with art.capture(model) as trajectory:
        parts: list[Any] = [chunk async for chunk in llm.astream("hi")]
    indexes = [call["index"] for part in parts for call in part.tool_call_chunks]
    assert sorted(set(indexes)) == [0, 1]
    assert [call["function"]["arguments"] for call in trajectory.exchanges[0].response["tool_calls"]] == [
        '{"a":1,"b":2}',
        '{"a":3,"b":4}',
    ]


def call(number: int) -> Any:
    return {"name": "add", "args": {"a": number, "b": 1}, "id": f"c{number}", "type": "tool_call"}


async def test_orphan_tool_messages_are_rendered_and_recorded_as_they_were_sent(
    model: art.TrainableModel, bodies: list[Any]
) -> None:
    llm = ArtChatModel(model).bind_tools([add])
    histories: list[list[BaseMessage]] = [
        [ToolMessage("3", tool_call_id="x"), HumanMessage("hi")],
        [
            HumanMessage("hi"),
            AIMessage("", tool_calls=[call(1), call(2), call(3)]),
            ToolMessage("2", tool_call_id="c1"),
            ToolMessage("3", tool_call_id="c2"),
            HumanMessage("and?"),
        ],
    ]
    for history in histories:
        async with art.capture(model) as trajectory:
            await llm.ainvoke(history)
        async with art.capture(model) as again:
            await llm.ainvoke(history)
        (exchange,), (repeated,) = trajectory.exchanges, again.exchanges
        assert list(exchange.messages) == bodies[-1]["messages"]
        assert exchange.prompt_ids == repeated.prompt_ids


async def test_trimmed_removed_and_edited_histories_are_new_rows(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    async def ask(state: State) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph: Any = StateGraph(State)
    graph.add_node("ask", ask)
    graph.add_edge(START, "ask")
    graph.add_edge("ask", END)
    agent = graph.compile()
    async with art.capture(model) as trajectory:
        state = await agent.ainvoke({"messages": [HumanMessage("one", id="1"), HumanMessage("two", id="2")]})
        kept = state["messages"]
        edited = [*kept, RemoveMessage(id="1"), HumanMessage("three")]
        state = await agent.ainvoke({"messages": add_messages(kept, edited[len(kept) :])})
        trimmed = trim_messages(state["messages"], max_tokens=2, token_counter=len, strategy="last")
        await agent.ainvoke({"messages": [SystemMessage("Before: one, two."), *trimmed[1:], HumanMessage("four")]})
        with pytest.raises(Exception, match="RemoveMessage"):
            await llm.ainvoke([HumanMessage("x"), RemoveMessage(id="1")])
    assert [exchange.forked for exchange in trajectory.exchanges] == [False, True, True]
    assert len(trajectory.additional_histories) == 2


async def test_a_schema_tool_called_twice_makes_no_invalid_request(
    model: art.TrainableModel, backend: SensibleBackend, bodies: list[Any]
) -> None:
    twice = call_of("Sum", {"total": 4}) + "\n" + call_of("Sum", {"total": 5})
    backend.planned = [twice, call_of("Sum", {"total": 5})]
    agent = create_agent(ArtChatModel(model), [add], response_format=ToolStrategy(Sum))
    async with art.capture(model) as trajectory:
        state: Any = await agent.ainvoke(ASKED)
    assert state["structured_response"] == Sum(total=5)
    for body in bodies:
        asked = {c["id"] for message in body["messages"] for c in message.get("tool_calls") or ()}
        answered = {message["tool_call_id"] for message in body["messages"] if message["role"] == "tool"}
        assert asked == answered
    assert [list(exchange.messages) for exchange in trajectory.exchanges] == [body["messages"] for body in bodies]
    assert [len(exchange.response["tool_calls"]) for exchange in trajectory.exchanges] == [2, 1]


MESSAGES: list[list[BaseMessage]] = [
    [AIMessage("", tool_calls=[call(1)]), ToolMessage("2", tool_call_id="c1")],
    [AIMessage([], tool_calls=[call(1)]), ToolMessage([{"type": "text", "text": "2"}], tool_call_id="c1", name="add")],
    [AIMessage([])],
    [AIMessage([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], id="run-1")],
    [AIMessage([{"type": "reasoning", "reasoning": "hm"}])],
    [AIMessage([{"type": "reasoning"}])],
    [ToolMessage([{"type": "text", "text": "19C"}, {"type": "text", "text": "windy"}], tool_call_id="z")],
    [SystemMessage("in the middle", name="s")],
    [HumanMessage("named", name="ann", id="5")],
]


@pytest.mark.parametrize("messages", MESSAGES)
async def test_what_is_recorded_is_the_body_that_was_sent(
    messages: list[BaseMessage], model: art.TrainableModel, bodies: list[Any]
) -> None:
    async with art.capture(model) as trajectory:
        await ArtChatModel(model).ainvoke([HumanMessage("hi"), *messages, HumanMessage("go on")])
    assert list(trajectory.exchanges[0].messages) == bodies[0]["messages"]


async def test_a_tools_result_in_parts_is_read_as_one_text(model: art.TrainableModel) -> None:
    parts: list[Any] = [{"type": "text", "text": "19C"}, {"type": "text", "text": "windy"}]
    made = []
    for content in (parts, PART_SEPARATOR.join(["19C", "windy"])):
        async with art.capture(model) as trajectory:
            answer = await ArtChatModel(model).ainvoke(
                [HumanMessage("hi"), AIMessage("", tool_calls=[call(1)]), ToolMessage(content, tool_call_id="c1")]
            )
        assert "19C" in answer.text
        assert "windy" in answer.text
        made.append(trajectory.exchanges[0].prompt_ids)
    assert made[0] == made[1]


@pytest.fixture
def global_cache() -> Any:
    set_llm_cache(InMemoryCache())
    yield
    set_llm_cache(None)


@pytest.mark.usefixtures("global_cache")
async def test_a_global_cache_makes_no_two_rollouts_equal(model: art.TrainableModel, backend: SensibleBackend) -> None:
    llm = ArtChatModel(model, temperature=1.0)
    backend.planned = ["0", "1", "2", "3", "4", "5"]
    made = []
    for _ in range(4):
        async with art.capture(model) as trajectory:
            await llm.ainvoke("hi")
        made.append(trajectory)
    assert [trajectory.exchanges[0].response["content"] for trajectory in made] == ["0", "1", "2", "3"]
    assert len({trajectory.exchanges[0].id for trajectory in made}) == 4
    assert [(await llm.ainvoke("hi")).text for _ in range(2)] == ["4", "5"]


@pytest.mark.usefixtures("global_cache")
async def test_a_cache_of_its_own_is_used_outside_rollouts_and_refused_inside(
    model: art.TrainableModel, backend: SensibleBackend
) -> None:
    for cache in (InMemoryCache(), True):
        llm = ArtChatModel(model, cache=cache)
        backend.planned = ["once"]
        assert {(await llm.ainvoke("hi")).text for _ in range(2)} == {"once"}
        async with art.capture(model) as trajectory:
            for call_it in (llm.ainvoke("hi"), llm.ainvoke("new"), asyncio.to_thread(llm.invoke, "hi")):
                with pytest.raises(ConfigError, match="cache"):
                    await call_it
        assert trajectory.exchanges == []


async def test_turns_of_calls_alone_are_whole(model: art.TrainableModel, backend: SensibleBackend) -> None:
    backend.planned = [call_of("add", {"a": 1, "b": 2}) + "\n" + call_of("add", {"a": 3, "b": 4})]
    async with art.capture(model) as trajectory:
        answer = await ArtChatModel(model).bind_tools([add]).ainvoke("hi")
    assert (answer.content, len(answer.tool_calls)) == ("", 2)
    (turn,) = [message for message in trajectory.messages() if message["role"] == "assistant"]
    assert [c["function"]["name"] for c in turn["tool_calls"]] == ["add", "add"]
    for item in (answer, turn):  # what the judge reads
        read = str(read_message(item, {}))
        assert read.count("add") == 2
        assert all(number in read for number in "1234")


def left(exchange: Any) -> dict[str, Any]:
    """An exchange without what is another's for every call, and with the ids of calls by their place."""
    data = exchange.model_dump(exclude={"id", "trajectory_id", "started_at", "ended_at"}, mode="json")
    left_of: dict[str, Any] = json.loads(re.sub(r"call_[0-9a-f]{24}", "call", json.dumps(data)))
    return left_of


async def test_three_ways_to_call_record_equal_exchanges(model: art.TrainableModel, bodies: list[Any]) -> None:
    """A LangGraph agent with `ArtChatModel`, one with plain `ChatOpenAI` at the address, and a raw client."""
    async with art.capture(model) as ours:
        await create_agent(ArtChatModel(model), [add], system_prompt="Be short.").ainvoke(ASKED)
    async with art.capture(model) as plain, httpx2.AsyncClient() as http:
        chat = ChatOpenAI(
            base_url=plain.base_url, api_key=lambda: plain.api_key, model="shop/clerk", http_async_client=http
        )
        await create_agent(chat, [add], system_prompt="Be short.").ainvoke(ASKED)
    async with art.capture(model) as raw:
        client = model.openai_client()
        tools: Any = bodies[0]["tools"]
        messages: list[Any] = [
            {"role": "system", "content": "Be short."},
            {"role": "user", "content": "add 2 and 3 with the tool"},
        ]
        first = await client.chat.completions.create(model="shop/clerk", messages=messages, tools=tools)
        calls: Any = first.choices[0].message.tool_calls
        (asked,) = calls
        messages += [first.choices[0].message, {"role": "tool", "tool_call_id": asked.id, "content": "5"}]
        await client.chat.completions.create(model="shop/clerk", messages=messages, tools=tools)
    for one, two, three in zip(ours.exchanges, plain.exchanges, raw.exchanges, strict=True):
        assert left(one) == left(two)
        # The client echoes its answer whole, with nulls; to a model that is the same message.
        of_agent, of_client = left(one), left(three)
        del of_agent["messages"], of_client["messages"]
        assert of_agent == of_client
        keys = [[message_key(message) for message in exchange.messages] for exchange in (one, three)]
        assert keys[0] == keys[1]
    assert len(ours.messages()) == len(plain.messages()) == len(raw.messages()) == 5
