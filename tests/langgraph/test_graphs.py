"""Real graphs over a real socket: each call lands in the trajectory of its rollout, and in no other."""

from __future__ import annotations

import asyncio
import operator
import re
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, trim_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, Send, interrupt

import art_core as art
from art_core.testing import InProcessBackend
from art_langgraph import ArtChatModel, current_trajectory, rollout
from tests.langgraph.graphs import call, last, said, serving

Served = tuple[art.TrainableModel, InProcessBackend]


def clerk(prompt: str) -> str:
    """Calls `add` with the numbers of a question; says a result that a tool gave; repeats anything else, louder."""
    who, text = last(prompt)
    if who == "tool":
        return f"It is {text}."
    if found := re.fullmatch(r"(\d+) \+ (\d+)", text):
        return call("add", a=int(found[1]), b=int(found[2]))
    return text.upper()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving(clerk) as made:
        yield made


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def agent_of(factory: str, llm: Any, tools: list[Any], **options: Any) -> Any:
    if factory == "create_agent":
        return create_agent(llm, tools, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from langgraph.prebuilt import create_react_agent

        return create_react_agent(llm, tools, **options)


def user(text: str) -> Any:
    return {"messages": [("user", text)]}


def attempting(graph: Any, *, is_async: bool, check: Callable[[Any], float]) -> Callable[[str], Any]:
    async def by_async(text: str) -> float:
        return check(await graph.ainvoke(user(text)))

    def by_sync(text: str) -> float:
        return check(graph.invoke(user(text)))

    return by_async if is_async else by_sync


both_factories = pytest.mark.parametrize("factory", ["create_agent", "create_react_agent"])
both_ways = pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])


def comparable(trajectory: art.Trajectory) -> Any:
    """All that is recorded of a trajectory but ids and times."""
    exchanges = [
        exchange.model_dump(exclude={"id", "trajectory_id", "started_at", "ended_at"})
        for exchange in trajectory.exchanges
    ]
    return re.sub(r"call_[0-9a-f]{24}_", "call_", repr(exchanges))


# Agents


@both_factories
@both_ways
async def test_b074_agents_are_recorded_with_the_tools_that_were_sent(
    served: Served, factory: str, is_async: bool
) -> None:
    model, _ = served
    agent = agent_of(factory, ArtChatModel(model), [add])
    attempt = attempting(agent, is_async=is_async, check=lambda s: float(s["messages"][-1].content == "It is 5."))
    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert (said(trajectory), trajectory.reward) == ([[("add", {"a": 2, "b": 3})], "It is 5."], 1.0)
    assert [[t["function"]["name"] for t in exchange.tools] for exchange in trajectory.exchanges] == [["add"]] * 2
    assert not any(exchange.forked for exchange in trajectory.exchanges)
    assert [message["role"] for message in trajectory.messages()] == ["user", "assistant", "tool", "assistant"]
    (row,) = art.to_samples(trajectory, 1.0)
    assert row.num_trained == trajectory.num_trained_tokens


@both_factories
async def test_b078_sync_and_async_record_the_same_twice_in_a_row(served: Served, factory: str) -> None:
    model, _ = served
    agent = agent_of(factory, ArtChatModel(model), [add])
    attempts = [attempting(agent, is_async=is_async, check=lambda _: 1.0) for is_async in (True, True, False, False)]
    made = [comparable(await rollout(attempt, model=model)("2 + 3")) for attempt in attempts]
    assert made == [made[0]] * 4


@both_factories
async def test_b080_tools_that_are_bound_already_are_sent_once(served: Served, factory: str) -> None:
    model, _ = served
    bound: Any = ArtChatModel(model).bind_tools([add], parallel_tool_calls=False)
    attempt = attempting(agent_of(factory, bound, [add]), is_async=True, check=lambda _: 1.0)
    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert [len(exchange.tools) for exchange in trajectory.exchanges] == [1, 1]


async def test_streams_of_a_graph_are_recorded(served: Served) -> None:
    model, _ = served
    agent = create_agent(ArtChatModel(model), [add])

    async def attempt(text: str) -> float:
        chunks = [chunk async for chunk, _ in agent.astream(user(text), stream_mode="messages")]
        events = [event async for event in agent.astream_events(user("again"), version="v2")]
        return float(len(chunks) > 3 and len(events) > 3)

    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert (said(trajectory), trajectory.reward) == ([[("add", {"a": 2, "b": 3})], "It is 5.", "AGAIN"], 1.0)


async def test_a_tool_that_calls_the_model_itself_is_part_of_the_rollout(served: Served) -> None:
    model, _ = served
    llm, helper = ArtChatModel(model), ArtChatModel(model, role="helper")

    @tool("add")
    def add_by_asking(a: int, b: int) -> str:
        """Add two numbers."""
        return str(helper.invoke(f"the sum of {a} and {b}").content)

    for is_async in (True, False):
        attempt = attempting(create_agent(llm, [add_by_asking]), is_async=is_async, check=lambda _: 1.0)
        trajectory = await rollout(attempt, model=model)("2 + 3")
        assert said(trajectory)[1:] == ["THE SUM OF 2 AND 3", "It is THE SUM OF 2 AND 3."]
        assert [exchange.role for exchange in trajectory.exchanges] == ["", "helper", ""]
        assert [(h.role, len(h.messages())) for h in trajectory.additional_histories] == [("helper", 2)]
        assert len(trajectory.messages()) == 4


# Graphs by hand


class Spread(TypedDict):
    words: list[str]
    answers: Annotated[list[str], operator.add]


def branches(llm: ArtChatModel, names: str) -> Any:
    graph = StateGraph(Spread)

    def branch(name: str) -> Any:
        async def node(state: Spread) -> Any:
            answer = await llm.ainvoke([("system", name), ("user", f"{name} {state['words'][0]}")])
            return {"answers": [str(answer.content)]}

        def sync_node(state: Spread) -> Any:
            answer = llm.invoke([("system", name), ("user", f"{name} {state['words'][0]}")])
            return {"answers": [str(answer.content)]}

        from langchain_core.runnables import RunnableLambda

        return RunnableLambda(sync_node, node)

    for name in names:
        graph.add_node(name, branch(name))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile()


@both_ways
async def test_parallel_branches_are_conversations_of_one_trajectory(served: Served, is_async: bool) -> None:
    model, _ = served
    graph = branches(ArtChatModel(model), "abc")

    async def by_async(word: str) -> float:
        return float(len((await graph.ainvoke({"words": [word], "answers": []}))["answers"]))

    def by_sync(word: str) -> float:
        return float(len(graph.invoke({"words": [word], "answers": []})["answers"]))

    trajectory = await rollout(by_async if is_async else by_sync, model=model)("x")
    assert (sorted(said(trajectory)), trajectory.reward) == (["A X", "B X", "C X"], 3.0)
    assert [len(h.messages()) for h in (trajectory, *trajectory.additional_histories)] == [3, 3, 3]
    assert "capture/calls_outside" not in trajectory.metrics


async def test_send_fans_out_and_every_call_is_recorded(served: Served) -> None:
    model, _ = served
    llm = ArtChatModel(model)

    async def work(state: Any) -> Any:
        return {"answers": [str((await llm.ainvoke(state["word"])).content)]}

    graph = StateGraph(Spread)
    graph.add_node("work", work)
    graph.add_conditional_edges(
        START, lambda state: [Send("work", {"word": word}) for word in state["words"]], ["work"]
    )
    graph.add_edge("work", END)
    compiled = graph.compile()

    async def attempt(count: int) -> float:
        state = await compiled.ainvoke({"words": [f"w{n}" for n in range(count)], "answers": []})
        return float(len(state["answers"]))

    trajectory = await rollout(attempt, model=model)(12)
    assert sorted(said(trajectory)) == sorted(f"W{n}" for n in range(12))
    assert len(trajectory.additional_histories) == 11


async def test_subgraphs_are_recorded(served: Served) -> None:
    model, _ = served
    inner = create_agent(ArtChatModel(model, role="inner"), [add])
    outer_llm = ArtChatModel(model, role="outer")

    async def finish(state: MessagesState) -> Any:
        return {"messages": [await outer_llm.ainvoke([("user", f"report: {state['messages'][-1].content}")])]}

    graph = StateGraph(MessagesState)
    graph.add_node("inner", inner)
    graph.add_node("finish", finish)
    graph.add_edge(START, "inner")
    graph.add_edge("inner", "finish")
    graph.add_edge("finish", END)
    attempt = attempting(graph.compile(), is_async=True, check=lambda _: 1.0)
    trajectory = await rollout(attempt, model=model)("2 + 3")
    assert said(trajectory) == [[("add", {"a": 2, "b": 3})], "It is 5.", "REPORT: IT IS 5."]
    assert [exchange.role for exchange in trajectory.exchanges] == ["inner", "inner", "outer"]


def supervised(model: art.TrainableModel) -> Any:
    """A supervisor hands the question to one of two workers, who are agents with a tool, until it is done."""
    supervisor = ArtChatModel(model, role="supervisor")
    workers: dict[str, Any] = {
        name: create_agent(ArtChatModel(model, role=name), [add]) for name in ("adder", "speaker")
    }

    async def supervise(state: MessagesState) -> Command[str]:
        if isinstance(state["messages"][-1], AIMessage):
            return Command(goto=END)
        chosen = "adder" if "+" in str(state["messages"][-1].content) else "speaker"
        said_by = await supervisor.ainvoke([SystemMessage("Choose a worker."), HumanMessage(f"choose {chosen}")])
        return Command(goto=str(said_by.content).removeprefix("CHOOSE ").lower())

    async def work(state: MessagesState, name: str) -> Command[str]:
        ended = await workers[name].ainvoke({"messages": state["messages"]})
        return Command(goto="supervise", update={"messages": ended["messages"][-1:]})

    async def adder(state: MessagesState) -> Command[str]:
        return await work(state, "adder")

    async def speaker(state: MessagesState) -> Command[str]:
        return await work(state, "speaker")

    graph = StateGraph(MessagesState)
    graph.add_node("supervise", supervise, destinations=("adder", "speaker", END))
    graph.add_node("adder", adder, destinations=("supervise",))
    graph.add_node("speaker", speaker, destinations=("supervise",))
    graph.add_edge(START, "supervise")
    return graph.compile()


async def test_each_role_of_a_supervised_graph_has_its_history_and_can_be_trained_alone(served: Served) -> None:
    model, backend = served
    rewards = iter([1.0, 0.0])
    graph = supervised(model)
    attempt = rollout(attempting(graph, is_async=True, check=lambda _: next(rewards)), model=model)
    members = [await attempt("2 + 3"), await attempt("hello")]
    assert said(members[0]) == ["CHOOSE ADDER", [("add", {"a": 2, "b": 3})], "It is 5."]
    assert said(members[1]) == ["CHOOSE SPEAKER", "HELLO"]
    histories = [[h.role for h in (member, *member.additional_histories)] for member in members]
    assert histories == [["supervisor", "adder"], ["supervisor", "speaker"]]
    result = await model.train([art.TrajectoryGroup(members)], roles=("adder", "speaker"))
    assert result.metrics["exchanges/other_roles"] == 2
    texts = [
        backend._tokenizer.decode([t for t, flag in zip(row.token_ids, row.trained, strict=True) if flag])
        for row in backend.trainer.steps[0][0]
    ]
    assert [text.count("<|im_end|>") for text in texts] == [2, 1]
    assert texts[1] == "HELLO<|im_end|>"


# Interrupts


def asking(llm: Any, saver: Any) -> Any:
    """Asks the model, waits for a human's word, and asks again with it."""

    async def first(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    async def second(state: MessagesState) -> Any:
        word = interrupt("go on?")
        return {"messages": [HumanMessage(word), await llm.ainvoke([*state["messages"], HumanMessage(word)])]}

    graph = StateGraph(MessagesState)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver)


async def test_an_interrupt_and_its_resumption_are_one_trajectory(served: Served) -> None:
    model, _ = served
    graph = asking(ArtChatModel(model), InMemorySaver())

    async def attempt(thread: str) -> float:
        config: Any = {"configurable": {"thread_id": thread}}
        stopped = await graph.ainvoke(user("one"), config)
        assert stopped["__interrupt__"][0].value == "go on?"
        ended = await graph.ainvoke(Command(resume="two"), config)
        return float(ended["messages"][-1].content == "TWO")

    made = await asyncio.gather(*(rollout(attempt, model=model)(f"t{n}") for n in range(4)))
    for trajectory in made:
        assert (said(trajectory), trajectory.reward) == (["ONE", "TWO"], 1.0)
        assert not any(exchange.forked for exchange in trajectory.exchanges)
        assert len(art.to_samples(trajectory, 1.0)) == 1
        assert [message["content"] for message in trajectory.messages()] == ["one", "ONE", "two", "TWO"]


RESUME = """
import asyncio, pickle, sys
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command
from art_langgraph import ArtChatModel
from tests.langgraph.test_graphs import asking, load

base_url, path = sys.argv[1:]
graph = asking(ArtChatModel(base_url=base_url, model="graphs/agent"), load(path))
ended = asyncio.run(graph.ainvoke(Command(resume="two"), {"configurable": {"thread_id": "t"}}))
print(ended["messages"][-1].content)
"""


def save(saver: InMemorySaver, path: str) -> None:
    import pickle

    storage = {
        thread: {ns: dict(entries) for ns, entries in spaces.items()} for thread, spaces in saver.storage.items()
    }
    Path(path).write_bytes(pickle.dumps((storage, dict(saver.writes), dict(saver.blobs))))


def load(path: str) -> InMemorySaver:
    import pickle

    saver = InMemorySaver()
    storage, writes, blobs = pickle.loads(Path(path).read_bytes())
    for thread, spaces in storage.items():
        saver.storage[thread].update(spaces)
    saver.writes.update(writes)
    saver.blobs.update(blobs)
    return saver


@pytest.mark.slow
async def test_another_process_resumes_by_the_address_of_the_trajectory(served: Served, tmp_path: Path) -> None:
    model, _ = served
    saver = InMemorySaver()
    graph = asking(ArtChatModel(model), saver)

    async def attempt() -> float:
        await graph.ainvoke(user("one"), {"configurable": {"thread_id": "t"}})
        save(saver, str(tmp_path / "checkpoint"))
        arguments = [sys.executable, "-c", RESUME, current_trajectory().base_url, str(tmp_path / "checkpoint")]
        done = await asyncio.to_thread(subprocess.run, arguments, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return float(done.stdout.strip() == "TWO")

    trajectory = await rollout(attempt, model=model)()
    assert (said(trajectory), trajectory.reward) == (["ONE", "TWO"], 1.0)
    assert not trajectory.exchanges[1].forked


# Histories that are edited


def editing(llm: ArtChatModel, edit: Callable[[Any], Any]) -> Any:
    """Two turns; between them `edit(messages)` gives an update of the state."""

    async def turn(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("one", turn)
    graph.add_node("edit", lambda state: {"messages": edit(state["messages"])})
    graph.add_node("two", turn)
    for start, end in ((START, "one"), ("one", "edit"), ("edit", "two"), ("two", END)):
        graph.add_edge(start, end)
    return graph.compile()


EDITS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "appended": (lambda m: [HumanMessage("more")], False),
    "removed first": (lambda m: [RemoveMessage(m[0].id), HumanMessage("more")], True),
    "removed answer": (lambda m: [RemoveMessage(m[-1].id), HumanMessage("more")], True),
    "trimmed": (
        lambda m: [
            RemoveMessage(REMOVE_ALL_MESSAGES),
            *trim_messages([*m, HumanMessage("more")], max_tokens=1, token_counter=len, strategy="last"),
        ],
        True,
    ),
    "summarised": (
        lambda m: [RemoveMessage(REMOVE_ALL_MESSAGES), SystemMessage("so far: start"), HumanMessage("more")],
        True,
    ),
    "edited question": (lambda m: [HumanMessage("changed", id=m[0].id), HumanMessage("more")], True),
    "edited answer": (lambda m: [AIMessage("changed", id=m[-1].id), HumanMessage("more")], True),
}


@pytest.mark.parametrize("kind", EDITS)
async def test_an_edited_history_is_a_new_row_and_counted_as_a_fork(served: Served, kind: str) -> None:
    model, backend = served
    edit, forks = EDITS[kind]
    rewards = iter([1.0, 0.0])
    attempt = attempting(editing(ArtChatModel(model), edit), is_async=True, check=lambda _: next(rewards))
    members = [await rollout(attempt, model=model)("start") for _ in range(2)]
    for trajectory in members:
        assert said(trajectory) == ["START", "MORE"]
        assert [exchange.forked for exchange in trajectory.exchanges] == [False, forks]
        assert len(trajectory.additional_histories) == forks
    result = await model.train([art.TrajectoryGroup(members)])
    rows = backend.trainer.steps[0][0]
    assert (len(rows), result.metrics["trajectories/forks"]) == ((4, 2) if forks else (2, 0))
    assert sum(row.num_trained for row in rows) == sum(member.num_trained_tokens for member in members)


# Other models, many rollouts, changing weights


async def test_a_foreign_model_in_the_same_graph_is_left_alone_and_counted(served: Served) -> None:
    model, _ = served
    llm, foreign = ArtChatModel(model), FakeListChatModel(responses=["advice from elsewhere"])

    async def advise(state: MessagesState) -> Any:
        return {"messages": [await foreign.ainvoke(state["messages"])]}

    async def answer(state: MessagesState) -> Any:
        return {"messages": [await llm.ainvoke([*state["messages"], HumanMessage("so?")])]}

    graph = StateGraph(MessagesState)
    graph.add_node("advise", advise)
    graph.add_node("answer", answer)
    graph.add_edge(START, "advise")
    graph.add_edge("advise", "answer")
    attempt = attempting(graph.compile(), is_async=True, check=lambda _: 1.0)
    trajectory = await rollout(attempt, model=model)("hi")
    assert said(trajectory) == ["SO?"]
    assert trajectory.metrics == {"other_models/calls": 1}
    assert [message["content"] for message in trajectory.messages()] == ["hi", "advice from elsewhere", "so?", "SO?"]
    (row,) = art.to_samples(trajectory, 1.0)
    assert row.num_trained == len("SO?") + 1


def six_calls(llm: ArtChatModel) -> Any:
    """Three branches at once, each of two turns; every message names the rollout that it belongs to."""
    graph = StateGraph(Spread)

    def branch(name: str) -> Any:
        async def node(state: Spread) -> Any:
            first: list[Any] = [HumanMessage(f"{state['words'][0]} {name} one")]
            first.append(await llm.ainvoke(first))
            await asyncio.sleep(0)
            second = await asyncio.to_thread(llm.invoke, [*first, HumanMessage(f"{state['words'][0]} {name} two")])
            return {"answers": [str(first[-1].content), str(second.content)]}

        return node

    for name in "xyz":
        graph.add_node(name, branch(name))
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile()


@pytest.mark.slow
async def test_64_rollouts_of_six_calls_at_once_are_never_mixed(served: Served) -> None:
    model, _ = served
    graph = six_calls(ArtChatModel(model))

    async def attempt(word: str) -> float:
        state = await graph.ainvoke({"words": [word], "answers": []})
        return float(all(answer.startswith(word.upper() + " ") for answer in state["answers"]))

    made = await asyncio.gather(*(rollout(attempt, model=model)(f"rollout{n}") for n in range(64)))
    for number, trajectory in enumerate(made):
        word = f"ROLLOUT{number}"
        assert sorted(said(trajectory)) == sorted(f"{word} {name} {turn}" for name in "XYZ" for turn in ("ONE", "TWO"))
        texts = {m["content"].split()[0].upper() for e in trajectory.exchanges for m in e.messages}
        assert texts == {word}
        assert (trajectory.reward, trajectory.metrics) == (1.0, {})
        assert len(art.to_samples(trajectory, 1.0)) == 3
    assert len({exchange.id for trajectory in made for exchange in trajectory.exchanges}) == 64 * 6


async def test_each_call_has_the_newest_weights_and_mixed_versions_are_told(served: Served) -> None:
    model, _ = served
    llm = ArtChatModel(model)

    async def two_calls(begun: asyncio.Event, go_on: asyncio.Event) -> float:
        await llm.ainvoke("a")
        begun.set()
        await go_on.wait()
        await llm.ainvoke("b")
        return 1.0

    begun, go_on = asyncio.Event(), asyncio.Event()
    running = asyncio.ensure_future(rollout(two_calls, model=model)(begun, go_on))
    await begun.wait()
    one_call = rollout(lambda text: float(llm.invoke(text).content == "C"), model=model)
    await model.train([art.TrajectoryGroup([await one_call("c"), await one_call("d")])])
    go_on.set()
    trajectory = await running
    assert [exchange.policy_version for exchange in trajectory.exchanges] == [0, 1]
    assert trajectory.metrics["capture/policy_versions"] == 2


async def test_calls_of_a_tool_that_does_not_exist_or_is_malformed_go_back_to_the_model() -> None:
    def confused(prompt: str) -> str:
        who, text = last(prompt)
        if who == "tool":
            return f"sorry: {text.split(':')[0]}"
        return {"unknown": call("subtract", a=1), "wrong": call("add", a="x"), "broken": "<tool_call>\n{no json"}[text]

    async with serving(confused) as (model, _):
        agent = create_agent(ArtChatModel(model), [add])
        attempt = rollout(attempting(agent, is_async=True, check=lambda s: float(len(s["messages"]))), model=model)
        unknown, wrong, broken = [await attempt(text) for text in ("unknown", "wrong", "broken")]
    assert said(unknown)[0] == [("subtract", {"a": 1})]
    assert str(said(unknown)[1]).startswith("sorry")
    assert said(wrong)[0] == [("add", {"a": "x"})]
    assert len(wrong.exchanges) == 2
    assert said(broken) == ["<tool_call>\n{no json"]
    assert broken.exchanges[0].num_malformed_calls == 1
