"""Symptoms in what the model says and does. Pure."""

from __future__ import annotations

from art_core.doctor.history import RunHistory, Step, finding, lasting, pooled, worst_share
from art_core.types import Finding

REPETITIVE_SHARE = 0.3
IDENTICAL_SHARE = 0.5
MALFORMED_SHARE = 0.3
LEAST = 8
LEAST_GROUPS = 4
FEWEST_CALLS = 0.5
"""Calls per trajectory at the beginning, for tools to have been in use."""
DEAD_CALLS = 0.1
"""Of the calls per trajectory at the beginning."""
DEAD_STEPS = 2
UNUSED_STEPS = 3


def repeated_text(history: RunHistory) -> Finding | None:
    """Completions that go in circles."""
    part, whole = ("completions/repetitive",), ("completions/total",)
    hits = pooled(history.rollouts, part, whole, at_least=REPETITIVE_SHARE, least_whole=LEAST)
    if not hits:
        return None
    return finding(
        "repeated-text",
        "problem",
        [hit.step for hit in hits],
        history.rollouts,
        f"{worst_share(hits)} completions repeat themselves",
        "Read some (`art runs show NAME --trajectory ID`): the reward pays for length, or the policy is collapsing; go "
        "back to an earlier checkpoint with a lower learning rate",
    )


def same_answers(history: RunHistory) -> Finding | None:
    """All members of a group say the same, token for token, and it is not the best there is to say."""
    part, whole = ("groups/identical_not_best",), ("groups/total",)
    hits = pooled(history.rollouts, part, whole, at_least=IDENTICAL_SHARE, least_whole=LEAST_GROUPS)
    if not hits:
        return None
    return finding(
        "same-answers",
        "warning",
        [hit.step for hit in hits],
        history.rollouts,
        f"in {worst_share(hits)} groups every member gave the same completion, and not the best one",
        "Give each attempt another seed, or none, and see that no cache of answers stands between; if it is so, "
        "the policy has collapsed",
    )


def tool_use_dies_out(history: RunHistory) -> Finding | None:
    """Tools that were called at the beginning are not called any more, or never were."""
    series = [step for step in history.rollouts if step.metrics.get("tools/offered")]
    rates = {id(step): step.metrics.get("tools/calls", 0.0) / step.metrics["tools/offered"] for step in series}
    unused = lasting(series, lambda step: rates[id(step)] == 0.0, least=UNUSED_STEPS)
    first = max((rates[id(step)] for step in series[:UNUSED_STEPS]), default=0.0)
    if first < FEWEST_CALLS:
        if not unused or any(rates.values()):
            return None
        return _dead(
            unused,
            series,
            "tools-unused",
            f"no call in any of {sum(step.metrics['tools/offered'] for step in series):.0f} trajectories with tools",
            "Check that the tools reach the model and its format of calls is understood; warm up on demonstrations",
        )
    seen = lasting(series, lambda step: rates[id(step)] <= DEAD_CALLS * first, least=DEAD_STEPS)
    if not seen:
        return None
    return _dead(
        seen,
        series,
        "tool-use-dies-out",
        f"calls per trajectory fell from {first:.2g} to {rates[id(seen[-1])]:.2g}",
        "Answers without a call are paid as well or better: let the reward ask for what only a tool can tell",
    )


def malformed_calls(history: RunHistory) -> Finding | None:
    """Tool calls that cannot be read."""
    part, whole = ("tools/malformed",), ("tools/malformed", "tools/calls")
    hits = pooled(history.rollouts, part, whole, at_least=MALFORMED_SHARE, least_whole=LEAST)
    if not hits:
        return None
    return finding(
        "malformed-calls",
        "warning",
        [hit.step for hit in hits],
        history.rollouts,
        f"{worst_share(hits)} attempted tool calls could not be read",
        "Warm up on demonstrations, or require calls with tool_choice, which the grammar then keeps in form",
    )


def _dead(seen: list[Step], series: list[Step], name: str, evidence: str, remedy: str) -> Finding:
    return finding(name, "problem" if name == "tool-use-dies-out" else "warning", seen, series, evidence, remedy)
