"""A supervised training whose server is killed ends with the adapter of one that was not, to the bit."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest

import art_core as art
from art_core.errors import BackendError
from art_core.testing import write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ANSWERS = ["four", "five", "six", "seven", "eight", "nine", "ten"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.jsonl"
    messages = [
        [{"role": "user", "content": f"{n} + 2?"}, {"role": "assistant", "content": answer}]
        for n, answer in enumerate(ANSWERS, 2)
    ]
    path.write_text("".join(json.dumps({"messages": one}) + "\n" for one in messages))
    return path


async def trained(folder: Path, tiny: Path, data: Path, kill_at: str = "") -> art.TrainResult | None:
    """The result of one start of the script; None where the server was killed at the line `kill_at`."""
    backend = art.LocalBackend(folder, dtype="float32", num_threads=1, lora={"rank": 4})
    model = art.TrainableModel(name="m", project="p", base_model=str(tiny))

    def told(line: str) -> None:
        if kill_at and line.startswith(kill_at):
            assert backend._server is not None
            backend._server.kill()

    async with backend:
        await model.register(backend)
        with contextlib.suppress(BackendError):
            return await model.train_sft(
                data, epochs=3, batch_size=2, save_every=3, learning_rate=1e-2, validation=data, on_progress=told
            )
    return None


def adapter(folder: Path, step: int) -> bytes:
    return (folder / f"p/m/checkpoints/step-{step:04d}/adapter_model.safetensors").read_bytes()


async def test_killed_twice(tiny: Path, data: Path, tmp_path: Path) -> None:
    whole = await trained(tmp_path / "whole", tiny, data)
    assert whole is not None
    assert whole.step == 12
    assert whole.metrics["sft/loss_last"] < whole.metrics["sft/loss_first"]
    assert whole.metrics["sft/validation_loss_after"] < whole.metrics["sft/validation_loss_before"]
    broken = tmp_path / "broken"
    assert await trained(broken, tiny, data, kill_at="update 5 of 12") is None
    assert await trained(broken, tiny, data, kill_at="update 10 of 12") is None
    last = await trained(broken, tiny, data)
    assert last is not None
    assert last.metrics["sft/resumed_after"] in (6.0, 9.0)  # the kill may come behind the checkpoint that follows
    for step in (3, 6, 9, 12):
        assert adapter(broken, step) == adapter(tmp_path / "whole", step)
    timeless = {name for name in whole.metrics if name.startswith("sft/")} - {"sft/resumed_after"}
    assert {n: last.metrics[n] for n in timeless} == {n: whole.metrics[n] for n in timeless}
    logged = [json.loads(line)["step"] for line in (broken / "p/m/steps.jsonl").read_text().splitlines()]
    assert sorted(logged) == list(range(1, 13))
    again = await trained(broken, tiny, data)
    assert again is not None
    assert (again.step, again.skipped) == (12, "the same training was finished before")
