"""Every sampled token belongs to one trajectory of the model that drew it, and is trained once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.backends.remote import RemoteBackend
from art_core.config import TrainConfig
from art_core.control import RegisterRequest
from art_core.errors import DataError, StorageError
from art_core.hosting.exchanges import ExchangeLog
from art_core.hosting.host import ModelHost
from art_core.hosting.options import HostOptions
from art_core.hosting.server import HostServer
from art_core.testing import write_tiny_model
from tests.core.hosting.fakes import ask, client_of, group, install

CONFIG = TrainConfig()
OPTIONS = HostOptions.made({"dtype": "float32"}, of="the server")


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)


@pytest.fixture
async def backend(tmp_path: Path, base_model: str) -> AsyncIterator[RemoteBackend]:
    """A server of the models `p/a` and `p/b`."""
    host = ModelHost(tmp_path, engine="fake", trainer="fake", options=OPTIONS)
    async with HostServer(host) as server, RemoteBackend(server.url) as remote:
        for name in "ab":
            await remote.register(RegisterRequest(project="p", name=name, base_model=base_model))
        yield remote


def client_at(backend: RemoteBackend, trajectory_id: str, **options: Any) -> Any:
    return client_of(backend, base_url=f"{backend.base_url}/t/{trajectory_id}/v1", **options)


async def test_a_trajectory_holds_the_calls_of_its_own_model_only(backend: RemoteBackend) -> None:
    await backend.open_trajectory("p", "a", "t")
    async with client_at(backend, "t") as client:
        own = await ask(client, "p/a")
        other = await ask(client, "p/b")
    assert [exchange.id for exchange in await backend.close_trajectory("t")] == [own.choices[0].exchange_id]
    (apart,) = await backend.find_exchanges("p", "b", [other.choices[0].exchange_id])
    assert apart.trajectory_id == ""
    with pytest.raises(DataError, match="no recorded call"):
        await backend.find_exchanges("p", "a", [other.choices[0].exchange_id])


async def test_groups_of_another_model_are_refused(backend: RemoteBackend) -> None:
    made = await group(backend, "a", "g")
    with pytest.raises(DataError, match=r"2 of 2 recorded calls were answered by 'p/a' and not by 'p/b'"):
        await backend.train("p", "b", [made], CONFIG)
    assert (await backend.state("p", "b")).step == 0
    assert (await backend.train("p", "a", [made], CONFIG)).step == 1


@pytest.mark.parametrize("how", ["twice in one trajectory", "in two trajectories", "in two groups"])
async def test_a_call_that_would_be_trained_twice_is_refused(backend: RemoteBackend, how: str) -> None:
    made = await group(backend, "a", "g")
    first, second = made.trajectories
    groups = [made]
    if how == "twice in one trajectory":
        first.exchanges = first.exchanges * 2
    elif how == "in two trajectories":
        second.exchanges = first.exchanges
    else:
        groups = [made, made]
    with pytest.raises(DataError, match=rf"recorded calls are there more than once.*'{first.exchanges[0].id}'"):
        await backend.train("p", "a", groups, CONFIG)
    assert (await backend.state("p", "a")).step == 0


async def test_of_the_choices_of_a_call_all_are_recorded_or_none(
    backend: RemoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = ExchangeLog._append
    failures = iter([False, True])  # "opened", and then the call

    def failing(self: ExchangeLog, text: str) -> Any:
        if next(failures, False):
            raise StorageError("the disk is full")
        return write(self, text)

    monkeypatch.setattr(ExchangeLog, "_append", failing)
    await backend.open_trajectory("p", "a", "t")
    async with client_at(backend, "t", max_retries=2) as client:
        answer = await ask(client, "p/a", n=3)
    exchanges = await backend.close_trajectory("t")
    assert [exchange.id for exchange in exchanges] == [choice.exchange_id for choice in answer.choices]
    assert await backend.find_exchanges("p", "a", [e.id for e in exchanges]) == exchanges


@pytest.fixture
def distant(tmp_path: Path) -> Iterator[str]:
    """The port of a server with an event loop of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = HostServer(ModelHost(tmp_path, engine="fake", trainer="fake", options=OPTIONS))
    try:
        asyncio.run_coroutine_threadsafe(server.__aenter__(), loop).result(30)
        yield server.url.rpartition(":")[2]
        asyncio.run_coroutine_threadsafe(server.__aexit__(None, None, None), loop).result(30)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


async def test_sync_agents_may_fill_every_thread_of_the_event_loop(distant: str, base_model: str) -> None:
    """What a capture needs must not wait for a thread, also not to look up the server's name."""
    model = art.TrainableModel(name="a", project="p", base_model=base_model)
    pool = ThreadPoolExecutor(2)
    asyncio.get_running_loop().set_default_executor(pool)
    all_run = threading.Barrier(2)

    def agent() -> art.Trajectory:
        all_run.wait(30)
        with art.capture(model) as trajectory:
            client = model.sync_openai_client()
            client.chat.completions.create(model="p/a", messages=[{"role": "user", "content": "u"}], max_tokens=4)
        return trajectory

    async with RemoteBackend(f"http://localhost:{distant}") as backend:
        await model.register(backend)
        async with asyncio.timeout(30):
            made = await asyncio.gather(*(asyncio.to_thread(agent) for _ in range(2)))
    assert [trajectory.num_trained_tokens for trajectory in made] == [4, 4]


def test_a_backend_is_used_from_one_event_loop_after_another(distant: str, base_model: str) -> None:
    """Each loop's connections are closed with it: an unclosed one would be an error here."""
    model = art.TrainableModel(name="a", project="p", base_model=base_model)
    backend = RemoteBackend(f"http://127.0.0.1:{distant}")
    asyncio.run(model.register(backend))
    assert asyncio.run(model.get_step()) == 0
    with art.capture(model):
        pass
    asyncio.run(backend.close())
