"""All symptoms, and what they say about one run. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from art_core.doctor import groups, infrastructure, optimiser, rows, sampling, text
from art_core.doctor.history import RunHistory, Symptom
from art_core.types import Finding

SYMPTOMS: tuple[Symptom, ...] = (
    rows.empty_masks,
    optimiser.learning_rate_too_small,
    optimiser.steps_change_nothing,
    optimiser.canary_proves_nothing,
    groups.reward_constant,
    groups.no_signal,
    groups.groups_too_small,
    groups.groups_mixed,
    groups.judge_failures,
    groups.reward_out_of_range,
    groups.reward_scale_jump,
    infrastructure.failed_rollouts,
    optimiser.gradient_zero,
    optimiser.gradient_exploding,
    optimiser.gradient_always_clipped,
    optimiser.advantages_zero,
    optimiser.advantages_exploding,
    optimiser.clipped_tokens,
    sampling.sampler_mismatch,
    sampling.entropy_collapse,
    sampling.entropy_explosion,
    text.repeated_text,
    text.same_answers,
    text.tool_use_dies_out,
    text.malformed_calls,
    rows.truncation,
    rows.rows_dropped,
    rows.forks,
    infrastructure.checkpoint_damaged,
    infrastructure.steps_missing,
    infrastructure.steps_twice,
    infrastructure.calls_not_found,
    infrastructure.logged_unscored,
    infrastructure.throughput_collapse,
)
"""In the order in which those of equal severity are told: what causes others comes before them."""

_EXPLAINED = {
    "learning-rate-too-small": {"steps-change-nothing"},
    "reward-constant": {"no-signal"},
    "gradient-zero": {"steps-change-nothing"},
    "advantages-zero": {"gradient-zero", "steps-change-nothing"},
    "failed-rollouts": {"groups-too-small"},
    "judge-failures": {"groups-too-small"},
    "rows-dropped": {"groups-too-small"},
    "malformed-calls": {"tools-unused"},
}
"""What follows from a finding and is not told beside it."""
_SEVERITY = {"problem": 0, "warning": 1, "note": 2}


def diagnose(history: RunHistory) -> list[Finding]:
    """What is wrong with a run, worst first; of equal severity what is so now before what was."""
    found = [finding for symptom in SYMPTOMS if (finding := symptom(history)) is not None]
    explained = {name for finding in found for name in _EXPLAINED.get(finding.name, ())}
    return worst_first(finding for finding in found if finding.name not in explained)


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """`findings` by severity, and those that are current first."""
    return sorted(findings, key=lambda finding: (_SEVERITY[finding.severity], not finding.current))


def is_worse(severity: str, than: str) -> bool:
    """Whether one severity is above another."""
    return _SEVERITY[severity] < _SEVERITY[than]
