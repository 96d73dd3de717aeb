"""Train LLM agents with reinforcement learning.

Importing this package loads neither torch nor transformers.
"""

from __future__ import annotations

from art_core.advantage import group_advantages
from art_core.errors import ArtError
from art_core.protocols import Engine, Judge, Recorder, Store, Trainer
from art_core.samples import to_samples
from art_core.trajectories import ScoredGroup, Trajectory, TrajectoryGroup
from art_core.types import Checkpoint, Exchange, Objective, Sampling, StepReport, TokenChunk, TokenSample

__all__ = [
    "ArtError",
    "Checkpoint",
    "Engine",
    "Exchange",
    "Judge",
    "Objective",
    "Recorder",
    "Sampling",
    "ScoredGroup",
    "StepReport",
    "Store",
    "TokenChunk",
    "TokenSample",
    "Trainer",
    "Trajectory",
    "TrajectoryGroup",
    "group_advantages",
    "to_samples",
]
