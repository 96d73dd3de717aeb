"""What a person is told of a step, in one line. Pure."""

from __future__ import annotations

from collections.abc import Mapping

_FIGURES = (
    ("reward", "reward/mean", ".3f"),
    ("loss", "train/loss", ".4g"),
    ("mismatch KL", "mismatch/kl", ".2g"),
    ("KL to reference", "train/kl_reference", ".2g"),
    ("entropy", "train/entropy", ".2f"),
)
_RATE = "tokens/sampled_per_s"


def format_duration(seconds: float) -> str:
    """`75` -> `1m15s`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def step_figures(metrics: Mapping[str, float]) -> str:
    """Those figures of a step's report that a person looks at first, as far as it has them."""
    parts = [f"{label} {metrics[name]:{form}}" for label, name, form in _FIGURES if name in metrics]
    if _RATE in metrics:
        parts.append(f"{metrics[_RATE]:.0f} tokens/s")
    times = [
        f"{what} {format_duration(metrics[name])}"
        for what, name in (("rollouts", "time/rollout_s"), ("training", "time/train_s"))
        if name in metrics
    ]
    return " · ".join([*parts, *times])


def time_left(seconds_each: float, num_left: int) -> str:
    """`about 5m00s left`; empty where nothing is."""
    return f"about {format_duration(seconds_each * num_left)} left" if num_left > 0 else ""
