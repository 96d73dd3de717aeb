"""What a person is told of a step, and of how far something has come, in one line. Pure."""

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


def progress_line(place: str, *notes: str, left_s: float | None = None) -> str:
    """`update 3 of 9: loss 0.5 · about 5m00s left`: how far something is, what to say of it, and the time left.

    Notes that are empty are left out, and so is the time where nothing is left, or nobody knows.
    """
    left = f"about {format_duration(left_s)} left" if left_s is not None and left_s > 0 else ""
    said = " · ".join(note for note in (*notes, left) if note)
    return f"{place}: {said}" if said else place
