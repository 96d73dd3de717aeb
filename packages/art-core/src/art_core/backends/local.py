"""A server on this machine, as a child process that ends with its parent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from art_core.backends.http import HttpBackend
from art_core.errors import BackendError, ConfigError, MissingExtraError
from art_core.threads import in_thread
from art_core.values import check_callable

_NEEDED = ("torch", "transformers", "starlette", "uvicorn", "prometheus_client", "renderers")
_TELL_EVERY_S = 10.0
_STOP_S = 15.0
_LOG_TAIL_BYTES = 4000


class LocalBackend(HttpBackend):
    """Starts `art serve` as a child process, on a free port of loopback and with a key of its own.

    Used as `async with LocalBackend() as backend:`; without it the server starts when it is first needed, and ends with
    `close`. However this process ends, the server ends with it. Runs are kept in `path`, and the server's log in
    `<path>/server-<pid>.log`.

    `options` are those of the server and the defaults of its models: see `art_core.hosting.options.HostOptions`.
    `progress` gets a line now and then while the server starts; by default it is written to standard error.

    Raises:
        MissingExtraError: the libraries that serve and train are not installed.
    """

    def __init__(
        self,
        path: str | Path = "./.art",
        *,
        engine: str = "embedded",
        trainer: str = "native",
        start_timeout_s: float = 300.0,
        timeout_s: float = 60.0,
        progress: Callable[[str], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(timeout_s=timeout_s)
        if progress is not None:
            check_callable("progress", progress, "a function that takes a line of text")
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingExtraError(
                f"LocalBackend serves and trains on this machine, which needs {missing[0]!r}; run: "
                "pip install 'art-core[train]', or use RemoteBackend with a server elsewhere"
            )
        try:
            self._options = json.dumps(options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"options must be plain data: {error}; they go to another process") from error
        self._path = Path(path)
        self._adapters = (engine, trainer)
        self._start_timeout_s = start_timeout_s
        self._say = progress or _to_stderr
        self._key = secrets.token_urlsafe(32)
        self._server: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._starting: asyncio.Task[None] | None = None
        self._log: Path | None = None

    @property
    def base_url(self) -> str:
        if self._url is None:
            raise ConfigError("the server is not started; use `async with LocalBackend() as backend:`, or register")
        return self._url

    @property
    def api_key(self) -> str | None:
        return self._key

    @property
    def log_file(self) -> Path | None:
        """Where the server writes its log; None before it was started."""
        return self._log

    async def start(self) -> None:
        """Start the server, unless it runs.

        Raises:
            BackendError: it did not start, or has ended; the message holds the reason and the log file.
            ConfigError: the backend was closed.
        """
        self._check_open()
        if self._url is not None:
            self._check_alive()
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        try:
            await asyncio.shield(self._starting)
        except asyncio.CancelledError:
            if self._closed and self._starting.cancelled():  # it was not this call that was cancelled
                self._check_open()
            raise

    async def close(self) -> None:
        """End the server: calls in flight fail. May be called twice."""
        await super().close()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait({self._starting})
        server, self._server, self._url = self._server, None, None
        if server is None:
            return
        server.send_signal(signal.SIGTERM)
        if not await _ended(server, _STOP_S):
            server.kill()
        await _let_go(server)

    async def _start(self) -> None:
        self._log = await in_thread(self._prepare)
        reader, writer = os.pipe()
        try:
            server = await in_thread(self._spawn, writer)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        try:
            line = await self._announced(server, reader)
            if line is None:
                raise BackendError(f"the server did not start: {await self._reason(server)}")
            self._url = json.loads(line)["url"]
            self._server = server
        except BaseException:
            server.kill()
            await _let_go(server)
            raise
        finally:
            os.close(reader)

    def _prepare(self) -> Path:
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"path {self._path} cannot be used: {error.strerror}; give another folder") from error
        return self._path / f"server-{os.getpid()}.log"

    def _spawn(self, writer: int) -> subprocess.Popen[bytes]:
        """The child. Its standard input is a pipe whose other end is ours alone: when we end, it reads its end."""
        engine, trainer = self._adapters
        command = [sys.executable, "-m", "art_core", "serve", "--path", str(self._path), "--port", "0"]
        command += ["--engine", engine, "--trainer", trainer, "--options", self._options]
        command += ["--announce-fd", str(writer), "--end-with-stdin"]
        assert self._log is not None, "set before"
        with self._log.open("ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "ART_API_KEY": self._key},
                pass_fds=[writer],
                start_new_session=True,  # Ctrl-C is ours to handle
            )

    async def _announced(self, server: subprocess.Popen[bytes], reader: int) -> bytes | None:
        """What the child says when it listens; None when it ends, or the time is over, before."""
        os.set_blocking(reader, False)
        started = told = time.monotonic()
        data = b""
        while not data.endswith(b"\n"):
            with contextlib.suppress(BlockingIOError):
                if not (more := os.read(reader, 4096)):
                    return None
                data += more
                continue
            if server.poll() is not None or time.monotonic() - started > self._start_timeout_s:
                return None
            if time.monotonic() - told > _TELL_EVERY_S:
                told = time.monotonic()
                self._say(f"starting the server ({told - started:.0f} s; log: {self._log})")
            await asyncio.sleep(0.02)
        return data

    async def _reason(self, server: subprocess.Popen[bytes]) -> str:
        if not await _ended(server, 2.0):
            return f"it was not ready after {self._start_timeout_s:g} s; its log is {self._log}"
        return f"it {_how(server.returncode)}; its log, {self._log}, ends with: {self._tail()}"

    def _tail(self) -> str:
        """The last line of the log that says something."""
        try:
            assert self._log is not None, "there is a server"
            data = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError as error:
            return f"({error.strerror})"
        return next((line for line in reversed(data.splitlines()) if line.strip()), "(nothing)")

    def _check_alive(self) -> None:
        if self._server is not None and self._server.poll() is not None:
            raise BackendError(
                f"the server {_how(self._server.returncode)}; its log, {self._log}, ends with: {self._tail()}. "
                "Open a new LocalBackend and register again: what was recorded and committed is kept"
            )

    async def _explained(self, problem: str) -> BackendError:
        server = self._server
        if server is not None:
            await _ended(server, 1.0)  # a server that is killed is gone a moment after its connections
        try:
            self._check_alive()
        except BackendError as error:
            return error
        return BackendError(f"no answer from the server at {self._url}: {problem}; its log is {self._log}")


async def _let_go(server: subprocess.Popen[bytes]) -> None:
    """Free what is left of a server that ends."""
    if server.stdin is not None:
        server.stdin.close()
    await in_thread(server.wait)


async def _ended(server: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether the server has ended, or does so in time."""

    def waited() -> bool:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(timeout=timeout_s)
        return server.poll() is not None

    return await in_thread(waited)


def _how(exit_code: int) -> str:
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _to_stderr(line: str) -> None:
    sys.stderr.write(f"art: {line}\n")
