"""The backend and the model of these tests, and what the server was sent."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import art_core as art
from art_core.serve.chat_request import ChatRequest
from tests.langgraph.sensible import KEY, SensibleBackend, served


@pytest.fixture
async def backend() -> AsyncIterator[SensibleBackend]:
    async with SensibleBackend(api_key=KEY) as made:
        yield made


@pytest.fixture
async def model(backend: SensibleBackend) -> art.TrainableModel:
    made = art.TrainableModel(name="clerk", project="shop", base_model="scripted")
    await made.register(backend)
    return made


@pytest.fixture
def served_model() -> Iterator[art.TrainableModel]:
    """A model whose server is in another thread."""
    with served(SensibleBackend(api_key=KEY)) as made:
        yield made


@pytest.fixture
def bodies(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The bodies of the chat calls that the server got."""
    got: list[dict[str, Any]] = []
    parse = ChatRequest.parse.__func__  # type: ignore[attr-defined]

    def logging(cls: type[ChatRequest], body: bytes) -> ChatRequest:
        got.append(json.loads(body))
        return parse(cls, body)  # type: ignore[no-any-return]

    monkeypatch.setattr(ChatRequest, "parse", classmethod(logging))
    return got
