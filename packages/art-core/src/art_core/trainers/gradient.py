"""The gradient of one optimiser step, summed over its micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from art_core.errors import NonFiniteLossError
from art_core.trainers.batch import TokenBatch
from art_core.trainers.loss import PolicyShift, objective_loss, policy_shift
from art_core.trainers.policy import LoraPolicy
from art_core.types import Objective, TokenSample

_LARGEST_LOG_RATIO = math.log(torch.finfo(torch.float32).max)


@dataclass
class StepSums:
    """What the micro-batches of a step add up to. `loss` is that of the whole step; `entropy` a sum over tokens.

    `shift` stays empty for `sft`, which compares with no sampler.
    """

    num_trained: int
    loss: float = 0.0
    entropy: float = 0.0
    shift: PolicyShift = field(default_factory=PolicyShift)


def accumulate_gradient(
    policy: LoraPolicy,
    rows: Sequence[TokenSample],
    batches: Sequence[TokenBatch],
    objective: Objective,
    *,
    on_layer: Callable[[], None] = lambda: None,
) -> StepSums:
    """Add the gradient of `objective` over `batches`, packed from `rows`, to the `grad` of the policy's parameters.

    The loss is the mean over all trained tokens of all batches. `on_layer` is called in every layer, forward and
    backward; what it raises ends the computation.

    Raises:
        NonFiniteLossError: tokens of a batch would make loss or gradient NaN or infinite; the message names their
            trajectories.
    """
    sums = StepSums(num_trained=sum(len(batch.targets) for batch in batches))
    for batch in batches:
        logp_U, entropy_U = policy.logprobs(batch, on_layer=on_layer)
        prediction_T = torch.tensor([target.prediction for target in batch.targets], device=policy.device)
        old_logp_T = torch.tensor([target.logprob for target in batch.targets], device=policy.device)
        advantage_T = torch.tensor([target.advantage for target in batch.targets], device=policy.device)
        trained_T = torch.ones_like(prediction_T, dtype=torch.bool)
        logp_T = logp_U[prediction_T]
        _check_finite(batch, rows, objective, logp_T, old_logp_T)
        loss = objective_loss(objective, logp_T, old_logp_T, advantage_T, trained_T, denominator=sums.num_trained)
        loss.backward()  # type: ignore[no-untyped-call]
        sums.loss += float(loss.detach())
        sums.entropy += float(entropy_U[prediction_T].sum())
        if objective.loss != "sft":
            sums.shift += policy_shift(objective, logp_T.detach(), old_logp_T, advantage_T, trained_T)
    return sums


def _check_finite(
    batch: TokenBatch, rows: Sequence[TokenSample], objective: Objective, logp_T: Tensor, old_logp_T: Tensor
) -> None:
    """Refuse tokens whose share of loss or gradient is not finite, naming the trajectories and the number at fault."""
    found: dict[str, str] = {}
    for target, logp, old_logp in zip(batch.targets, logp_T.tolist(), old_logp_T.tolist(), strict=True):
        if not math.isfinite(logp):
            reason = f"the model's logprob is {logp}"
        elif objective.loss == "sft":
            continue
        elif not math.isfinite(old_logp):
            reason = f"a recorded logprob is {old_logp}"
        elif not math.isfinite(target.advantage):
            reason = f"the advantage is {target.advantage}"
        elif logp - old_logp > _LARGEST_LOG_RATIO:
            reason = f"a recorded logprob is {old_logp:.4g} where the policy says {logp:.4g}"
        else:
            continue
        found.setdefault(rows[target.row].trajectory_id, reason)
    if found:
        named = "; ".join(f"trajectory {name!r}: {reason}" for name, reason in list(found.items())[:3])
        raise NonFiniteLossError(
            f"loss or gradient would not be finite, because of {named}{'; and more' if len(found) > 3 else ''}. "
            "Nothing was changed. Find out where these numbers come from, or leave the trajectories out"
        )
