"""Symptoms of the optimiser: steps that change nothing, or too much. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from art_core.doctor.history import FIRST, RunHistory, Step, finding, lasting
from art_core.types import Finding, Severity

LEAST_LEARNING_RATE = 1e-8
"""AdamW moves each factor by about the learning rate; below this nothing is left of it in a model's answers."""
FALL = 0.1
"""Of the rate of the step before; a schedule that ends near 0 does not fall faster."""
LEAST_WEIGHT_CHANGE = 1e-9
LEAST_MOVEMENT = 1e-6
"""Nats by which the probe of the weight-sync canary must move at least, for it to tell new weights from old ones."""
UNMOVED_STEPS = 3
LEAST_GRADIENT = 1e-12
GRADIENT_JUMP = 20.0
"""Times the median of the steps before."""
RECENT = 50
"""Steps that say what is usual."""
LARGEST_GRADIENT = 1000.0
CLIPPED_STEPS = 10
LEAST_ADVANTAGE = 1e-6
LARGEST_ADVANTAGE = 10.0
CLIP_SHARES = {False: (0.3, 0.7), True: (0.8, 0.95)}
"""Shares of clipped tokens that are a warning and a problem, by whether the ratio is one of whole rows, as in `gspo`:
its clip range is a few ten-thousandths, and leaves out a large share of the rows in each update but the first."""


def learning_rate_too_small(history: RunHistory) -> Finding | None:
    """Steps whose learning rate cannot change what the model says, but for the end of a schedule that falls to it."""
    series = [step for step in history.made if "train/learning_rate" in step.metrics]
    seen: list[Step] = []
    before: float | None = None
    falling = False
    for step in series:
        rate = step.metrics["train/learning_rate"]
        falling = before is not None and (falling or before >= LEAST_LEARNING_RATE) and rate >= FALL * before
        if 0.0 < rate < LEAST_LEARNING_RATE and not falling:
            seen.append(step)
        before = rate
    if not seen:
        return None
    least = min(step.metrics["train/learning_rate"] for step in seen)
    return finding(
        "learning-rate-too-small",
        "problem",
        seen,
        series,
        f"the learning rate was {least:g}; below {LEAST_LEARNING_RATE:g} nothing is learned",
        "For LoRA 1e-5 to 1e-3 is usual",
    )


def steps_change_nothing(history: RunHistory) -> Finding | None:
    """Steps that were made and left the weights as they were."""
    return _where(
        history.made,
        "train/weight_change",
        lambda change: change < LEAST_WEIGHT_CHANGE,
        "steps-change-nothing",
        "problem",
        lambda changes: f"the adapter changed by {max(changes):.2g} at most",
        "Look at the learning rate, the gradient and the advantages: one of them is zero",
    )


def canary_proves_nothing(history: RunHistory) -> Finding | None:
    """The canary agreed because its probe did not move: old weights would have passed as well."""
    made = [step for step in history.made if {"canary/movement", "train/grad_norm"} <= set(step.metrics)]
    seen = lasting(made, lambda step: step.metrics["canary/movement"] < LEAST_MOVEMENT, least=UNMOVED_STEPS)
    if not seen:
        return None
    most = max(step.metrics["canary/movement"] for step in seen)
    return finding(
        "canary-proves-nothing",
        "warning",
        seen,
        made,
        f"the probe moved by {most:.2g} nats at most in {UNMOVED_STEPS} steps or more, so that the check of the served "
        "weights could not tell new ones from old",
        "Raise the learning rate; `art selftest` shows whether engine and trainer stay together when weights move",
    )


def gradient_zero(history: RunHistory) -> Finding | None:
    """Steps without a gradient."""
    return _where(
        history.made,
        "train/grad_norm",
        lambda norm: norm < LEAST_GRADIENT,
        "gradient-zero",
        "problem",
        lambda norms: f"the gradient's norm was {max(norms):.2g} at most",
        "Advantages are zero, or those of equal answers cancel, or every token is clipped or masked: look at "
        "train/advantage_abs_mean, groups/identical and train/clip_share",
    )


def gradient_exploding(history: RunHistory) -> Finding | None:
    """Steps whose gradient is many times that of the steps before."""
    series = [step for step in history.made if "train/grad_norm" in step.metrics]
    norms = [step.metrics["train/grad_norm"] for step in series]
    seen: list[Step] = []
    text = ""
    for index, (step, norm) in enumerate(zip(series, norms, strict=True)):
        usual = median(norms[max(0, index - RECENT) : index]) if index >= FIRST else 0.0
        if norm >= LARGEST_GRADIENT or (usual > LEAST_GRADIENT and norm >= max(1.0, GRADIENT_JUMP * usual)):
            seen.append(step)
            text = f"the gradient's norm reached {norm:.3g}" + (f", before {usual:.3g}" if usual else "")
    if not seen:
        return None
    return finding(
        "gradient-exploding",
        "warning" if len(seen) == 1 else "problem",
        seen,
        series,
        text,
        "Lower the learning rate or clip_high; look for rewards, or logprobs of the sampler, that jumped as well",
    )


def gradient_always_clipped(history: RunHistory) -> Finding | None:
    """The gradient is above its bound in every step, so that its size plays no part."""
    series = [step for step in history.made if "train/grad_clipped" in step.metrics]
    seen = lasting(series, lambda step: step.metrics["train/grad_clipped"] > 0.0, least=CLIPPED_STEPS)
    if not seen:
        return None
    norm = seen[-1].metrics.get("train/grad_norm")
    return finding(
        "gradient-always-clipped",
        "note",
        seen,
        series,
        f"clipped in {CLIPPED_STEPS} steps in a row or more" + (f", the last norm {norm:.3g}" if norm else ""),
        "Harmless where training goes well; else raise the trainer's grad_clip, or lower the learning rate",
    )


def advantages_zero(history: RunHistory) -> Finding | None:
    """Advantages so small that nothing pulls."""
    return _where(
        history.made,
        "train/advantage_abs_mean",
        lambda size: size < LEAST_ADVANTAGE,
        "advantages-zero",
        "problem",
        lambda sizes: f"the mean size of the advantages was {max(sizes):.2g} at most",
        "Rewards hardly differ within groups: scale them up, or have advantages divided by the group's deviation",
    )


def advantages_exploding(history: RunHistory) -> Finding | None:
    """Advantages so large that a few trajectories drown all others."""
    return _where(
        history.made,
        "train/advantage_abs_mean",
        lambda size: size > LARGEST_ADVANTAGE,
        "advantages-exploding",
        "warning",
        lambda sizes: f"the mean size of the advantages was up to {max(sizes):.3g}",
        "Scale the rewards down to about 1, or have advantages divided by the group's deviation",
    )


def clipped_tokens(history: RunHistory) -> Finding | None:
    """Most tokens are outside of the loss's clip range."""
    series = [step for step in history.made if "train/clip_share" in step.metrics]
    seen = [step for step in series if step.metrics["train/clip_share"] >= _clip_limits(step)[0]]
    if not seen:
        return None
    return finding(
        "clip-share",
        "problem" if any(s.metrics["train/clip_share"] >= _clip_limits(s)[1] for s in seen) else "warning",
        seen,
        series,
        f"up to {max(step.metrics['train/clip_share'] for step in seen):.0%} of the tokens were clipped",
        "The policy is far from the one that sampled: fewer epochs or minibatches, a lower learning rate",
    )


def _clip_limits(step: Step) -> tuple[float, float]:
    return CLIP_SHARES[step.metrics.get("train/row_ratio", 0.0) > 0.0]


def _where(
    series: Sequence[Step],
    metric: str,
    is_so: Callable[[float], bool],
    name: str,
    severity: Severity,
    evidence: Callable[[list[float]], str],
    remedy: str,
) -> Finding | None:
    """The steps at which `metric` was measured and `is_so`."""
    measured = [step for step in series if metric in step.metrics]
    seen = [step for step in measured if is_so(step.metrics[metric])]
    if not seen:
        return None
    return finding(name, severity, seen, measured, evidence([step.metrics[metric] for step in seen]), remedy)
