"""What a host does while a supervised training runs, and when it ends before its end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from art_core.control import RegisterRequest, SftExample, SftRequest
from art_core.errors import ConfigError, WeightSyncError
from art_core.objective import Objective
from art_core.testing import InProcessBackend
from art_core.types import StepReport
from tests.core.hosting.fakes import ask, client_of, until


def request(num: int = 8, **options: Any) -> SftRequest:
    turns = [[{"role": "user", "content": "Say it."}, {"role": "assistant", "content": f"{n}"}] for n in range(num)]
    examples = [SftExample(source=f"d:{n}", messages=messages) for n, messages in enumerate(turns)]
    return SftRequest(examples=examples, options={"batch_size": 1, "save_every": 2, **options})


async def opened(backend: InProcessBackend) -> None:
    await backend.register(RegisterRequest(project="p", name="m", base_model="b"))


def slowly(backend: InProcessBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    step = backend.trainer.step

    async def slow(rows: Any, objective: Objective) -> StepReport:
        await asyncio.sleep(0.05)
        return await step(rows, objective)

    monkeypatch.setattr(backend.trainer, "step", slow)


async def test_calls_are_answered_by_the_old_weights_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessBackend() as backend:
        await opened(backend)
        slowly(backend, monkeypatch)
        training = asyncio.create_task(backend.train_sft("p", "m", request()))
        await until(lambda: len(backend.trainer.steps) > 3)
        async with client_of(backend) as client:  # type: ignore[arg-type]
            assert (await ask(client, "p/m")).choices[0].policy_version == 0
            assert (await backend.state("p", "m")).step == 0
            assert (await training).step == 8
            assert (await ask(client, "p/m")).choices[0].policy_version == 8
            assert (await ask(client, "p/m@4")).choices[0].policy_version == 4
        assert (await backend.state("p", "m")).checkpoint_steps == [2, 4, 6, 8]


async def test_a_client_that_gives_up_ends_it_and_asking_again_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessBackend() as backend:
        await opened(backend)
        slowly(backend, monkeypatch)
        training = asyncio.create_task(backend.train_sft("p", "m", request()))
        await until(lambda: len(backend.trainer.steps) >= 5)
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        lines: list[str] = []
        with pytest.raises(ConfigError, match=r"interrupted behind update [46] of 8: epochs was 1, now 2"):
            await backend.train_sft("p", "m", request(epochs=2))
        report = await backend.train_sft("p", "m", request(), on_progress=lines.append)
        assert report.step == 8
        assert report.metrics["sft/resumed_after"] in (4, 6)
        assert report.metrics["sft/updates"] == 8


async def test_registering_it_again_does_not_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessBackend() as backend:
        await opened(backend)
        slowly(backend, monkeypatch)
        training = asyncio.create_task(backend.train_sft("p", "m", request(epochs=1000)))
        await until(lambda: len(backend.trainer.steps) > 3)
        async with asyncio.timeout(5):
            await opened(backend)
        async with client_of(backend) as client:  # type: ignore[arg-type]
            assert (await ask(client, "p/m")).choices[0].policy_version == 0
        assert not training.done()
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)


async def test_updates_that_a_killed_server_did_not_log_are_logged_in_their_order(tmp_path: Path) -> None:
    async with InProcessBackend(path=tmp_path) as backend:
        await opened(backend)
        await backend.train_sft("p", "m", request(6, save_every=3))
    log = tmp_path / "p" / "m" / "steps.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    for kept in (0, 1, 3, 4):  # killed behind the checkpoint of step 3, or of 6, before or while it logged
        log.write_text("".join(lines[:kept]))
        async with InProcessBackend(path=tmp_path) as backend:
            await opened(backend)
            assert (await backend.state("p", "m")).supervised_updates == 6
        assert log.read_text().splitlines(keepends=True) == lines


async def test_what_it_makes_is_not_deleted_by_who_asked_before(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessBackend() as backend:
        await opened(backend)
        await backend.train_sft("p", "m", request(4))
        assert (await backend.state("p", "m")).checkpoint_steps == [2, 4]
        slowly(backend, monkeypatch)
        training = asyncio.create_task(backend.train_sft("p", "m", request(6)))
        await until(lambda: len(backend.trainer.steps) > 5)
        deleted = await backend.delete_checkpoints("p", "m", keep=[4])
        assert deleted.checkpoint_steps == [4, 6, 8, 10]
        assert (await training).step == 10


async def test_closing_the_server_does_not_wait_for_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = InProcessBackend()
    await opened(backend)
    slowly(backend, monkeypatch)
    training = asyncio.create_task(backend.train_sft("p", "m", request(epochs=1000)))
    await until(lambda: len(backend.trainer.steps) > 2)
    async with asyncio.timeout(20):
        await backend.close()
    with pytest.raises(Exception, match=r"shutting down|no answer|closed"):
        await training
    assert len(backend.trainer.steps) < 100


async def test_weights_that_do_not_reach_the_engine_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with InProcessBackend() as backend:
        await opened(backend)
        loaded = backend.engine.load

        async def load(checkpoint: Any) -> None:
            await loaded(checkpoint)
            backend.engine._logprob = -1.0

        monkeypatch.setattr(backend.engine, "load", load)
        with pytest.raises(WeightSyncError, match="other weights than were trained"):
            await backend.train_sft("p", "m", request())
        async with client_of(backend) as client:  # type: ignore[arg-type]
            with pytest.raises(Exception, match="answers nothing"):
                await ask(client, "p/m")
