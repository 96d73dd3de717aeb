"""B042: a run that was stopped and goes on ends with the weights of one that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from art_core.backends.remote import RemoteBackend
from art_core.config import TrainConfig
from art_core.control import RegisterRequest
from art_core.hosting.host import ModelHost
from art_core.hosting.options import HostOptions
from art_core.hosting.server import HostServer
from art_core.testing import write_tiny_model
from tests.core.hosting.fakes import group

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"dtype": "float32", "num_threads": 1, "lora": {"rank": 4}}


async def steps(path: Path, base_model: Path, numbers: range) -> Path:
    """Make the steps of `numbers` with a server of its own, and give the checkpoints."""
    host = ModelHost(path, options=HostOptions.made(OPTIONS, of="the server"))
    async with HostServer(host) as server, RemoteBackend(server.url) as backend:
        state = await backend.register(RegisterRequest(project="p", name="m", base_model=str(base_model)))
        assert state.step == numbers.start
        for number in numbers:
            scored = await group(backend, "m", f"t{number}", max_tokens=6)
            await backend.train("p", "m", [scored], TrainConfig(learning_rate=1e-2))
        return Path(state.folder) / "checkpoints"


async def test_b042_three_steps_are_two_and_one_after_a_restart(tmp_path: Path) -> None:
    base_model = write_tiny_model(tmp_path / "tiny")
    whole = await steps(tmp_path / "whole", base_model, range(3))
    await steps(tmp_path / "cut", base_model, range(2))
    cut = await steps(tmp_path / "cut", base_model, range(2, 3))
    for name in ("adapter_model.safetensors", "optimizer.safetensors"):
        assert (cut / "step-0003" / name).read_bytes() == (whole / "step-0003" / name).read_bytes()
