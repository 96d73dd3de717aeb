"""Supervised training together with kept checkpoints, forks, lost checkpoints and interruptions."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.errors import ConfigError, DataError
from art_core.testing import InProcessBackend

_answers = itertools.count()


def backend_at(path: Path) -> InProcessBackend:
    return InProcessBackend(lambda _: str(next(_answers)), path=path)


async def registered(backend: InProcessBackend, name: str, last: int | None = None) -> art.TrainableModel:
    config = {} if last is None else {"keep_checkpoints": {"last": last}}
    model = art.TrainableModel(name=name, project="p", base_model="x", config=config)
    await model.register(backend)
    return model


def demonstration(user: str) -> art.Trajectory:
    messages = [{"role": "user", "content": user}, {"role": "assistant", "content": "b"}]
    return art.Trajectory(messages_and_choices=messages)


async def train(model: art.TrainableModel, *, rewards: tuple[float, float] = (0.0, 1.0), reference: int = 0) -> None:
    members = []
    for reward in rewards:
        async with art.capture(model) as attempt:
            await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=[{"role": "user", "content": "q"}]
            )
        attempt.reward = reward
        members.append(attempt)
    options: dict[str, Any] = {"kl_coef": 0.1, "kl_reference": reference} if reference else {}
    await model.train([art.TrajectoryGroup(members)], **options)


async def standing(model: art.TrainableModel) -> tuple[list[int], int]:
    state = await model.backend().state(model.project, model.name)
    return state.checkpoint_steps, await model.get_num_batches()


def quiet(_: str) -> None: ...


async def test_kept_checkpoints_and_batches_through_supervised_training_and_forks(tmp_path: Path) -> None:
    async with backend_at(tmp_path) as backend:
        model = await registered(backend, "m", last=2)
        data = [demonstration(str(n)) for n in range(5)]
        await model.train_sft(data, batch_size=1, save_every=1, on_progress=quiet)
        assert await standing(model) == ([4, 5], 0)
        await model.train_sft([demonstration("z")], on_progress=quiet)
        await train(model, rewards=(1.0, 1.0))  # skipped: a report without an update, of a step that had one
        await train(model)
        assert await standing(model) == ([6, 7], 2)
        branch = await model.fork("branch")
        assert await standing(branch) == ([7], 2)
        await train(branch)
        assert await standing(await branch.fork("twig")) == ([8], 3)


async def test_a_reference_stays_after_a_restart(tmp_path: Path) -> None:
    async with backend_at(tmp_path) as backend:
        model = await registered(backend, "m")
        for reference in (0, 0, 1):
            await train(model, reference=reference)
    async with backend_at(tmp_path) as backend:
        model = await registered(backend, "m", last=1)
        assert await model.delete_checkpoints(None) == [1, 3]
        await model.train_sft([demonstration("k")], on_progress=quiet)
        assert await standing(model) == ([1, 4], 3)


async def test_an_interrupted_training_leaves_a_model_that_can_be_trained(tmp_path: Path) -> None:
    async with backend_at(tmp_path) as backend:
        model = await registered(backend, "m", last=1)
        data = [demonstration(str(n)) for n in range(6)]

        def told(line: str) -> None:
            if line.startswith("update 3"):
                running.cancel()

        running = asyncio.create_task(model.train_sft(data, batch_size=1, save_every=1, on_progress=told))
        with pytest.raises(asyncio.CancelledError):
            await running
        async with asyncio.timeout(20):
            while await model.get_step() == 0:  # noqa: ASYNC110 - it is put there in the background
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        await train(model)  # its rollouts are of the newest weights, so they are not refused
        with pytest.raises(ConfigError, match="trained otherwise since"):
            await model.train_sft(data, batch_size=1, save_every=1, on_progress=quiet)


async def test_a_finished_training_whose_checkpoints_were_lost_is_made_again(tmp_path: Path) -> None:
    data = [demonstration(str(n)) for n in range(4)]
    async with backend_at(tmp_path) as backend:
        await (await registered(backend, "m")).train_sft(data, batch_size=2, save_every=1, on_progress=quiet)
    shutil.rmtree(tmp_path / "p/m/checkpoints/step-0002")
    shutil.rmtree(tmp_path / "p/m/checkpoints/step-0001")
    async with backend_at(tmp_path) as backend:
        model = await registered(backend, "m")
        assert await standing(model) == ([], 0)
        await train(model)
        result = await model.train_sft(data, batch_size=2, save_every=1, on_progress=quiet)
        assert (result.step, result.skipped) == (3, None)
        assert await standing(model) == ([1, 2, 3], 1)


async def test_what_cannot_be_trained_on_is_told_in_one_line(tmp_path: Path) -> None:
    async with backend_at(tmp_path) as backend:
        model = await registered(backend, "m")
        for name in ("a\0b", "a\ud800b"):
            with pytest.raises(DataError, match="cannot be read"):
                await model.train_sft(name)
        with pytest.raises(DataError, match="half of a surrogate pair"):
            await model.train_sft([demonstration("\ud800")])
        file = tmp_path / "d.jsonl"
        for messages, problem in (
            ('{"role": ["user"], "content": "a"}, {"role": "assistant", "content": "b"}', "message role"),
            ('{"role": "user", "content": "a"}, {"role": "tool", "tool_call_id": [1], "content": "b"}', "tool_call_id"),
            ('{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "b"}', "d.jsonl:1: it holds"),
        ):
            file.write_text(f'{{"messages": [{messages}]}}\n')
            with pytest.raises(DataError, match=problem):
                await model.train_sft(file)
        with pytest.raises(DataError, match="validation: there is nothing"):
            await model.train_sft([demonstration("a")], validation=[])
        with pytest.raises(ConfigError, match="1000000 at most"):
            await model.train_sft([demonstration("a")], epochs=10**12, on_progress=quiet)
        with pytest.raises(ConfigError, match="learning_rate is"):
            await model.train_sft([demonstration("a")], learning_rate=10**400)
