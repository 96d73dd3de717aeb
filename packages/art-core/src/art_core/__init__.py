"""Train LLM agents with reinforcement learning.

Importing this package loads neither torch, transformers nor openai: names that need them import them when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from art_core.advantage import group_advantages
from art_core.config import TrainConfig
from art_core.errors import ArtError
from art_core.objective import Objective
from art_core.protocols import Backend, Engine, Judge, Recorder, Store, Trainer
from art_core.samples import to_samples
from art_core.sft_config import SftConfig
from art_core.trajectories import History, ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Checkpoint, Exchange, Sampling, StepReport, TokenChunk, TokenSample

if TYPE_CHECKING:
    from art_core.asked import Model
    from art_core.backends.local import LocalBackend
    from art_core.backends.remote import RemoteBackend
    from art_core.capturing import capture
    from art_core.dataset import iterate_dataset
    from art_core.decorators import limit_concurrency, retry
    from art_core.gather import gather_trajectories, gather_trajectory_groups
    from art_core.model import TrainableModel, TrainResult

__all__ = [
    "ArtError",
    "Backend",
    "Checkpoint",
    "Engine",
    "Exchange",
    "History",
    "Judge",
    "LocalBackend",
    "Model",
    "Objective",
    "Recorder",
    "RemoteBackend",
    "Sampling",
    "ScoredGroup",
    "SftConfig",
    "StepReport",
    "Store",
    "TokenChunk",
    "TokenSample",
    "TrainConfig",
    "TrainResult",
    "TrainableModel",
    "Trainer",
    "Trajectory",
    "TrajectoryGroup",
    "capture",
    "gather_trajectories",
    "gather_trajectory_groups",
    "group_advantages",
    "iterate_dataset",
    "limit_concurrency",
    "retry",
    "to_samples",
]

_LAZY = {
    "LocalBackend": "backends.local",
    "Model": "asked",
    "RemoteBackend": "backends.remote",
    "TrainResult": "model",
    "TrainableModel": "model",
    "capture": "capturing",
    "gather_trajectories": "gather",
    "gather_trajectory_groups": "gather",
    "iterate_dataset": "dataset",
    "limit_concurrency": "decorators",
    "retry": "decorators",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"art_core.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    from art_core.moving import missing_name

    raise missing_name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
