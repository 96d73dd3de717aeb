"""The server that the tests of this folder talk to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import cast

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from art_core.protocols import Engine
from art_core.serve.server import ModelServer
from tests.core.serve.support import RENDERER, SECRET, Kept, LineEngine, Setup


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    engine, kept = LineEngine(), Kept()
    async with (
        ModelServer(cast(Engine, engine), RENDERER, model_name="m", recorder=kept) as server,
        AsyncOpenAI(
            base_url=server.base_url(),
            api_key=SECRET,
            max_retries=0,
            timeout=20,
            http_client=DefaultAsyncHttpxClient(verify=False),  # certificates take longer to load than most tests
        ) as client,
    ):
        yield Setup(engine, server, client, kept.exchanges)
