"""How far apart sampler, policy and reference are: what a step reports about it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from art_core.objective import Objective
from art_core.trainers.loss import ScoredTokens, kl_estimate, mismatch_ratio, probability_ratio


@dataclass(frozen=True)
class PolicyShift:
    """Sums over trained tokens, so that parts of a step can be added up. `kl_loss` is weighted as the loss is.

    `kl_mismatch` adds k3 estimates of KL(sampler, policy as the step began), `max_mismatch` and `max_mismatch_ratio`
    are those of the worst token. `corrected` counts the tokens whose weight was truncated or masked, `clipped` those
    whose gradient the clip removes (or, for `cispo`, limits).
    """

    tokens: int = 0
    ratio: float = 0.0
    clipped: int = 0
    kl_mismatch: float = 0.0
    max_mismatch: float = 0.0
    max_mismatch_ratio: float = 0.0
    corrected: int = 0
    kl_reference: float | None = None
    kl_loss: float = 0.0

    def __add__(self, other: PolicyShift) -> PolicyShift:
        references = [part.kl_reference for part in (self, other) if part.kl_reference is not None]
        return PolicyShift(
            tokens=self.tokens + other.tokens,
            ratio=self.ratio + other.ratio,
            clipped=self.clipped + other.clipped,
            kl_mismatch=self.kl_mismatch + other.kl_mismatch,
            max_mismatch=max(self.max_mismatch, other.max_mismatch),
            max_mismatch_ratio=max(self.max_mismatch_ratio, other.max_mismatch_ratio),
            corrected=self.corrected + other.corrected,
            kl_reference=sum(references) if references else None,
            kl_loss=self.kl_loss + other.kl_loss,
        )

    def metrics(self) -> dict[str, float]:
        """Means over the tokens, under the names used in step reports."""
        count = max(self.tokens, 1)
        metrics = {
            "train/ratio_mean": self.ratio / count,
            "train/clip_share": self.clipped / count,
            "mismatch/kl": self.kl_mismatch / count,
            "mismatch/logprob_diff_max": self.max_mismatch,
            "mismatch/ratio_max": self.max_mismatch_ratio,
            "mismatch/corrected_share": self.corrected / count,
        }
        if self.kl_reference is not None:
            metrics |= {"train/kl_reference": self.kl_reference / count, "train/kl_loss": self.kl_loss}
        return metrics


@torch.no_grad()
def policy_shift(objective: Objective, tokens: ScoredTokens) -> PolicyShift:
    """The statistics of `tokens`, in float64."""
    if not tokens.logp.numel():
        return PolicyShift()
    mismatch = (tokens.old_logp - tokens.sampler_logp).double()
    ratio = probability_ratio(objective, tokens).double()
    clipped = 0
    if objective.clip_high is not None:
        above = ratio > 1.0 + objective.clip_high
        if objective.clip_low is not None:
            below = ratio < 1.0 - objective.clip_low
            above = (above & (tokens.advantage > 0)) | (below & (tokens.advantage < 0))
        clipped = int(above.sum())
    corrected = 0
    if objective.correction != "none":
        corrected = int((mismatch_ratio(objective, tokens) > objective.correction_max).sum())
    kl_reference, kl_loss = None, 0.0
    if tokens.reference_logp is not None:
        kl_reference = float(kl_estimate(tokens.logp.double(), tokens.reference_logp.double(), "k3").sum())
        if objective.kl_in == "loss":
            kl = kl_estimate(tokens.logp, tokens.reference_logp, objective.kl_estimator)
            kl_loss = objective.kl_coef * float((ratio * kl * tokens.weight).sum())
    return PolicyShift(
        tokens=ratio.numel(),
        ratio=float(ratio.sum()),
        clipped=clipped,
        kl_mismatch=float((mismatch.exp() - 1.0 - mismatch).sum()),
        max_mismatch=float(mismatch.abs().max()),
        max_mismatch_ratio=float(mismatch.exp().max()),
        corrected=corrected,
        kl_reference=kl_reference,
        kl_loss=kl_loss,
    )
