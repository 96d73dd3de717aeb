"""Intervals for success rates and their differences. Pure.

Samples of one scenario resemble each other, so the unit of evidence is the scenario, not the sample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, mean, variance

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def as_json(self, name: str, ci_name: str = "ci95") -> dict[str, float | list[float] | None]:
        """The value under `name`, null when there was nothing to estimate it from, and its interval."""
        value = None if math.isnan(self.value) else round(self.value, 4)
        return {name: value, ci_name: [round(self.low, 4), round(self.high, 4)]}

    def __str__(self) -> str:
        return shown(self.value, self.low, self.high)


def success_rate(outcomes: Sequence[Sequence[bool]]) -> Estimate:
    """Mean success over scenarios, each with one or more samples, and its Wilson interval (Wilson 1927).

    The interval counts `n / design effect` independent samples, where the design effect (Kish 1965) compares the
    variance of the mean over scenarios with that of as many independent samples; it is at least 1.
    """
    flat = [outcome for scenario in outcomes for outcome in scenario]
    if not flat:
        return Estimate(float("nan"), 0.0, 1.0)
    rates = [mean(map(float, scenario)) for scenario in outcomes if scenario]
    rate = mean(rates)
    count = float(len(flat))
    binomial = rate * (1 - rate) / count
    if len(rates) > 1 and binomial > 0:
        count /= max(1.0, variance(rates) / len(rates) / binomial)
    centre = (rate + _Z * _Z / (2 * count)) / (1 + _Z * _Z / count)
    half = _Z / (1 + _Z * _Z / count) * (rate * (1 - rate) / count + _Z * _Z / (4 * count * count)) ** 0.5
    return Estimate(rate, max(0.0, centre - half), min(1.0, centre + half))


def difference(before: Sequence[Sequence[bool]], after: Sequence[Sequence[bool]]) -> Estimate:
    """Mean gain from `before` to `after` over the same scenarios in the same order, with its paired t interval.

    Scenarios without a sample on either side are left out.
    """
    gains = [mean(map(float, b)) - mean(map(float, a)) for a, b in zip(before, after, strict=True) if a and b]
    if not gains:
        return Estimate(float("nan"), -1.0, 1.0)
    gain = mean(gains)
    if len(gains) == 1:
        return Estimate(gain, -1.0, 1.0)
    half = student_t_975(len(gains) - 1) * (variance(gains) / len(gains)) ** 0.5
    return Estimate(gain, max(-1.0, gain - half), min(1.0, gain + half))


def shown(value: float | None, low: float, high: float, *, sign: str = "") -> str:
    """A value and its interval for people to read."""
    text = "unknown" if value is None or math.isnan(value) else f"{value:{sign}.2f}"
    return f"{text} [{low:{sign}.2f}, {high:{sign}.2f}]"


def student_t_975(degrees: int) -> float:
    """The 97.5 % quantile of Student's t: exact for 1 and 2 degrees of freedom, else by the Cornish-Fisher expansion
    (Abramowitz & Stegun 26.7.5), whose error is below 0.01 from 4 degrees on and below 0.1 at 3."""
    if degrees == 1:
        return 12.7062
    if degrees == 2:
        return 4.30265
    z, v = _Z, float(degrees)
    return (
        z
        + (z**3 + z) / (4 * v)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4)
    )
