"""Options of a training step, checked once."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self

from art_core.errors import ConfigError
from art_core.moving import hint
from art_core.types import LossName, Objective


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How one training step learns from scored groups.

    `loss`, `learning_rate`, `clip_low`, `clip_high`: see `Objective`. `scale_rewards` divides advantages by the
    standard deviation of their group's rewards.
    """

    learning_rate: float = 1e-5
    loss: LossName = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    scale_rewards: bool = True

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            wanted = {"loss": str, "scale_rewards": bool}.get(field.name, (int, float))
            if not isinstance(value, wanted) or (isinstance(value, bool) and field.name != "scale_rewards"):
                kind = {"loss": "'ppo' or 'cispo'", "scale_rewards": "True or False"}.get(field.name, "a number")
                raise ConfigError(f"{field.name} is {value!r}, a {type(value).__name__}; wanted {kind}")
        if self.loss == "sft":
            raise ConfigError("loss 'sft' learns from demonstrations, not from scored groups; wanted 'ppo' or 'cispo'")
        _ = self.objective

    @property
    def objective(self) -> Objective:
        return Objective(
            loss=self.loss, learning_rate=self.learning_rate, clip_low=self.clip_low, clip_high=self.clip_high
        )

    @classmethod
    def made(cls, config: Self | None, options: dict[str, Any]) -> Self:
        """`config`, or the defaults, with `options` in place of its values.

        Raises:
            ConfigError: an option that does not exist, or an impossible value.
        """
        if config is not None and not isinstance(config, cls):
            raise ConfigError(f"config is a {type(config).__name__}; wanted a TrainConfig, or options by their names")
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            instead = hint("train", unknown[0])
            meant = f": {instead}" if instead else ""
            raise ConfigError(f"train has no option {unknown[0]!r}{meant}; its options are {names}")
        return dataclasses.replace(config or cls(), **options)
