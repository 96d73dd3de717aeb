"""The losses of `art_core.types.Objective`, as pure functions of log-probabilities. `T` is a number of tokens.

Each is summed over the trained tokens and divided by `denominator`, the trained tokens of the whole optimiser step, so
splitting a step into micro-batches leaves the gradient unchanged, and every trained token of a step weighs the same.
Positions where `trained_T` is False may hold any value, NaN included.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from art_core.types import Objective


def ppo_loss(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    trained_T: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    denominator: int,
) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) with the token's probability ratio r = exp(logp - old_logp).

    Schulman et al. 2017 (arXiv 1707.06347), the upper clip apart from the lower one as in DAPO (arXiv 2503.14476).
    """
    ratio = torch.exp(logp_T[trained_T] - old_logp_T[trained_T])
    advantage = advantage_T[trained_T]
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage)
    return -surrogate.sum() / denominator


def cispo_loss(
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    trained_T: Tensor,
    *,
    clip_high: float,
    denominator: int,
) -> Tensor:
    """-min(r, 1 + clip_high) A logp, no gradient flowing through the ratio r (MiniMax-M1, arXiv 2506.13585)."""
    logp = logp_T[trained_T]
    weight = torch.exp(logp.detach() - old_logp_T[trained_T]).clamp(max=1.0 + clip_high)
    return -(weight * advantage_T[trained_T] * logp).sum() / denominator


def sft_loss(logp_T: Tensor, trained_T: Tensor, *, denominator: int) -> Tensor:
    """Cross-entropy of the trained tokens."""
    return -logp_T[trained_T].sum() / denominator


def objective_loss(
    objective: Objective,
    logp_T: Tensor,
    old_logp_T: Tensor,
    advantage_T: Tensor,
    trained_T: Tensor,
    *,
    denominator: int,
) -> Tensor:
    """The loss that `objective` names, with its clip limits."""
    if objective.loss == "sft":
        return sft_loss(logp_T, trained_T, denominator=denominator)
    if objective.loss == "cispo":
        return cispo_loss(
            logp_T, old_logp_T, advantage_T, trained_T, clip_high=objective.clip_high, denominator=denominator
        )
    return ppo_loss(
        logp_T,
        old_logp_T,
        advantage_T,
        trained_T,
        clip_low=objective.clip_low,
        clip_high=objective.clip_high,
        denominator=denominator,
    )


@dataclass(frozen=True)
class PolicyShift:
    """How far the policy is from the one that sampled, summed over tokens so that parts of a step can be added up."""

    tokens: int = 0
    ratio_sum: float = 0.0
    kl_sum: float = 0.0
    clipped: int = 0
    max_abs_log_ratio: float = 0.0

    def __add__(self, other: PolicyShift) -> PolicyShift:
        return PolicyShift(
            self.tokens + other.tokens,
            self.ratio_sum + other.ratio_sum,
            self.kl_sum + other.kl_sum,
            self.clipped + other.clipped,
            max(self.max_abs_log_ratio, other.max_abs_log_ratio),
        )

    def metrics(self) -> dict[str, float]:
        """Means over the tokens, under the names used in step reports."""
        count = max(self.tokens, 1)
        return {
            "train/ratio_mean": self.ratio_sum / count,
            "mismatch/kl": self.kl_sum / count,
            "train/clip_share": self.clipped / count,
            "mismatch/logprob_diff_max": self.max_abs_log_ratio,
        }


@torch.no_grad()
def policy_shift(
    objective: Objective, logp_T: Tensor, old_logp_T: Tensor, advantage_T: Tensor, trained_T: Tensor
) -> PolicyShift:
    """Statistics of the probability ratio r between the current policy and the sampler, over the trained tokens.

    `kl_sum` adds r - 1 - log r, an unbiased and never negative estimate of KL(sampler, policy) (Schulman,
    "Approximating KL divergence", k3). `clipped` counts the tokens whose gradient the clip removes (`ppo`) or limits
    (`cispo`).
    """
    log_ratio = (logp_T[trained_T] - old_logp_T[trained_T]).double()
    ratio = log_ratio.exp()
    above = ratio > 1.0 + objective.clip_high
    if objective.loss == "ppo":
        advantage = advantage_T[trained_T]
        below = ratio < 1.0 - objective.clip_low
        clipped = (above & (advantage > 0)) | (below & (advantage < 0))
    else:
        clipped = above
    return PolicyShift(
        tokens=log_ratio.numel(),
        ratio_sum=float(ratio.sum()),
        kl_sum=float((ratio - 1.0 - log_ratio).sum()),
        clipped=int(clipped.sum()),
        max_abs_log_ratio=float(log_ratio.abs().max()) if log_ratio.numel() else 0.0,
    )
