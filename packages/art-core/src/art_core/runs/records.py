"""What stands in one line of a run folder's logs, and what is counted about many of them. Pure."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from art_core.advantage import has_signal
from art_core.errors import DataError
from art_core.outcomes import group_averages
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Finite, StepReport
from art_core.values import json_value

_FIRST = ("id", "scenario_id", "reward", "error", "metrics")
"""Fields that a person looks for first stand at the beginning of the line."""


class GroupInfo(BaseModel):
    """The group that a stored trajectory was compared in: `id` is the same for its members and no other's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    scenario_id: str = ""
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    metrics: dict[str, Finite] = Field(default_factory=dict)
    logs: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, group: TrajectoryGroup, id: str) -> Self:
        return cls(
            id=id, scenario_id=group.scenario_id, metadata=group.metadata, metrics=group.metrics, logs=group.logs
        )


@dataclass(frozen=True)
class StoredTrajectory:
    """A trajectory with its place in a run: the `split` and `step` it was logged for, and its group."""

    split: str
    step: int
    group: GroupInfo
    trajectory: Trajectory

    def as_record(self) -> dict[str, Any]:
        """The line of the log: `split`, `step`, `group`, and the fields of the trajectory.

        Raises:
            DataError: a value has no JSON form, or is not what its field wants (NaN in metrics); the message names the
                field.
        """
        try:
            json_value(self.trajectory.metadata, "metadata")  # pydantic would write NaN as null
            fields = self.trajectory.model_dump(mode="json", warnings=False)
            group = self.group.model_dump(mode="json", exclude_defaults=True, warnings=False)
            head = {name: fields.pop(name) for name in _FIRST}
            record = {"split": self.split, "step": self.step, "group": group, **head, **fields}
            StoredTrajectory.parse(dict(record))
            json.dumps(record, allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(f"trajectory {self.trajectory.id!r}: {_culprit(self.trajectory, error)}") from error
        return record

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Self:
        """The line of the log, read back; `record` is used up.

        Raises:
            DataError: it is none.
        """
        try:
            split, step, group = record.pop("split"), record.pop("step"), record.pop("group")
        except KeyError as error:
            raise DataError(f"no field {error.args[0]!r}") from error
        if not isinstance(split, str) or not isinstance(step, int):
            raise DataError(f"split {split!r} and step {step!r}; wanted a name and a number")
        return cls(split, step, GroupInfo.model_validate(group), Trajectory.model_validate(record))


def in_groups(stored: Iterable[StoredTrajectory]) -> Iterator[TrajectoryGroup]:
    """The groups of `stored`, whose members stand next to each other."""
    for _, together in itertools.groupby(stored, key=lambda one: one.group.id):
        members = list(together)
        info = members[0].group
        yield TrajectoryGroup(
            [member.trajectory for member in members],
            scenario_id=info.scenario_id,
            metadata=info.metadata,
            metrics=info.metrics,
            logs=info.logs,
        )


@dataclass(frozen=True, kw_only=True)
class Counts:
    """How many there are of what, over some groups.

    `failed` trajectories carry an error; `unscored` ones have neither error nor reward. `without_signal` counts the
    groups in which fewer than two are scored, or all scored alike. `forks` are the calls whose prompt was no extension
    of what their trajectory recorded before.
    """

    groups: int = 0
    trajectories: int = 0
    failed: int = 0
    unscored: int = 0
    without_signal: int = 0
    exchanges: int = 0
    forks: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def excluded(self) -> int:
        """Trajectories that nothing is learned from: failed or not scored."""
        return self.failed + self.unscored


@dataclass(frozen=True)
class Tally:
    """Counts, and averages as `group_averages` gives them: the mean, and how many had a value."""

    counts: Counts = field(default_factory=Counts)
    averages: Mapping[str, tuple[float, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, groups: Iterable[TrajectoryGroup]) -> Self:
        groups = list(groups)
        counts = Counts()
        for group in groups:
            scored = [t.reward for t in group if t.error is None and t.reward is not None]
            calls = [exchange for trajectory in group for exchange in trajectory.exchanges]
            failed = len(group.errors)
            counts += Counts(
                groups=1,
                trajectories=len(group),
                failed=failed,
                unscored=len(group) - failed - len(scored),
                without_signal=not has_signal(scored),
                exchanges=len(calls),
                forks=sum(call.forked for call in calls),
                prompt_tokens=sum(len(call.prompt_ids) for call in calls),
                completion_tokens=sum(len(call.completion_ids) for call in calls),
            )
        return cls(counts, group_averages(groups))

    def __add__(self, other: Tally) -> Tally:
        averages = dict(self.averages)
        for name, (mean, number) in other.averages.items():
            before, so_far = averages.get(name, (0.0, 0))
            averages[name] = ((before * so_far + mean * number) / (so_far + number), so_far + number)
        return Tally(self.counts + other.counts, averages)


@dataclass(frozen=True)
class LogLine:
    """One line of metrics.jsonl: a call of `log_groups`.

    `place` is where its trajectories begin and end in their file, in bytes.
    """

    split: str
    step: int
    tally: Tally
    metrics: Mapping[str, float]
    place: tuple[int, int]

    def as_record(self) -> dict[str, Any]:
        counts = {name: number for name, number in asdict(self.tally.counts).items() if number}
        return {
            "split": self.split,
            "step": self.step,
            "metrics": dict(self.metrics),
            "counts": counts,
            "averages": {name: list(pair) for name, pair in self.tally.averages.items()},
            "bytes": list(self.place),
        }

    def named_metrics(self) -> dict[str, float]:
        """The metrics under their full names. A name without an area is one of the split."""
        return {name if "/" in name else f"{self.split}/{name}": value for name, value in self.metrics.items()}

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Self:
        line = _LogLine.model_validate(record)
        try:
            tally = Tally(Counts(**line.counts), line.averages)
        except TypeError as error:
            raise DataError(str(error)) from error
        return cls(line.split, line.step, tally, line.metrics, line.bytes)


class _LogLine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    split: str
    step: int
    metrics: dict[str, Finite]
    counts: dict[str, int] = Field(default_factory=dict)
    averages: dict[str, tuple[Finite, int]] = Field(default_factory=dict)
    bytes: tuple[int, int] = (0, 0)


class _StepLine(BaseModel):
    model_config = ConfigDict(extra="forbid")

    step: int
    metrics: dict[str, Finite]


def step_report(record: dict[str, Any]) -> StepReport:
    """One line of steps.jsonl, read back."""
    line = _StepLine.model_validate(record)
    return StepReport(line.step, line.metrics)


def committed_reports(cursor: dict[str, Any], step: int) -> list[StepReport]:
    """What `cursor`, that of the checkpoint of `step`, keeps of the reports of the steps it commits, in their order.

    These are the updates of a supervised training since the checkpoint before, or the one step of any other.
    """
    if updates := cursor.get("sft", {}).get("reports"):
        return [step_report(update) for update in updates]
    return [StepReport(step, {**cursor.get("counters", {}), **cursor.get("metrics", {})})]


@dataclass(frozen=True)
class StepSummary:
    """What was logged for one split at one step.

    `metrics` are the averages over its groups, see `art_core.outcomes.group_averages`, and those that were given to
    `log_groups`, which come first where a name is the same.
    """

    split: str
    step: int
    counts: Counts
    metrics: Mapping[str, float]

    @property
    def reward(self) -> float | None:
        """The mean reward of the scored trajectories; None where there is none."""
        return self.metrics.get("reward")


def _culprit(trajectory: Trajectory, error: Exception) -> str:
    """`error`, and the field of `trajectory` that is to blame."""
    if isinstance(error, ValidationError):
        problem = error.errors(include_url=False)[0]
        return f"{'.'.join(str(part) for part in problem['loc'])} is {problem['input']!r}: {problem['msg']}"
    for name in type(trajectory).model_fields:
        try:
            json.dumps(trajectory.model_dump(mode="json", include={name}, warnings=False), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as cause:
            return f"{name} cannot be written as JSON ({cause})"
    return str(error)
