"""Checkpoints of a model that is served: which stay, forks, and what a restart finds damaged."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.backends.remote import RemoteBackend
from art_core.checkpoints.listing import list_checkpoints
from art_core.config import TrainConfig
from art_core.control import ForkRequest, Origin
from art_core.errors import ConfigError, DataError, ModelNotFoundError
from art_core.runs import Run
from art_core.saved import held
from art_core.types import Checkpoint
from tests.core.hosting.fakes import Open, ask, client_of, group, register

CONFIG = TrainConfig(learning_rate=1e-2)
TINY: dict[str, Any] = {"num_threads": 1, "lora": {"rank": 2, "target_modules": ["q_proj"]}}


async def steps(backend: RemoteBackend, name: str, number: int) -> list[int]:
    for _ in range(number):
        at = (await backend.state("p", name)).step
        await backend.train("p", name, [await group(backend, name, f"{name}-{at}")], CONFIG)
    return (await backend.state("p", name)).checkpoint_steps


def on_disk(folder: str | Path) -> list[str]:
    return sorted(path.name for path in (Path(folder) / "checkpoints").iterdir())


async def test_what_is_pinned_or_read_is_not_deleted(open_server: Open, base_model: str) -> None:
    server, backend = await open_server(options={"max_pinned": 1, "pinned_idle_s": 0.2})
    await register(backend, base_model)
    await steps(backend, "m", 4)
    folder = Path((await backend.state("p", "m")).folder)
    async with client_of(server) as client:
        await ask(client, "p/m@1")
        infos = list_checkpoints(Run(folder))
        assert [info.use for info in infos] == ["read", "", "", "served"]
        with held(Checkpoint(2, folder / "checkpoints" / "step-0002")):
            state = await backend.delete_checkpoints("p", "m", keep=[])
        assert state.checkpoint_steps == [1, 2, 4]
        assert (await ask(client, "p/m@1")).model == "p/m@1"
        async with asyncio.timeout(20):
            while list_checkpoints(Run(folder))[0].use:  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0.05)
        assert (await backend.delete_checkpoints("p", "m", keep=[])).checkpoint_steps == [4]
    assert on_disk(folder) == ["step-0004"]


async def test_checkpoints_are_kept_as_the_options_say_after_each_step(open_server: Open, base_model: str) -> None:
    _, backend = await open_server(options={"keep_checkpoints": {"last": 2, "every": 4}})
    await register(backend, base_model)
    assert await steps(backend, "m", 3) == [2, 3]
    assert await steps(backend, "m", 4) == [4, 6, 7]
    await register(backend, base_model, "all", keep_checkpoints=None)
    assert await steps(backend, "all", 3) == [1, 2, 3]


async def test_with_a_metric_nothing_is_deleted_before_it_was_logged(open_server: Open, base_model: str) -> None:
    _, backend = await open_server()
    await register(backend, base_model, keep_checkpoints={"best": "val/reward"})
    assert await steps(backend, "m", 3) == [1, 2, 3]
    for step, reward in ((1, 0.2), (2, 0.9), (3, 0.1)):
        await backend.log("p", "m", [], split="val", step=step, metrics={"val/reward": reward})
    assert await steps(backend, "m", 1) == [2, 4]
    assert await steps(backend, "m", 1) == [2, 4, 5]  # step 4 may still be the best
    await backend.log("p", "m", [], split="val", step=5, metrics={"val/reward": 0.95})
    assert await steps(backend, "m", 1) == [5, 6]


async def test_impossible_rules_are_refused_at_the_door(open_server: Open, base_model: str) -> None:
    with pytest.raises(ConfigError, match=r"keep_checkpoints\.last': .* greater than or equal to 1; got 0"):
        await open_server(options={"keep_checkpoints": {"last": 0}})
    _, backend = await open_server()
    with pytest.raises(ConfigError, match=r"no option 'keep_checkpoints\.newest'"):
        await register(backend, base_model, keep_checkpoints={"newest": 1})


async def test_what_to_keep_may_change_between_two_starts(open_server: Open, base_model: str, tmp_path: Path) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    await steps(backend, "m", 2)
    await server.host.close()
    _, again = await open_server()
    await register(again, base_model, keep_checkpoints={"last": 1})
    assert await steps(again, "m", 1) == [3]


async def test_the_model_deletes_with_direction_and_dry_run(open_server: Open, base_model: str) -> None:
    _, backend = await open_server()
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    await model.register(backend)
    await steps(backend, "m", 6)
    for step, cost in ((1, 3.0), (2, 1.0), (4, 2.0)):
        await model.log(metrics={"cost": cost}, step=step)
    kept = [2, 3, 5, 6]
    rules: dict[str, Any] = {"lowest": True, "keep_last": 2, "keep_every": 3}
    assert await model.delete_checkpoints("val/cost", **rules, dry_run=True) == kept
    assert (await backend.state("p", "m")).checkpoint_steps == [1, 2, 3, 4, 5, 6]
    assert await model.delete_checkpoints("val/cost", **rules) == kept
    assert await model.delete_checkpoints(None, keep_last=3) == [3, 5, 6]
    with pytest.raises(ConfigError, match="keep_last is 0; wanted a whole number, 1 or more"):
        await model.delete_checkpoints(None, keep_last=0)


async def test_a_fork_is_served_at_once_and_counts_on(open_server: Open, base_model: str) -> None:
    server, backend = await open_server()
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    await model.register(backend)
    with pytest.raises(DataError, match="p/m has no checkpoint yet; train it first"):
        await model.fork("early")
    await steps(backend, "m", 3)
    branch = await model.fork("branch", step=2)
    state = await backend.state("p", "branch")
    assert (branch.name, state.step, state.forked_from) == ("branch", 2, Origin(model="p/m", step=2))
    assert (await model.fork("branch", step=2)).name == "branch"
    assert await steps(backend, "branch", 1) == [2, 3]
    assert (await backend.state("p", "m")).checkpoint_steps == [1, 2, 3]
    assert await (await model.fork("branch")).get_step() == 3  # the fork that there is, where it has got to
    async with client_of(server) as client:
        assert (await ask(client, "p/branch@2")).model == "p/branch@2"
    with pytest.raises(ConfigError, match="p/branch exists; give the fork another name"):
        await model.fork("branch", step=1)
    with pytest.raises(DataError, match="has no checkpoint of step 9; there are 1, 2, 3"):
        await model.fork("other", step=9)
    await server.host.close()
    _, again = await open_server()
    await register(again, base_model, "branch")
    assert (await again.state("p", "branch")).forked_from == Origin(model="p/m", step=2)
    with pytest.raises(ModelNotFoundError, match="'p/none' is not registered"):
        await again.fork("p", "none", ForkRequest(name="x"))


async def test_a_restart_says_which_checkpoint_it_could_not_use(
    open_server: Open, base_model: str, caplog: pytest.LogCaptureFixture
) -> None:
    server, backend = await open_server()
    await register(backend, base_model)
    await steps(backend, "m", 2)
    folder = Path((await backend.state("p", "m")).folder)
    (file,) = [path for path in (folder / "checkpoints" / "step-0002").iterdir() if path.name != "state.json"]
    file.unlink()
    await server.host.close()
    _, again = await open_server()
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    with caplog.at_level(logging.WARNING, logger="art_core.model"):
        await model.register(again)
    told = f"model m goes on from step 1: its checkpoint of step 2: {file.name} is missing"
    assert told in caplog.messages
    assert await steps(again, "m", 1) == [1, 2]
    assert (await again.state("p", "m")).damaged == []


@pytest.mark.slow
async def test_b038_b042_damage_of_real_checkpoints_is_told_and_never_trained_on(
    open_server: Open, tmp_path: Path, base_model: str
) -> None:
    """The optimiser deleted, the adapter cut, another LoRA configuration, another base model, a folder elsewhere."""
    from art_core.hosting.host import ModelHost
    from art_core.hosting.options import HostOptions
    from art_core.hosting.server import HostServer

    async def started(folder: Path, **config: Any) -> tuple[int, list[str], list[str]]:
        host = ModelHost(folder, options=HostOptions.made({"dtype": "float32", **TINY, **config}, of="the server"))
        async with HostServer(host) as server, RemoteBackend(server.url) as backend:
            await register(backend, config.pop("base_model", base_model))
            state = await backend.state("p", "m")
            if state.step < 2:
                await backend.train(
                    "p", "m", [await group(backend, "m", f"{os.urandom(4).hex()}", max_tokens=4)], CONFIG
                )
            return state.step, state.damaged, on_disk(state.folder)

    whole = tmp_path / "whole"
    assert (await started(whole))[:2] == (0, [])
    assert (await started(whole))[0] == 1
    wanted = (whole / "p/m/checkpoints/step-0002/adapter_model.safetensors").read_bytes()
    for number, (name, cut) in enumerate((("optimizer.safetensors", False), ("adapter_model.safetensors", True))):
        folder = shutil.copytree(whole, tmp_path / str(number))
        file = folder / "p/m/checkpoints/step-0002" / name
        if cut:
            file.write_bytes(file.read_bytes()[:-8])
        else:
            file.unlink()
        (folder / "p/m/checkpoints/step-0003").mkdir()
        step, damaged, left = await started(folder)
        assert step == 1
        assert f"step 2: {name} {'is not the file that was saved' if cut else 'is missing'}" in damaged
        assert "step 3: state.json is missing" in damaged
        assert left == ["step-0001", "step-0002", "step-0003"]
        assert (await started(folder))[0] == 2
        again = (folder / "p/m/checkpoints/step-0002/adapter_model.safetensors").read_bytes()
        assert len(again) == len(wanted)

    with pytest.raises(ConfigError, match=r"lora was .*'rank': 2.* now .*'rank': 4"):
        await started(whole, lora={"rank": 4, "target_modules": ["q_proj"]})
    record = json.loads((whole / "p/m/model.json").read_text())
    record["options"]["lora"] = {"rank": 4, "target_modules": ["q_proj"]}
    (whole / "p/m/model.json").write_text(json.dumps(record))
    with pytest.raises(ValueError, match=r"step-0002: .*rank"):
        await started(whole, lora={"rank": 4, "target_modules": ["q_proj"]})
    record["base_model"] = str(tmp_path / "gone")
    (whole / "p/m/model.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"base_model was '.*gone'"):
        await started(whole, lora={"rank": 4, "target_modules": ["q_proj"]})
