"""The gradient of one optimiser update, summed over its micro-batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from art_core.errors import NonFiniteLossError
from art_core.objective import Objective
from art_core.trainers.aggregation import token_weights
from art_core.trainers.batch import TokenBatch
from art_core.trainers.loss import ScoredTokens, kl_estimate, objective_loss
from art_core.trainers.policy import LoraPolicy
from art_core.trainers.shift import PolicyShift, policy_shift
from art_core.types import TokenSample

_LARGEST_LOG_RATIO = math.log(torch.finfo(torch.float32).max)


@dataclass(frozen=True)
class KnownRow:
    """What was computed for a row before the updates of its step, one number per trained token (N,), in order.

    None for what follows from the update's own forward pass: `old` is then the policy's log-probability itself, and
    `advantage` the row's.
    """

    old: Tensor | None = None
    reference: Tensor | None = None
    advantage: Tensor | None = None


@dataclass
class UpdateSums:
    """What the micro-batches of an update add up to. `loss` is that of the whole update; `entropy` a sum over tokens.

    `shift` stays empty for `sft`, which compares with no sampler.
    """

    num_trained: int
    loss: float = 0.0
    entropy: float = 0.0
    advantage: float = 0.0
    shift: PolicyShift = field(default_factory=PolicyShift)


def accumulate_gradient(
    policy: LoraPolicy,
    rows: Sequence[TokenSample],
    batches: Sequence[TokenBatch],
    objective: Objective,
    *,
    known: Sequence[KnownRow] = (),
    on_layer: Callable[[], None] = lambda: None,
) -> UpdateSums:
    """Add the gradient of `objective` on `rows`, packed into `batches`, to the `grad` of the policy's parameters.

    `known` has an entry for each row, or none at all. `on_layer` is called in every layer, forward and backward; what
    it raises ends the computation.

    Raises:
        NonFiniteLossError: tokens of a batch would make loss or gradient NaN or infinite; the message names their
            trajectories.
    """
    sums = UpdateSums(num_trained=sum(len(batch.targets) for batch in batches))
    weights = token_weights(rows, objective)
    for batch in batches:
        logp_U, entropy_U = policy.logprobs(batch, on_layer=on_layer)
        prediction_T = torch.tensor([target.prediction for target in batch.targets], device=policy.device)
        logp_T = logp_U[prediction_T]
        _check_finite(batch, rows, objective, logp_T)
        tokens = _scored(batch, logp_T, weights, known)
        loss = objective_loss(objective, tokens)
        loss.backward()  # type: ignore[no-untyped-call]
        sums.loss += float(loss.detach())
        sums.entropy += float(entropy_U[prediction_T].sum())
        sums.advantage += float(tokens.advantage.abs().sum())
        if objective.loss != "sft":
            sums.shift += policy_shift(objective, tokens)
    return sums


@torch.no_grad()
def row_logprobs(
    policy: LoraPolicy,
    rows: Sequence[TokenSample],
    batches: Sequence[TokenBatch],
    *,
    on_layer: Callable[[], None] = lambda: None,
) -> list[Tensor]:
    """For each row, the log-probability of each of its trained tokens (N,) under the policy as it is."""
    found: list[list[Tensor]] = [[] for _ in rows]
    for batch in batches:
        logp_U, _ = policy.logprobs(batch, on_layer=on_layer)
        for target in batch.targets:
            found[target.row].append(logp_U[target.prediction])
    return [torch.stack(values) if values else torch.empty(0, device=policy.device) for values in found]


def shaped_advantages(
    rows: Sequence[TokenSample], old: Sequence[Tensor], reference: Sequence[Tensor], objective: Objective
) -> list[Tensor]:
    """The advantage of each trained token, less `kl_coef` times how far its KL estimate is above the mean over all.

    That is a reward per token for staying near the reference, with the mean over the step as its baseline, as in
    Tinker's cookbook (`incorporate_kl_penalty`).
    """
    estimates = [kl_estimate(*pair, objective.kl_estimator) for pair in zip(old, reference, strict=True)]
    mean = torch.cat(estimates).mean()
    return [row.advantage - objective.kl_coef * (kl - mean) for row, kl in zip(rows, estimates, strict=True)]


def _scored(batch: TokenBatch, logp_T: Tensor, weights: Sequence[float], known: Sequence[KnownRow]) -> ScoredTokens:
    device = logp_T.device
    members = list(dict.fromkeys(target.row for target in batch.targets))
    place = {row: index for index, row in enumerate(members)}
    advantage_T = torch.tensor([target.advantage for target in batch.targets], device=device)
    old_T, reference_T = logp_T.detach(), None
    if known:
        of_rows = [known[row] for row in members]
        old_T = _joined([row.old for row in of_rows], otherwise=old_T)
        advantage_T = _joined([row.advantage for row in of_rows], otherwise=advantage_T)
        if of_rows[0].reference is not None:
            reference_T = _joined([row.reference for row in of_rows], otherwise=old_T)
    return ScoredTokens(
        logp=logp_T,
        old_logp=old_T,
        sampler_logp=torch.tensor([target.logprob for target in batch.targets], device=device),
        advantage=advantage_T,
        weight=torch.tensor([weights[target.row] for target in batch.targets], device=device),
        row=torch.tensor([place[target.row] for target in batch.targets], device=device),
        num_rows=len(members),
        reference_logp=reference_T,
    )


def _joined(parts: Sequence[Tensor | None], *, otherwise: Tensor) -> Tensor:
    given = [part for part in parts if part is not None]
    return torch.cat(given) if given else otherwise


def _check_finite(batch: TokenBatch, rows: Sequence[TokenSample], objective: Objective, logp_T: Tensor) -> None:
    """Refuse tokens whose share of loss or gradient is not finite, naming the trajectories and the number at fault."""
    found: dict[str, str] = {}
    for target, logp in zip(batch.targets, logp_T.tolist(), strict=True):
        if not math.isfinite(logp):
            reason = f"the model's logprob is {logp}"
        elif objective.loss == "sft":
            continue
        elif not math.isfinite(target.logprob):
            reason = f"a recorded logprob is {target.logprob}"
        elif not math.isfinite(target.advantage):
            reason = f"the advantage is {target.advantage}"
        elif logp - target.logprob > _LARGEST_LOG_RATIO:
            reason = f"a recorded logprob is {target.logprob:.4g} where the policy says {logp:.4g}"
        else:
            continue
        found.setdefault(rows[target.row].trajectory_id, reason)
    if found:
        named = "; ".join(f"trajectory {name!r}: {reason}" for name, reason in list(found.items())[:3])
        raise NonFiniteLossError(
            f"loss or gradient would not be finite, because of {named}{'; and more' if len(found) > 3 else ''}. "
            "Nothing was changed. Find out where these numbers come from, or leave the trajectories out"
        )
