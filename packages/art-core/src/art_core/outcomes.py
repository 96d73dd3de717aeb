"""What a set of groups amounts to: means to log, why nothing could be trained, which checkpoint is best. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite

from art_core.control import MetricRecord
from art_core.errors import ConfigError
from art_core.trajectories import ScoredGroup, TrajectoryGroup
from art_core.types import StepReport
from art_core.values import metric_value

_BUILT_IN = {"reward", "exception_rate", "reward_std_dev"}


def group_averages(groups: Iterable[TrajectoryGroup]) -> dict[str, tuple[float, int]]:
    """Means over the trajectories that did not fail, and how many had a value: `reward` and each metric.

    Also `exception_rate`, the share of all trajectories that failed; `reward_std_dev`, the mean over groups of the
    standard deviation (of the population) of their rewards; and `group_<metric>`, means of the groups' own metrics.
    Metrics of trajectories that have one of these names are left out, see `shadowed_metrics`.
    """
    groups = list(groups)
    taken = _built_in(groups)
    values: dict[str, list[float]] = {}
    for group in groups:
        kept = [trajectory for trajectory in group if trajectory.error is None]
        rewards = [trajectory.reward for trajectory in kept if trajectory.reward is not None]
        failed = [float(trajectory.error is not None) for trajectory in group]
        for name, numbers in (("reward", rewards), ("exception_rate", failed)):
            values.setdefault(name, []).extend(numbers)
        if len(rewards) > 1:
            mean = sum(rewards) / len(rewards)
            variance = sum((reward - mean) ** 2 for reward in rewards) / len(rewards)
            values.setdefault("reward_std_dev", []).append(variance**0.5)
        for trajectory in kept:
            for name, value in trajectory.metrics.items():
                if name not in taken:
                    values.setdefault(name, []).append(float(value))
        for name, value in group.metrics.items():
            values.setdefault(f"group_{name}", []).append(float(value))
    return {name: (sum(numbers) / len(numbers), len(numbers)) for name, numbers in values.items() if numbers}


def shadowed_metrics(groups: Iterable[TrajectoryGroup]) -> list[str]:
    """Metrics of trajectories that no mean is made of, because `group_averages` means something else by their name."""
    groups = list(groups)
    named = {name for group in groups for trajectory in group for name in trajectory.metrics}
    return sorted(named & _built_in(groups))


def _built_in(groups: Iterable[TrajectoryGroup]) -> set[str]:
    return _BUILT_IN | {f"group_{name}" for group in groups for name in group.metrics}


def named_metrics(split: str, *metrics: Mapping[str, float]) -> dict[str, float]:
    """`metrics` in one, each name under `split/` unless it has an area of its own (`area/name`). Later ones win.

    Raises:
        DataError: a value is not a finite number.
    """
    named: dict[str, float] = {}
    for some in metrics:
        for name, value in some.items():
            key = name if "/" in name else f"{split}/{name}"
            named[key] = float(metric_value(value, f"metric {key!r}"))
    return named


_REASONS = {
    "groups/too_small": "{} of {total} groups have fewer than two trajectories that can be compared",
    "trajectories/excluded": "{} trajectories failed and are excluded",
    "trajectories/masked_truncated": "{} trajectories are masked because an answer ended at its token limit",
    "trajectories/masked_overlong": "{} trajectories are masked because a row is longer than max_row_tokens",
    "trajectories/dropped_truncated": "{} trajectories are dropped because an answer ended at its token limit",
    "trajectories/dropped_overlong": "{} trajectories are dropped because a row is longer than max_row_tokens",
    "rows/cut_untrained": "{} rows have no trained token in their first max_row_tokens tokens",
    "trajectories/without_tokens": "{} trajectories have no trained token",
}
"""What the counters of a step say about why it has no row, in the order of telling."""


def skip_reason(groups: Sequence[ScoredGroup], counters: Mapping[str, float]) -> str:
    """Why `groups` teach nothing, from the `counters` that `training_rows` gave for them."""
    if not groups:
        return "there are no groups"
    reasons = []
    if equal := round(counters.get("groups/without_signal", 0)):
        reasons.append(f"in {equal} of {len(groups)} groups all rewards are equal{_tempered(groups)}")
    for name, reason in _REASONS.items():
        if count := round(counters.get(name, 0)):
            reasons.append(reason.format(count, total=len(groups)))
    return "; ".join(reasons) or "no row has a trained token"


def _tempered(groups: Sequence[ScoredGroup]) -> str:
    """How calls of `groups` were sampled that training would refuse: as a rule why attempts are alike."""
    samplings = [exchange.sampling for group in groups for member, _ in group.members for exchange in member.exchanges]
    for name, wanted, instead in (("temperature", 1.0, "1"), ("top_p", 1.0, "none"), ("top_k", 0, "none")):
        if others := sorted({getattr(sampling, name) for sampling in samplings} - {wanted}):
            found = ", ".join(f"{value:g}" for value in others)
            return f"; they were sampled at {name} {found}; training wants {instead}"
    return ""


def error_counts(groups: Iterable[TrajectoryGroup]) -> str:
    """How many trajectories failed by which kind of error: `TimeoutError 3, OSError 1`; empty for none."""
    kinds = Counter(error.kind for group in groups for error in group.errors)
    return ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())


def best_step(records: Sequence[MetricRecord], metric: str, steps: Iterable[int], *, lowest: bool = False) -> int:
    """The one of `steps` with the highest (or lowest) mean of the logged values of `metric`; of equal ones the newest.

    Values that are not finite do not count.

    Raises:
        ConfigError: no step of `steps` has a value.
    """
    wanted = set(steps)
    values: dict[int, list[float]] = {}
    for record in records:
        value = record.metrics.get(metric)
        if value is not None and isfinite(value) and record.step in wanted:
            values.setdefault(record.step, []).append(value)
    if not values:
        known = sorted({name for record in records for name in record.metrics})
        raise ConfigError(
            f"no checkpoint has a value of the metric {metric!r}, so none can be called the best and nothing was "
            f"deleted; logged are {known or 'no metrics at all'}: await model.log(groups, split='val') at each step, "
            "or name another metric"
        )
    sign = -1.0 if lowest else 1.0
    return max(values, key=lambda step: (sign * sum(values[step]) / len(values[step]), step))


def num_supervised(reports: Iterable[StepReport], *, step: int) -> int:
    """How many of the first `step` steps were updates of supervised trainings, by the reports that were logged.

    Of each training, the newest that was logged is enough: its updates follow each other.
    """
    made: dict[int, int] = {}
    for report in _lineage(reports, step):
        if update := round(report.metrics.get("sft/update", 0.0)):
            start = report.step - update
            made[start] = max(update, made.get(start, 0))
    return sum(made.values())


def num_skipped(reports: Iterable[StepReport], *, step: int) -> int:
    """How many batches made no step on the way to `step`, and behind it until now, by the reports that were logged."""
    return sum(map(_is_skipped, _lineage(reports, step)))


def _lineage(reports: Iterable[StepReport], step: int) -> list[StepReport]:
    """Those of the `reports`, given in the order in which they were logged, that led to the checkpoint of `step`.

    Where checkpoints were lost, steps are made again: what was logged of a step, and all that came behind it, counts no
    more once it is made again, or another batch is skipped before it.
    """
    kept: list[StepReport] = []
    for report in reports:
        while kept and (kept[-1].step > report.step or (kept[-1].step == report.step and not _is_skipped(report))):
            kept.pop()
        kept.append(report)
    return [report for report in kept if report.step <= step]


def _is_skipped(report: StepReport) -> bool:
    return bool(report.metrics.get("step/skipped"))
