"""Score, sample, train, commit, load, check: one step of the system on one screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from art_core.canary import WeightSyncCanary
from art_core.memory import return_free_memory
from art_core.objective import Objective
from art_core.protocols import Engine, Judge, Store, Trainer
from art_core.trajectories import ScoredGroup, TrajectoryGroup
from art_core.types import Checkpoint, StepReport, TokenSample


async def score(groups: Sequence[TrajectoryGroup], judge: Judge) -> list[ScoredGroup]:
    """Every group with the rewards that `judge` gives it."""
    return [group.with_scores(await judge.score(group.trajectories)) for group in groups]


async def train_step(
    rows: Sequence[TokenSample],
    objective: Objective,
    *,
    trainer: Trainer,
    engine: Engine,
    store: Store,
    canary: WeightSyncCanary,
    cursor: dict[str, Any],
) -> StepReport:
    """One step on `rows`, committed with `cursor`, loaded into the engine and checked there.

    Without a trained token there is nothing to learn from: weights stay untouched, no checkpoint is made, and the
    report says `step/skipped`.
    """
    if not any(row.num_trained for row in rows):
        return StepReport(trainer.step_count, {"step/skipped": 1.0})
    started = time.monotonic()
    report = await trainer.step(rows, objective)
    return_free_memory()
    trained = time.monotonic()
    checkpoint = await committed(store, trainer, {**cursor, "metrics": report.metrics})
    await engine.load(checkpoint)
    synced = await canary.check(engine, trainer)
    times = {"time/train_s": trained - started, "time/sync_s": time.monotonic() - trained}
    return StepReport(report.step, {**report.metrics, **synced, **times, "step/skipped": 0.0})


async def committed(store: Store, trainer: Trainer, cursor: dict[str, Any]) -> Checkpoint:
    """The checkpoint of the trainer's step, written off the event loop. Also cancelled, it is whole when this ends."""
    committing = asyncio.ensure_future(asyncio.to_thread(store.commit, trainer, cursor))
    try:
        return await asyncio.shield(committing)
    except asyncio.CancelledError:
        await asyncio.wait({committing})
        raise
