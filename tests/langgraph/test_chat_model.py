"""`ArtChatModel` over a real socket: what it sends, what it gives back, and where its calls are recorded."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import functools
import operator
import os
import pickle
import subprocess
import sys
from typing import Any

import httpx2
import openai
import pytest
from langchain_core.load import dumps, loads
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage, trim_messages
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import ConfigurableField
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

import art_core as art
from art_core.errors import ConfigError
from art_core.scope import ServedModel
from art_langgraph import ArtChatModel, connection, init_chat_model
from tests.langgraph.sensible import KEY, RawServer, SensibleBackend, call_of, chunks, completion


def merged(chunks: list[Any]) -> Any:
    return functools.reduce(operator.add, chunks)


async def told(llm: ArtChatModel, text: str) -> list[AIMessage]:
    """The answers by every way to call."""
    plain = await llm.ainvoke(text)
    sync = await asyncio.to_thread(llm.invoke, text)
    streamed = merged([chunk async for chunk in llm.astream(text)])
    sync_streamed = merged(await asyncio.to_thread(lambda: list(llm.stream(text))))
    (of_batch,) = await llm.abatch([text])
    (of_sync_batch,) = await asyncio.to_thread(llm.batch, [text])
    return [plain, sync, streamed, sync_streamed, of_batch, of_sync_batch]


async def test_every_way_to_call_is_recorded_with_ids_logprobs_and_versions(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    async with art.capture(model) as trajectory:
        answers = await told(llm, "one")
    by_id = {exchange.id: exchange for exchange in trajectory.exchanges}
    assert len(by_id) == len(answers) == 6
    for message in answers:
        metadata = message.response_metadata
        exchange = by_id.pop(metadata["exchange_id"])
        assert message.content == exchange.response["content"] == "You said: one"
        assert tuple(metadata["token_ids"]) == exchange.completion_ids
        assert tuple(metadata["token_logprobs"]) == exchange.logprobs
        assert (metadata["policy_version"], metadata["finish_reason"]) == (0, "stop")
        assert metadata["model_name"] == "shop/clerk"
        assert message.usage_metadata is not None
        assert message.usage_metadata["output_tokens"] == len(exchange.completion_ids)
        assert message.usage_metadata["input_tokens"] == len(exchange.prompt_ids)


async def test_logprobs_of_openais_shape_are_there_when_they_are_asked_for(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model, logprobs=True, top_logprobs=2)
    for message in await told(llm, "one"):
        content = message.response_metadata["logprobs"]["content"]
        assert [token["logprob"] for token in content] == message.response_metadata["token_logprobs"]
        assert len(content[0]["top_logprobs"]) == 2


async def test_outside_a_rollout_nothing_is_recorded(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    await llm.ainvoke("before")
    async with art.capture(model) as trajectory:
        await llm.ainvoke("inside")
    assert (await llm.ainvoke("after")).content == "You said: after"
    assert [exchange.messages[0]["content"] for exchange in trajectory.exchanges] == ["inside"]


async def test_one_object_serves_many_rollouts_at_once(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)

    async def rollout(name: str) -> art.Trajectory:
        async with art.capture(model) as trajectory:
            await asyncio.gather(llm.ainvoke(f"{name}0"), asyncio.to_thread(llm.invoke, f"{name}1"), told(llm, name))
        return trajectory

    made = await asyncio.gather(*(rollout(name) for name in "abcdefgh"))
    for name, trajectory in zip("abcdefgh", made, strict=True):
        assert sorted(e.messages[0]["content"] for e in trajectory.exchanges) == [*[name] * 6, f"{name}0", f"{name}1"]


async def test_calls_that_belong_to_no_rollout_are_counted_while_there_is_one(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    async with art.capture(model) as trajectory:
        await llm.ainvoke("in")
        await asyncio.get_running_loop().create_task(llm.ainvoke("out"), context=contextvars.Context())
    assert (len(trajectory.exchanges), trajectory.metrics["capture/calls_outside"]) == (1, 1)


async def test_it_may_be_built_before_the_model_is_registered(backend: SensibleBackend) -> None:
    model = art.TrainableModel(name="late", project="shop", base_model="scripted")
    llm = ArtChatModel(model)
    for call in (llm.ainvoke("hi"), asyncio.to_thread(llm.invoke, "hi"), anext(llm.astream("hi"))):
        with pytest.raises(ConfigError, match="register"):
            await call
    await model.register(backend)
    assert (await llm.ainvoke("hi")).content == "You said: hi"


def test_each_event_loop_may_use_it(served_model: art.TrainableModel) -> None:
    llm = ArtChatModel(served_model)
    assert [asyncio.run(llm.ainvoke(text)).text for text in "ab"] == ["You said: a", "You said: b"]


async def test_each_call_is_answered_by_the_newest_weights_or_by_the_step_that_is_pinned(
    model: art.TrainableModel, backend: SensibleBackend, bodies: list[Any]
) -> None:
    llm = ArtChatModel(model)
    before = await llm.ainvoke("hi")
    groups = []
    for reward in (0.0, 1.0):
        async with art.capture(model) as trajectory:
            await llm.ainvoke("hi")
        trajectory.reward = reward
        groups.append(trajectory)
    await model.train([art.TrajectoryGroup(groups)])
    after = await llm.ainvoke("hi")
    pinned = await ArtChatModel(model, step=1).ainvoke("hi")
    assert [m.response_metadata["policy_version"] for m in (before, after, pinned)] == [0, 1, 1]
    assert [body["model"] for body in bodies[-2:]] == ["shop/clerk", "shop/clerk@1"]


async def test_the_role_travels_as_metadata_beside_the_callers_own(
    model: art.TrainableModel, bodies: list[Any]
) -> None:
    await ArtChatModel(model).ainvoke("hi")
    planner = ArtChatModel(model, role="planner")
    await planner.ainvoke("hi")
    await planner.bind(extra_body={"metadata": {"task": "7"}}).ainvoke("hi")
    await planner.bind(extra_body={"metadata": {"role": "critic"}}).ainvoke("hi")
    assert [body.get("metadata") for body in bodies] == [
        None,
        {"role": "planner"},
        {"role": "planner", "task": "7"},
        {"role": "critic"},
    ]


async def test_options_reach_the_server(model: art.TrainableModel, bodies: list[Any]) -> None:
    llm = ArtChatModel(model, temperature=0.5, max_tokens=9, top_p=0.9, seed=3, stop=["x"], logprobs=True)
    await llm.ainvoke("hi")
    await llm.bind(stop=["y"], max_tokens=8, temperature=0.0).ainvoke("hi")
    assert [
        {k: b.get(k) for k in ("temperature", "max_completion_tokens", "stop", "seed", "logprobs")} for b in bodies
    ] == [
        {"temperature": 0.5, "max_completion_tokens": 9, "stop": ["x"], "seed": 3, "logprobs": True},
        {"temperature": 0.0, "max_completion_tokens": 8, "stop": ["y"], "seed": 3, "logprobs": True},
    ]


@pytest.mark.parametrize("name", ["o1", "gpt-5", "gpt-4", "gpt-3.5-turbo", "gpt-5-pro"])
async def test_a_name_like_one_of_openais_changes_nothing(name: str, bodies: list[Any]) -> None:
    async with SensibleBackend() as backend:
        model = art.TrainableModel(name="m", project=name, base_model="scripted")
        await model.register(backend)
        llm = ArtChatModel(model, temperature=0.25)
        await llm.ainvoke([SystemMessage("s"), HumanMessage("hi")])
    assert (bodies[0]["temperature"], bodies[0]["messages"][0]["role"]) == (0.25, "system")


OF_OPENAI: dict[str, Any] = {
    "organization": "o",
    "tiktoken_model_name": "gpt-4o",
    "reasoning": {"effort": "low"},
    "include": ["x"],
    "truncation": "auto",
    "use_previous_response_id": True,
}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temprature": 1.0}, "temprature"),
        ({"base_url": "http://localhost:1/v1"}, "base_url"),
        ({"api_key": "k"}, "api_key"),
        ({"http_client": object()}, "http_client"),
        ({"openai_proxy": "http://proxy"}, "openai_proxy"),
        ({"use_responses_api": True}, "Responses"),
        ({"output_version": "responses/v1"}, "Responses"),
        *(({name: value}, name) for name, value in OF_OPENAI.items()),
        ({"n": 0}, "n is 0"),
        ({"step": -1}, "step"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ArtChatModel(art.TrainableModel(name="m", project="p", base_model="b"), **options)


@pytest.mark.parametrize(
    "options", [{}, {"model": "p/m"}, {"base_url": "http://localhost:1"}, {"model": "p/m", "base_url": "x"}]
)
def test_without_a_model_there_has_to_be_an_address(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"base_url"):
        ArtChatModel(**options)


async def test_by_address_of_a_server_or_of_a_trajectory(model: art.TrainableModel, bodies: list[Any]) -> None:
    root = model.inference_base_url
    async with art.capture(model) as trajectory:
        inside = ArtChatModel("shop/clerk", base_url=root, api_key=KEY)  # the same model: its calls belong here
        await inside.ainvoke("a")
        address = trajectory.base_url
        context = contextvars.Context()
        by_url = ArtChatModel(base_url=address, model="shop/clerk", api_key=KEY)
        await asyncio.get_running_loop().create_task(by_url.ainvoke("b"), context=context)
    await ArtChatModel(base_url=root.removesuffix("/v1"), model="shop/clerk", api_key=KEY).ainvoke("c")
    assert [exchange.messages[0]["content"] for exchange in trajectory.exchanges] == ["a", "b"]
    assert len(bodies) == 3


async def test_a_key_of_openai_is_not_sent_to_this_server(
    model: art.TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROXY", "OPENAI_API_BASE", "OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "http://of-openai")
    monkeypatch.setenv("ART_API_KEY", "key-of-art")
    seen: list[Any] = []
    address = connection._address

    def watched(request: httpx2.Request, served: ServedModel, api_key: str) -> str:
        seen.append(request)
        return address(request, served, api_key)

    monkeypatch.setattr(connection, "_address", watched)
    by_url = ArtChatModel(base_url=model.inference_base_url, model="shop/clerk")
    await ArtChatModel(model).ainvoke("hi")
    await asyncio.to_thread(ArtChatModel(model).invoke, "hi")
    with pytest.raises(openai.AuthenticationError):  # this server has another key
        await by_url.ainvoke("hi")
    with pytest.raises(openai.AuthenticationError):
        await asyncio.to_thread(by_url.invoke, "hi")
    assert [request.headers["authorization"] for request in seen] == [f"Bearer {KEY}"] * 2 + ["Bearer key-of-art"] * 2
    assert not any("of-openai" in str(request.headers) + str(request.url) for request in seen)


async def test_reasoning_is_kept_and_sent_back() -> None:
    thought = {"role": "assistant", "content": "four", "reasoning_content": "hm, 2 and 2"}
    deltas = [
        {"role": "assistant"},
        {"reasoning_content": "hm, "},
        {"reasoning_content": "2 and 2"},
        {"content": "four"},
    ]
    async with RawServer(completion(thought), chunks(*deltas), completion({"content": "x"}), completion({})) as server:
        llm = ArtChatModel(base_url=server.url, model="p/m")
        plain = await llm.ainvoke("2+2")
        streamed = merged([chunk async for chunk in llm.astream("2+2")])
        for first in (plain, streamed):
            await llm.ainvoke([HumanMessage("2+2"), first, HumanMessage("more")])
    for first in (plain, streamed):
        assert (first.content, first.additional_kwargs["reasoning_content"]) == ("four", "hm, 2 and 2")
        assert first.content_blocks[0] == {"type": "reasoning", "reasoning": "hm, 2 and 2"}
        assert [block["type"] for block in first.content_blocks] == ["reasoning", "text"]
    assert [body["messages"][1] for body in server.bodies[2:]] == [thought, thought]


async def test_a_call_whose_arguments_are_no_object_is_no_exception(
    model: art.TrainableModel, backend: SensibleBackend
) -> None:
    llm = ArtChatModel(model).bind_tools([{"name": "f", "description": "", "parameters": {"type": "object"}}])
    for arguments in ([1], "text", 3):
        backend.planned = [call_of("f", arguments)] * 2
        async with art.capture(model) as trajectory:
            plain: Any = await llm.ainvoke("x")
            streamed = merged([chunk async for chunk in llm.astream("x")])
            await llm.ainvoke([HumanMessage("x"), plain, HumanMessage("go on")])
        assert (plain.tool_calls, len(plain.invalid_tool_calls)) == ([], 1)
        assert (streamed.tool_calls, len(streamed.invalid_tool_calls)) == ([], 1)
        assert trajectory.exchanges[2].forked is False


async def test_several_answers_each_have_their_own(model: art.TrainableModel) -> None:
    async with art.capture(model) as trajectory:
        result = await ArtChatModel(model, n=3).agenerate([[HumanMessage("hi")]])
    ids = [generation.message.response_metadata["exchange_id"] for generation in result.generations[0]]  # type: ignore[union-attr]
    assert sorted(ids) == sorted(exchange.id for exchange in trajectory.exchanges)
    assert len(set(ids)) == 3


async def test_tokens_are_counted_by_the_server(model: art.TrainableModel, served_model: art.TrainableModel) -> None:
    del model
    llm = ArtChatModel(served_model)
    messages = [SystemMessage("s"), HumanMessage("hi")]
    tool: Any = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    plain = await llm.ainvoke(messages)
    offered = await llm.bind_tools([tool]).ainvoke(messages)
    assert plain.usage_metadata is not None
    assert offered.usage_metadata is not None
    assert llm.get_num_tokens_from_messages(messages) == plain.usage_metadata["input_tokens"]
    assert llm.get_num_tokens_from_messages(messages, tools=[tool]) == offered.usage_metadata["input_tokens"]
    assert (llm.get_num_tokens("abc"), llm.get_num_tokens("")) == (3, 0)
    assert ArtChatModel(served_model, custom_get_token_ids=lambda text: [7] * 5).get_token_ids("x") == [7] * 5


CONVERSATION = [
    SystemMessage("s"),
    HumanMessage("a question"),
    AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}]),
    ToolMessage("found", tool_call_id="1"),
    AIMessage("an answer"),
    HumanMessage("more"),
]


@pytest.mark.parametrize("strategy", ["first", "last"])
async def test_a_history_is_trimmed_by_the_servers_count(served_model: art.TrainableModel, strategy: Any) -> None:
    llm = ArtChatModel(served_model)
    whole = llm.get_num_tokens_from_messages(CONVERSATION)
    counts = [llm.get_num_tokens_from_messages(CONVERSATION[:end]) for end in range(1, 7)]
    assert counts == sorted(set(counts)), "each message adds to the one before it"
    for limit in range(0, whole + 1, 20):
        kept = trim_messages(CONVERSATION, max_tokens=limit, token_counter=llm, strategy=strategy)
        assert llm.get_num_tokens_from_messages(kept) <= limit
        assert kept == (
            CONVERSATION[: len(kept)] if strategy == "first" else CONVERSATION[len(CONVERSATION) - len(kept) :]
        )
    assert trim_messages(CONVERSATION, max_tokens=whole, token_counter=llm, strategy=strategy) == CONVERSATION


async def test_several_answers_are_not_streamed_into_one_message(model: art.TrainableModel) -> None:
    with pytest.raises(ConfigError, match="n is 2"):
        await anext(ArtChatModel(model, n=2).astream("hi"))
    with pytest.raises(ConfigError, match="n is 2"):
        next(iter(ArtChatModel(model).bind(n=2).stream("hi")))


async def test_a_rate_limiter_is_waited_for(model: art.TrainableModel) -> None:
    limiter = InMemoryRateLimiter(requests_per_second=20, check_every_n_seconds=0.01, max_bucket_size=1)
    acquired = []
    monkey = limiter.aacquire

    async def counting(*, blocking: bool = True) -> bool:
        acquired.append(1)
        return await monkey(blocking=blocking)

    limiter.aacquire = counting  # type: ignore[method-assign]
    llm = ArtChatModel(model, rate_limiter=limiter)
    await asyncio.gather(llm.ainvoke("a"), llm.ainvoke("b"))
    assert len(acquired) == 2


async def test_fields_may_be_configurable(model: art.TrainableModel, bodies: list[Any]) -> None:
    llm = ArtChatModel(model).configurable_fields(
        temperature=ConfigurableField(id="heat"), role=ConfigurableField(id="role"), step=ConfigurableField(id="step")
    )
    async with art.capture(model) as trajectory:
        await llm.ainvoke("hi")
        await llm.with_config(configurable={"heat": 0.125, "role": "critic", "step": 0}).ainvoke("hi")
    assert [(b.get("temperature"), b.get("metadata"), b["model"]) for b in bodies] == [
        (None, None, "shop/clerk"),
        (0.125, {"role": "critic"}, "shop/clerk@0"),
    ]
    assert len(trajectory.exchanges) == 2


async def test_events_and_callbacks(model: art.TrainableModel) -> None:
    llm = ArtChatModel(model)
    async with art.capture(model) as trajectory:
        events = [event async for event in llm.astream_events("hi", version="v2")]
    assert len(trajectory.exchanges) == 1
    kinds = [event["event"] for event in events]
    assert (kinds[0], kinds[-1]) == ("on_chat_model_start", "on_chat_model_end")
    assert events[-1]["data"]["output"].text == "You said: hi"


class Joke(BaseModel):
    setup: str
    punchline: str


async def test_structured_output_keeps_ids_plain_and_streamed(model: art.TrainableModel, bodies: list[Any]) -> None:
    for method in ("json_schema", "function_calling"):
        chat = ArtChatModel(model).with_structured_output(Joke, method=method, include_raw=True)
        async with art.capture(model) as trajectory:
            plain: Any = await chat.ainvoke("a joke")
            streamed: Any = [part async for part in chat.astream("a joke")]
        raw = merged([part["raw"] for part in streamed if "raw" in part])
        for message, exchange in zip((plain["raw"], raw), trajectory.exchanges, strict=True):
            assert message.response_metadata["exchange_id"] == exchange.id
            assert tuple(message.response_metadata["token_ids"]) == exchange.completion_ids
        assert plain["parsed"] == streamed[-1]["parsed"] == Joke(setup="the setup", punchline="the punchline")
    assert bodies[0]["response_format"]["json_schema"]["name"] == "Joke"


async def test_a_structured_answer_that_was_cut_off_is_still_an_answer(model: art.TrainableModel) -> None:
    chat = ArtChatModel(model, max_tokens=5).with_structured_output(Joke, include_raw=True)
    async with art.capture(model) as trajectory:
        got: Any = await chat.ainvoke("a joke")
    assert (got["parsed"], got["raw"].response_metadata["finish_reason"]) == (None, "length")
    assert got["parsing_error"] is not None
    assert len(trajectory.exchanges) == 1


@pytest.mark.filterwarnings("ignore:The function `loads` is in beta")
async def test_the_key_is_in_nothing_that_is_written_down(
    model: art.TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_API_KEY", KEY)  # what a pickle is unpickled with
    by_url = ArtChatModel(base_url=model.inference_base_url, model="shop/clerk", api_key=KEY, role="r", temperature=0.5)
    for llm in (ArtChatModel(model, role="r", temperature=0.5), by_url):
        text = dumps(llm)
        pickled = pickle.dumps(llm)
        for written in (text, repr(llm), str(llm), str(llm.model_dump()), pickled.decode("latin-1")):
            assert KEY not in written
        loaded = loads(
            text, allowed_objects=[ArtChatModel], valid_namespaces=["art_langgraph"], secrets_map={"ART_API_KEY": KEY}
        )
        for again in (loaded, pickle.loads(pickled), copy.deepcopy(llm), copy.copy(llm), llm.model_copy()):
            assert isinstance(again, ArtChatModel)
            assert (again.role, again.temperature) == ("r", 0.5)
            assert (await again.ainvoke("hi")).content == "You said: hi"
        assert loaded.openai_api_key.get_secret_value() == KEY


async def test_pickled_in_a_rollout_it_still_belongs_to_it(
    model: art.TrainableModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ART_API_KEY", KEY)
    llm = ArtChatModel(model)
    async with art.capture(model) as trajectory:
        again = pickle.loads(pickle.dumps(llm))
        await asyncio.get_running_loop().create_task(again.ainvoke("hi"), context=contextvars.Context())
    assert len(trajectory.exchanges) == 1
    unregistered = ArtChatModel(art.TrainableModel(name="m", project="p", base_model="b"), step=2)
    again = pickle.loads(pickle.dumps(unregistered))
    assert (again.trainable.name, again.step) == ("m", 2)


async def test_init_chat_model_gives_the_model_of_the_rollout(model: art.TrainableModel, bodies: list[Any]) -> None:
    with pytest.raises(ConfigError, match="outside a rollout"):
        init_chat_model()
    async with art.capture(model) as trajectory:
        for name in (None, "clerk", "shop/clerk", "scripted", "shop/clerk@0", model):
            await init_chat_model(name, temperature=0.5).ainvoke("hi")
        with pytest.raises(ConfigError, match="gpt-4o"):
            init_chat_model("gpt-4o", model_provider="openai")
        with pytest.raises(ConfigError, match="anthropic"):
            init_chat_model(model_provider="anthropic")
    await init_chat_model(model).ainvoke("hi")
    assert len(trajectory.exchanges) == 6
    assert [body["model"] for body in bodies] == [*["shop/clerk"] * 4, "shop/clerk@0", *["shop/clerk"] * 2]


async def test_a_model_that_is_not_trained_is_left_alone(model: art.TrainableModel) -> None:
    async with SensibleBackend() as elsewhere, httpx2.AsyncClient() as client:
        other = art.TrainableModel(name="other", project="shop", base_model="scripted")
        await other.register(elsewhere)
        judge = ChatOpenAI(
            base_url=other.inference_base_url, api_key=lambda: "k", model="shop/other", http_async_client=client
        )
        async with art.capture(model) as trajectory:
            ours = await ArtChatModel(model).ainvoke("draft")
            await judge.ainvoke([HumanMessage("judge"), ours])
    assert [exchange.messages[0]["content"] for exchange in trajectory.exchanges] == ["draft"]


def test_importing_the_package_loads_no_library() -> None:
    code = "import sys, art_langgraph; print([n for n in ('langchain_core', 'openai', 'torch') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ})
    assert done.stdout.strip() == "[]"
