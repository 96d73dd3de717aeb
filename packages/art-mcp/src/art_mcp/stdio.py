"""MCP's stdio transport over a `ServerProcess`: one JSON-RPC message a line, and patience with what is not one."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Self

import anyio
import mcp_types
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage

from art_mcp.processes import ServerProcess, start_process

_MESSAGE_START = re.compile(rb'\{\s*"(?:jsonrpc|id|method|result|error|params)"\s*:')
_SHOWN_NOISE_CHARS = 80


class StdioTransport:
    """Starts a server and carries messages to and from it. A `Transport` of the `mcp` client.

    Lines on stdout that are no JSON-RPC message are skipped and counted; `on_noise` is told of the first one. A message
    that follows other text on the same line (a banner without a line end) is found.
    """

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], *, nice: int, on_noise: Callable[[str], None]
    ) -> None:
        self._argv = argv
        self._env = env
        self._nice = nice
        self._on_noise = on_noise
        self._context: AbstractAsyncContextManager[TransportStreams] | None = None
        self._incoming, self._reader = anyio.create_memory_object_stream[SessionMessage | Exception](math.inf)
        self.process: ServerProcess | None = None
        self.num_noise_lines = 0
        self.gently = True
        """Whether the server gets time to end by itself; set to False when it is known to be stuck."""

    async def __aenter__(self) -> TransportStreams:
        self._context = self._connect()
        return await self._context.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        assert self._context is not None
        return await self._context.__aexit__(kind, error, traceback)

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[TransportStreams]:
        with self._incoming, self._reader:
            self.process = await start_process(
                self._argv, self._env, nice=self._nice, on_line=self._line, on_end=self._incoming.close
            )
            try:
                yield self._reader, _Writer(self.process)
            finally:
                with anyio.CancelScope(shield=True):
                    await self.process.aclose(gently=self.gently)

    def _line(self, line: bytes) -> None:
        message = parse_message(line)
        if message is None:
            if line.strip():
                self.num_noise_lines += 1
                if self.num_noise_lines == 1:
                    self._on_noise(printable(line.decode("utf-8", "replace"), _SHOWN_NOISE_CHARS))
            return
        try:
            self._incoming.send_nowait(SessionMessage(message))
        except (anyio.ClosedResourceError, anyio.BrokenResourceError):
            return  # the session has ended; what still arrives has no reader


class _Writer:
    """Sends messages at once and never waits, so that a server that stopped reading cannot hold up a time-out."""

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    async def send(self, item: SessionMessage, /) -> None:
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        if not self._process.write(text.encode() + b"\n"):
            raise anyio.BrokenResourceError

    async def aclose(self) -> None:
        """Does nothing: the process is closed by the transport."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return None


def parse_message(line: bytes) -> mcp_types.JSONRPCMessage | None:
    """The JSON-RPC message in `line`, or None. It may follow other text, but nothing may follow it."""
    candidates = [0] if line.lstrip().startswith(b"{") else []
    candidates += [match.start() for match in _MESSAGE_START.finditer(line) if match.start() not in candidates]
    for start in candidates[:8]:
        try:
            return mcp_types.jsonrpc_message_adapter.validate_json(line[start:], by_name=False)
        except ValueError:
            continue
    return None


def printable(text: str, max_chars: int) -> str:
    """`text` on one line, without control characters and terminal sequences, cut at the end when too long."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    plain = " ".join("".join(char if char.isprintable() else " " for char in plain).split())
    return plain if len(plain) <= max_chars else plain[: max_chars - 1] + "…"
