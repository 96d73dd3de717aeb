"""A live session with an MCP server that runs on this machine and speaks over stdin and stdout."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import mcp_types
from mcp import Client, MCPError
from pydantic import ValidationError

from art_core.errors import InfrastructureError
from art_mcp.command import ServerCommand
from art_mcp.processes import ServerStartError
from art_mcp.results import error_result, to_tool_result
from art_mcp.stdio import StdioTransport, printable
from art_mcp.types import McpTool, ToolAnnotations, ToolResult

__all__ = ["DEFAULT_NICE", "ServerCommand", "ServerStartError", "ToolSession", "open_session", "start_session"]

WORKDIR_PREFIX = "art-mcp-"
DEFAULT_NICE = 5
"""How far a server stands back: starting one takes about a second of CPU, which would otherwise come out of the matrix
products of the model it serves."""

_STILL_STARTING_S = 3.0
_MAX_PAGES = 1000
_CLIENT_INFO = mcp_types.Implementation(name="art-mcp", version="0.1.0")
_logger = logging.getLogger("art_mcp")
# The library reports each notification it dislikes with a traceback on this logger, which it named just "client".
logging.getLogger("client").addFilter(lambda record: not (record.exc_info and "mcp" in Path(record.pathname).parts))

Log = Callable[[str], None]


class ToolSession:
    """One server process and the session with it; a `ToolCaller`. Use `open_session`, or `start_session` and `aclose`.

    The session is owned by a task of its own, so it may be started, used and closed from different tasks.
    """

    def __init__(
        self,
        command: ServerCommand,
        *,
        start_timeout_s: float,
        call_timeout_s: float,
        max_result_chars: int,
        nice: int,
        mode: str,
        log: Log,
    ) -> None:
        self.command = command
        self.tools: tuple[McpTool, ...] = ()
        self.server_name = ""
        self.server_version: str | None = None
        self.protocol_version = ""
        self.workdir: Path | None = None
        self._start_timeout_s = start_timeout_s
        self._call_timeout_s = call_timeout_s
        self._max_result_chars = max_result_chars
        self._nice = nice
        self._mode = mode
        self._log = log
        self._client: Client | None = None
        self._transport: StdioTransport | None = None
        self._closing = asyncio.Event()
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner: asyncio.Task[None] | None = None
        self._broken: str | None = None
        self._num_calls_in_flight = 0

    @property
    def healthy(self) -> bool:
        """Whether the server runs and has answered, in time, all it was asked."""
        process = self._transport.process if self._transport else None
        return self._broken is None and not self._closing.is_set() and process is not None and process.alive

    @property
    def num_noise_lines(self) -> int:
        """Lines on the server's stdout that were no messages and were skipped."""
        return self._transport.num_noise_lines if self._transport else 0

    def stderr_tail(self) -> str:
        """The end of what the server wrote on stderr."""
        process = self._transport.process if self._transport else None
        return process.stderr_tail() if process else ""

    async def call(self, name: str, arguments: Mapping[str, Any] | None) -> ToolResult:
        """Execute one call. No arguments are sent as `{}`.

        What the tool, or the server, refuses comes back with `is_error`: an unknown tool, bad arguments, a failing
        tool, and a result that contradicts the tool's own output schema.

        Raises:
            InfrastructureError: the server died, broke the protocol or did not answer in time. The server is sent a
                cancellation notice, and the session is not `healthy` any more.
        """
        if self._client is None or self._closing.is_set():
            raise InfrastructureError(f"the session with {self._label} is closed; open another one")
        started = time.monotonic()
        self._num_calls_in_flight += 1
        try:
            # The client's own limit sends the cancellation notice; ours also bounds follow-up requests of the client.
            async with asyncio.timeout(self._call_timeout_s + 1.0):
                result = await self._client.call_tool(
                    name, dict(arguments) if arguments else {}, read_timeout_seconds=self._call_timeout_s
                )
        except MCPError as error:
            late = time.monotonic() - started >= self._call_timeout_s
            if error.code == mcp_types.REQUEST_TIMEOUT and late:
                raise await self._failure(name, f"did not answer within {self._call_timeout_s:g} s") from error
            if not self._alive:
                raise await self._failure(name, "died") from error
            return error_result(error.message or f"error {error.code}", max_chars=self._max_result_chars)
        except TimeoutError as error:
            raise await self._failure(name, f"did not answer within {self._call_timeout_s:g} s") from error
        except ValidationError as error:
            raise await self._failure(name, f"broke the protocol: {_first_problem(error)}") from error
        except RuntimeError as error:  # the client's check against the output schema, or too many rounds of questions
            message = printable(str(error).partition("\n")[0], 300)
            return error_result(f"the server's answer was refused: {message}", max_chars=self._max_result_chars)
        except asyncio.CancelledError:
            self._broken = "a call was cancelled, and may still be running"
            raise
        finally:
            self._num_calls_in_flight -= 1
        return to_tool_result(result, max_chars=self._max_result_chars)

    async def aclose(self) -> None:
        """End the server and all it started, and remove the work folder. May be called twice.

        Cancelled while waiting, it ends the server the hard way, waits for that, and passes the cancellation on.
        """
        self._closing.set()
        if self._owner is None:
            return
        if self._transport and self._broken:
            self._transport.gently = False
        if not self._ready.done():
            self._owner.cancel()
        cancelled: asyncio.CancelledError | None = None
        while not self._owner.done():
            try:
                await asyncio.wait([self._owner])
            except asyncio.CancelledError as error:
                cancelled = error
                self._owner.cancel()
        if cancelled is not None:
            raise cancelled

    # The life of the session, in its own task.

    async def start(self) -> None:
        self._owner = asyncio.create_task(self._own(), name=f"art-mcp session: {self._label}")
        try:
            async with asyncio.timeout(self._start_timeout_s):
                if not (await asyncio.wait([self._ready], timeout=_STILL_STARTING_S))[0]:
                    self._log(
                        f"{self._label} is still starting; package runners download on first use "
                        f"(giving up after {self._start_timeout_s:g} s)"
                    )
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            self._broken = "never answered"
            await self.aclose()
            raise ServerStartError(
                f"{self._label} did not answer within {self._start_timeout_s:g} s of its start"
                f"{self._last_words()}; is it an MCP server that speaks on stdin and stdout? "
                "Give it longer with --start-timeout"
            ) from error
        except BaseException:
            self._broken = self._broken or "did not start"
            await self.aclose()
            raise

    async def _own(self) -> None:
        try:
            if self.command.uses_workdir:
                self.workdir = Path(tempfile.mkdtemp(prefix=WORKDIR_PREFIX))
            argv, env = self.command.filled(self.workdir)
            self._transport = StdioTransport(argv, env, nice=self._nice, on_noise=self._on_noise)
            client = Client(
                self._transport,
                mode=self._mode,
                read_timeout_seconds=self._start_timeout_s,
                client_info=_CLIENT_INFO,
                cache=None,
            )
            async with client:
                self.tools = await self._list_tools(client)
                info = client.server_info
                self.server_name = (info.name if info else "") or Path(argv[0]).name
                self.server_version = (info.version if info else "") or None
                self.protocol_version = client.protocol_version
                self._client = client
                self._ready.set_result(None)
                await self._closing.wait()
                self._client = None
        except Exception as error:  # reported to the one who waits for the start, or logged
            if self._ready.done():
                _logger.debug("%s: closing the session failed", self._label, exc_info=error)
            else:
                self._ready.set_exception(await self._start_error(error))
        finally:
            self._client = None
            if not self._ready.done():
                self._ready.set_exception(ServerStartError(f"the start of {self._label} was cancelled"))
            self._ready.exception()  # nobody may be waiting for it any more
            if self.workdir is not None:
                shutil.rmtree(self.workdir, ignore_errors=True)

    async def _list_tools(self, client: Client) -> tuple[McpTool, ...]:
        tools: dict[str, McpTool] = {}
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            try:
                page = await client.list_tools(cursor=cursor)
            except MCPError as error:
                if error.code == mcp_types.METHOD_NOT_FOUND and cursor is None:
                    return ()  # a server of resources or prompts only
                raise
            for tool in page.tools:
                if tool.name in tools:
                    self._log(f"{self._label} lists the tool {tool.name!r} more than once; the first one is used")
                else:
                    tools[tool.name] = _to_tool(tool)
            cursor = page.next_cursor
            if cursor is None:
                return tuple(tools.values())
            if cursor in seen or len(seen) >= _MAX_PAGES:
                raise ServerStartError(
                    f"{self._label}: its list of tools never ends (cursor {cursor!r} after {len(seen) + 1} pages); "
                    "this is a defect of the server"
                )
            seen.add(cursor)

    def _on_noise(self, line: str) -> None:
        self._log(f"{self._label} prints text that is no protocol message on stdout; such lines are skipped: {line!r}")

    # Failures, in words.

    @property
    def _label(self) -> str:
        return f"server `{printable(str(self.command), 120)}`"

    @property
    def _alive(self) -> bool:
        process = self._transport.process if self._transport else None
        return process is not None and process.alive

    def _last_words(self) -> str:
        lines = [printable(line, 200) for line in self.stderr_tail().splitlines()]
        words = " | ".join([line for line in lines if line][-4:])
        return f"; its last words on stderr: {words}" if words else "; it wrote nothing on stderr"

    async def _failure(self, tool: str, what: str) -> InfrastructureError:
        process = self._transport.process if self._transport else None
        if what == "died" and process is not None:
            await process.wait_for_last_words()
            what += " (it closed its stdout)" if process.exit_code is None else f" with exit code {process.exit_code}"
        self._broken = what
        return InfrastructureError(f"{self._label} {what} in a call of {tool!r}{self._last_words()}")

    async def _start_error(self, error: BaseException) -> Exception:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, ServerStartError):
            return error
        process = self._transport.process if self._transport else None
        if process is not None and isinstance(error, MCPError) and error.code == mcp_types.CONNECTION_CLOSED:
            await process.wait_for_last_words()
            code = process.exit_code
            how = "closed its stdout" if code is None else f"exited with code {code}"
            return ServerStartError(f"{self._label} {how} while starting{self._last_words()}")
        if isinstance(error, ValidationError):
            return ServerStartError(f"{self._label} broke the protocol while starting: {_first_problem(error)}")
        if isinstance(error, MCPError | RuntimeError):
            return ServerStartError(
                f"{self._label} refused to start a session: {printable(str(error), 300)}{self._last_words()}"
            )
        if isinstance(error, OSError):
            return ServerStartError(f"{self._label} cannot be started: {error}")
        return error if isinstance(error, Exception) else ServerStartError(f"{self._label}: {error!r}")


async def start_session(
    command: ServerCommand,
    *,
    start_timeout_s: float = 30.0,
    call_timeout_s: float = 30.0,
    max_result_chars: int = 20_000,
    nice: int = DEFAULT_NICE,
    mode: str = "auto",
    log: Log = _logger.warning,
) -> ToolSession:
    """A started session, which the caller must `aclose`. See `open_session`."""
    session = ToolSession(
        command,
        start_timeout_s=start_timeout_s,
        call_timeout_s=call_timeout_s,
        max_result_chars=max_result_chars,
        nice=nice,
        mode=mode,
        log=log,
    )
    await session.start()
    return session


@contextlib.asynccontextmanager
async def open_session(
    command: ServerCommand,
    *,
    start_timeout_s: float = 30.0,
    call_timeout_s: float = 30.0,
    max_result_chars: int = 20_000,
    nice: int = DEFAULT_NICE,
    mode: str = "auto",
    log: Log = _logger.warning,
) -> AsyncIterator[ToolSession]:
    """Start a server, list its tools (all pages), and end it with everything it started on leaving.

    `start_timeout_s` bounds the whole start: process, negotiation and list of tools. `mode` is the client's: "auto"
    asks for the newest protocol and falls back, "legacy" begins with the older handshake. `log` is told, in one line
    each, when the start takes long and when the server prints on stdout what is no message.

    Raises:
        ServerStartError: no such program, it exited or broke the protocol while starting, or never answered.
    """
    session = await start_session(
        command,
        start_timeout_s=start_timeout_s,
        call_timeout_s=call_timeout_s,
        max_result_chars=max_result_chars,
        nice=nice,
        mode=mode,
        log=log,
    )
    try:
        yield session
    finally:
        await session.aclose()


def _to_tool(tool: mcp_types.Tool) -> McpTool:
    says = tool.annotations
    return McpTool(
        tool.name,
        tool.description or tool.title or (says.title if says else None) or "",
        tool.input_schema,
        tool.output_schema,
        ToolAnnotations(
            read_only=says.read_only_hint,
            destructive=says.destructive_hint,
            idempotent=says.idempotent_hint,
            open_world=says.open_world_hint,
        )
        if says
        else ToolAnnotations(),
    )


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    where = ".".join(str(step) for step in problem["loc"])
    return printable(f"{where}: {problem['msg']}", 200)
