"""Means over tasks with 95 % intervals. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isinf, isnan, nan

_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds between which it lies with 95 % confidence: infinite where fewer than two values are. The
    mean of none is nan.
    """

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        if isnan(self.mean):
            return "unknown"
        if isinf(self.low) or isinf(self.high):
            return f"{self.mean:.3f} (1 task: no interval)"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def interval(values: Sequence[float]) -> Interval:
    """The mean of `values`, which are independent, with a percentile bootstrap interval (Efron 1979). Deterministic."""
    mean = sum(values) / len(values) if values else nan
    if len(values) < 2:
        return Interval(mean, -inf, inf)
    draw = random.Random(0)
    means = sorted(sum(draw.choices(values, k=len(values))) / len(values) for _ in range(_RESAMPLES))
    cut = round(_RESAMPLES * 0.025)
    return Interval(mean, means[cut], means[-1 - cut])
