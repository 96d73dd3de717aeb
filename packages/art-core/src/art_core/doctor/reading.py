"""A run folder, of a served model or of art-mcp, as a `RunHistory`: without its lock, and with bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from art_core.doctor.diagnosis import diagnose, worst_first
from art_core.doctor.history import RunHistory, Step
from art_core.doctor.watch import FINDINGS, Told
from art_core.errors import DataError
from art_core.rollout_metrics import rollout_metrics
from art_core.runs.reader import MODEL_FILE, Run, foreign_kind, run
from art_core.runs.records import Tally
from art_core.storage import checkpoint_faults, read_records
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Finding

SAMPLED_GROUPS = 64
"""Groups of a step that are read, where the step did not report what its rollouts were like."""
SAMPLED_STEPS = 100
"""Steps whose rollouts are read: the first, the last, and some between."""


def open_folder(path: Path, name: str) -> Path:
    """The run folder that `name` means: a folder, or a model below `path`.

    Raises:
        DataError: there is none.
    """
    for folder in (Path(name), path / name):
        if (folder / MODEL_FILE).is_file() or foreign_kind(folder).startswith("a run of art-mcp"):
            return folder
    try:
        return run(path, name).folder
    except DataError as error:
        folder = Path(name)
        if not folder.is_dir() or foreign_kind(folder):
            raise
        raise DataError(
            f"{folder} is no run folder: it has no {MODEL_FILE}, as a served model's has, and no run.json, as one of "
            "art-mcp has; `art runs` lists the runs of the folder that is given with --path"
        ) from error


def read_history(folder: Path, *, reward_range: tuple[float, float] | None = None) -> RunHistory:
    """What is known of the run in `folder`.

    Raises:
        DataError: a line of its logs is damaged; the message names it.
    """
    faults = checkpoint_faults(folder)
    if (folder / MODEL_FILE).is_file():
        reader = Run(folder)
        every = [Step(report.step, report.metrics) for report in reader.steps()]
        steps = [step for step in every if not step.supervised]
        return RunHistory(
            steps=tuple(steps),
            supervised=tuple(step for step in every if step.supervised),
            rollouts=_rollouts_of(reader, steps),
            logged=_logged(reader),
            reward_range=reward_range,
            checkpoint_faults=faults,
        )
    steps, places, supervised = _mcp_steps(folder)
    sampled = {} if _reported(steps) else _mcp_rollouts(folder, set(places))
    rollouts = [Step(s.number, {**sampled.get(place, {}), **s.metrics}) for s, place in zip(steps, places, strict=True)]
    return RunHistory(
        steps=tuple(steps),
        supervised=tuple(supervised),
        rollouts=tuple(rollouts),
        reward_range=reward_range,
        checkpoint_faults=faults,
    )


def read_findings(folder: Path, *, reward_range: tuple[float, float] | None = None) -> list[tuple[Finding, int | None]]:
    """What is wrong with the run in `folder`, worst first, and the step at which each was told while it trained.

    Raises what `read_history` raises.
    """
    found = {finding.name: finding for finding in diagnose(read_history(folder, reward_range=reward_range))}
    told: dict[str, int] = {}
    log = folder / f"{FINDINGS}.jsonl"
    for record in read_records(log, Told.model_validate) if log.exists() else ():
        if record.event == "began":
            told.setdefault(record.name, record.step)
            if record.name not in found:
                fields = record.model_dump(exclude={"event", "step"})
                found[record.name] = Finding(**fields, steps=(record.step,), current=False)
    return [(finding, told.get(finding.name)) for finding in worst_first(found.values())]


def _reported(steps: Sequence[Step]) -> bool:
    return any("completions/total" in step.metrics for step in steps)


def _rollouts_of(reader: Run, steps: Sequence[Step]) -> tuple[Step, ...]:
    """What the steps reported of their rollouts; for steps that did not, what was logged of those they trained on."""
    trained = [step for step in steps if "groups/total" in step.metrics]
    if _reported(trained):
        return tuple(trained)
    split = "train" if "train" in reader.splits else None
    logged = sorted({line.step for line in reader.log_lines() if split in (None, line.split)})
    sampled = {number: _sampled(reader, split, number) for number in _spread(logged)}
    if not trained:
        return tuple(Step(number, metrics) for number, metrics in sampled.items() if metrics)
    return tuple(
        Step(step.number, {**sampled.get(step.number - step.made, {}), **step.metrics})  # those sampled before it
        for step in trained
    )


def _sampled(reader: Run, split: str | None, number: int) -> dict[str, float]:
    try:
        groups = list(itertools.islice(reader.groups(split, number), SAMPLED_GROUPS))
    except DataError:  # logged without trajectories
        return {}
    return _numbers(groups)


def _numbers(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    counts = Tally.of(groups).counts
    if not counts.trajectories:
        return {}
    small = sum(sum(t.reward is not None and t.error is None for t in group) < 2 for group in groups)
    return {
        **rollout_metrics(groups),
        "groups/total": float(counts.groups),
        "groups/too_small": float(small),
        "groups/without_signal": float(counts.without_signal - small),
    }


def _logged(reader: Run) -> dict[str, dict[str, float]]:
    logged: dict[str, dict[str, float]] = {}
    for line in reader.log_lines():
        sums = logged.setdefault(line.split, {})
        named = {name.removeprefix(f"{line.split}/"): value for name, value in line.metrics.items()}
        counted = {
            "calls_not_found": named.get("calls_not_found", 0.0),
            "unscored": float(line.tally.counts.unscored),
            "trajectories": float(line.tally.counts.trajectories),
        }
        for name, value in counted.items():
            sums[name] = sums.get(name, 0.0) + value
    return logged


def _spread(numbers: Sequence[int]) -> list[int]:
    """At most `SAMPLED_STEPS` of `numbers`, the first and the last among them."""
    if len(numbers) <= SAMPLED_STEPS:
        return list(numbers)
    last = len(numbers) - 1
    return [numbers[round(index * last / (SAMPLED_STEPS - 1))] for index in range(SAMPLED_STEPS)]


def _mcp_steps(folder: Path) -> tuple[list[Step], list[int], list[Step]]:
    """The reinforcement steps of an art-mcp run, which of its steps each was, and the updates of its warm-up."""
    steps: list[Step] = []
    supervised: list[Step] = []
    places: list[int] = []
    path = folder / "metrics.jsonl"
    for record in read_records(path, lambda record: record) if path.exists() else ():
        try:
            step = Step(int(record["policy_version"]), {k: float(v) for k, v in record["metrics"].items()})
            if step.supervised:
                supervised.append(step)
            elif record["phase"] == "train":
                steps.append(step)
                places.append(int(record["done"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{path}: a record is not that of a step ({type(error).__name__}: {error})") from error
    return steps, places, supervised


def _mcp_rollouts(folder: Path, places: set[int]) -> dict[int, dict[str, float]]:
    path = folder / "trajectories.jsonl"
    if not path.exists():
        return {}
    chosen = set(_spread(sorted(places)))
    of_training = (t for t in read_records(path, _mcp_trajectory) if t is not None and t.metadata["step"] in chosen)
    return {
        place: _numbers(_mcp_groups(members))
        for place, members in itertools.groupby(of_training, key=lambda t: int(t.metadata["step"]))
    }


def _mcp_trajectory(record: dict[str, Any]) -> Trajectory | None:
    metadata = record.get("metadata")
    if not isinstance(metadata, dict) or metadata.get("phase") != "train" or not isinstance(metadata.get("step"), int):
        return None
    return Trajectory.model_validate(record)


def _mcp_groups(members: Iterable[Trajectory]) -> list[TrajectoryGroup]:
    together: dict[str, list[Trajectory]] = {}
    for member in members:
        if member.scenario_id in together or len(together) < SAMPLED_GROUPS:
            together.setdefault(member.scenario_id, []).append(member)
    return [TrajectoryGroup(group, scenario_id=scenario) for scenario, group in together.items()]
