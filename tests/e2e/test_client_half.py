"""The client half, installed by itself: without torch, talking to a server that has it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from art_core.hosting.host import ModelHost
from art_core.hosting.options import HostOptions
from art_core.hosting.server import HostServer
from art_core.testing import write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.slow
SCRIPT = """
import asyncio, importlib.util, sys
import art_core as art

async def rollout(model, reward):
    async with art.capture(model) as trajectory:
        await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        trajectory.reward = reward
    return trajectory

async def main(url, key, base_model):
    model = art.TrainableModel(name="m", project="p", base_model=base_model)
    async with art.RemoteBackend(url, key) as backend:
        await model.register(backend)
        groups = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout(model, r) for r in (0.0, 1.0))])
        result = await model.train(groups, learning_rate=1e-3)
        await model.log(groups, split="train")
        print(result.step, await model.get_step(), result.metrics["trajectories/trained"])

asyncio.run(main(*sys.argv[1:]))
print([name for name in ("torch", "renderers", "starlette", "numpy") if importlib.util.find_spec(name)])
"""


@pytest.fixture
def client_python(tmp_path: Path) -> Path:
    uv, folder = Path(sys.executable).with_name("uv"), tmp_path / "venv"
    subprocess.run([uv, "venv", "-q", "-p", sys.executable, folder], check=True)
    python = folder / "bin" / "python"
    install: list[str | Path] = [uv, "pip", "install", "-q", "--python", python, ROOT / "packages" / "art-core"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode and "Failed to fetch" in done.stderr:
        pytest.skip("the package index cannot be reached")
    assert done.returncode == 0, done.stderr
    return python


async def test_a_machine_without_torch_trains_on_a_server_that_has_it(client_python: Path, tmp_path: Path) -> None:
    options = HostOptions.made({"dtype": "float32", "num_threads": 1, "lora": {"rank": 4}}, of="the server")
    base_model = str(write_tiny_model(tmp_path / "tiny"))
    async with HostServer(ModelHost(tmp_path / "runs", options=options), api_key="secret") as server:
        process = await asyncio.create_subprocess_exec(
            client_python, "-c", SCRIPT, server.url, "secret", base_model,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=tmp_path,
        )  # fmt: skip
        said, complaints = await asyncio.wait_for(process.communicate(), 120)
    assert (process.returncode, said.decode().splitlines()) == (0, ["1 1 2.0", "[]"]), complaints.decode()
