"""Writing a run folder."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

from art_core.errors import ConfigError, DataError, StorageError
from art_core.runs.reader import Run
from art_core.runs.records import GroupInfo, LogLine, StoredTrajectory, Tally
from art_core.saved import step_name
from art_core.storage import RunStore
from art_core.trajectories import TrajectoryGroup
from art_core.types import StepReport
from art_core.values import check_name


class ModelRun(Run):
    """The run folder of `store`, which holds its lock and its checkpoints, and is the caller's to close."""

    def __init__(self, store: RunStore) -> None:
        super().__init__(store.folder)
        self.store = store

    def log_groups(
        self,
        split: str,
        step: int,
        groups: Sequence[TrajectoryGroup],
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Add the trajectories of `groups`, and `metrics`, to those of `split` at `step`. Nothing earlier is changed.

        Each trajectory is either whole on disk or absent, whenever the process ends.

        Raises:
            ConfigError: `split` cannot be the name of a folder, or `step` is below 0. Nothing was written.
            DataError: a metric is not finite: nothing was written. Or some trajectories hold what cannot be written:
                the others are kept, and the message names those that are not.
            StorageError: the disk is full or the folder not writable; what was written before it stays.
        """
        check_name("split", split)
        if step < 0:
            raise ConfigError(f"step is {step}; wanted 0 or more")
        given = _finite(metrics or {}, split)
        kind = f"trajectories/{split}/{step_name(step)}"
        folder = self.folder / "trajectories" / split
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"could not make {folder}: {error.strerror or error}") from error
        start = self.store.size_bytes(kind)
        kept: list[TrajectoryGroup] = []
        refused: list[str] = []
        for group in groups:
            members = []
            for trajectory, record in _records(split, step, group, refused):
                self.store.append(kind, record)
                members.append(trajectory)
            if members:
                kept.append(TrajectoryGroup(members, metrics=group.metrics))
        place = start, self.store.size_bytes(kind)
        self.store.append("metrics", LogLine(split, step, Tally.of(kept), given, place).as_record())
        if refused:
            total = sum(len(group) for group in groups)
            raise DataError(
                f"{len(refused)} of {total} trajectories were not kept: {'; '.join(refused[:3])}"
                f"{'; ...' if len(refused) > 3 else ''}. The others were: mend these and log them alone"
            )

    def log_step(self, report: StepReport) -> None:
        """Add what a training step reports, or one that was skipped.

        Raises:
            DataError: a metric is not finite; nothing was written.
        """
        self.store.append("steps", {"step": report.step, "metrics": _finite(report.metrics, f"step {report.step}")})


def _records(split: str, step: int, group: TrajectoryGroup, refused: list[str]) -> Sequence[tuple[Any, dict[str, Any]]]:
    try:
        info = GroupInfo.of(group, uuid.uuid4().hex[:16])
        json.dumps(info.model_dump(mode="json"), allow_nan=False)
    except ValueError as error:
        problem = f"group {group.scenario_id!r}: {' '.join(str(error).split())[:300]}"
        refused += [problem] * len(group)
        return []
    records = []
    for trajectory in group:
        try:
            records.append((trajectory, StoredTrajectory(split, step, info, trajectory).as_record()))
        except DataError as error:
            refused.append(str(error))
    return records


def _finite(metrics: Mapping[str, float], place: str) -> dict[str, float]:
    for name, value in metrics.items():
        if not isinstance(value, SupportsFloat) or not math.isfinite(value):
            raise DataError(
                f"{place}: metric {name!r} is {value!r}; wanted a finite number. Leave it out where it was not measured"
            )
    return {name: float(value) for name, value in metrics.items()}
