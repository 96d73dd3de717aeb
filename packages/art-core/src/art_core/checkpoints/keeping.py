"""Which checkpoints to keep. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from art_core.control import MetricRecord
from art_core.options import validated
from art_core.outcomes import best_step


class KeepCheckpoints(BaseModel):
    """Which checkpoints stay: the newest `last`, the best one, and those of every step that `every` divides.

    `best` names a metric that `model.log` is given, by its full name (`val/reward`); the highest mean wins, or with
    `lowest` the lowest.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    last: int = Field(default=1, ge=1)
    best: str | None = Field(default=None, min_length=1)
    lowest: bool = False
    every: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _lowest_of_something(self) -> Self:
        if self.lowest and self.best is None:
            raise ValueError("lowest is a direction of best; name the metric as best")
        return self

    @classmethod
    def made(cls, values: dict[str, Any]) -> Self:
        """The policy with these values, by their names here.

        Raises:
            ConfigError: a value that there is not, or that is impossible.
        """
        return validated(cls, values, of="keep_checkpoints")


def kept_steps(
    policy: KeepCheckpoints, steps: Collection[int], records: Sequence[MetricRecord]
) -> dict[int, tuple[str, ...]]:
    """Those of `steps` that stay, each with the reasons why. `records` are what was logged.

    Raises:
        ConfigError: no step of `steps` has a value of the metric `best`, so nothing may be deleted.
    """
    reasons: dict[int, list[str]] = {}
    for step in sorted(steps)[-policy.last :]:
        reasons.setdefault(step, []).append("newest")
    if policy.best is not None and steps:
        best = best_step(records, policy.best, steps, lowest=policy.lowest)
        reasons.setdefault(best, []).append(f"{'lowest' if policy.lowest else 'best'} {policy.best}")
    if policy.every is not None:
        for step in steps:
            if step % policy.every == 0:
                reasons.setdefault(step, []).append(f"every {policy.every}")
    return {step: tuple(reasons[step]) for step in sorted(reasons)}


def kept_while_training(
    policy: KeepCheckpoints, steps: Collection[int], records: Sequence[MetricRecord]
) -> dict[int, tuple[str, ...]]:
    """As `kept_steps`, with those that may turn out to be the best: steps after the newest that has a value of `best`.

    Where no step has one, all stay.
    """
    if policy.best is None:
        return kept_steps(policy, steps, records)
    valued = [
        record.step
        for record in records
        if record.step in steps and isfinite(record.metrics.get(policy.best, float("nan")))
    ]
    newest = max(valued, default=-1)
    pending = {step: ("not evaluated yet",) for step in steps if step > newest}
    settled = kept_steps(policy, steps, records) if valued else {}
    return dict(sorted({**pending, **settled}.items()))
