"""`ModelServer` over a real socket, with the real `openai` client."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

import httpx
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI, BadRequestError, InternalServerError, NotFoundError

from art_core.errors import ConfigError, EngineClosedError, UnknownTrajectoryError
from art_core.protocols import Engine
from art_core.samples import to_samples
from art_core.serve.server import ModelServer
from art_core.trajectories import Trajectory
from art_core.types import Exchange, Sampling
from tests.core.serve.support import (
    CALL,
    END,
    RENDERER,
    SECRET,
    TOKENIZER,
    TOOLS,
    USER,
    LineEngine,
    Setup,
    collected,
    ids_of,
    raw,
)


async def test_an_answer_carries_its_token_ids_and_the_exchange_that_was_recorded(setup: Setup) -> None:
    setup.engine.say("hé")
    answer = await setup.agent("t")([USER], temperature=0.5, seed=4, max_tokens=9)
    choice = answer.choices[0]
    (exchange,) = setup.server.close_trajectory("t")
    prompt = RENDERER.render_ids([USER], tools=TOOLS, add_generation_prompt=True)
    assert (choice.message.content, choice.finish_reason) == ("hé", "stop")
    assert answer.prompt_token_ids == prompt == list(exchange.prompt_ids)
    assert choice.token_ids == ids_of("hé") == list(exchange.completion_ids)
    assert (choice.exchange_id, choice.policy_version, choice.malformed_tool_calls) == (exchange.id, 3, 0)
    assert (exchange.messages, exchange.tools) == ((USER,), tuple(TOOLS))
    assert exchange.response == {"role": "assistant", "content": "hé"}
    assert exchange.logprobs == tuple(-0.25 * (token % 7) for token in exchange.completion_ids)
    assert exchange.sampling == Sampling(max_tokens=9, temperature=0.5, seed=4, stop_token_ids=(END, 0))
    assert exchange.started_at <= exchange.ended_at
    assert not exchange.forked
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len(prompt), len(exchange.completion_ids))


async def test_tool_calls_arrive_as_calls(setup: Setup) -> None:
    setup.engine.say(f"A {CALL}\n{CALL}")
    choice = (await setup.agent("t")([USER])).choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "A")
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == [("f", '{"a":1}')] * 2


def _completions(count: int) -> list[Sequence[int]]:
    chance = random.Random(5)
    pieces = [CALL, "<tool_call>", "</tool_call>", '{"name": "f"}', " ", "\n", "é€😀", "a", "<tool_", "{", '"', "word "]
    made: list[Sequence[int]] = []
    for _ in range(count):
        ids = ids_of("".join(chance.choices(pieces, k=chance.randint(0, 7))), closed=False)
        if chance.random() < 0.3:  # characters that are never finished
            ids += [chance.randint(3, 258) for _ in range(chance.randint(1, 4))]
        made.append([*ids[: chance.randint(0, len(ids))], END] if chance.random() < 0.8 else [*ids, 70])
    return made


@pytest.mark.slow
async def test_a_stream_joined_is_the_plain_answer(setup: Setup) -> None:
    for index, ids in enumerate(_completions(24)):
        setup.engine.chunk_size = index % 4 + 1
        setup.engine.lines += [ids, ids]
        options: dict[str, Any] = {"model": "m", "messages": [USER], "tools": TOOLS, "logprobs": True}
        plain = await setup.client.chat.completions.create(**options)
        joined = await collected(await setup.client.chat.completions.create(stream=True, **options))
        choice = plain.choices[0]
        assert joined["content"] == choice.message.content
        assert [call[1:] for call in joined["calls"].values()] == [
            (call.function.name, call.function.arguments) for call in choice.message.tool_calls or []
        ]
        assert list(joined["calls"]) == list(range(len(joined["calls"])))
        assert joined["token_ids"] == choice.token_ids == ids
        assert joined["prompt_ids"] == plain.prompt_token_ids
        assert joined["logprobs"] == choice.logprobs.content
        assert (joined["finish_reason"], joined["malformed"]) == (choice.finish_reason, choice.malformed_tool_calls)


async def test_content_streams_as_it_is_sampled_and_markup_is_held_back(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("art_core.serve.reply._LEAST_GAP_S", 0.0)  # an event for each token
    setup.engine.say(f"a€{CALL}b")
    stream = await setup.agent("t")([USER], stream=True)
    texts = [c.choices[0].delta.content async for c in stream if c.choices and c.choices[0].delta.content]
    assert texts == ["a", "€", "\nb"]


async def test_usage_comes_in_a_last_chunk_when_asked_for(setup: Setup) -> None:
    setup.engine.say("ab", "ab")
    agent = setup.agent("t")
    chunks = [c async for c in await agent([USER], stream=True, stream_options={"include_usage": True})]
    assert (chunks[-1].choices, chunks[-1].usage.completion_tokens) == ([], 3)
    assert all(c.usage is None for c in [c async for c in await agent([USER], stream=True)])


def _by_dump(message: Any) -> Any:
    return message.model_dump()


def _by_hand(message: Any) -> Any:
    calls = [
        {
            "id": c.id,
            "type": "function",
            "function": {"name": c.function.name, "arguments": json.loads(c.function.arguments)},
        }
        for c in message.tool_calls or []
    ]
    return {"role": "assistant", "content": message.content or "", "tool_calls": calls}


@pytest.mark.parametrize("echo", [_by_dump, _by_hand, lambda message: message], ids=["dump", "hand", "object"])
async def test_the_next_turn_extends_the_recorded_ids(setup: Setup, echo: Callable[[Any], Any]) -> None:
    setup.engine.say(f"Wait. {CALL}", "three", "bye")
    agent = setup.agent("t")
    messages: list[Any] = [USER]
    for result in ("3", "more"):
        message = (await agent(messages)).choices[0].message
        reply = {"role": "user", "content": result}
        if message.tool_calls:
            reply = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": result}
        messages = [*messages, echo(message), reply]
    await agent(messages)
    first, second, third = setup.server.close_trajectory("t")
    for earlier, later in ((first, second), (second, third)):
        whole = earlier.prompt_ids + earlier.completion_ids
        assert later.prompt_ids[: len(whole)] == whole
    added = second.prompt_ids[len(first.prompt_ids) + len(first.completion_ids) :]
    assert TOKENIZER.decode(added) == "\n<|im_start|>tool\n3<|im_end|>\n<|im_start|>assistant\n"
    (row,) = to_samples(Trajectory(id="t", scenario_id="s", exchanges=[first, second, third]), 1.0)
    sampled = [token for token, trained in zip(row.token_ids, row.trained, strict=True) if trained]
    assert sampled == [*first.completion_ids, *second.completion_ids, *third.completion_ids]


async def test_a_streamed_turn_is_continued_too(setup: Setup) -> None:
    setup.engine.say(f"{CALL}", "three")
    agent = setup.agent("t")
    joined = await collected(await agent([USER], stream=True))
    call_id, name, arguments = joined["calls"][0]
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    history: list[Any] = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "3"},
    ]
    await agent(history)
    first, second = setup.server.close_trajectory("t")
    assert joined["exchange_id"] == first.id
    assert second.prompt_ids[: len(first.prompt_ids + first.completion_ids)] == first.prompt_ids + first.completion_ids


async def test_b047_a_call_cut_off_at_the_limit_is_content_and_the_conversation_goes_on(setup: Setup) -> None:
    cut = '<tool_call>\n{"name": "f", "arguments": {"body": "abc'
    setup.engine.say(cut, closed=False)
    setup.engine.say("ok")
    agent = setup.agent("t")
    choice = (await agent([USER])).choices[0]
    assert (choice.message.content, choice.message.tool_calls, choice.finish_reason) == (cut, None, "length")
    assert choice.malformed_tool_calls == 1
    await agent([USER, choice.message.model_dump(), {"role": "user", "content": "again"}])
    first, second = setup.server.close_trajectory("t")
    assert first.completion_ids == tuple(ids_of(cut, closed=False))
    assert second.prompt_ids[: len(first.prompt_ids + first.completion_ids)] == first.prompt_ids + first.completion_ids
    (row,) = to_samples(Trajectory(id="t", scenario_id="s", exchanges=[first, second]), 1.0)
    assert not row.trained[len(first.prompt_ids + first.completion_ids)], "the end token put in is context (B020)"


@pytest.mark.parametrize("arguments", ["null", "", "[]", "5", '{"body": "abc', '"{\\"q\\": 1}"', "{", "[" * 3000])
async def test_b046_b047_b098_any_arguments_in_a_history_are_served(setup: Setup, arguments: str) -> None:
    setup.engine.say("ok")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    history: list[Any] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "Error: bad arguments"},
        USER,
    ]
    assert (await setup.agent("t")(history)).choices[0].message.content == "ok"


async def test_b060_a_closing_tag_inside_an_argument_is_text(setup: Setup) -> None:
    first = '<tool_call>{"name":"f","arguments":{"text":"use </tool_call> to close"}}</tool_call>'
    setup.engine.say(first + CALL, first + CALL)
    agent = setup.agent("t")
    plain = (await agent([USER])).choices[0].message
    wanted = ['{"text":"use </tool_call> to close"}', '{"a":1}']
    assert [call.function.arguments for call in plain.tool_calls] == wanted
    joined = await collected(await agent([USER], stream=True))
    assert [arguments for _, _, arguments in joined["calls"].values()] == wanted


async def test_b062_tool_call_ids_never_repeat(setup: Setup) -> None:
    setup.engine.say(*[CALL + CALL] * 4)
    seen = []
    for name in ("t", "v"):
        agent = setup.agent(name)
        for _ in range(2):
            seen += [call.id for call in (await agent([USER])).choices[0].message.tool_calls]
    assert len(set(seen)) == 8


async def test_b015_an_edited_history_opens_a_second_row_and_both_are_what_was_sent(setup: Setup) -> None:
    setup.engine.say("a", "b", "c")
    agent = setup.agent("t")
    message = (await agent([USER])).choices[0].message
    await agent([USER, message, USER])
    await agent([{"role": "user", "content": "summary"}])
    exchanges = setup.server.close_trajectory("t")
    assert [exchange.forked for exchange in exchanges] == [False, False, True]
    assert [exchange.prompt_ids for exchange in exchanges] == [prompt for prompt, _ in setup.engine.prompts]
    rows = to_samples(Trajectory(id="t", scenario_id="s", exchanges=exchanges), 0.5)
    assert [(row.num_trained, row.advantage) for row in rows] == [(4, 0.5), (2, 0.5)]


async def test_parallel_calls_of_one_trajectory_are_all_recorded_and_each_can_be_continued(setup: Setup) -> None:
    setup.engine.say(*[f"answer {index}" for index in range(6)], *["next"] * 6)
    agent = setup.agent("t")
    questions = [{"role": "user", "content": f"q{index}"} for index in range(6)]
    answers = await asyncio.gather(*(agent([question]) for question in questions))
    await asyncio.gather(*(agent([q, a.choices[0].message, USER]) for q, a in zip(questions, answers, strict=True)))
    exchanges = setup.server.close_trajectory("t")
    assert len({exchange.id for exchange in exchanges}) == 12
    by_id = {exchange.id: exchange for exchange in exchanges}
    for answer in answers:
        first = by_id[answer.choices[0].exchange_id]
        whole = first.prompt_ids + first.completion_ids
        assert sum(e.prompt_ids[: len(whole)] == whole for e in exchanges) == 1
    assert len(to_samples(Trajectory(id="t", scenario_id="s", exchanges=exchanges), 1.0)) == 6


async def test_trajectories_do_not_mix(setup: Setup) -> None:
    setup.engine.say(*["x"] * 4)
    agents = {name: setup.agent(name) for name in ("a/b c:1?", "ü")}
    await asyncio.gather(
        *(agent([{"role": "user", "content": name}]) for name, agent in agents.items() for _ in range(2))
    )
    for name in agents:
        assert [e.messages[0]["content"] for e in setup.server.close_trajectory(name)] == [name] * 2


async def test_a_call_outside_any_trajectory_goes_to_the_recorder_under_the_id_it_was_given(setup: Setup) -> None:
    setup.engine.say("x")
    setup.server.open_trajectory("t")
    answer = cast(Any, await setup.client.chat.completions.create(model="m", messages=[USER]))
    (exchange,) = setup.outside
    assert (answer.choices[0].exchange_id, exchange.trajectory_id) == (exchange.id, "")
    assert (exchange.completion_ids, exchange.response["content"]) == (tuple(ids_of("x")), "x")
    assert setup.server.close_trajectory("t") == []


async def test_b064_without_tools_markup_is_content_and_tool_choice_none_offers_none(setup: Setup) -> None:
    setup.engine.say(CALL, CALL)
    agent = setup.agent("t")
    assert (await agent([USER], tools=[])).choices[0].message.content == CALL
    assert (await agent([USER], tool_choice="none")).choices[0].message.content == CALL
    assert [exchange.tools for exchange in setup.server.close_trajectory("t")] == [(), ()]


async def test_no_key_and_no_header_is_ever_recorded_or_logged(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="art_core")
    setup.engine.say("x", "x", "x", "x")
    await setup.agent("t")([USER], extra_headers={"x-token": SECRET}, user="me")
    await setup.client.chat.completions.create(model="m", messages=[USER])
    setup.engine.stall_after, setup.engine.error = 0, ZeroDivisionError("oops")
    for call in (setup.agent("v")([USER]), setup.client.completions.create(model="m", prompt="p")):
        with pytest.raises(InternalServerError):
            await call
    (exchange,), (outside,) = setup.server.close_trajectory("t"), setup.outside
    assert SECRET not in exchange.model_dump_json() + outside.model_dump_json()
    ours = [record for record in caplog.records if record.name.startswith("art_core")]
    assert len(ours) == 2
    assert not any(SECRET in logging.Formatter().format(record) for record in ours)


async def test_every_record_survives_a_round_trip_through_json(setup: Setup) -> None:
    setup.engine.lines = _completions(8)
    agent = setup.agent("t")
    for _ in range(8):
        await agent([USER])
    for exchange in setup.server.close_trajectory("t"):
        assert Exchange.model_validate_json(exchange.model_dump_json()) == exchange


async def test_b049_b099_a_context_that_is_full_is_told_by_its_code(setup: Setup) -> None:
    setup.engine.max_context_tokens = 120
    setup.engine.say("x")
    agent = setup.agent("t")
    await agent([USER], tools=[])
    for options in ({"max_tokens": 110}, {"messages_long": True}):
        long = "y" * 400 if options.pop("messages_long", False) else "u"
        with pytest.raises(BadRequestError) as caught:
            await agent([{"role": "user", "content": long}], tools=[], **options)
        assert caught.value.code == "context_length_exceeded"
    (kept,) = setup.server.close_trajectory("t")
    assert kept.sampling.max_tokens == 120 - len(kept.prompt_ids)


async def test_another_models_name_is_refused_with_what_is_served(setup: Setup) -> None:
    with pytest.raises(NotFoundError, match="the only one is 'm'") as caught:
        await setup.client.chat.completions.create(model="gpt-4o", messages=[USER])
    assert caught.value.code == "model_not_found"


async def test_a_trajectory_that_is_not_open_is_refused(setup: Setup) -> None:
    agent = setup.agent("t")
    setup.server.close_trajectory("t")
    with pytest.raises(NotFoundError) as caught:
        await agent([USER])
    assert caught.value.code == "unknown_trajectory"
    with pytest.raises(UnknownTrajectoryError):
        setup.server.close_trajectory("t")
    setup.server.open_trajectory("t")
    with pytest.raises(ConfigError):
        setup.server.open_trajectory("t")


async def test_models_and_health(setup: Setup) -> None:
    setup.server.open_trajectory("t")
    assert [model.id async for model in setup.client.models.list()] == ["m"]
    async with raw(setup) as client:
        for prefix in ("", "/t/t"):
            assert (await client.get(f"{prefix}/v1/models")).json()["data"][0]["id"] == "m"
            health = (await client.get(f"{prefix}/healthz")).json()
            assert health == {"status": "ok", "models": [{"name": "m", "policy_version": 3}]}
        assert (await client.get("/t/other/healthz")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", "/v1/chat/completions", b"{", 400, "invalid_json"),
        ("POST", "/v1/chat/completions", b'{"model": "m", "messages": []}', 400, "invalid_value"),
        ("POST", "/v1/chat/completions", b'{"model": "m"}', 400, "missing_required_parameter"),
        ("POST", "/v1/chat/completions", b'{"model":"m","messages":[{}],"x":1}', 400, "unsupported_parameter"),
        ("POST", "/t/none/v1/chat/completions", b"{}", 404, "unknown_trajectory"),
        ("POST", "/v1/completions", b"{}", 400, "missing_required_parameter"),
        ("POST", "/v1/embeddings", b"{}", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", b"", 405, "unknown_url"),
        ("GET", "/docs", b"", 404, "unknown_url"),
    ],
)  # fmt: skip
async def test_every_refusal_is_an_openai_error(
    setup: Setup, method: str, path: str, body: bytes, status: int, code: str | None
) -> None:
    async with raw(setup) as client:
        answer = await client.request(method, path, content=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert (set(error), error["code"]) == ({"message", "type", "param", "code"}, code)


@pytest.mark.parametrize(
    ("method", "path", "body", "message"),
    [
        ("POST", "/chat/completions", b"{}", "Not Found: POST /chat/completions; use a base URL that ends in /v1"),
        ("GET", "/v1/chat/completions", b"", "Method Not Allowed: GET /v1/chat/completions; use POST"),
        (
            *("POST", "/v1/responses", b"{}"),
            "Not Found: POST /v1/responses; this server answers /v1/chat/completions, /v1/completions, /v1/models",
        ),
        (
            *("POST", "/v1/chat/completions", b'{"model":"m","messages":[{}],"max_token":1}'),
            "'max_token' is not supported by this server; leave it out, or did you mean 'max_tokens'?",
        ),
        (
            *("POST", "/v1/chat/completions", b'{"model":"m","messages":[{}],"best_effort":1}'),
            "'best_effort' is not supported by this server; leave it out",
        ),
    ],
)  # fmt: skip
async def test_a_wrong_address_or_field_says_what_was_meant(
    setup: Setup, method: str, path: str, body: bytes, message: str
) -> None:
    async with raw(setup) as client:
        answer = await client.request(method, path, content=body)
    assert answer.json()["error"]["message"] == message


async def test_b051_no_answer_holds_nan_or_infinity(setup: Setup) -> None:
    def forbid(name: str) -> None:
        raise AssertionError(name)

    setup.engine.say("x")
    body = {"model": "m", "messages": [USER], "top_k": 1, "logprobs": True, "top_logprobs": 3}
    async with raw(setup) as client:
        answer = await client.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200
    json.loads(answer.text, parse_constant=forbid)
    assert setup.engine.prompts[0][1].top_k == 1


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_hang_up_cancels_sampling_and_records_nothing(setup: Setup, streaming: bool) -> None:
    setup.engine.say("abcdef")
    setup.engine.stall_after = 3
    agent = setup.agent("t")

    async def listen() -> None:
        answer = await agent([USER], stream=streaming)
        async for _ in answer:
            pass

    call = asyncio.create_task(listen())
    await setup.engine.stalled.wait()
    assert not setup.engine.freed.is_set()
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await asyncio.wait_for(setup.engine.freed.wait(), 5)
    assert setup.server.close_trajectory("t") == []


@pytest.mark.parametrize("streaming", [False, True])
async def test_b057_an_engine_that_dies_fails_the_call_at_once(setup: Setup, streaming: bool) -> None:
    setup.engine.say("abcdef")
    setup.engine.stall_after, setup.engine.error = 2, EngineClosedError("the engine died: out of memory")
    agent = setup.agent("t")
    with pytest.raises(APIError, match="the engine died: out of memory") as caught:
        async for _ in await agent([USER], stream=streaming):
            pass
    assert caught.value.code == "engine_closed"
    if not streaming:
        assert cast(APIStatusError, caught.value).status_code == 503
    assert setup.server.close_trajectory("t") == []


async def test_an_engine_that_fails_before_the_first_token_gives_a_status_to_a_stream_too(setup: Setup) -> None:
    setup.engine.say("abc")
    setup.engine.stall_after, setup.engine.error = 0, EngineClosedError("closed")
    with pytest.raises(InternalServerError):
        await setup.agent("t")([USER], stream=True)


async def test_an_unexpected_error_is_told_and_logged(setup: Setup, caplog: pytest.LogCaptureFixture) -> None:
    setup.engine.say("abc")
    setup.engine.stall_after, setup.engine.error = 0, ZeroDivisionError("oops")
    with pytest.raises(InternalServerError, match="ZeroDivisionError: oops"):
        await setup.agent("t")([USER])
    assert [record.name for record in caplog.records] == ["art_core.serve.reply"]


async def test_closing_a_trajectory_fails_the_call_that_is_still_running(setup: Setup) -> None:
    setup.engine.say("a" * 400)
    call = asyncio.create_task(setup.agent("t")([USER]))
    await asyncio.wait_for(setup.engine.asked.wait(), 5)
    assert setup.server.close_trajectory("t") == []
    with pytest.raises(NotFoundError, match="was closed while this call was running"):
        await call
    assert setup.engine.freed.is_set()


@pytest.mark.parametrize("streaming", [False, True])
async def test_shutting_down_answers_what_is_still_running(streaming: bool) -> None:
    engine = LineEngine(stall_after=2)
    engine.say("abcdef")
    async with AsyncOpenAI(base_url="http://127.0.0.1", api_key="k", max_retries=0, timeout=20) as client:
        async with ModelServer(cast(Engine, engine), RENDERER, model_name="m") as server:
            url = server.url
            ours = client.with_options(base_url=server.open_trajectory("t"))

            async def listen() -> None:
                answer = await ours.chat.completions.create(model="m", messages=[USER], stream=streaming)
                async for _ in cast(Any, answer):
                    pass

            call = asyncio.create_task(listen())
            await engine.stalled.wait()
        with pytest.raises(APIError, match="shutting down"):
            await call
    assert engine.freed.is_set()
    with pytest.raises(httpx.ConnectError):
        async with httpx.AsyncClient(verify=False) as late:
            await late.get(f"{url}/healthz")
    with pytest.raises(RuntimeError, match="not running"):
        _ = server.url


async def test_it_listens_on_loopback_and_leaves_signals_alone() -> None:
    before = (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
    async with ModelServer(cast(Engine, LineEngine()), RENDERER, model_name="m") as server:
        assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
        host, port = server.url.removeprefix("http://").split(":")
        assert host == "127.0.0.1"
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            assert probe.connect_ex(("127.0.0.2", int(port))) != 0


async def test_two_servers_run_side_by_side_and_one_can_be_entered_again() -> None:
    engine = LineEngine()
    first = ModelServer(cast(Engine, engine), RENDERER, model_name="m")
    async with first, ModelServer(cast(Engine, engine), RENDERER, model_name="n") as second:
        assert first.url != second.url
    async with first, httpx.AsyncClient(verify=False) as client:
        assert (await client.get(f"{first.url}/healthz")).json()["models"][0]["name"] == "m"
