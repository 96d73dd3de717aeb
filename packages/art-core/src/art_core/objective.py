"""What a training step minimises: the losses, their defaults, and the options that change them. Plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from art_core.errors import ConfigError
from art_core.options import check_options, number, one_of, whole

LossName = Literal["ppo", "dapo", "dr_grpo", "gspo", "cispo", "reinforce", "sft"]
Aggregation = Literal["token", "trajectory", "row", "constant"]
Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask", "none"]
KlEstimator = Literal["k1", "k3"]
ScaleRewards = Literal["group", "batch", "none"]
Baseline = Literal["mean", "leave_one_out"]


@dataclass(frozen=True, kw_only=True)
class LossDefaults:
    """What a loss means where an option is not given. A clip limit of None is one that the loss does not have."""

    clip_low: float | None
    clip_high: float | None
    aggregation: Aggregation
    scale_rewards: ScaleRewards = "group"


LOSSES: Mapping[LossName, LossDefaults] = {
    "ppo": LossDefaults(clip_low=0.2, clip_high=0.28, aggregation="trajectory"),
    "dapo": LossDefaults(clip_low=0.2, clip_high=0.28, aggregation="token"),
    "dr_grpo": LossDefaults(clip_low=0.2, clip_high=0.2, aggregation="constant", scale_rewards="none"),
    "gspo": LossDefaults(clip_low=3e-4, clip_high=4e-4, aggregation="trajectory"),
    "cispo": LossDefaults(clip_low=None, clip_high=4.0, aggregation="token"),
    "reinforce": LossDefaults(clip_low=None, clip_high=None, aggregation="trajectory"),
    "sft": LossDefaults(clip_low=None, clip_high=None, aggregation="token"),
}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """What one step minimises: `loss` of each trained token, averaged as `aggregation` says. docs/training.md has the
    formulas and their sources.

    `clip_low`, `clip_high`, `aggregation`: None stands for the loss's own, see `LOSSES`; after construction they are
    what is used. `constant_length` is the divisor of the `constant` aggregation, in tokens per trajectory.

    A step makes `epochs` passes over its rows in `minibatches` parts, one optimiser update each. All of them compare
    with the log-probabilities of the policy as it was when the step began.

    `correction` weights each token by how much likelier it was to that policy than to the sampler (which computes in
    another order, or in other number formats), truncated at `correction_max` or left out above it, per token or by the
    product over its row.

    `kl_coef` keeps the policy near a reference: the starting weights, or the adapter in the folder `kl_reference`. With
    `kl_in="loss"` the estimate is added to the loss, with `"advantage"` it is taken off the token's advantage, less its
    mean over the step. With `sft` there is none.
    """

    loss: LossName = "ppo"
    learning_rate: float = 1e-5
    clip_low: float | None = None
    clip_high: float | None = None
    aggregation: Aggregation | None = None
    constant_length: int = 1024
    epochs: int = 1
    minibatches: int = 1
    correction: Correction = "token_truncate"
    correction_max: float = 2.0
    kl_coef: float = 0.0
    kl_in: Literal["loss", "advantage"] = "loss"
    kl_estimator: KlEstimator = "k3"
    kl_reference: Path | None = None

    def __post_init__(self) -> None:
        check_options(self, _KINDS)
        defaults = LOSSES[self.loss]
        for name in ("clip_low", "clip_high"):
            own, given = getattr(defaults, name), getattr(self, name)
            if own is None and given is not None:
                raise ConfigError(f"loss {self.loss!r} has no {name}, so {name}={given} would do nothing; leave it out")
            object.__setattr__(self, name, own if given is None else given)
        object.__setattr__(self, "aggregation", self.aggregation or defaults.aggregation)
        if self.loss == "sft" and self.kl_coef:
            raise ConfigError(f"loss 'sft' has no KL term, so kl_coef={self.kl_coef} would do nothing; leave it out")
        if self.loss == "reinforce" and self.updates > 1:
            raise ConfigError(
                f"loss 'reinforce' has no ratio to the policy that sampled, so a second update on the same rows "
                f"(epochs={self.epochs}, minibatches={self.minibatches}) would be off-policy; use 'ppo' or 'cispo'"
            )

    @property
    def updates(self) -> int:
        """Optimiser updates of a step that has enough trajectories for its minibatches."""
        return self.epochs * self.minibatches


_KINDS = {
    "loss": one_of(LossName),
    "learning_rate": number(0.0),  # at 0 a step must change nothing: `art selftest` looks
    "clip_low": number(0.0, 1.0, above=True).or_none("the loss's own"),
    "clip_high": number(0.0, above=True).or_none("the loss's own"),
    "aggregation": one_of(Aggregation).or_none("the loss's own"),
    "constant_length": whole(1),
    "epochs": whole(1),
    "minibatches": whole(1),
    "correction": one_of(Correction),
    "correction_max": number(1.0, why=": a limit below 1 would cut tokens about which sampler and trainer agree"),
    "kl_coef": number(0.0),
    "kl_in": one_of(("loss", "advantage")),
    "kl_estimator": one_of(KlEstimator),
}
