"""Options of a training step, checked once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self, get_args

from art_core.errors import ConfigError, unknown_option
from art_core.moving import hint
from art_core.objective import LOSSES, Aggregation, Baseline, Correction, KlEstimator, LossName, Objective, ScaleRewards
from art_core.values import is_number

Truncated = Literal["train", "mask", "drop"]
Overlong = Literal["refuse", "cut", "drop", "mask"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How one training step learns from scored groups. An option of None has the default that its loss gives it.

    `loss`, `learning_rate`, `clip_low`, `clip_high`, `aggregation`, `constant_length`, `epochs`, `minibatches`,
    `correction`, `correction_max`, `kl_coef`, `kl_in`, `kl_estimator`: see `Objective`. `kl_reference` is the step of
    the checkpoint that `kl_coef` keeps the policy near; 0 is the untrained model.

    `baseline` is what a reward is compared with, and `scale_rewards` what the difference is divided by, see
    `step_advantages`: "group" (or True), "batch", "none" (or False). With "leave_one_out" its default is "none".

    `truncated` says what becomes of a trajectory of which an answer that is to be trained ended at its token limit: it
    is trained like any other (`train`), its reward counts in the group but none of its tokens is trained (`mask`), or
    it leaves the group before rewards are compared (`drop`). `overlong` says what becomes of one with a row of more
    than `max_row_tokens` tokens: it is refused (`refuse`, the default), its longer rows keep their first
    `max_row_tokens` tokens (`cut`), or as above (`mask`, `drop`). `truncated` is decided first.

    With `roles`, only what was sampled in these roles is trained; the rest is context. An answer's role is what the
    call said as `metadata={"role": ...}`; "" is that of calls without one.

    Raises:
        ConfigError: a value that is impossible, or one that would have no effect next to the others.
    """

    learning_rate: float = 1e-5
    loss: LossName = "ppo"
    clip_low: float | None = None
    clip_high: float | None = None
    aggregation: Aggregation | None = None
    constant_length: int | None = None
    scale_rewards: bool | ScaleRewards | None = None
    baseline: Baseline = "mean"
    epochs: int = 1
    minibatches: int = 1
    correction: Correction = "token_truncate"
    correction_max: float | None = None
    kl_coef: float = 0.0
    kl_in: Literal["loss", "advantage"] | None = None
    kl_estimator: KlEstimator | None = None
    kl_reference: int | None = None
    truncated: Truncated = "train"
    max_row_tokens: int | None = None
    overlong: Overlong | None = None
    roles: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, (fits, kind) in _KINDS.items():
            if not fits(value := getattr(self, name)):
                raise ConfigError(f"{name} is {value!r}; wanted {kind}")
        roles: Any = self.roles
        if not isinstance(roles, list | tuple) or not all(isinstance(role, str) for role in roles):
            raise ConfigError(f"roles is {self.roles!r}; wanted names of roles, such as roles=('worker',)")
        object.__setattr__(self, "roles", tuple(self.roles))
        if isinstance(self.scale_rewards, bool):
            object.__setattr__(self, "scale_rewards", "group" if self.scale_rewards else "none")
        if self.loss == "sft":
            raise ConfigError("loss 'sft' learns from demonstrations, not from scored groups; use model.train_sft")
        if self.learning_rate == 0.0:
            raise ConfigError("learning_rate is 0, with which nothing is learned; wanted a finite number above 0")
        objective = self.objective()
        if self.constant_length is not None and objective.aggregation != "constant":
            raise ConfigError(
                f"constant_length={self.constant_length} has no effect with aggregation {objective.aggregation!r}; "
                "use aggregation='constant', or leave it out"
            )
        if self.correction_max is not None and self.correction == "none":
            raise ConfigError(
                f"correction_max={self.correction_max} has no effect with correction 'none'; leave it out"
            )
        if self.baseline == "leave_one_out" and self.scale_rewards == "group":
            raise ConfigError(
                "baseline 'leave_one_out' cannot be used with scale_rewards 'group': it keeps a reward out of its own "
                "baseline, and the group's deviation brings it back; use scale_rewards 'none' or 'batch'"
            )
        if self.overlong is not None and self.max_row_tokens is None:
            raise ConfigError(
                f"overlong={self.overlong!r} has no effect without max_row_tokens; set max_row_tokens, or leave it out"
            )
        for name in ("kl_in", "kl_estimator", "kl_reference"):
            if getattr(self, name) is not None and not self.kl_coef:
                raise ConfigError(
                    f"{name}={getattr(self, name)!r} has no effect with kl_coef {self.kl_coef}; set kl_coef, or leave "
                    f"{name} out"
                )

    @property
    def scaling(self) -> ScaleRewards:
        """What advantages are divided by: `scale_rewards`, or where that is None the default."""
        if isinstance(self.scale_rewards, str):
            return self.scale_rewards
        return "none" if self.baseline == "leave_one_out" else LOSSES[self.loss].scale_rewards

    def objective(self, kl_reference: Path | None = None) -> Objective:
        """What the trainer minimises; `kl_reference` is the folder of the checkpoint that the option names."""
        kl_in = self.kl_in or "loss"
        given = {
            name: value for name in ("constant_length", "correction_max") if (value := getattr(self, name)) is not None
        }
        return Objective(
            loss=self.loss,
            learning_rate=self.learning_rate,
            clip_low=self.clip_low,
            clip_high=self.clip_high,
            aggregation=self.aggregation,
            epochs=self.epochs,
            minibatches=self.minibatches,
            correction=self.correction,
            kl_coef=self.kl_coef,
            kl_in=kl_in,
            kl_estimator=self.kl_estimator or ("k3" if kl_in == "loss" else "k1"),
            kl_reference=kl_reference,
            **given,
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
            raise unknown_option("train", unknown[0], names, instead=hint("train", unknown[0]))
        return dataclasses.replace(config or cls(), **options)


def _is_step(value: Any) -> bool:
    return value is None or (is_number(value, whole=True) and value >= 0)


def _one_of(alias: Any) -> tuple[Callable[[Any], bool], str]:
    words = get_args(alias)
    return lambda value: isinstance(value, str) and value in words, "one of " + ", ".join(map(repr, words))


def _or_none(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or fits(value)


_WORDS_OF_SCALE, _SCALES = _one_of(ScaleRewards)
_WORDS_OF_OVERLONG, _OVERLONG = _one_of(Overlong)
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "scale_rewards": (
        _or_none(lambda value: isinstance(value, bool) or _WORDS_OF_SCALE(value)),
        f"True or False, {_SCALES}, or None for the default",
    ),
    "baseline": _one_of(Baseline),
    "truncated": _one_of(Truncated),
    "max_row_tokens": (
        _or_none(lambda value: is_number(value, whole=True) and value >= 2),
        "a whole number, 2 or more, or None for no limit",
    ),
    "overlong": (_or_none(_WORDS_OF_OVERLONG), _OVERLONG),
    "kl_reference": (_is_step, "the step of a checkpoint, 0 for the untrained model"),
}
