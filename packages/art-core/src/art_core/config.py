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
    standard deviation of their group's rewards. With `roles`, only what was sampled in these roles is trained; the rest
    is context. An answer's role is what the call said as `metadata={"role": ...}`; "" is that of calls without one.
    """

    learning_rate: float = 1e-5
    loss: LossName = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    scale_rewards: bool = True
    roles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        roles: Any = self.roles
        if isinstance(roles, str) or not all(isinstance(role, str) for role in roles):
            raise ConfigError(f"roles is {self.roles!r}; wanted names of roles, such as roles=('worker',)")
        object.__setattr__(self, "roles", tuple(self.roles))
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
        names = [field.name for field in dataclasses.fields(cls)]
        unknown = sorted(set(options) - set(names))
        if unknown:
            instead = hint("train", unknown[0])
            meant = f": {instead}" if instead else ""
            raise ConfigError(f"train has no option {unknown[0]!r}{meant}; its options are {names}")
        return dataclasses.replace(config or cls(), **options)
