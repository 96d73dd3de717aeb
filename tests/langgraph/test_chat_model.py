"""`ArtChatModel` over a real socket: what it sends, what it gives back, and where its calls are recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import art_core as art
from art_core.testing import InProcessBackend
from art_langgraph import ArtChatModel


def last_message(prompt: str) -> str:
    return prompt.rsplit("<|im_start|>user\n", 1)[1].split("<|im_end|>")[0].upper()


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend(last_message, api_key="sk-very-secret") as made:
        yield made


@pytest.fixture
async def model(backend: InProcessBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
    await made.register(backend)
    return made


async def test_every_way_to_call_is_recorded(model: art.TrainableModel) -> None:
    import asyncio

    llm = ArtChatModel(model)
    async with art.capture(model) as trajectory:
        one = await llm.ainvoke("one")
        two = await asyncio.to_thread(llm.invoke, "two")
        three = None
        async for chunk in llm.astream("three"):
            three = chunk if three is None else three + chunk
    assert [e.response["content"] for e in trajectory.exchanges] == ["ONE", "TWO", "THREE"]
    assert three is not None
    for message, exchange in zip((one, two, three), trajectory.exchanges, strict=True):
        assert message.response_metadata["exchange_id"] == exchange.id
        assert message.response_metadata["policy_version"] == exchange.policy_version
        assert tuple(message.response_metadata["token_ids"]) == exchange.completion_ids
        logprobs = [token["logprob"] for token in message.response_metadata["logprobs"]["content"]]
        assert logprobs == pytest.approx(exchange.logprobs)
