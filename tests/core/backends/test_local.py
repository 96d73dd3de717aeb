"""`LocalBackend`: a server that is a child process, and what happens when either of the two dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, AsyncOpenAI

import art_core as art
from art_core.backends import LocalBackend
from art_core.config import TrainConfig
from art_core.control import RegisterRequest
from art_core.errors import BackendError, ConfigError
from art_core.testing import write_tiny_model
from tests.core.hosting.fakes import ask, client_of, group

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "lora": {"rank": 4}}
CONFIG = TrainConfig(learning_rate=1e-2)
PARENT = """
import asyncio, json, os, sys, time
from art_core.backends import LocalBackend

async def main():
    backend = LocalBackend(sys.argv[1])
    await backend.start()
    if sys.argv[2] == "fork" and os.fork() == 0:  # the copy holds the pipe open as well
        time.sleep(60)
        os._exit(0)
    print(json.dumps({"pid": backend._server.pid, "url": backend.base_url}), flush=True)
    if sys.argv[2] == "raise":
        raise RuntimeError("a mistake in the script")
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny"), max_context_tokens=4096))


def request_of(base_model: str) -> RegisterRequest:
    return RegisterRequest(project="p", name="m", base_model=base_model)


def is_gone(pid: int) -> bool:
    """Whether the process has ended; one that nobody has waited for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
@pytest.mark.parametrize("end", ["SIGINT", "SIGTERM", "SIGKILL", "SIGKILL, with a forked copy", "an exception"])
def test_b067_the_server_ends_with_its_parent(tmp_path: Path, end: str) -> None:
    kind = {"an exception": "raise", "SIGKILL, with a forked copy": "fork"}.get(end, "wait")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert parent.stdout is not None
    try:
        server = json.loads(parent.stdout.readline())
        assert kind == "raise" or not is_gone(server["pid"])
        if end.startswith("SIG"):
            parent.send_signal(getattr(signal, end.split(",")[0]))
        parent.wait(30)
        deadline = time.monotonic() + 30
        while not is_gone(server["pid"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert is_gone(server["pid"])
    finally:
        parent.stdout.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)


async def _call_for_ever(client: AsyncOpenAI) -> None:
    while True:
        await ask(client, "p/m", max_tokens=3000)


def arguments_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


async def test_b057_a_server_that_is_killed_is_told_with_its_log_and_the_run_goes_on(
    tmp_path: Path, base_model: str
) -> None:
    first = LocalBackend(tmp_path, **OPTIONS)
    try:
        await first.register(request_of(base_model))
        report = await first.train("p", "m", [await group(first, "m", "t", max_tokens=4)], CONFIG)
        assert report.step == 1
        await first.open_trajectory("p", "m", "open")
        async with client_of(first, api_key=first.api_key, base_url=f"{first.base_url}/t/open/v1") as client:  # type: ignore[arg-type]
            kept = (await ask(client, "p/m", max_tokens=4)).choices[0].exchange_id
            calls = asyncio.create_task(_call_for_ever(client))
            other = RegisterRequest(project="p", name="other", base_model=base_model)
            registering = asyncio.create_task(first.register(other))
            await asyncio.sleep(0.1)
            assert first._server is not None
            first._server.kill()
            with pytest.raises(APIConnectionError):
                await asyncio.wait_for(calls, 30)
            with pytest.raises(BackendError, match=rf"ended by signal 9; its log, {first.log_file}"):
                await asyncio.wait_for(registering, 30)
        with pytest.raises(BackendError, match="Open a new LocalBackend and register again"):
            await first.train("p", "m", [], CONFIG)
    finally:
        await first.close()

    async with LocalBackend(tmp_path, **OPTIONS) as second:
        state = await second.register(request_of(base_model))
        assert (state.step, state.checkpoint_steps) == (1, [1])
        assert [exchange.id for exchange in await second.close_trajectory("open")] == [kept]
        scored = await group(second, "m", "u", max_tokens=4)
        assert {e.policy_version for t in scored for e in t.exchanges} == {1}
        assert (await second.train("p", "m", [scored], CONFIG)).step == 2


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    for options, message in (
        ({"max_wait": 3}, "the server has no option 'max_wait'"),
        ({"max_wait_s": -3.0}, "option 'max_wait_s'.*greater than 0"),
    ):
        backend = LocalBackend(tmp_path, **options)
        with pytest.raises(BackendError, match=rf"did not start: it ended with exit code 1.*{message}"):
            await backend.start()
        await backend.close()
    with pytest.raises(ConfigError, match="plain data"):
        LocalBackend(tmp_path, seed=object())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used"):
        await LocalBackend(tmp_path / "file").start()
    with pytest.raises(ConfigError, match="not started"):
        _ = LocalBackend(tmp_path).base_url


async def test_it_starts_once_at_first_use_and_the_key_is_in_no_argument(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, **OPTIONS)
    try:
        await asyncio.gather(backend.start(), backend.start())
        assert backend._server is not None
        pid, key = backend._server.pid, backend.api_key
        assert key
        assert key not in arguments_of(pid)
        assert backend.log_file is not None
        assert key not in backend.log_file.read_text()
        await backend.start()
        assert backend._server.pid == pid
    finally:
        await backend.close()
    assert is_gone(pid)
    await backend.close()


async def test_synchronous_rollouts_may_fill_every_thread_of_the_loop(tmp_path: Path, base_model: str) -> None:
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=2))

    def rollout() -> art.Trajectory:
        with art.capture(model) as trajectory:
            model.sync_openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[{"role": "user", "content": "u"}], max_tokens=2
            )
        return trajectory

    async with LocalBackend(tmp_path, **OPTIONS) as backend, asyncio.timeout(100):
        await model.register(backend)
        done = await asyncio.gather(*(asyncio.to_thread(rollout) for _ in range(6)))
    assert [len(trajectory.exchanges) for trajectory in done] == [1] * 6
