"""Open everything a run needs, in order, and close it in the opposite order, whatever happens in between."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from art_core.errors import ConfigError
from art_core.protocols import Engine
from art_core.registry import open_engine
from art_core.render import load_renderer
from art_core.serve.server import ModelServer
from art_core.weights.source import ModelSource, resolve_model
from art_mcp.connect import ServerCommand, open_session
from art_mcp.inspect import openai_tool
from art_mcp.pool import ServerPool
from art_mcp.safety import Permission, permissions
from art_mcp.settings import RunSettings
from art_mcp.types import McpTool, ToolResult

if TYPE_CHECKING:
    from openai import AsyncOpenAI

Say = Callable[[str], None]


@dataclass(frozen=True)
class Toolbox:
    """The callable tools of a server, and a way to call them.

    With `stateful` tools (a work folder, or writes) a rollout keeps one server process to itself from its first call
    to its end. Otherwise a process is its alone for the length of each call.
    """

    pool: ServerPool
    tools: Mapping[str, McpTool]
    stateful: bool

    @property
    def specs(self) -> list[dict[str, Any]]:
        """The tools as the model is shown them."""
        return [openai_tool(tool) for tool in self.tools.values()]

    @contextlib.asynccontextmanager
    async def caller(self) -> AsyncIterator[_Caller]:
        """A `ToolCaller` for one rollout."""
        async with contextlib.AsyncExitStack() as stack:
            yield _Caller(self, stack)


class _Caller:
    def __init__(self, toolbox: Toolbox, stack: contextlib.AsyncExitStack) -> None:
        self._toolbox = toolbox
        self._stack = stack
        self._held: Any = None

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if not self._toolbox.stateful:
            async with self._toolbox.pool.session() as session:
                return await session.call(name, arguments)
        if self._held is None:
            self._held = await self._stack.enter_async_context(self._toolbox.pool.session())
        result: ToolResult = await self._held.call(name, arguments)
        return result


async def inspect_server(settings: RunSettings, say: Say) -> tuple[ServerCommand, list[Permission]]:
    """Start the server once, list its tools and decide which may be called.

    Raises:
        ServerStartError: it does not start, exits or never answers.
    """
    command = ServerCommand.parse(settings.server)
    async with open_session(
        command, start_timeout_s=settings.start_timeout_s, call_timeout_s=settings.call_timeout_s, log=say
    ) as session:
        tools = session.tools
    granted = permissions(
        tools,
        allow_tools=settings.allow_tools,
        allow_writes=settings.allow_writes,
        deny_tools=settings.deny_tools,
    )
    return command, granted


@contextlib.asynccontextmanager
async def open_toolbox(settings: RunSettings, say: Say) -> AsyncIterator[Toolbox]:
    """The server's callable tools behind a warm pool of server processes.

    Raises:
        ServerStartError: the server does not start.
        ConfigError: no tool may be called.
    """
    command, granted = await inspect_server(settings, say)
    for permission in granted:
        say(
            f"tool {permission.tool.name}: {'callable' if permission.callable else 'not callable'}, {permission.reason}"
        )
    callable_tools = [permission.tool for permission in granted if permission.callable]
    if not callable_tools:
        raise ConfigError(
            f"{settings.server!r} has {len(granted)} tools and none may be called; "
            "allow some with --allow-tool NAME, or all with --allow-writes"
        )
    stateful = command.uses_workdir or any(tool.annotations.read_only is not True for tool in callable_tools)
    async with ServerPool(
        command,
        size=settings.server_processes,
        reuse=not stateful,
        start_timeout_s=settings.start_timeout_s,
        call_timeout_s=settings.call_timeout_s,
    ) as pool:
        yield Toolbox(pool, {tool.name: tool for tool in callable_tools}, stateful)


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
async def open_model(settings: RunSettings, say: Say) -> AsyncIterator[ServedModel]:
    """Resolve, load and serve the model of `settings`."""
    from openai import AsyncOpenAI

    source = resolve_model(settings.model, progress=say)
    renderer = load_renderer(source.folder)
    engine = open_engine(
        "embedded",
        model_folder=source.folder,
        dtype=settings.dtype,
        max_concurrency=settings.concurrency,
        max_context_tokens=settings.max_context,
        num_threads=settings.threads,
    )
    try:
        async with ModelServer(engine, renderer, model_name=source.name) as server:
            client = AsyncOpenAI(base_url=f"{server.url}/v1", api_key="local", max_retries=0, timeout=None)
            async with client:
                yield ServedModel(source, renderer, engine, server, client, source.name)
    finally:
        await engine.aclose()


def tool_names(tools: Sequence[McpTool]) -> str:
    return ", ".join(tool.name for tool in tools)
