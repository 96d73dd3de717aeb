"""An engine and a trainer without weights that a host can open by name, and a server to try them in."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from art_core import registry
from art_core.backends.remote import RemoteBackend
from art_core.control import RegisterRequest
from art_core.hosting.server import HostServer
from art_core.testing import RecordingTrainer, ScriptedEngine
from art_core.trajectories import Trajectory, TrajectoryGroup

VOCABULARY = 259
Open = Callable[..., Awaitable[tuple[HostServer, RemoteBackend]]]
"""The fixture `open_server`: a server with a host of its own on the folder of the test, and a client of it."""


@dataclass(frozen=True, kw_only=True)
class FakeEngineConfig:
    model_folder: Path
    dtype: str = "auto"
    delay_s: float = 0.0
    letters: int = 5


class FakeEngine(ScriptedEngine):
    """Says `letters` letters, then the end token. `opened` lists all that were opened, oldest first."""

    opened: ClassVar[list[FakeEngine]] = []

    def __init__(self, config: FakeEngineConfig) -> None:
        super().__init__(
            lambda _, sampling: [70] * config.letters + [2], delay_s=config.delay_s, logprob=-math.log(VOCABULARY)
        )
        FakeEngine.opened.append(self)


@dataclass(frozen=True, kw_only=True)
class FakeTrainerConfig:
    model_folder: Path
    base_model: str
    seed: int
    lora: Any
    dtype: str = "auto"


class FakeTrainer(RecordingTrainer):
    def __init__(self, config: FakeTrainerConfig) -> None:
        super().__init__(vocabulary_size=VOCABULARY)


def install(monkeypatch: Any) -> None:
    """Let a host open both as "fake"."""
    FakeEngine.opened.clear()
    monkeypatch.setitem(registry._ENGINES, "fake", (__name__, "FakeEngine", "FakeEngineConfig", "train"))
    monkeypatch.setitem(registry._TRAINERS, "fake", (__name__, "FakeTrainer", "FakeTrainerConfig", "train"))


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


def client_of(server: HostServer | RemoteBackend, **options: Any) -> AsyncOpenAI:
    url = server.url if isinstance(server, HostServer) else server.base_url
    return _client(**{"base_url": f"{url}/v1", **options})


def _client(**options: Any) -> AsyncOpenAI:
    http = DefaultAsyncHttpxClient(verify=False)  # certificates take longer to load than most tests
    defaults = {"api_key": "none", "max_retries": 0, "timeout": 60, "http_client": http}
    return AsyncOpenAI(**{**defaults, **options})


async def ask(client: AsyncOpenAI, model: str, **options: Any) -> Any:
    return await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "u"}], **{"max_tokens": 400, **options}
    )


async def rollout(backend: Any, name: str, trajectory_id: str, reward: float | None, **options: Any) -> Trajectory:
    """One call to `p/<name>`, recorded."""
    url = await backend.open_trajectory("p", name, trajectory_id)
    async with _client(base_url=url, api_key=backend.api_key or "none") as client:
        await ask(client, f"p/{name}", **options)
    exchanges = await backend.close_trajectory(trajectory_id)
    return Trajectory(id=trajectory_id, scenario_id="s", exchanges=exchanges, reward=reward)


async def group(backend: Any, name: str, prefix: str, **options: Any) -> TrajectoryGroup:
    """Two rollouts with different rewards."""
    return TrajectoryGroup(
        [await rollout(backend, name, f"{prefix}-{index}", float(index), seed=index, **options) for index in range(2)]
    )


async def register(backend: RemoteBackend, base_model: str, name: str = "m", **config: Any) -> None:
    await backend.register(RegisterRequest(project="p", name=name, base_model=base_model, config=config))
