"""Calls while the optimiser works, and what a full disk leaves possible."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from openai import APIError

from art_core.config import TrainConfig
from art_core.errors import DataError, StorageError
from tests.core.hosting.fakes import FakeTrainer, Open, ask, client_of, group, register, until

CONFIG = TrainConfig()


async def test_calls_that_come_in_during_the_optimisers_step_are_answered_by_the_weights_before_it(
    open_server: Open, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    scored = await group(backend, "m", "t")
    begun, go_on = asyncio.Event(), asyncio.Event()
    step = FakeTrainer.step

    async def held(self: FakeTrainer, *arguments: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await step(self, *arguments)

    monkeypatch.setattr(FakeTrainer, "step", held)
    training = asyncio.create_task(backend.train("p", "m", [scored], CONFIG))
    await begun.wait()
    meanwhile = await group(backend, "m", "u")
    assert [t.exchanges[0].policy_version for t in meanwhile] == [0, 0]
    async with client_of(server) as client:
        assert (await ask(client, "p/m")).choices[0].policy_version == 0
        go_on.set()
        assert (await training).step == 1
        assert (await ask(client, "p/m")).choices[0].policy_version == 1
    with pytest.raises(DataError, match="policy"):
        await backend.train("p", "m", [meanwhile], CONFIG)


async def test_a_full_disk_ends_neither_the_closing_nor_the_sweeper(
    open_server: Open, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, backend = await open_server(options={"trajectory_ttl_s": 0.4})
    await register(backend, base_model)
    for name in ("one", "two", "asked"):
        await backend.open_trajectory("p", "m", name)

    def full(*_: object) -> None:
        raise StorageError("could not record a call: No space left on device")

    with monkeypatch.context() as during:
        during.setattr("art_core.hosting.exchanges.ExchangeLog._append", full)
        assert await backend.close_trajectory("asked") == []
        await until(lambda: not server.host._trajectories)
    trajectories = server.host._trajectories
    close = trajectories.close
    failures: list[str] = []

    async def fails_once(trajectory_id: str) -> Any:
        if not failures:
            failures.append(trajectory_id)
            raise RuntimeError("whatever else goes wrong")
        return await close(trajectory_id)

    monkeypatch.setattr(trajectories, "close", fails_once)
    await backend.open_trajectory("p", "m", "three")
    await until(lambda: not server.host._trajectories)
    assert failures == ["three"]


async def test_a_call_that_a_full_disk_cannot_record_is_told_so_and_the_server_goes_on(
    open_server: Open, base_model: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    url = await backend.open_trajectory("p", "m", "t")

    async def told_chunks(client: Any, **options: Any) -> list[Any]:
        return [chunk async for chunk in await ask(client, "p/m", **options)]

    def full(*_: object) -> None:
        raise StorageError("could not record a call: No space left on device")

    async with client_of(server, base_url=url) as client:
        with monkeypatch.context() as during:
            during.setattr("art_core.hosting.exchanges.ExchangeLog._append", full)
            for streaming in (False, True):
                with pytest.raises(APIError, match="No space left on device") as caught:
                    await told_chunks(client, stream=streaming)
                assert caught.value.code == "storage_error"
        assert not any(record.exc_info for record in caplog.records)
        answer = await ask(client, "p/m")
    exchanges = await backend.close_trajectory("t")
    assert [exchange.id for exchange in exchanges] == [answer.choices[0].exchange_id]
