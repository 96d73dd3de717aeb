"""Histories of runs: a healthy one, and the same with something wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_core.doctor import RunHistory, Step, diagnose
from art_core.types import Finding

HEALTHY: Mapping[str, float] = {
    "step/skipped": 0.0,
    "groups/total": 8.0,
    "groups/without_signal": 2.0,
    "groups/too_small": 0.0,
    "groups/all_best": 1.0,
    "groups/all_worst": 1.0,
    "groups/all_tied": 0.0,
    "groups/identical": 0.0,
    "groups/identical_not_best": 0.0,
    "groups/mixed": 0.0,
    "trajectories/total": 64.0,
    "trajectories/failed": 1.0,
    "trajectories/unscored": 0.0,
    "trajectories/excluded": 1.0,
    "trajectories/trained": 47.0,
    "trajectories/without_tokens": 0.0,
    "trajectories/forks": 3.0,
    "completions/total": 128.0,
    "completions/truncated": 4.0,
    "completions/repetitive": 2.0,
    "tools/offered": 64.0,
    "tools/calls": 60.0,
    "tools/malformed": 3.0,
    "reward/mean": 0.4,
    "reward/min": 0.0,
    "reward/max": 1.0,
    "train/rows": 50.0,
    "train/learning_rate": 1e-5,
    "train/grad_norm": 0.8,
    "train/grad_clipped": 0.0,
    "train/entropy": 0.9,
    "train/clip_share": 0.02,
    "train/advantage_abs_mean": 0.8,
    "train/weight_change": 0.02,
    "train/tokens_per_s": 900.0,
    "mismatch/kl": 2e-4,
    "mismatch/logprob_diff_max": 0.05,
    "canary/error": 1e-6,
    "canary/movement": 1e-3,
}


def step(number: int, **changes: float) -> Step:
    """A healthy step with `changes`, whose names have `__` for `/`."""
    return Step(number, {**HEALTHY, **{name.replace("__", "/"): value for name, value in changes.items()}})


def history(*steps: Step, **fields: Any) -> RunHistory:
    return RunHistory(**{"steps": steps, "rollouts": steps, **fields})


def run(count: int = 3, **changes: float) -> RunHistory:
    """`count` steps, each with `changes`."""
    return history(*(step(number, **changes) for number in range(1, count + 1)))


def names(given: RunHistory) -> list[str]:
    return [finding.name for finding in diagnose(given)]


def only(given: RunHistory, name: str) -> Finding:
    """The one finding, which is called `name`."""
    found = diagnose(given)
    assert [finding.name for finding in found] == [name], [str(finding) for finding in found]
    return found[0]
