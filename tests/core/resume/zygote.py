"""A warm process that forks runs of `script`, each a client and a server of its own, and kills them where it is told.

Reads a job per line, `{"path", "base_model", "kills": [kill, ...]}`, and writes a line when the script has run to its
end: `{"path", "attempts", "points", "cpu_s"}`. Attempt number i is ended by kill number i, `{"who", "point", "nth",
"delay_s"}`: `delay_s` after `point` was reached for the `nth` time, SIGKILL to the "client", the "server", or "both".
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import openai  # noqa: F401
import renderers  # noqa: F401
import starlette.applications  # noqa: F401 - warm
import torch
import uvicorn  # noqa: F401
from transformers import AutoModelForCausalLM, LlamaForCausalLM, PreTrainedTokenizerFast  # noqa: F401

import art_core.cli
import art_core.storage
from art_core.backends import LocalBackend
from art_core.backends.training import also_takes_a_model
from art_core.canary import WeightSyncCanary
from art_core.engines.embedded import EmbeddedEngine
from art_core.hosting.exchanges import ExchangeLog
from art_core.hosting.host import ModelHost
from art_core.runs import ModelRun
from art_core.storage import RunStore
from art_core.trainers.native import NativeTrainer
from tests.core.resume import script

MAX_ATTEMPTS = 6
SERVER_POINTS: dict[str, tuple[Any, str]] = {
    "opening": (RunStore, "__init__"),
    "restoring": (NativeTrainer, "_restore"),
    "sampled": (ExchangeLog, "record"),
    "closing": (ModelHost, "close_trajectory"),
    "training": (NativeTrainer, "_step"),
    "saving": (NativeTrainer, "_save"),
    "syncing": (art_core.storage, "sync"),
    "committing": (RunStore, "write"),
    "loading": (EmbeddedEngine, "load"),
    "checking": (WeightSyncCanary, "check"),
    "logging": (ModelRun, "log_step"),
}
CLIENT_POINTS: dict[str, tuple[Any, str]] = {
    "registering": (LocalBackend, "register"),
    "beginning": (LocalBackend, "open_trajectory"),
    "asking": (LocalBackend, "train"),
    "telling": (LocalBackend, "log"),
}


class Hooks:
    """Counts how often each point is reached and how long it takes, and kills where it is told."""

    def __init__(self, kill: dict[str, Any] | None, targets: Callable[[str], list[int]], log: Path) -> None:
        self._kill = kill
        self._targets = targets
        self._log = log
        self._counts: dict[str, int] = {}

    def install(self, points: dict[str, tuple[Any, str]]) -> None:
        for point, (owner, name) in points.items():
            found = inspect.getattr_static(owner, name)
            if isinstance(found, also_takes_a_model):
                found._method = self._watched(point, found._method)
            else:
                setattr(owner, name, self._watched(point, found))

    def _watched(self, point: str, function: Any) -> Any:
        if asyncio.iscoroutinefunction(function):

            @functools.wraps(function)
            async def watched(*args: Any, **kwargs: Any) -> Any:
                started = self._reached(point)
                result = await function(*args, **kwargs)
                self._left(point, started)
                return result
        else:

            @functools.wraps(function)
            def watched(*args: Any, **kwargs: Any) -> Any:
                started = self._reached(point)
                result = function(*args, **kwargs)
                self._left(point, started)
                return result

        return watched

    def _reached(self, point: str) -> float:
        count = self._counts[point] = self._counts.get(point, 0) + 1
        kill = self._kill
        if kill is not None and (kill["point"], kill["nth"]) == (point, count):
            threading.Thread(target=self._strike, args=(kill,), daemon=True).start()
        return time.perf_counter()

    def _strike(self, kill: dict[str, Any]) -> None:
        time.sleep(kill["delay_s"])
        for pid in self._targets(kill["who"]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left(self, point: str, started: float) -> None:
        with self._log.open("a") as log:
            log.write(json.dumps([point, time.perf_counter() - started]) + "\n")


class ForkedServer:
    """As a `subprocess.Popen` of the server, which was forked before it was wanted."""

    def __init__(self, kill: dict[str, Any] | None, log: Path) -> None:
        ours, theirs = socket.socketpair()
        reader, writer = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            os.close(writer)
            os.dup2(reader, 0)
            _serve(theirs, kill, log)
        theirs.close()
        os.close(reader)
        self._ours = ours
        self.stdin: IO[bytes] = os.fdopen(writer, "wb")
        self.returncode: int | None = None

    def begin(self, arguments: list[str], key: str, log: Path, announce: int) -> None:
        message = json.dumps({"arguments": arguments, "key": key, "log": str(log)}).encode()
        socket.send_fds(self._ours, [message], [announce])

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        deadline = time.monotonic() + (timeout if timeout is not None else 60.0)
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedBackend(LocalBackend):
    """`LocalBackend`, whose server is a process that is warm already; all else is as it is."""

    forked: ForkedServer

    def _spawn(self, writer: int) -> Any:
        assert self._log is not None
        arguments = ["serve", "--path", str(self._path), "--port", "0", "--options", self._options]
        inherited = 3 + 97  # the number that the pipe has in the server
        self.forked.begin(
            [*arguments, "--announce-fd", str(inherited), "--end-with-stdin"], self._key, self._log, writer
        )
        return self.forked


def _serve(channel: socket.socket, kill: dict[str, Any] | None, log: Path) -> None:
    data, descriptors, _, _ = socket.recv_fds(channel, 65536, 1)
    if not data:
        os._exit(0)
    job = json.loads(data)
    os.setsid()
    os.dup2(descriptors[0], 100)
    with Path(job["log"]).open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ["ART_API_KEY"] = job["key"]
    sys.argv = ["art", *job["arguments"]]
    client, server = os.getppid(), os.getpid()
    targets = {"client": [client], "server": [server], "both": [client, server]}
    Hooks(kill, targets.__getitem__, log).install(SERVER_POINTS)
    code = 1
    try:
        art_core.cli.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_client(job: dict[str, Any], kill: dict[str, Any] | None, log: Path) -> None:
    """In a process of its own: the script with a server of its own."""
    with Path(job["path"], "client.log").open("ab") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    code = 1
    try:
        server = ForkedServer(kill, log)
        client = os.getpid()
        targets = {"client": [client], "server": [server.pid], "both": [server.pid, client]}
        Hooks(kill, targets.__getitem__, log).install(CLIENT_POINTS)
        backend = ForkedBackend(job["path"], **script.OPTIONS)
        backend.forked = server
        asyncio.run(script.main(job["path"], job["base_model"], backend))
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run_job(job: dict[str, Any]) -> dict[str, Any]:
    path = Path(job["path"])
    path.mkdir(parents=True, exist_ok=True)
    codes: list[int] = []
    log = path / "points.jsonl"
    while len(codes) < MAX_ATTEMPTS and 0 not in codes:
        kill = job["kills"][len(codes)] if len(codes) < len(job["kills"]) else None
        pid = os.fork()
        if pid == 0:
            _run_client(job, kill, log)
        _, status = os.waitpid(pid, 0)
        codes.append(os.waitstatus_to_exitcode(status))
    points = [json.loads(line) for line in log.read_text().splitlines()]
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = spent.ru_utime + spent.ru_stime
    return {"path": job["path"], "attempts": codes, "points": points, "cpu_s": cpu_s}


def main() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        if os.fork() == 0:
            result = _run_job(json.loads(line))
            os.write(1, json.dumps(result).encode() + b"\n")
            os._exit(0)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
