"""What `model.log` is given, as metrics under their full names. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from art_core.errors import DataError
from art_core.metrics import is_of_training
from art_core.outcomes import group_averages, named_metrics
from art_core.trajectories import TrajectoryGroup


def logged_metrics(split: str, groups: Sequence[TrajectoryGroup], given: Mapping[str, float]) -> dict[str, float]:
    """The means over `groups`, and `given` in place of what has the same name.

    Raises:
        DataError: a value is not a finite number, or a name is one that training reports itself, such as `train/loss`:
            in histories and sinks nobody could tell the two apart.
    """
    means = named_metrics(split, {name: mean for name, (mean, _) in group_averages(groups).items()})
    own = named_metrics(split, given)
    refuse_names_of_training(split, means, "of trajectories")
    refuse_names_of_training(split, own, "given to log")
    return means | own


def refuse_names_of_training(split: str, metrics: Mapping[str, float], of: str) -> None:
    """Refuse `metrics`, by their full names, which training reports itself. `of` says where they come from.

    Raises:
        DataError: there is one.
    """
    if taken := sorted(filter(is_of_training, metrics)):
        area, _, name = taken[0].partition("/")
        shown = name if area == split else taken[0]
        raise DataError(
            f"metric {shown!r} {of} would be logged as {taken[0]!r}, which is what training itself reports by that "
            f"name; rename it: 'own_{name}', for example"
        )
