"""Groups whose order is known: given, or made from good trajectories by damaging them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_ruler.errors import DataError


@dataclass(frozen=True)
class LabelledGroup:
    """Trajectories (in any form that `Ruler.score` takes) with their true quality: higher is better, None unknown.

    `where` names the group in messages.
    """

    trajectories: Sequence[Any]
    labels: Sequence[float | None]
    tools: Sequence[Any] | None = None
    where: str = "group"

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.trajectories):
            raise DataError(f"{self.where}: {len(self.labels)} labels for {len(self.trajectories)} trajectories")


def messages_of(trajectory: Any, where: str = "trajectory") -> list[Mapping[str, Any]]:
    """The messages of a trajectory in plain form; choices of chat completions become their messages."""
    if isinstance(trajectory, Mapping):
        found = [trajectory[key] for key in ("messages_and_choices", "messages") if trajectory.get(key) is not None]
        trajectory = found[0] if found else None
    if not isinstance(trajectory, list | tuple):
        raise DataError(
            f"{where}: a {type(trajectory).__name__} cannot be changed; attacks and synthetic groups need trajectories "
            "as arrays of messages, or objects that hold one as `messages`"
        )
    return [m["message"] if "role" not in m and isinstance(m.get("message"), Mapping) else m for m in trajectory]


def check_attackable(group: LabelledGroup) -> None:
    """Raises `DataError` where a trajectory of the group is in no form that an attack can be written into."""
    for index, trajectory in enumerate(group.trajectories):
        messages_of(trajectory, f"{group.where}, trajectory {index}")


def with_messages(trajectory: Any, messages: Sequence[Mapping[str, Any]]) -> Any:
    """The trajectory with other messages and all else that it has."""
    if not isinstance(trajectory, Mapping):
        return list(messages)
    return {**{k: v for k, v in trajectory.items() if k != "messages_and_choices"}, "messages": list(messages)}


def synthetic_groups(groups: Iterable[LabelledGroup], *, size: int, seed: int) -> Iterator[LabelledGroup]:
    """For each trajectory of `groups`, all of them good, a group of it and of ever more damaged copies."""
    from art_ruler.synthetic import corrupt

    number = 0
    for group in groups:
        for index, trajectory in enumerate(group.trajectories):
            where = f"{group.where}, trajectory {index}"
            try:
                made = corrupt(messages_of(trajectory, where), size=size, seed=seed + number)
            except DataError as error:
                raise DataError(f"{where}: {error}") from error
            number += 1
            kept = [with_messages(trajectory, messages) for messages in made.trajectories]
            yield LabelledGroup(kept, made.labels, group.tools, where)
