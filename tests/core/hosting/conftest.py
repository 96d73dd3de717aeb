"""A host over a real socket, with an engine and a trainer that have no weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from art_core.backends.remote import RemoteBackend
from art_core.hosting.host import ModelHost
from art_core.hosting.options import HostOptions
from art_core.hosting.server import HostServer
from art_core.testing import write_tiny_model
from tests.core.hosting.fakes import Open, install


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
async def open_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Open]:
    install(monkeypatch)
    async with AsyncExitStack() as stack:

        async def opened(*, options: Any = None, api_key: str | None = None, **more: Any) -> Any:
            chosen = HostOptions.made({"dtype": "float32", **(options or {})}, of="the server")
            host = ModelHost(tmp_path / "runs", engine="fake", trainer="fake", options=chosen)
            server = await stack.enter_async_context(
                HostServer(host, api_key=api_key, **{"grace_s": 5.0, "progress_every_s": 0.05, **more})
            )
            return server, await stack.enter_async_context(RemoteBackend(server.url, api_key))

        yield opened
