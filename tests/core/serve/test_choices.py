"""Several answers to one request, and how the id of an exchange travels."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI, InternalServerError

from art_core.carriers import choice_exchange_id, exchange_id_of, fingerprint, new_call_id, tool_call_id
from art_core.errors import EngineClosedError
from art_core.protocols import Engine
from art_core.serve.requests import choice_seed
from art_core.serve.sampled import side_by_side
from art_core.serve.server import ModelServer
from art_core.testing import ScriptedEngine
from tests.core.serve.support import CALL, RENDERER, USER, LineEngine, Setup, ids_of


async def test_n_choices_are_n_exchanges_of_one_prompt(setup: Setup) -> None:
    setup.engine.say("a", "bb", f"{CALL}")
    answer = await setup.agent("t")([USER], n=3, seed=7)
    exchanges = setup.server.close_trajectory("t")
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [choice.message.content for choice in answer.choices] == ["a", "bb", None]
    assert [choice.exchange_id for choice in answer.choices] == [exchange.id for exchange in exchanges]
    assert len({exchange.id for exchange in exchanges}) == 3
    assert [exchange.sampling.seed for exchange in exchanges] == [7, choice_seed(7, 1), choice_seed(7, 2)]
    assert {exchange.prompt_ids for exchange in exchanges} == {tuple(answer.prompt_token_ids)}
    assert answer.usage.completion_tokens == sum(len(exchange.completion_ids) for exchange in exchanges)
    assert answer.usage.prompt_tokens == len(answer.prompt_token_ids)
    assert not any(exchange.forked for exchange in exchanges)


async def test_each_choice_can_be_continued(setup: Setup) -> None:
    setup.engine.say("a", "b", "x", "y")
    agent = setup.agent("t")
    answer = await agent([USER], n=2)
    for choice in answer.choices:
        await agent([USER, choice.message, USER])
    *first, then_a, then_b = setup.server.close_trajectory("t")
    for earlier, later in zip(first, (then_a, then_b), strict=True):
        whole = earlier.prompt_ids + earlier.completion_ids
        assert later.prompt_ids[: len(whole)] == whole


async def test_streamed_choices_interleave_and_say_which_they_are(setup: Setup) -> None:
    setup.engine.say("abc", "xyz")
    stream = await setup.agent("t")([USER], n=2, stream=True, stream_options={"include_usage": True})
    texts, ends, order = {0: "", 1: ""}, {}, []
    ids: dict[int, list[int]] = {0: [], 1: []}
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            ids[choice.index] += getattr(choice, "token_ids", None) or []
            if choice.delta.content:
                order.append(choice.index)
            if choice.finish_reason:
                ends[choice.index] = choice.exchange_id
        counted = chunk.usage
    exchanges = setup.server.close_trajectory("t")
    assert texts == {0: "abc", 1: "xyz"}
    assert ids == {0: ids_of("abc"), 1: ids_of("xyz")}
    assert order != sorted(order), "both are sampled at the same time"
    assert [ends[0], ends[1]] == [exchange.id for exchange in exchanges]
    assert counted.completion_tokens == 8


async def test_one_choice_that_fails_fails_the_call_and_nothing_is_recorded(setup: Setup) -> None:
    setup.engine.say("a", "bcdefgh")
    setup.engine.stall_after, setup.engine.error = 3, EngineClosedError("broke")
    with pytest.raises(InternalServerError):
        await setup.agent("t")([USER], n=2)
    assert setup.server.close_trajectory("t") == []


@pytest.mark.parametrize("streaming", [False, True])
async def test_a_hang_up_frees_every_choice_and_records_nothing(streaming: bool) -> None:
    engine = ScriptedEngine(lambda _prompt, _sampling: ids_of("abcdef" * 50), delay_s=0.02)
    async with (
        ModelServer(engine, RENDERER, model_name="m") as server,
        AsyncOpenAI(base_url=server.open_trajectory("t"), api_key="k", max_retries=0, timeout=20) as client,
    ):

        async def listen() -> None:
            answer: Any = await client.chat.completions.create(model="m", messages=[USER], n=3, stream=streaming)
            async for _ in answer:
                pass

        call = asyncio.create_task(listen())
        while engine.num_active < 3:  # noqa: ASYNC110 - the engine announces nothing
            await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait({call})
        async with asyncio.timeout(5):
            while engine.num_active:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert server.close_trajectory("t") == []


@pytest.mark.slow
async def test_a_seed_gives_the_same_choices_again_and_different_ones_among_them(tmp_path: Any) -> None:
    from art_core.engines.embedded import EmbeddedEngine, EmbeddedEngineConfig
    from art_core.render import load_renderer
    from art_core.testing import write_tiny_model

    folder = write_tiny_model(tmp_path / "tiny")
    engine = EmbeddedEngine(EmbeddedEngineConfig(model_folder=folder, dtype="float32", num_threads=1))
    try:
        async with (
            ModelServer(engine, load_renderer(folder), model_name="m") as server,
            AsyncOpenAI(base_url=server.base_url(), api_key="k", timeout=60) as client,
        ):

            async def drawn(**options: Any) -> list[list[int]]:
                answer = await client.chat.completions.create(
                    model="m", messages=[USER], max_tokens=8, logprobs=True, top_logprobs=2, **options
                )
                return [cast(Any, choice).token_ids for choice in answer.choices]

            first = await drawn(n=4, seed=11)
            assert len({tuple(ids) for ids in first}) == 4
            assert await drawn(n=4, seed=11) == first
            assert await drawn(n=2, seed=11) == first[:2]
            assert await drawn(seed=11) == first[:1]
    finally:
        await engine.aclose()


async def test_alternatives_are_asked_of_the_engine_and_told(setup: Setup) -> None:
    setup.engine.say("ab")
    choice = (await setup.agent("t")([USER], logprobs=True, top_logprobs=3)).choices[0]
    assert setup.engine.prompts[0][1].top_logprobs == 3
    entries = [[(a.token, a.logprob) for a in entry.top_logprobs] for entry in choice.logprobs.content]
    assert [len(alternatives) for alternatives in entries] == [3, 3, 3]
    assert entries[0][0] == (RENDERER.token_text(70), -0.125)
    assert entries[0][2] == (RENDERER.token_text(71), -9999.0)


async def test_the_id_of_the_completion_and_of_its_calls_carry_the_exchange(setup: Setup) -> None:
    setup.engine.say(CALL + CALL, "a", "b")
    agent = setup.agent("t")
    one, two = await agent([USER]), await agent([USER], n=2)
    first, *others = setup.server.close_trajectory("t")
    assert exchange_id_of(one.id) == first.id
    calls = [call.id for call in one.choices[0].message.tool_calls]
    assert [exchange_id_of(call) for call in calls] == [first.id] * 2
    assert [f"{exchange_id_of(two.id)}-{index}" for index in range(2)] == [exchange.id for exchange in others]


@given(st.integers(1, 128), st.integers(0, 99))
def test_every_carrier_gives_its_exchange_back_within_openais_length(num_choices: int, call: int) -> None:
    call_id = new_call_id()
    exchange_id = choice_exchange_id(call_id, num_choices - 1, num_choices=num_choices)
    carriers = [fingerprint(exchange_id), tool_call_id(exchange_id, call)]
    carriers += [f"chatcmpl-{exchange_id}", f"cmpl-{exchange_id}"]
    assert [exchange_id_of(carrier) for carrier in carriers] == [exchange_id] * 4
    assert len(tool_call_id(exchange_id, call)) <= 40


@pytest.mark.parametrize("other", ["", "call_abc", "chatcmpl-9xYz", "call_0", "lc_run--0190", "x" * 24, "0" * 24])
def test_ids_of_others_carry_nothing(other: str) -> None:
    assert exchange_id_of(other) is None


async def test_side_by_side_stops_all_when_it_is_left_early() -> None:
    ended: list[int] = []

    async def source(index: int) -> Any:
        try:
            for step in range(100):
                await asyncio.sleep(0)
                yield step
        finally:
            ended.append(index)

    merged = side_by_side([source(0), source(1)])
    seen = [await anext(merged) for _ in range(4)]
    assert {index for index, _ in seen} == {0, 1}
    await merged.aclose()
    assert sorted(ended) == [0, 1]


async def test_a_stalled_choice_does_not_hold_back_the_tokens_of_another() -> None:
    engine = LineEngine()
    engine.say("a", "b" * 20)
    engine.chunk_size = 21
    async with (
        ModelServer(cast(Engine, engine), RENDERER, model_name="m") as server,
        AsyncOpenAI(base_url=server.base_url(), api_key="k", max_retries=0, timeout=20) as client,
    ):
        answer = await client.chat.completions.create(model="m", messages=[USER], n=2)
    assert [len(choice.message.content or "") for choice in answer.choices] == [1, 20]
