"""Open everything a run needs, in order, and close it in the opposite order, whatever happens in between."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_core.errors import ConfigError
from art_core.protocols import Engine
from art_core.registry import open_engine
from art_core.render import load_renderer
from art_core.serve.server import ModelServer
from art_core.weights.source import ModelSource
from art_mcp.connect import ServerCommand
from art_mcp.describe import inspect_server
from art_mcp.inspect import openai_tool
from art_mcp.pool import ServerPool
from art_mcp.settings import RunSettings
from art_mcp.types import McpTool, ToolResult

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Say = Callable[[str], None]
_PREFIX_CACHE_BYTES = 256 << 20
"""Holds the tools' prompt and the first turns of some fifty attempts of a model of SmolLM2-135M's size."""


@dataclass(frozen=True)
class Toolbox:
    """The callable tools of a server, and a way to call them.

    A server that keeps something between calls (it has a work folder, or tools that may write) gives each rollout a
    process of its own, from before its first call to its end. Otherwise a process is a rollout's alone for the length
    of each call.
    """

    command: ServerCommand
    pool: ServerPool
    tools: Mapping[str, McpTool]
    stateful: bool

    @functools.cached_property
    def specs(self) -> list[dict[str, Any]]:
        """The tools as the model is shown them."""
        return [openai_tool(tool) for tool in self.tools.values()]

    @contextlib.asynccontextmanager
    async def caller(self) -> AsyncIterator[RolloutCaller]:
        """A `ToolCaller` for one rollout."""
        if self.stateful:
            async with self.pool.session() as session:
                yield RolloutCaller(session.call, session.workdir)
        else:
            yield RolloutCaller(self._call_alone, None)

    async def _call_alone(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        async with self.pool.session() as session:
            return await session.call(name, arguments)


@dataclass(frozen=True)
class RolloutCaller:
    """Executes the calls of one rollout. `workdir` is the folder its server process works in, if it has one."""

    execute: Callable[[str, Mapping[str, Any]], Awaitable[ToolResult]]
    workdir: Path | None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return await self.execute(name, arguments)


@contextlib.asynccontextmanager
async def open_toolbox(settings: RunSettings, say: Say) -> AsyncIterator[Toolbox]:
    """The server's callable tools behind a warm pool of server processes.

    Raises:
        ServerStartError: the server does not start.
        ConfigError: no tool may be called.
    """
    server = await inspect_server(settings, say)
    for permission in server.permissions:
        say(
            f"tool {permission.tool.name}: {'callable' if permission.callable else 'not callable'}, {permission.reason}"
        )
    callable_tools = [permission.tool for permission in server.permissions if permission.callable]
    if not callable_tools:
        raise ConfigError(
            f"{settings.server!r} has {len(server.permissions)} tools and none may be called; "
            "allow some with --allow-tool NAME, or all with --allow-writes"
        )
    stateful = server.command.uses_workdir or any(tool.annotations.read_only is not True for tool in callable_tools)
    async with ServerPool(
        server.command,
        size=settings.server_processes,
        reuse=not stateful,
        start_timeout_s=settings.start_timeout_s,
        call_timeout_s=settings.call_timeout_s,
        log=say,
    ) as pool:
        yield Toolbox(server.command, pool, {tool.name: tool for tool in callable_tools}, stateful)


@dataclass(frozen=True)
class ServedModel:
    """A model that answers on loopback, and what is needed to render for it by hand."""

    source: ModelSource
    renderer: Any
    engine: Engine
    server: ModelServer
    client: AsyncOpenAI
    name: str


@contextlib.asynccontextmanager
async def open_model(source: ModelSource, settings: RunSettings) -> AsyncIterator[ServedModel]:
    """Load and serve the model in `source`, as `settings` say."""
    from openai import AsyncOpenAI

    renderer = load_renderer(source.folder)
    engine = open_engine(
        "embedded",
        model_folder=source.folder,
        dtype=settings.dtype,
        max_concurrency=settings.concurrency,
        max_context_tokens=settings.max_context,
        prefix_cache_bytes=_PREFIX_CACHE_BYTES,
        num_threads=settings.threads,
    )
    try:
        async with ModelServer(engine, renderer, model_name=source.name) as server:
            client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="local", max_retries=0, timeout=None)
            async with client:
                yield ServedModel(source, renderer, engine, server, client, source.name)
    finally:
        await engine.aclose()
