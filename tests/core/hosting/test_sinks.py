"""Sinks of a model that is served, trained, and served again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import art_core as art
from art_core.errors import ConfigError
from art_core.hosting.host import ModelHost
from art_core.hosting.options import HostOptions
from art_core.testing import InProcessBackend
from tests.contract.test_sink import tensorboard_events, wandb_history

QUESTION: Any = {"role": "user", "content": "2 + 2?"}


async def trained(path: Path, *, num_steps: int, sinks: list[str]) -> None:
    """A process's worth of training."""
    model = art.TrainableModel(name="clerk", project="shop", base_model="tiny", config={"sinks": sinks})
    async with InProcessBackend(path=path) as backend:
        await model.register(backend)
        for _ in range(num_steps):
            members = []
            for reward in (0.0, 1.0):
                async with art.capture(model) as trajectory:
                    await model.openai_client().chat.completions.create(
                        model=model.get_inference_name(), messages=[QUESTION], max_tokens=9
                    )
                trajectory.reward = reward
                members.append(trajectory)
            group = art.TrajectoryGroup(members)
            await model.log([group], split="train")
            await model.train([group])


async def test_a_run_that_goes_on_goes_on_in_tensorboard_with_every_step_once(tmp_path: Path) -> None:
    await trained(tmp_path, num_steps=2, sinks=["tensorboard"])
    await trained(tmp_path, num_steps=1, sinks=[])
    await trained(tmp_path, num_steps=1, sinks=["tensorboard"])
    logged = tensorboard_events(tmp_path / "shop/clerk/tensorboard")
    assert sorted(step for step, metrics in logged if "time/train_s" in metrics) == [1, 2, 3, 4]
    assert sorted(step for step, metrics in logged if "train/reward" in metrics) == [0, 1, 2, 3]
    assert {metrics["train/reward"] for _, metrics in logged if "train/reward" in metrics} == {0.5}
    assert [metrics["sinks/failures"] for _, metrics in logged if "sinks/failures" in metrics] == [0.0] * 3


async def test_sinks_are_shown_what_supervised_training_ended_with(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "Say it."}, {"role": "assistant", "content": "it"}]
    examples = tmp_path / "examples.jsonl"
    examples.write_text(json.dumps({"messages": turns}) + "\n")
    model = art.TrainableModel(name="clerk", project="shop", base_model="tiny", config={"sinks": ["tensorboard"]})
    async with InProcessBackend(path=tmp_path) as backend:
        await model.register(backend)
        result = await model.train_sft(examples, validation=examples, on_progress=lambda _: None)
    logged = tensorboard_events(tmp_path / "shop/clerk/tensorboard")
    losses = [(step, m["sft/validation_loss_after"]) for step, m in logged if "sft/validation_loss_after" in m]
    ((step, loss),) = losses
    assert step == 1
    assert loss == pytest.approx(result.metrics["sft/validation_loss_after"])


async def test_a_sink_that_cannot_write_leaves_the_training_alone(tmp_path: Path) -> None:
    folder = tmp_path / "shop" / "clerk"
    folder.mkdir(parents=True)
    (folder / "tensorboard").write_text("in the way")
    await trained(tmp_path, num_steps=2, sinks=["tensorboard"])
    assert len((folder / "steps.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("sinks", [["mlflow"], "wandb", [1]])
async def test_a_sink_that_there_is_not_is_refused_when_the_model_is_registered(sinks: object) -> None:
    model = art.TrainableModel(name="clerk", project="shop", base_model="tiny", config={"sinks": sinks})
    async with InProcessBackend() as backend:
        with pytest.raises(ConfigError, match=r"sink 'mlflow' is unknown|option 'sinks"):
            await model.register(backend)


def test_a_host_refuses_a_sink_that_there_is_not(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="sink 'mlflow' is unknown"):
        ModelHost(tmp_path, options=HostOptions(sinks=["mlflow"]))


@pytest.fixture
async def offline(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    import wandb

    wandb.teardown()


@pytest.mark.slow
async def test_a_run_that_goes_on_goes_on_in_wandb_with_every_step_once(tmp_path: Path, offline: None) -> None:
    for _ in range(2):
        await trained(tmp_path, num_steps=2, sinks=["wandb"])
    logged = wandb_history(tmp_path / "shop/clerk/wandb")
    assert sorted(step for step, metrics in logged if "time/train_s" in metrics) == [1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_of_wandb_ends_with_ours_however_that_ends(tmp_path: Path, end: int, offline: None) -> None:
    code = (
        "import sys, time; from pathlib import Path; from art_core.protocols import SinkRun\n"
        "from art_core.registry import open_sink\n"
        "sink = open_sink('wandb', SinkRun(Path(sys.argv[1]), 'shop', 'clerk'))\n"
        "sink.log(1, {'train/loss': 1.0}); print('ready', flush=True); time.sleep(100)"
    )
    env = {name: value for name, value in os.environ.items() if name != "WANDB_SERVICE"}  # that of this process
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=env
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            assert f"--pid {process.pid}" in processes()
        finally:
            process.send_signal(end)
    deadline = time.monotonic() + 30
    while f"--pid {process.pid}" in processes():
        assert time.monotonic() < deadline, "the library's process is still there"
        time.sleep(0.05)


def processes() -> str:
    """The command lines of all."""
    return subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
