"""The losses of `art_core.objective.Objective`, as pure functions of log-probabilities.

`T` is a number of trained tokens, those of `R` whole rows. Each loss is a tensor (T,), one value per token; what a step
minimises is their sum weighted by `ScoredTokens.weight`, which `art_core.trainers.aggregation` gives to the tokens of
the whole optimiser update. So splitting an update into micro-batches leaves the gradient unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from art_core.objective import Objective


@dataclass(frozen=True)
class ScoredTokens:
    """The trained tokens of `num_rows` whole rows, each field (T,) float32 but `row`, which is int64.

    `logp` is the policy's log-probability, with gradient; `old_logp` that of the policy as the step began;
    `sampler_logp` as recorded when the token was drawn; `reference_logp` that of the policy that KL is measured from.
    `row[t]` is the row of token t, from 0 to `num_rows` - 1.
    """

    logp: Tensor
    old_logp: Tensor
    sampler_logp: Tensor
    advantage: Tensor
    weight: Tensor
    row: Tensor
    num_rows: int
    reference_logp: Tensor | None = None


def ppo_loss(ratio: Tensor, advantage: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """-min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) of the probability ratio r = exp(logp - old_logp).

    Schulman et al. 2017 (arXiv 1707.06347), the upper clip apart from the lower one as in DAPO (arXiv 2503.14476).
    With the ratio of `sequence_ratio` it is GSPO (Zheng et al. 2025, arXiv 2507.18071).
    """
    return -torch.minimum(ratio * advantage, ratio.clamp(1.0 - clip_low, 1.0 + clip_high) * advantage)


def cispo_loss(logp: Tensor, ratio: Tensor, advantage: Tensor, *, clip_high: float) -> Tensor:
    """-min(r, 1 + clip_high) A logp, no gradient flowing through the ratio r (MiniMax-M1, arXiv 2506.13585)."""
    return -ratio.detach().clamp(max=1.0 + clip_high) * advantage * logp


def reinforce_loss(logp: Tensor, advantage: Tensor) -> Tensor:
    """-A logp (Williams 1992)."""
    return -advantage * logp


def sequence_ratio(log_ratio: Tensor, row: Tensor, num_rows: int) -> Tensor:
    """exp of the mean of `log_ratio` over the tokens of a row, for each of its tokens: GSPO's ratio."""
    sums = log_ratio.new_zeros(num_rows).index_add(0, row, log_ratio)
    counts = torch.bincount(row, minlength=num_rows).clamp(min=1).to(log_ratio.dtype)
    return torch.exp(sums / counts)[row]


def kl_estimate(logp: Tensor, reference_logp: Tensor, estimator: str) -> Tensor:
    """Estimates of KL(policy, reference) from tokens of the policy (Schulman 2020, "Approximating KL divergence").

    `k1` is logp - reference_logp: unbiased, of either sign. `k3` is exp(d) - d - 1 with d = reference_logp - logp:
    unbiased, never negative, and of lower variance where the two are close.
    """
    difference = reference_logp - logp
    return -difference if estimator == "k1" else torch.exp(difference) - difference - 1.0


@torch.no_grad()
def mismatch_ratio(objective: Objective, tokens: ScoredTokens) -> Tensor:
    """exp(old_logp - sampler_logp) of each token, for `sequence_*` corrections the product over the tokens of its row.

    It makes an expectation under the sampler one under the policy as the step began.
    """
    log_ratio = tokens.old_logp.detach() - tokens.sampler_logp
    if objective.correction.startswith("sequence"):
        log_ratio = log_ratio.new_zeros(tokens.num_rows).index_add(0, tokens.row, log_ratio)[tokens.row]
    return torch.exp(log_ratio)


def correction_weights(objective: Objective, tokens: ScoredTokens) -> Tensor:
    """What each token's loss is multiplied with because sampler and trainer disagree about its probability.

    With w of `mismatch_ratio`: `*_truncate` is min(w, correction_max) (truncated importance sampling, Ionides 2008;
    for this mismatch Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training"),
    `*_mask` is w, and 0 above correction_max.
    """
    if objective.correction == "none":
        return torch.ones_like(tokens.sampler_logp)
    ratio = mismatch_ratio(objective, tokens)
    if objective.correction.endswith("truncate"):
        return ratio.clamp(max=objective.correction_max)
    return ratio.masked_fill(ratio > objective.correction_max, 0.0)


def probability_ratio(objective: Objective, tokens: ScoredTokens) -> Tensor:
    """The ratio between the policy and the policy as the step began, per token, or for `gspo` per row."""
    log_ratio = tokens.logp - tokens.old_logp
    if objective.loss == "gspo":
        return sequence_ratio(log_ratio, tokens.row, tokens.num_rows)
    return torch.exp(log_ratio)


def token_losses(objective: Objective, tokens: ScoredTokens) -> tuple[Tensor, Tensor | None]:
    """The loss that `objective` names, and its KL term before `kl_coef`, each (T,); no KL term where there is none.

    The KL term is the estimate times the ratio, through which its gradient flows: only so is the mean of the gradient
    that of the KL itself, also where the ratio is 1 (DeepSeek-V3.2, arXiv 2512.02556).
    """
    if objective.loss == "sft":
        return -tokens.logp, None
    ratio = probability_ratio(objective, tokens)
    if objective.loss == "reinforce":
        loss = reinforce_loss(tokens.logp, tokens.advantage)
    elif objective.loss == "cispo":
        assert objective.clip_high is not None
        loss = cispo_loss(tokens.logp, ratio, tokens.advantage, clip_high=objective.clip_high)
    else:
        assert objective.clip_low is not None
        assert objective.clip_high is not None
        loss = ppo_loss(ratio, tokens.advantage, clip_low=objective.clip_low, clip_high=objective.clip_high)
    loss = loss * correction_weights(objective, tokens)
    if objective.kl_coef and objective.kl_in == "loss":
        assert tokens.reference_logp is not None
        return loss, ratio * kl_estimate(tokens.logp, tokens.reference_logp, objective.kl_estimator)
    return loss, None


def objective_loss(objective: Objective, tokens: ScoredTokens) -> Tensor:
    """What the tokens add to the loss of their optimiser update: a number with gradient."""
    loss, kl = token_losses(objective, tokens)
    if kl is not None:
        loss = loss + objective.kl_coef * kl
    return (loss * tokens.weight).sum()
