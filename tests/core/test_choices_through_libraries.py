"""Explicit choices whose way led through other libraries: the id of the exchange survives."""

from __future__ import annotations

import functools
import operator
import os
import warnings
from collections.abc import AsyncIterator
from typing import Any

import pytest

import art_core as art
from art_core.testing import InProcessBackend

pytestmark = pytest.mark.slow
USER: Any = {"role": "user", "content": "hi"}


@pytest.fixture
async def backend() -> AsyncIterator[InProcessBackend]:
    async with InProcessBackend() as made:
        yield made


@pytest.fixture
async def model(backend: InProcessBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="m", project="p", base_model="b")
    await made.register(backend)
    return made


async def trains(model: art.TrainableModel, backend: InProcessBackend, *answers: Any) -> None:
    members = [art.Trajectory(messages_and_choices=[USER, a], reward=float(i)) for i, a in enumerate(answers)]
    assert [trajectory.messages()[-1]["content"] for trajectory in members] == ["ok"] * len(answers)
    read = [art.Trajectory.model_validate_json(trajectory.model_dump_json()) for trajectory in members]
    result = await model.train([art.TrajectoryGroup(read)])
    assert result.skipped is None
    assert [row.num_trained for row in backend.trainer.steps[-1][0]] == [3] * len(answers)


async def test_litellm_plain_and_streamed(
    model: art.TrainableModel, backend: InProcessBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import litellm
        from litellm.llms.custom_httpx.async_client_cleanup import close_litellm_async_clients

        call = {
            "model": f"hosted_vllm/{model.get_inference_name()}",
            "api_base": model.inference_base_url,
            "api_key": model.inference_api_key,
            "messages": [USER],
        }
        plain = await litellm.acompletion(**call)
        chunks = [chunk async for chunk in await litellm.acompletion(**call, stream=True)]
        streamed = litellm.stream_chunk_builder(chunks)
        await trains(model, backend, plain.choices[0], streamed)
        await close_litellm_async_clients()  # type: ignore[no-untyped-call]


async def test_langchain(model: art.TrainableModel, backend: InProcessBackend) -> None:
    import httpx2
    from langchain_openai import ChatOpenAI

    async with httpx2.AsyncClient() as client:
        chat = ChatOpenAI(
            base_url=model.inference_base_url,
            api_key=lambda: model.inference_api_key,
            model=model.get_inference_name(),
            use_responses_api=False,
            http_async_client=client,
        )
        answers = [await chat.ainvoke("hi"), await chat.ainvoke("hi")]
        await trains(model, backend, *answers)
        async with art.capture(model) as trajectory:
            streams = [[chunk async for chunk in chat.astream("hi")] for _ in range(2)]
        assert trajectory.exchanges == []  # a client of its own, made outside: it keeps its address
    await trains(model, backend, *(functools.reduce(operator.add, chunks) for chunks in streams))


async def test_streams_of_the_openai_client(model: art.TrainableModel, backend: InProcessBackend) -> None:
    client = model.openai_client()
    finals = []
    for _ in range(2):
        async with client.chat.completions.stream(model=model.get_inference_name(), messages=[USER]) as stream:
            finals.append(await stream.get_final_completion())
    await trains(model, backend, *finals)
