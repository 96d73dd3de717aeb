"""What is told about attempts that failed: how many by kind, what the first said, and where in the agent."""

from __future__ import annotations

import sysconfig
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import art_core
from art_core import TrajectoryGroup
from art_core.errors import DataError, InfrastructureError
from art_core.types import RolloutError

_NOT_THE_AGENT = (
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
    sysconfig.get_path("platlib"),
    str(Path(art_core.__file__).parent),
    str(Path(__file__).parent),
)
_LONGEST = 300


class Failures:
    """The failed attempts of a batch. Tell `saw` what they raised while the traceback is there."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], str] = {}

    def saw(self, error: Exception) -> None:
        """Remember where `error` was raised."""
        told = RolloutError.of(error)
        self._places.setdefault((told.kind, told.message), place_of(error))

    def first(self, groups: Sequence[TrajectoryGroup]) -> str:
        """`KeyError: 'ZZ' (at agent.py:12 in attempt)`."""
        error = next(error for group in groups for error in group.errors)
        message = error.message if len(error.message) <= _LONGEST else f"{error.message[:_LONGEST]}..."
        place = self._places.get((error.kind, error.message), "")
        return error.kind + (f": {message}" if message else "") + (f" ({place})" if place else "")

    def note(self, groups: Sequence[TrajectoryGroup]) -> str:
        """`failed: KeyError 2`; where half of the attempts or more failed, also the first. Empty where none did."""
        counts = Counter(error.kind for group in groups for error in group.errors)
        if not counts:
            return ""
        many = 2 * counts.total() >= sum(map(len, groups))
        return f"failed: {_counted(counts)}" + (f"; the first: {self.first(groups)}" if many else "")

    def refuse_if_all(self, groups: Sequence[TrajectoryGroup], name: str) -> None:
        """
        Raises:
            DataError: every attempt failed, each by a DataError.
            InfrastructureError: every attempt failed.
        """
        errors = [error for group in groups for error in group.errors]
        if len(errors) < sum(map(len, groups)):
            return
        counts = Counter(error.kind for error in errors)
        kind = DataError if set(counts) == {"DataError"} else InfrastructureError
        raise kind(
            f"{name}: every attempt failed ({_counted(counts)}), so nothing was trained; the first: "
            f"{self.first(groups)}"
        )


def place_of(error: BaseException) -> str:
    """`at agent.py:12 in attempt`: the last place of the caller's own code; empty where no such code was running."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*_NOT_THE_AGENT, "<frozen"))
    ]
    return f"at {Path(own[-1].filename).name}:{own[-1].lineno} in {own[-1].name}" if own else ""


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in counts.most_common())
