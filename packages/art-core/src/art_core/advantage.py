"""Rewards of groups -> advantages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, isfinite, ulp
from typing import get_args

from art_core.errors import ConfigError, DataError
from art_core.objective import Baseline, ScaleRewards

_MINIMUM_SPREAD = 1e-6


def step_advantages(
    groups: Sequence[Sequence[float]],
    *,
    scale_rewards: bool | ScaleRewards = "group",
    baseline: Baseline = "mean",
    epsilon: float = 1e-6,
) -> list[list[float]]:
    """Advantage of each trajectory of each group of one step, from its reward and those of the others.

    `baseline` is what the reward is compared with: the `mean` of the group (GRPO, Shao et al. 2024, arXiv 2402.03300),
    or that of the other members, `leave_one_out` (RLOO, Ahmadian et al. 2024, arXiv 2402.14740), which is n/(n-1) times
    the difference to the mean. `scale_rewards` divides the differences by a standard deviation of the population, plus
    `epsilon`: that of their `group` (GRPO), or that of the differences of the whole `batch`, here all `groups`
    (REINFORCE++-baseline, Hu 2025, arXiv 2501.03262); `none` leaves them as they are (Dr. GRPO, Liu et al. 2025, arXiv
    2503.20783). In each case the advantages of a group sum to zero, and a group of one has an advantage of 0.

    Raises:
        ConfigError: another word than these; True is `group`, and False is `none`.
        DataError: a deviation is beyond what a float holds.
    """
    if isinstance(scale_rewards, bool):
        scale_rewards = "group" if scale_rewards else "none"
    for name, given, words in (
        ("scale_rewards", scale_rewards, get_args(ScaleRewards)),
        ("baseline", baseline, get_args(Baseline)),
    ):
        if given not in words:
            raise ConfigError(f"{name} is {given!r}; wanted one of {', '.join(map(repr, words))}")
    centred = [_centred(rewards, baseline) for rewards in groups]
    deviations = [_deviation(rewards, values) for rewards, values in zip(groups, centred, strict=True)]
    if scale_rewards == "none":
        return centred
    if scale_rewards == "batch":
        count = sum(len(values) for values in centred)
        squares = fsum(
            deviation * deviation * len(values) for deviation, values in zip(deviations, centred, strict=True)
        )
        deviations = [(squares / count) ** 0.5 if count else 0.0] * len(centred)
    return [
        [value / (deviation + epsilon) for value in values]
        for values, deviation in zip(centred, deviations, strict=True)
    ]


def group_advantages(
    rewards: Sequence[float],
    *,
    scale_rewards: bool | ScaleRewards = "group",
    baseline: Baseline = "mean",
    epsilon: float = 1e-6,
) -> list[float]:
    """The advantages of one group that is a step of its own, see `step_advantages`."""
    return step_advantages([rewards], scale_rewards=scale_rewards, baseline=baseline, epsilon=epsilon)[0]


def has_signal(rewards: Sequence[float], *, minimum_spread: float = _MINIMUM_SPREAD) -> bool:
    """Whether the rewards differ enough to say which trajectory was better.

    A spread at or below `minimum_spread`, or of a few units in the last place of the largest reward, is rounding, which
    dividing by the deviation would blow up to a full-size advantage. Rewards that are not finite pass here, so that
    `step_advantages` refuses them.
    """
    if len(rewards) < 2:
        return False
    if not all(isfinite(reward) for reward in rewards):
        return True
    rounding = 8 * ulp(max(abs(reward) for reward in rewards))
    return max(rewards) - min(rewards) > max(minimum_spread, rounding)


def _centred(rewards: Sequence[float], baseline: Baseline) -> list[float]:
    if not rewards:
        return []
    # Differences to one of them first: of rewards that are close, these are exact however far from zero they are.
    differences = [reward - rewards[0] for reward in rewards]
    _check(rewards, differences)
    mean = fsum(differences) / len(rewards)
    centred = [difference - mean for difference in differences]
    if baseline == "leave_one_out" and len(rewards) > 1:
        return [value * len(rewards) / (len(rewards) - 1) for value in centred]
    return centred


def _deviation(rewards: Sequence[float], centred: Sequence[float]) -> float:
    squares = [value * value for value in centred]
    _check(rewards, squares)
    return float((fsum(squares) / len(centred)) ** 0.5) if centred else 0.0


def _check(rewards: Sequence[float], values: Sequence[float]) -> None:
    if not isfinite(sum(map(abs, values))):
        raise DataError(
            f"rewards from {min(rewards):g} to {max(rewards):g} are too far apart to be compared with the precision of "
            "a float; scale them down"
        )
