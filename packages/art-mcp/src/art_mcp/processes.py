"""A server's process: started, spoken with line by line, and ended together with all that it started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

from art_core.errors import ArtError

GRACE_S = 1.5  # for the server to end by itself, and again after SIGTERM
MAX_LINE_BYTES = 64 * 2**20
_TAIL_CHARS = 8_000
_SUPERVISOR = Path(__file__).with_name("supervise.py")


class ServerStartError(ArtError, RuntimeError):
    """A server cannot be started, ended while starting, or did not answer in time. The message is one line."""


class ServerProcess(asyncio.SubprocessProtocol):
    """One running server. Use `start_process`.

    `on_line` is called on the event loop with each whole line of its stdout, without the line end; `on_end` once, when
    stdout has ended or a line was longer than `MAX_LINE_BYTES`. Stderr is always drained; its end is kept.
    """

    def __init__(self, on_line: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_line = on_line
        self._on_end = on_end
        self._partial = bytearray()
        self._stderr: deque[str] = deque()
        self._stderr_chars = 0
        self._transport: asyncio.SubprocessTransport | None = None
        self._stdin: asyncio.WriteTransport | None = None
        self._exited = asyncio.Event()
        self._ended = False
        self._open_pipes = {1, 2}
        self._drained = asyncio.Event()

    # Callbacks of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._keep_stderr(data.decode("utf-8", "replace"))
            return
        if self._ended:
            return
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            line = bytes(self._partial) + data[start:end]
            self._partial.clear()
            start = end + 1
            self._on_line(line)
        self._partial += data[start:]
        if len(self._partial) > MAX_LINE_BYTES:
            self._keep_stderr(f"\n[stdout: a line of more than {MAX_LINE_BYTES >> 20} MiB]\n")
            self._end_of_stdout()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002  the loop's signature
        if fd == 1:
            self._end_of_stdout()
        self._open_pipes.discard(fd)
        if not self._open_pipes:
            self._drained.set()

    def process_exited(self) -> None:
        self._exited.set()
        self._kill_group()  # nothing is left in it, unless the supervisor itself was killed

    def _end_of_stdout(self) -> None:
        if not self._ended:
            self._ended = True
            self._partial.clear()
            self._on_end()

    def _keep_stderr(self, text: str) -> None:
        self._stderr.append(text)
        self._stderr_chars += len(text)
        while len(self._stderr) > 1 and self._stderr_chars - len(self._stderr[0]) >= _TAIL_CHARS:
            self._stderr_chars -= len(self._stderr.popleft())

    # What the session uses.

    @property
    def pid(self) -> int:
        """Pid of the supervisor, which is also the id of the process group of the server."""
        assert self._transport is not None
        return self._transport.get_pid()

    @property
    def alive(self) -> bool:
        """Whether the server runs and its stdout is open."""
        return not self._exited.is_set() and not self._ended

    @property
    def exit_code(self) -> int | None:
        """The server's exit code, 128 + N for signal N, None while it runs."""
        return None if self._transport is None else self._transport.get_returncode()

    def stderr_tail(self) -> str:
        """The end of what the server wrote on stderr."""
        return "".join(self._stderr)[-_TAIL_CHARS:]

    def write(self, data: bytes) -> bool:
        """Send `data`, without waiting; False when the server can no longer be written to."""
        if self._stdin is None or self._stdin.is_closing() or self._exited.is_set():
            return False
        self._stdin.write(data)
        return True

    async def wait_for_last_words(self, timeout_s: float = 0.5) -> None:
        """Wait until the exit code is known and all of stderr is read, or for `timeout_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._exited.wait()
                await self._drained.wait()

    def hang_up(self) -> None:
        """Close stdin, which asks the server to end and makes the supervisor see to it. Does not wait."""
        if self._stdin is not None:
            if self._stdin.get_write_buffer_size():
                self._stdin.abort()  # it does not read: closing would wait for it for ever
            else:
                self._stdin.close()

    async def aclose(self, *, gently: bool = True) -> None:
        """End the server and all it started, and wait for it. Without `gently`, begin with SIGTERM.

        Takes at most a few seconds, and milliseconds with a server that ends when its stdin does. Cancelled while
        waiting, it kills the group at once. May be called twice.
        """
        if self._transport is None:
            return
        try:
            self.hang_up()
            if not gently:
                self._signal(signal.SIGTERM)
            async with asyncio.timeout(2 * GRACE_S + 2.0):
                await self._exited.wait()
        except TimeoutError:
            self._kill_group()
        finally:
            if not self._exited.is_set():
                self._kill_group()
            self._transport.close()

    def _signal(self, signum: int) -> None:
        if self._transport is not None and not self._exited.is_set():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signum)

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


async def start_process(
    argv: Sequence[str],
    env: Mapping[str, str],
    *,
    nice: int,
    on_line: Callable[[bytes], None],
    on_end: Callable[[], None],
) -> ServerProcess:
    """Start `argv` under its supervisor, `nice` steps below our own priority, with exactly the environment `env`.

    Raises:
        ServerStartError: there is no such program, or it may not be executed.
    """
    program = shutil.which(argv[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise ServerStartError(
            f"{_why_not(argv[0])}; wanted the command line of an MCP server: check the spelling, "
            "install the program, or give its full path"
        )
    command = [sys.executable, "-I", "-S", str(_SUPERVISOR), str(os.getpid()), str(nice), str(GRACE_S), *argv]
    loop = asyncio.get_running_loop()
    try:
        # In a session of its own, so that Ctrl-C reaches us alone and we can end it in order.
        _, protocol = await loop.subprocess_exec(
            lambda: ServerProcess(on_line, on_end), *command, env=dict(env), start_new_session=True
        )
    except OSError as error:
        raise ServerStartError(f"cannot start {argv[0]!r}: {error.strerror or error}") from error
    return protocol


def _why_not(program: str) -> str:
    path = Path(program)
    if os.sep in program and path.is_dir():
        return f"server command {program!r} is a folder"
    if os.sep in program and path.exists():
        return f"server command {program!r} is not executable (chmod +x)"
    return f"server command {program!r} is not a program" + ("" if os.sep in program else " on the PATH")
