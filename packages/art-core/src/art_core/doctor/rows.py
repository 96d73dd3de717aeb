"""Symptoms between trajectories and training rows: what is left out on the way. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from art_core.doctor.history import RunHistory, Step, finding, pooled, worst_of, worst_share
from art_core.types import Finding, Severity

EMPTY_SHARE = 0.1
DROPPED_SHARE = 0.1
FORKS_PER_TRAJECTORY = 1.0
TRUNCATED_SHARE = 0.3
TRUNCATED_PROBLEM_SHARE = 0.8
LEAST = 8
"""A share of fewer trajectories, rows or completions is chance."""
_DROPPED = {
    "trajectories/dropped_truncated": "trajectories/total",
    "trajectories/dropped_overlong": "trajectories/total",
    "trajectories/masked_truncated": "trajectories/total",
    "trajectories/masked_overlong": "trajectories/total",
    "rows/cut": "train/rows",
}
"""What options of the step leave out, and of what it is a part."""


def empty_masks(history: RunHistory) -> Finding | None:
    """Scored trajectories, or a whole step, without one token that could be trained."""
    part, members = ("trajectories/without_tokens",), ("trajectories/trained", "trajectories/without_tokens")
    hits = [hit.step for hit in pooled(history.steps, part, members, at_least=EMPTY_SHARE, least_whole=1)]
    hits = [step for step in hits if step.metrics["trajectories/without_tokens"] > _cut_empty(step)]
    idle = [
        step for step in history.steps if not step.made and _had_signal(step.metrics) and not _lost_to_options(step)
    ]
    seen = [step for step in history.steps if step in hits or step in idle]
    if not seen:
        return None
    empty = sum(step.metrics.get("trajectories/without_tokens", 0.0) for step in seen)
    of = sum(step.sum(members) or 0.0 for step in seen)
    evidence = f"{empty:.0f} of {of:.0f} scored trajectories have no token to train"
    if idle:
        evidence += f"; {len(idle)} steps were skipped for that although their rewards differed"
    return finding(
        "empty-masks",
        "problem" if idle else "warning",
        seen,
        history.steps,
        evidence,
        "Check `roles`, and that answers are not wholly forced by a grammar or empty: only sampled tokens are trained",
    )


def rows_dropped(history: RunHistory) -> Finding | None:
    """Trajectories that were dropped or masked, and rows that were cut, as too long for instance."""
    hits = [
        hit
        for name, whole in _DROPPED.items()
        for hit in pooled(history.steps, (name,), (whole,), at_least=DROPPED_SHARE, least_whole=1)
        if hit.part > 0
    ]
    lost = [step for step in history.steps if _lost_to_options(step)]
    seen = [
        step for step in history.steps if any(step is hit.step for hit in hits) or any(step is other for other in lost)
    ]
    if not seen:
        return None
    last = seen[-1].metrics
    evidence = ", ".join(
        f"{name} {last[name]:.0f}" + (f" of {last[of]:.0f}" if of in last else "")
        for name, of in _DROPPED.items()
        if last.get(name)
    )
    if lost:
        evidence += f"; {len(lost)} steps were skipped, since nothing else was left of them"
    causes = {name for name in _DROPPED for step in seen if step.metrics.get(name)}
    remedies = []
    if any(name.endswith("truncated") for name in causes):
        remedies.append("Raise max_tokens, or reward short answers: answers that end at their limit are left out")
    if any(not name.endswith("truncated") for name in causes):
        remedies.append("Shorten the rollouts (fewer turns), or raise max_row_tokens: what is cut is not learned")
    severity: Severity = "problem" if lost else "warning"
    return finding("rows-dropped", severity, seen, history.steps, evidence, ". ".join(remedies))


def forks(history: RunHistory) -> Finding | None:
    """Conversations that break into several rows because a prompt did not extend what was recorded before."""
    part, whole = ("trajectories/forks",), ("trajectories/trained",)
    hits = pooled(history.steps, part, whole, at_least=FORKS_PER_TRAJECTORY, least_whole=LEAST)
    if not hits:
        return None
    return finding(
        "forks",
        "warning",
        [hit.step for hit in hits],
        history.steps,
        f"{hits[-1].part:.0f} forks in {hits[-1].whole:.0f} trajectories",
        "Keep earlier messages as they were, and give back answers unchanged; sub-agents and compaction fork by "
        "nature, and cost only the prompt that is computed again",
    )


def truncation(history: RunHistory) -> Finding | None:
    """Completions that end at their limit of tokens."""
    part, whole = ("completions/truncated",), ("completions/total",)
    hits = pooled(history.rollouts, part, whole, at_least=TRUNCATED_SHARE, least_whole=LEAST)
    if not hits:
        return None
    worst = worst_of(hits)
    return finding(
        "truncation",
        "problem" if worst.share >= TRUNCATED_PROBLEM_SHARE else "warning",
        [hit.step for hit in hits],
        history.rollouts,
        f"{worst_share(hits)} completions were cut at max_tokens (finish_reason 'length')",
        "Raise max_tokens, or reward short answers: the model is graded on answers it could not finish",
    )


def _had_signal(metrics: Mapping[str, float]) -> bool:
    without = metrics.get("groups/without_signal", 0.0) + metrics.get("groups/too_small", 0.0)
    return metrics.get("groups/total", 0.0) > without


def _cut_empty(step: Step) -> float:
    """Rows of which nothing trained is left because they were cut: at least as many as trajectories."""
    return step.metrics.get("rows/cut_untrained", 0.0)


def _lost_to_options(step: Step) -> bool:
    """Whether no step was made because of what `truncated` and `overlong` leave out."""
    left_out = step.sum([name for name in _DROPPED if name != "rows/cut"]) or 0.0
    otherwise = step.metrics.get("trajectories/without_tokens", 0.0) - _cut_empty(step)
    return not step.made and left_out + _cut_empty(step) > 0 and otherwise <= 0
