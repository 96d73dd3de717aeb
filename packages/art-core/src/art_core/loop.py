"""Score, sample, train, commit, load, check: one step of the system on one screen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from art_core.advantage import group_advantages, has_signal
from art_core.canary import WeightSyncCanary
from art_core.errors import DataError
from art_core.memory import return_free_memory
from art_core.protocols import Engine, Judge, Store, Trainer
from art_core.samples import to_samples
from art_core.trajectories import ScoredGroup, TrajectoryGroup
from art_core.types import Checkpoint, Exchange, Objective, StepReport, TokenSample


async def score(groups: Sequence[TrajectoryGroup], judge: Judge) -> list[ScoredGroup]:
    """Every group with the rewards that `judge` gives it."""
    return [group.with_scores(await judge.score(group.trajectories)) for group in groups]


def training_rows(
    groups: Sequence[ScoredGroup], *, policy_version: int, scale_by_std: bool = True, roles: Sequence[str] = ()
) -> tuple[list[TokenSample], dict[str, float]]:
    """The rows that `groups` give, and counters of everything that gives none. With `roles`, other calls are context.

    Raises:
        DataError: a trajectory was sampled from another policy than the one about to be updated, or no call has any
            of the roles.
    """
    absent = _absent_roles(groups, roles)
    rows: list[TokenSample] = []
    counters = {
        "groups/total": len(groups),
        "groups/without_signal": 0,
        "groups/too_small": 0,
        "trajectories/excluded": sum(group.num_excluded for group in groups),
        "trajectories/trained": 0,
        "trajectories/without_tokens": 0,
        "trajectories/forks": 0,
        "trajectories/truncated": 0,
        "exchanges/other_roles": 0,
        "roles/absent": len(absent),
    }
    for group in groups:
        if len(group.members) < 2:
            counters["groups/too_small"] += 1
            continue
        if not has_signal(group.rewards):
            counters["groups/without_signal"] += 1
            continue
        advantages = group_advantages(group.rewards, scale_by_std=scale_by_std)
        for (trajectory, _), advantage in zip(group.members, advantages, strict=True):
            trained = [e for e in trajectory.exchanges if not roles or e.role in roles]
            _check_version(trajectory.id, trained, policy_version)
            samples = to_samples(trajectory, advantage, roles=roles)
            rows += samples
            counters["trajectories/trained" if samples else "trajectories/without_tokens"] += 1
            counters["trajectories/forks"] += max(0, len(samples) - 1)
            counters["trajectories/truncated"] += any(e.finish_reason == "length" for e in trajectory.exchanges)
            counters["exchanges/other_roles"] += len(trajectory.exchanges) - len(trained)
    return rows, {name: float(value) for name, value in counters.items()}


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
    """One optimiser step on `rows`, committed with `cursor`, loaded into the engine and checked there.

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


def _absent_roles(groups: Sequence[ScoredGroup], roles: Sequence[str]) -> list[str]:
    """Those of `roles` that no call has: a role may have made no call by chance, but not all of them."""
    known = {exchange.role for group in groups for trajectory, _ in group.members for exchange in trajectory.exchanges}
    absent = [role for role in roles if role not in known]
    if known and roles and len(absent) == len(roles):
        raise DataError(
            f"no call of these groups has the role {' or '.join(map(repr, absent))}, which is to be trained; their "
            f"roles are {sorted(known)}, where '' is a call without one: name the role in each call, "
            "as metadata={'role': ...}"
        )
    return absent


def _check_version(trajectory_id: str, exchanges: Sequence[Exchange], policy_version: int) -> None:
    stale = {exchange.policy_version for exchange in exchanges} - {policy_version}
    if stale:
        raise DataError(
            f"trajectory {trajectory_id!r} was sampled from policy version {sorted(stale)[0]}, but version "
            f"{policy_version} is about to be updated; training on it would be off-policy"
        )
