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
        for field in dataclasses.fields(self):
            if field.name in _KINDS:
                types, kind = _KINDS[field.name]
                value = getattr(self, field.name)
                if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                    raise ConfigError(f"{field.name} is {value!r}; wanted {kind}")
        roles: Any = self.roles
        if not isinstance(roles, list | tuple) or not all(isinstance(role, str) for role in roles):
            raise ConfigError(f"roles is {self.roles!r}; wanted names of roles, such as roles=('worker',)")
        object.__setattr__(self, "roles", tuple(self.roles))
        if self.loss == "sft":
            raise ConfigError("loss 'sft' learns from demonstrations, not from scored groups; wanted 'ppo' or 'cispo'")
        if self.learning_rate == 0.0:
            raise ConfigError("learning_rate is 0, with which nothing is learned; wanted a finite number above 0")
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


_NUMBER = (int, float), "a number"
_KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "learning_rate": _NUMBER,
    "loss": ((str,), "'ppo' or 'cispo'"),
    "clip_low": _NUMBER,
    "clip_high": _NUMBER,
    "scale_rewards": ((bool,), "True or False"),
}
