"""What a run tells in numbers: the metrics of its log, and the sinks that show them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from art_core.lines import step_figures
from art_core.outcomes import group_averages, named_metrics
from art_core.protocols import SinkRun, Store
from art_core.registry import open_sink
from art_core.sinks.feed import Feed
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_mcp.settings import RunSettings

_EVALUATIONS = "evaluations"
_OF_LOSS = ("train/loss", "train/entropy", "train/kl_reference", "mismatch/kl")


def split_metrics(split: str, groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means over `groups` under the names that `model.log` gives them."""
    return named_metrics(split, {name: mean for name, (mean, _) in group_averages(groups).items()})


def loss_figures(metrics: Mapping[str, float]) -> str:
    """Loss, entropy and divergences of a step, for a line."""
    return step_figures({name: metrics[name] for name in _OF_LOSS if name in metrics})


def log_evaluation(store: Store, phase: str, policy_version: int, trajectories: Sequence[Trajectory]) -> None:
    """Add what the held-out attempts of `phase` earned to the log of evaluations, unless it is there."""
    if all(record["phase"] != phase for record in store.records(_EVALUATIONS)):
        metrics = split_metrics("val", [TrajectoryGroup(trajectories)])
        store.append(_EVALUATIONS, {"phase": phase, "policy_version": policy_version, "metrics": metrics})


@contextlib.contextmanager
def open_feed(folder: Path, settings: RunSettings, sinks: Sequence[str]) -> Iterator[Feed]:
    """Hands the logs of the run in `folder` to `sinks`, until it is left."""
    told = {"model", "seed", "loss", "learning_rate", "rank", "group_size", "groups_per_step", "steps"}
    details = settings.model_dump(include=told)  # the server's command may hold secrets
    openers = {
        name: functools.partial(open_sink, name, SinkRun(folder / name, "art-mcp", folder.resolve().name, details))
        for name in sinks
    }
    feed = Feed(folder, {"metrics": _metrics, _EVALUATIONS: _metrics}, openers)
    feed.wake()
    try:
        yield feed
    finally:
        feed.close()


def _metrics(record: dict[str, Any]) -> tuple[int, Mapping[str, float]]:
    return record["policy_version"], record["metrics"]
