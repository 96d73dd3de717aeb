"""Symptoms between sampler and trainer, and of the policy's distribution. Pure."""

from __future__ import annotations

from art_core.doctor.history import RunHistory, Step, after_beginning, beginning, finding, lasting
from art_core.types import Finding

MISMATCH_KL = 0.02
MISMATCH_PROBLEM_KL = 0.2
MISMATCH_TOKEN = 2.0
"""Nats between sampler and trainer at the worst token; number formats explain up to a few tenths."""
COLLAPSED_ENTROPY = 0.1
"""Of the entropy of the first steps."""
LEAST_ENTROPY = 0.01
"""Nats a token below which nothing is tried any more."""
EXPLODED_ENTROPY = 3.0
EXPLODED_BY = 1.0
"""Nats that the entropy must have grown by as well."""
ENTROPY_STEPS = 2


def sampler_mismatch(history: RunHistory) -> Finding | None:
    """Engine and trainer give the same tokens other probabilities."""
    measured = [step for step in history.made if {"mismatch/kl", "mismatch/logprob_diff_max"} & set(step.metrics)]
    seen = [step for step in measured if _kl(step) >= MISMATCH_KL or _worst(step) >= MISMATCH_TOKEN]
    if not seen:
        return None
    kl, worst = max(map(_kl, seen)), max(map(_worst, seen))
    return finding(
        "sampler-mismatch",
        "problem" if kl >= MISMATCH_PROBLEM_KL else "warning",
        seen,
        measured,
        f"KL of sampler and trainer up to {kl:.2g} nats a token, worst token {worst:.2g} nats",
        "Give this run only what it sampled itself, use one dtype for engine and trainer, and see `art selftest`; the "
        "step's correction limits what this does to the gradient",
    )


def entropy_collapse(history: RunHistory) -> Finding | None:
    """The policy has stopped to try anything."""
    first = beginning(history.made, "train/entropy")
    if first is None:
        return None
    later = [step for step, _ in after_beginning(history.made, "train/entropy")]
    limit = max(LEAST_ENTROPY, COLLAPSED_ENTROPY * first) if first > LEAST_ENTROPY else 0.0
    seen = lasting(later, lambda step: step.metrics["train/entropy"] < limit, least=ENTROPY_STEPS)
    if not seen:
        return None
    return finding(
        "entropy-collapse",
        "problem",
        seen,
        later,
        f"entropy fell from {first:.3g} to {seen[-1].metrics['train/entropy']:.3g} nats a token",
        "Go back to an earlier checkpoint with a lower learning rate, a higher clip_high or a KL to the start; check "
        "that the reward cannot be had by one fixed answer",
    )


def entropy_explosion(history: RunHistory) -> Finding | None:
    """The policy falls apart into noise."""
    first = beginning(history.made, "train/entropy")
    if first is None:
        return None
    later = [step for step, _ in after_beginning(history.made, "train/entropy")]
    limit = max(EXPLODED_ENTROPY * first, first + EXPLODED_BY)
    seen = lasting(later, lambda step: step.metrics["train/entropy"] > limit, least=ENTROPY_STEPS)
    if not seen:
        return None
    return finding(
        "entropy-explosion",
        "problem",
        seen,
        later,
        f"entropy rose from {first:.3g} to {seen[-1].metrics['train/entropy']:.3g} nats a token",
        "Go back to an earlier checkpoint with a lower learning rate or a KL to the start",
    )


def _kl(step: Step) -> float:
    return step.metrics.get("mismatch/kl", 0.0)


def _worst(step: Step) -> float:
    return step.metrics.get("mismatch/logprob_diff_max", 0.0)
