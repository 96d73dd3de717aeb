"""Options of a training step, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self

from art_core.errors import ConfigError
from art_core.moving import hint
from art_core.objective import LOSSES, Aggregation, Baseline, Correction, KlEstimator, LossName, Objective, ScaleRewards
from art_core.options import Kind, check_options, made_from, one_of, shown, whole

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
        if isinstance(self.loss, str) and self.loss == "sft":
            raise ConfigError("loss 'sft' learns from demonstrations, not from scored groups; use model.train_sft")
        check_options(self, _KINDS)
        object.__setattr__(self, "roles", tuple(self.roles))
        twice = [role for role in self.roles if self.roles.count(role) > 1]
        if twice:
            raise ConfigError(f"roles names {twice[0]!r} more than once: {shown(self.roles)}; wanted each role once")
        if isinstance(self.scale_rewards, bool):
            object.__setattr__(self, "scale_rewards", "group" if self.scale_rewards else "none")
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
        return made_from(cls, config, options, of="train", instead=partial(hint, "train"))


def _are_roles(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(role, str) for role in value)


_SCALES = one_of(ScaleRewards)
_KINDS = {
    "loss": one_of([loss for loss in LOSSES if loss != "sft"]),
    "scale_rewards": Kind(
        lambda value: value is None or isinstance(value, bool) or _SCALES.fits(value),
        f"True or False, {_SCALES.wanted}, or None for the default",
    ),
    "baseline": one_of(Baseline),
    "truncated": one_of(Truncated),
    "max_row_tokens": whole(2).or_none("no limit"),
    "overlong": one_of(Overlong).or_none("'refuse'"),
    "kl_in": one_of(("loss", "advantage")).or_none("'loss'"),
    "kl_estimator": one_of(KlEstimator).or_none("the usual one of kl_in"),
    "kl_reference": Kind(
        lambda value: value is None or whole(0).fits(value), "the step of a checkpoint, 0 for the untrained model"
    ),
    "roles": Kind(_are_roles, "names of roles, such as roles=('worker',)"),
}
