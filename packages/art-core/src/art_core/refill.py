"""Further groups in the place of those whose rewards teach nothing: what is taken, and where it stands. Runs nothing.

Which groups are taken does not depend on what finishes first. After k further groups, one more is wanted as long as
k is less than the number of places without signal among the inputs and the first k; the smallest k for which that ends
is the same in any order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from art_core.advantage import has_signal
from art_core.errors import ConfigError, DataError
from art_core.options import check_value, whole
from art_core.trajectories import TrajectoryGroup


class Refills:
    """At most `max_refills` groups of `source`, one for each place that was `settled` without signal.

    Raises:
        ConfigError: one is given without the other, or of another kind.
    """

    def __init__(self, source: Iterable[Any] | None, max_refills: int | None) -> None:
        if (source is None) != (max_refills is None):
            given, missing = ("refill", "max_refills") if max_refills is None else ("max_refills", "refill")
            raise ConfigError(
                f"{given} is given without {missing}; refill=<further groups> and max_refills=<how many of them at "
                "most> go together"
            )
        if max_refills is not None:
            check_value("max_refills", max_refills, whole(1))
        if source is not None and not isinstance(source, Iterable):
            raise ConfigError(f"refill is a {type(source).__name__}; wanted groups, such as a list or a generator")
        self.is_on = source is not None
        self._source = source
        self._following: Iterator[Any] = iter(source or ())
        self._left = max_refills or 0
        self._wanted = 0
        self._is_dry = False
        self._changed = asyncio.Event()

    def settle(self, groups: Sequence[TrajectoryGroup]) -> bool:
        """Take note that `groups` are all that a place has become; whether they have signal.

        Raises:
            DataError: a trajectory that did not fail has no reward.
        """
        lacks = self.is_on and not any(_has_signal(group) for group in groups)
        self._wanted += lacks
        self._changed.set()
        return not lacks

    async def following(self, is_settled: Callable[[], bool]) -> list[Any]:
        """The next group to be run, as a list of one; empty when none will be. Waits until that is known.

        `is_settled()` tells whether nothing runs any more.
        """
        while self._left and not self._is_dry:
            if self._wanted:
                for item in self._following:
                    self._left -= 1
                    self._wanted -= 1
                    return [item]
                self._is_dry = True
            elif is_settled():
                break
            else:
                self._changed.clear()
                await self._changed.wait()
        return []

    def rest(self) -> Iterator[Any]:
        """What was made and never asked for. A generator makes what it is asked for, and is left for its owner."""
        return self._following if isinstance(self._source, Collection) else iter(())


def arranged(
    places: Sequence[Sequence[TrajectoryGroup]], lacking: Sequence[bool], *, num_inputs: int
) -> list[TrajectoryGroup]:
    """All groups in the order of the inputs, each that is `lacking` signal followed by what was run in its place.

    `places` are those of the inputs, then those of the refills in the order in which they were taken. The n-th refill
    stands for the n-th place without signal. Each group is told in its metric `refill` whether it is one (1) or not
    (0), and those without signal in their `logs` what became of their place.
    """
    empty = [index for index, lacks in enumerate(lacking) if lacks]
    replaced_by = dict(zip(empty, range(num_inputs, len(places)), strict=False))
    found: list[TrajectoryGroup] = []
    for place in range(num_inputs):
        at: int | None = place
        while at is not None:
            follower = replaced_by.get(at)
            for group in places[at]:
                group.metrics["refill"] = int(at >= num_inputs)
                if lacking[at]:
                    instead = "a further group was run" if follower is not None else "no further group was to be had"
                    group.log(f"its rewards do not differ, and {instead} in its place")
            found += places[at]
            at = follower
    return found


def _has_signal(group: TrajectoryGroup) -> bool:
    try:
        return has_signal(group.with_rewards().rewards)
    except DataError as error:
        raise DataError(f"{error}. refill looks at them when the group is whole: score it in after_each") from None
