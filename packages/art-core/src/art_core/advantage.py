"""Rewards of a group -> advantages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from art_core.errors import DataError


def group_advantages(rewards: Sequence[float], *, scale_by_std: bool = True, epsilon: float = 1e-6) -> list[float]:
    """Advantage of each trajectory: its reward minus the group's mean, divided by the group's standard deviation.

    The deviation is that of the population, plus `epsilon` (GRPO, Shao et al. 2024, arXiv 2402.03300). With
    `scale_by_std=False` the difference to the mean is used as it is (Dr. GRPO, Liu et al. 2025, arXiv 2503.20783).
    Advantages of a group sum to zero.

    Raises:
        DataError: the deviation is beyond what a float holds.
    """
    if not rewards:
        return []
    mean = sum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    variance = sum(value * value for value in centred) / len(centred)
    if not isfinite(variance):
        raise DataError(
            f"rewards from {min(rewards):g} to {max(rewards):g} are too far apart to be compared with the precision of "
            "a float; scale them down"
        )
    if not scale_by_std:
        return centred
    std = variance**0.5
    return [value / (std + epsilon) for value in centred]


def has_signal(rewards: Sequence[float], *, minimum_spread: float = 1e-6) -> bool:
    """Whether the rewards differ enough to say which trajectory was better.

    A spread at or below `minimum_spread` is rounding, which dividing by the deviation would blow up to a full-size
    advantage.
    """
    return len(rewards) >= 2 and max(rewards) - min(rewards) > minimum_spread
