"""Symptoms in groups and rewards: whether there is something to learn from. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from art_core.doctor.history import FIRST, RunHistory, Step, finding, lasting, pooled, worst_of, worst_share
from art_core.types import Finding

NO_SIGNAL_SHARE = 0.7
NO_SIGNAL_GROUPS = 4
"""A share of fewer groups is chance."""
LASTING_STEPS = 3
"""Steps in a row after which what may be chance is none."""
TOO_SMALL_SHARE = 0.5
MIXED_SHARE = 0.5
MIXED_GROUPS = 4
UNSCORED_SHARE = 0.1
UNSCORED_PROBLEM_SHARE = 0.5
CONSTANT_REWARDS = 8
"""Equal rewards over three steps or more, of at least so many trajectories, are no chance."""
USUAL_REWARD = 100.0
"""A reward further from 0 is unusual, where no range was stated."""
EQUAL = 1e-6
"""Rewards of a group that differ by no more have no signal."""
_SOLVED = ("all_best", "without_signal")
REWARD_JUMP = 20.0
"""Times the largest reward of all steps before."""


def no_signal(history: RunHistory) -> Finding | None:
    """In most groups all members have the same reward, so that none is better than another."""
    series = history.rollouts
    part, whole = ("groups/without_signal",), ("groups/total",)
    hits = pooled(series, part, whole, at_least=NO_SIGNAL_SHARE, least_whole=NO_SIGNAL_GROUPS)
    empty = lasting(series, _teaches_nothing, least=LASTING_STEPS)
    seen = [step for step in series if step in empty or any(step is hit.step for hit in hits)]
    if not seen:
        return None
    best, worst, tied, without, total = (
        sum(step.metrics.get(f"groups/{name}", 0.0) for step in seen)
        for name in ("all_best", "all_worst", "all_tied", "without_signal", "total")
    )
    evidence = f"in {without:.0f} of {total:.0f} groups all rewards are equal"
    if best or worst or tied:
        evidence += f": {best:.0f} all at the best, {worst:.0f} all at the worst, {tied:.0f} tied between"
    rewards = [step.metrics[name] for step in seen for name in ("reward/min", "reward/max") if name in step.metrics]
    spread = max(rewards, default=0.0) - min(rewards, default=0.0)
    if 0.0 < spread <= EQUAL:
        remedy = f"Scale the rewards up: they differ, by {spread:.2g}, but up to {EQUAL:g} is taken for rounding"
        return finding("no-signal", "problem" if empty else "warning", seen, series, evidence, remedy)
    reasons = [
        (best, "Most tasks are solved already: take harder ones, or stop here"),
        (worst, "Most tasks are never solved: take easier ones, a reward in parts, or a supervised warm-up first"),
        (tied, "The judge or the reward does not tell the attempts apart: grade in finer steps"),
    ]
    most, remedy = max(reasons, key=lambda reason: reason[0])
    if not most:
        remedy = "Take tasks that are solved sometimes, a reward in parts, or a larger group"
    return finding("no-signal", "problem" if empty else "warning", seen, series, evidence, remedy)


def groups_too_small(history: RunHistory) -> Finding | None:
    """Groups with fewer than two scored members cannot be compared."""
    part, whole = ("groups/too_small",), ("groups/total",)
    hits = pooled(history.rollouts, part, whole, at_least=TOO_SMALL_SHARE, least_whole=2)
    if not hits:
        return None
    last = hits[-1]
    return finding(
        "groups-too-small",
        "warning",
        [hit.step for hit in hits],
        history.rollouts,
        f"{last.part:.0f} of {last.whole:.0f} groups have fewer than two members with a reward",
        "Give each task several attempts; where members failed, mend that first",
    )


def groups_mixed(history: RunHistory) -> Finding | None:
    """Groups whose members were not asked the same."""
    part, whole = ("groups/mixed",), ("groups/total",)
    hits = pooled(history.rollouts, part, whole, at_least=MIXED_SHARE, least_whole=MIXED_GROUPS)
    if not hits:
        return None
    return finding(
        "groups-mixed",
        "note",
        [hit.step for hit in hits],
        history.rollouts,
        f"in {hits[-1].part:.0f} of {hits[-1].whole:.0f} groups no prompt is the same in all members",
        "Harmless where prompts hold a time or a random name; else give each task a group of its own: advantages "
        "compare attempts at one task",
    )


def judge_failures(history: RunHistory) -> Finding | None:
    """Members without a reward that did not fail themselves."""
    part, whole = ("trajectories/unscored",), ("trajectories/total",)
    hits = pooled(history.rollouts, part, whole, at_least=UNSCORED_SHARE, least_whole=4)
    if not hits:
        return None
    worst = worst_of(hits)
    return finding(
        "judge-failures",
        "problem" if worst.share >= UNSCORED_PROBLEM_SHARE else "warning",
        [hit.step for hit in hits],
        history.rollouts,
        f"{worst_share(hits)} trajectories got no score",
        "Look at their errors (`art runs show NAME --step N`): the judge's key, its limits, or answers it cannot parse",
    )


def reward_constant(history: RunHistory) -> Finding | None:
    """All rewards of the whole run are the same."""
    series = [step for step in history.rollouts if "reward/min" in step.metrics]
    if len(series) < FIRST or sum(step.metrics.get("trajectories/total", 0.0) for step in series) < CONSTANT_REWARDS:
        return None
    low, high = (pick(step.metrics[f"reward/{pick.__name__}"] for step in series) for pick in (min, max))
    if high > low or _all_solved(series):  # rewards that hardly differ are told as no signal
        return None
    return finding(
        "reward-constant",
        "problem",
        series,
        history.rollouts,
        f"every reward of {len(series)} steps is {low:g}",
        "The reward does not depend on what the model does: check the function that gives it, on answers good and bad; "
        "if it is right, no attempt ever does better: take easier tasks, or a reward in parts",
    )


def reward_out_of_range(history: RunHistory) -> Finding | None:
    """Rewards outside of what was stated, or of what is usual."""
    low, high = history.reward_range or (-USUAL_REWARD, USUAL_REWARD)
    seen = [
        step
        for step in history.rollouts
        if "reward/min" in step.metrics and not low <= step.metrics["reward/min"] <= step.metrics["reward/max"] <= high
    ]
    if not seen:
        return None
    found = min(step.metrics["reward/min"] for step in seen), max(step.metrics["reward/max"] for step in seen)
    named = "stated" if history.reward_range else "usual"
    return finding(
        "reward-out-of-range",
        "problem" if history.reward_range else "warning",
        seen,
        history.rollouts,
        f"rewards from {found[0]:g} to {found[1]:g}; {named} are {low:g} to {high:g}",
        "Look for a unit or a sum that grew; advantages are scaled within a group, so one outlier silences its group",
    )


def reward_scale_jump(history: RunHistory) -> Finding | None:
    """Rewards are suddenly of another size."""
    series = [step for step in history.rollouts if "reward/min" in step.metrics]
    seen: list[Step] = []
    text = ""
    before: list[float] = []
    for step, previous in zip(series, (None, *series), strict=False):
        if previous is not None and history.forgot_between(previous, step):
            before.clear()  # rewards that grew slowly meanwhile are no jump
        size = max(abs(step.metrics["reward/min"]), abs(step.metrics["reward/max"]))
        if len(before) >= FIRST and size >= REWARD_JUMP * max(before) > 0.0:
            seen.append(step)
            text = f"rewards up to {size:g} after at most {max(before):g} (median {median(before):g})"
        else:
            before.append(size)
    if not seen:
        return None
    return finding(
        "reward-scale-jump",
        "warning",
        seen,
        history.rollouts,
        text,
        "The reward function, or the judge behind it, changed: rewards of before and after cannot be compared",
    )


def _all_solved(series: Sequence[Step]) -> bool:
    """Whether every group that could be compared earned the best reward, as far as that was counted."""
    best, without = (sum(step.metrics.get(f"groups/{name}", 0.0) for step in series) for name in _SOLVED)
    return best >= without > 0.0


def _teaches_nothing(step: Step) -> bool:
    total = step.metrics.get("groups/total", 0.0)
    without = step.sum(("groups/without_signal", "groups/too_small")) or 0.0
    return total > 0 and without >= total and step.metrics.get("groups/without_signal", 0.0) > 0
