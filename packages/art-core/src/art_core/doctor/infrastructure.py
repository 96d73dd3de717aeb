"""Symptoms around the training: failures, gaps in the record, speed, checkpoints. Pure."""

from __future__ import annotations

from collections import Counter
from statistics import median

from art_core.doctor.history import RunHistory, Step, finding, lasting, pooled, spans, worst_of, worst_share
from art_core.types import Finding

FAILED_SHARE = 0.1
FAILED_PROBLEM_SHARE = 0.5
LEAST = 4
THROUGHPUT_SHARE = 0.2
"""Of the median of the steps before."""
THROUGHPUT_STEPS = 3
THROUGHPUT_AFTER = 5
"""Steps before which there is no usual throughput."""
RECENT = 50
"""Steps that say what is usual."""


def failed_rollouts(history: RunHistory) -> Finding | None:
    """Rollouts that failed for reasons the policy is not responsible for."""
    part, whole = ("trajectories/failed",), ("trajectories/total",)
    hits = pooled(history.rollouts, part, whole, at_least=FAILED_SHARE, least_whole=LEAST)
    if not hits:
        return None
    worst = worst_of(hits)
    kinds = Counter[str]()
    for hit in hits:
        for name, value in hit.step.metrics.items():
            if name.startswith("errors/"):
                kinds[name.removeprefix("errors/")] += round(value)
    named = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(5))
    return finding(
        "failed-rollouts",
        "problem" if worst.share >= FAILED_PROBLEM_SHARE else "warning",
        [hit.step for hit in hits],
        history.rollouts,
        f"{worst_share(hits)} rollouts failed" + (f": {named}" if named else ""),
        "Mend the most frequent error first (`art runs show NAME --step N` has their messages)",
    )


def steps_missing(history: RunHistory) -> Finding | None:
    """Numbers that no step of the record has."""
    numbers = [step.number for step in history.numbered]
    if not numbers:
        return None
    missing = sorted(set(range(min(numbers), max(numbers))) - set(numbers) - history.forgotten)
    if not missing:
        return None
    around = [step for step in history.numbered if step.number - 1 in missing]
    return finding(
        "steps-missing",
        "warning",
        around,
        history.numbered,
        f"no report of {spans(missing)}",
        "The process ended between a checkpoint and its report, or the file was edited; training is not affected",
    )


def steps_twice(history: RunHistory) -> Finding | None:
    """Numbers that several steps of the record have."""
    counts = Counter(step.number for step in history.numbered)
    twice = {number for number, count in counts.items() if count > 1}
    if not twice:
        return None
    return finding(
        "steps-twice",
        "warning",
        [step for step in history.numbered if step.number in twice],
        history.numbered,
        f"{len(twice)} steps were made more than once",
        "The run went back to an earlier checkpoint, because a newer one was lost or deleted: see checkpoint-damaged",
    )


def calls_not_found(history: RunHistory) -> Finding | None:
    """Answers that were logged and whose calls the server does not know."""
    counts = {split: numbers.get("calls_not_found", 0.0) for split, numbers in history.logged.items()}
    if not any(counts.values()):
        return None
    named = ", ".join(f"{split} {count:.0f}" for split, count in counts.items() if count)
    return finding(
        "calls-not-found",
        "warning",
        (),
        (),
        f"logged answers without a recorded call: {named}",
        "They are another model's, or were dropped from the server's log: log before exchange_log_records calls more",
    ).model_copy(update={"current": True})


def logged_unscored(history: RunHistory) -> Finding | None:
    """Trajectories that were logged with neither a reward nor an error."""
    for split, numbers in history.logged.items():
        unscored, total = numbers.get("unscored", 0.0), numbers.get("trajectories", 0.0)
        if total >= LEAST and unscored / total >= FAILED_SHARE:
            return finding(
                "logged-unscored",
                "warning",
                (),
                (),
                f"{unscored:.0f} of {total:.0f} logged trajectories of split {split} have no reward",
                "Score them before they are logged; where a judge cannot, set trajectory.error",
            ).model_copy(update={"current": True})
    return None


def throughput_collapse(history: RunHistory) -> Finding | None:
    """The trainer computes much fewer tokens a second than before."""
    series = [step for step in history.made if step.metrics.get("train/tokens_per_s")]
    speeds = [step.metrics["train/tokens_per_s"] for step in series]
    slow: set[int] = set()
    usual = 0.0
    for index in range(THROUGHPUT_AFTER, len(series)):
        usual = median([speeds[place] for place in range(max(0, index - RECENT), index) if place not in slow] or [0.0])
        if speeds[index] <= THROUGHPUT_SHARE * usual:
            slow.add(index)
    places = {id(step): index for index, step in enumerate(series)}
    seen = lasting(series, lambda step: places[id(step)] in slow, least=THROUGHPUT_STEPS)
    if not seen:
        return None
    return finding(
        "throughput-collapse",
        "warning",
        seen,
        series,
        f"{seen[-1].metrics['train/tokens_per_s']:.0f} tokens/s in training, usual are {usual:.0f}",
        "Look for other processes, swapping, a hot or throttled machine; rows may also have become much shorter",
    )


def checkpoint_damaged(history: RunHistory) -> Finding | None:
    """Checkpoints that are not what was saved."""
    if not history.checkpoint_faults:
        return None
    step, fault = max(history.checkpoint_faults.items())
    return finding(
        "checkpoint-damaged",
        "problem",
        [Step(number, {}) for number in sorted(history.checkpoint_faults)],
        (),
        f"the checkpoint of step {step} cannot be used: {fault}",
        "The run goes on from the newest whole one; restore the folder from a copy, or delete it",
    ).model_copy(update={"current": True})
