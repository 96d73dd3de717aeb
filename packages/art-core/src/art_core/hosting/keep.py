"""What a host writes into a model's run folder about steps and rollouts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from art_core.control import MetricRecord
from art_core.protocols import Store
from art_core.trajectories import TrajectoryGroup
from art_core.types import StepReport


def keep_groups(
    store: Store, groups: Sequence[TrajectoryGroup], *, split: str, step: int, metrics: Mapping[str, float]
) -> None:
    """Write the trajectories of `groups`, and `metrics`, as those of `split` at `step`."""
    for group in groups:
        for trajectory in group.trajectories:
            record: dict[str, Any] = trajectory.model_dump(mode="json")
            store.append(
                "trajectories",
                {"split": split, "step": step, "group": group.scenario_id, "trajectory": record},
            )
    if metrics:
        store.append("metrics", {"split": split, "step": step, "metrics": dict(metrics)})


def kept_metrics(store: Store) -> list[MetricRecord]:
    """The metrics that `keep_groups` has written, in order."""
    return [MetricRecord(step=record["step"], metrics=record["metrics"]) for record in store.records("metrics")]


def keep_step(store: Store, report: StepReport) -> None:
    """Write what a training step reports."""
    store.append("steps", {"step": report.step, "metrics": report.metrics})
