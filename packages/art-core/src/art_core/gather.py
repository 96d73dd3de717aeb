"""Run the rollouts of groups in parallel: groups in input order, failures as trajectories with an error."""

from __future__ import annotations

import asyncio
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Generator,
    Iterable,
    Iterator,
)
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, cast

from art_core.errors import ConfigError, DataError, InfrastructureError
from art_core.moving import refuse_unknown
from art_core.options import Kind, check_options, whole
from art_core.parallel import first_leaf, gather_rollouts
from art_core.progress import Progress
from art_core.refill import Refills, arranged
from art_core.scope import collect_records
from art_core.trajectories import (
    NoRolloutError,
    PendingGroup,
    Rollout,
    Trajectory,
    TrajectoryGroup,
    begun,
    discard,
    refuse_what_ran,
)
from art_core.types import RolloutError
from art_core.values import check_callable, is_number

AfterEach = Callable[[TrajectoryGroup], Awaitable[TrajectoryGroup | list[TrajectoryGroup] | None]]


async def gather_trajectories(
    rollouts: Iterable[Rollout],
    *,
    max_concurrent: int | None = None,
    timeout_s: float | None = None,
    max_retries: int = 0,
    max_exceptions: int | float | None = None,
    pbar_desc: str | None = "gather",
    on_done: Callable[[Trajectory], None] = lambda _: None,
    **unknown: Any,
) -> list[Trajectory]:
    """Run `rollouts` and return their trajectories in input order.

    Arguments as for `gather_trajectory_groups`.

    Raises:
        ConfigError, DataError, InfrastructureError: as for `gather_trajectory_groups`.
    """
    refuse_unknown("gather_trajectories", unknown, gather_trajectories)
    limits = _Limits(max_concurrent, timeout_s, max_retries, max_exceptions)
    with Progress(pbar_desc) as progress:
        work = _Gathering(rollouts, of_groups=False, limits=limits, after_each=None, on_done=on_done, progress=progress)
        await work.run()
    return [member for slot in work.slots for member in slot.members if isinstance(member, Trajectory)]


async def gather_trajectory_groups(
    groups: Iterable[PendingGroup | TrajectoryGroup | Awaitable[TrajectoryGroup]],
    *,
    max_concurrent: int | None = None,
    timeout_s: float | None = None,
    max_retries: int = 0,
    max_exceptions: int | float | None = None,
    after_each: AfterEach | None = None,
    refill: Iterable[PendingGroup | TrajectoryGroup | Awaitable[TrajectoryGroup]] | None = None,
    max_refills: int | None = None,
    pbar_desc: str | None = "gather",
    on_done: Callable[[Trajectory], None] = lambda _: None,
    **unknown: Any,
) -> list[TrajectoryGroup]:
    """Run the rollouts of `groups` and return the groups in input order, their trajectories in the order of rollouts.

    `groups` may be a generator: its groups are made as places become free. At most `max_concurrent` rollouts, over all
    groups, run at once. A rollout that raises, or takes longer than `timeout_s`, becomes a trajectory with that error:
    what `capture` has recorded of its last attempt, without a reward, which is not a reward of 0. With `max_retries`,
    it is run again before that, which needs functions instead of coroutines:
    `TrajectoryGroup(functools.partial(rollout, model, task) for _ in range(8))`; the metric `retries` of its trajectory
    counts them. An awaitable that gives a whole group counts as one rollout.

    More than `max_exceptions` failures (a number, or a share of all rollouts between 0 and 1) end it; None allows any
    number. `after_each` is awaited with each whole group, to score it for example; what it returns stands in the
    group's place: a group, several, or None for nothing. What it raises ends it.

    With `refill`, further groups: where a group turns out to have no signal (fewer than two rewards, or all alike; in
    what `after_each` made of it), the next one of `refill` is run in its place, at most `max_refills` in all. All that
    was run is returned, a group without signal directly before the one in its place; the group metric `refill` is 1
    for these and 0 for others. Inputs are started first; which groups are taken, and where they stand, depends on
    their rewards only. Of a generator no more is asked for than is run, and it stays open: the next call can go on
    with it (Yu et al. 2025, DAPO's dynamic sampling, arXiv 2503.14476).

    `on_done` is told of each trajectory
    as it arrives. Progress goes to stderr under `pbar_desc`: a bar on a terminal, else a line every ten seconds; None
    shows nothing.

    When it ends early, also by cancellation, rollouts that run are cancelled and those that wait are closed.

    Raises:
        ConfigError: an argument that does not exist or is out of range, or retries of something that runs only once.
        DataError: a rollout gives something else than a trajectory.
        InfrastructureError: more failures than `max_exceptions`.
    """
    refuse_unknown("gather_trajectory_groups", unknown, gather_trajectory_groups)
    if isinstance(groups, PendingGroup):
        discard(groups.rollouts)
        raise ConfigError("groups is one group; wanted a list of groups: gather_trajectory_groups([group])")
    refills = Refills(refill, max_refills)
    limits = _Limits(max_concurrent, timeout_s, max_retries, max_exceptions)
    with Progress(pbar_desc) as progress:
        work = _Gathering(
            groups,
            of_groups=True,
            limits=limits,
            after_each=after_each,
            on_done=on_done,
            progress=progress,
            refills=refills,
        )
        await work.run()
    if refills.is_on:
        lacking = [not slot.has_signal for slot in work.slots]
        return arranged([slot.groups for slot in work.slots], lacking, num_inputs=work.num_inputs)
    return [group for slot in work.slots for group in slot.groups]


@dataclass(frozen=True)
class _Limits:
    max_concurrent: int | None
    timeout_s: float | None
    max_retries: int
    max_exceptions: int | float | None

    def __post_init__(self) -> None:
        check_options(self, _LIMITS)


_LIMITS = {
    "max_concurrent": whole(1).or_none("no limit"),
    "timeout_s": Kind(lambda value: is_number(value) and value > 0, "a number of seconds above 0").or_none("no limit"),
    "max_retries": whole(0),
    "max_exceptions": Kind(lambda value: is_number(value) and value >= 0, "a number, 0 or more").or_none("any number"),
}


@dataclass(eq=False)
class _Slot:
    """The place of one input in the result. `pending` is None where the input is one rollout or an awaitable group."""

    pending: PendingGroup | None
    num_left: int
    members: list[Trajectory | TrajectoryGroup | None]
    groups: list[TrajectoryGroup] = field(default_factory=list)
    is_settled: bool = False
    has_signal: bool = True

    def whole(self) -> TrajectoryGroup:
        if self.pending is not None:
            return self.pending.complete([member for member in self.members if isinstance(member, Trajectory)])
        (member,) = self.members
        assert member is not None
        return TrajectoryGroup([member]) if isinstance(member, Trajectory) else member


@dataclass(frozen=True)
class _Outcome:
    index: int
    result: Trajectory | TrajectoryGroup


class _StopError(Exception):
    """Ends the gather with `reason`; what rollouts raise of their own does not."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Gathering:
    """One call of `gather_trajectories` (`of_groups` False) or `gather_trajectory_groups`."""

    def __init__(
        self,
        inputs: Iterable[Any],
        *,
        of_groups: bool,
        limits: _Limits,
        after_each: AfterEach | None,
        on_done: Callable[[Trajectory], None],
        progress: Progress,
        refills: Refills | None = None,
    ) -> None:
        if after_each is not None:
            check_callable("after_each", after_each, "a coroutine function")
        check_callable("on_done", on_done)
        self._inputs = inputs
        self._source = iter(inputs)
        self._of_groups = of_groups
        self._limits = limits
        self._after_each = after_each
        self._on_done = on_done
        self._progress = progress
        self._refills = refills or Refills(None, None)
        self._places: list[tuple[_Slot, int]] = []
        self._runs_once: list[Any] = []
        self._coroutines: set[int] = set()
        self._retries: dict[int, list[RolloutError]] = {}
        self._records: dict[int, list[Trajectory]] = {}
        self._num_failed = 0
        self._all_known = False
        self.slots: list[_Slot] = []
        self.num_inputs = 0

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as self._scoring, aclosing(self._all_units()) as units:
                await gather_rollouts(
                    units,
                    max_concurrency=self._limits.max_concurrent,
                    timeout_s=self._limits.timeout_s,
                    max_retries=self._limits.max_retries,
                    failed=self._failed,
                    fatal=lambda error: isinstance(error, _StopError | NoRolloutError),
                    on_done=self._arrived,
                    on_retry=lambda index, error: self._retries.setdefault(index, []).append(error),
                )
        except BaseExceptionGroup as group:
            error = first_leaf(group)
            raise (error.reason if isinstance(error, _StopError) else error) from None
        finally:
            self._let_go()

    async def _all_units(self) -> AsyncGenerator[Callable[[], Awaitable[_Outcome]]]:
        """Every rollout in order, then those of refills as soon as it is known that there will be one."""
        for unit in self._units(self._source):
            yield unit
        self.num_inputs = len(self.slots)
        while refill := await self._refills.following(lambda: all(slot.is_settled for slot in self.slots)):
            for unit in self._units(refill):
                yield unit
        self._all_known = True
        self._check_failures()

    def _units(self, items: Iterable[Any]) -> Iterator[Callable[[], Awaitable[_Outcome]]]:
        """Every rollout of `items`. One is taken when the first of its rollouts is asked for."""
        for item in items:
            pending = item if isinstance(item, PendingGroup) else None
            rollouts = [item] if pending is None else list(pending.rollouts)
            self._runs_once += [rollout for rollout in rollouts if not callable(rollout)]
            refuse_what_ran(rollouts, self._coroutines)
            slot = _Slot(pending, len(rollouts), [None] * len(rollouts))
            self.slots.append(slot)
            if self._of_groups and isinstance(item, TrajectoryGroup):
                slot.num_left, slot.members = 0, [item]
                self._scoring.create_task(self._finish(slot))
                continue
            self._progress.expect(len(rollouts))
            for position, rollout in enumerate(rollouts):
                self._places.append((slot, position))
                yield self._unit(len(self._places) - 1, rollout)

    def _unit(self, index: int, rollout: Any) -> Callable[[], Awaitable[_Outcome]]:
        wanted: type = Trajectory if self._places[index][0].pending or not self._of_groups else TrajectoryGroup
        if not callable(rollout) and not isinstance(rollout, Awaitable):
            raise DataError(f"{self._named(index)} is a {type(rollout).__name__}; wanted a coroutine or a function")
        if self._limits.max_retries and not callable(rollout):
            raise ConfigError(
                f"{self._named(index)} is a {type(rollout).__name__}, which can run only once, and max_retries is "
                f"{self._limits.max_retries}; give functions without arguments, such as "
                "functools.partial(rollout, model, task), or leave max_retries at 0"
            )

        async def run() -> _Outcome:
            self._records[index] = collect_records()
            result = await begun(rollout, self._named(index))
            if not isinstance(result, wanted):
                raise _StopError(
                    DataError(
                        f"{self._named(index)} gave {type(result).__name__}; wanted a {wanted.__name__}: "
                        "let the rollout return it"
                    )
                )
            return _Outcome(index, cast("Trajectory | TrajectoryGroup", result))

        return run

    def _named(self, index: int) -> str:
        slot, position = self._places[index]
        number = self.slots.index(slot)
        return f"rollout {number}" if slot.pending is None else f"rollout {position} of group {number}"

    def _failed(self, index: int, error: RolloutError) -> _Outcome:
        """The outermost capture that was left last, which is what the rollout would have returned; else nothing."""
        records = self._records.get(index)
        trajectory = records[-1] if records else Trajectory()
        trajectory.error, trajectory.reward = error, None
        return _Outcome(index, trajectory)

    def _arrived(self, outcome: _Outcome) -> None:
        self._records.pop(outcome.index, None)
        slot, position = self._places[outcome.index]
        slot.members[position] = outcome.result
        slot.num_left -= 1
        trajectories = [outcome.result] if isinstance(outcome.result, Trajectory) else list(outcome.result)
        if errors := self._retries.pop(outcome.index, None):
            for trajectory in trajectories:
                trajectory.metrics["retries"] = len(errors)
                trajectory.logs += [f"attempt {n} failed: {e.kind}: {e.message}" for n, e in enumerate(errors, 1)]
        num_failed = sum(trajectory.error is not None for trajectory in trajectories)
        self._num_failed += num_failed
        self._progress.advance(failed=num_failed > 0)
        for trajectory in trajectories:
            self._on_done(trajectory)
        self._check_failures()
        if slot.num_left == 0 and self._of_groups:
            self._scoring.create_task(self._finish(slot))

    def _check_failures(self) -> None:
        allowed = self._limits.max_exceptions
        if allowed is None:
            return
        if 0 < allowed < 1:
            if not self._all_known:
                return
            allowed *= len(self._places)
        if self._num_failed > allowed:
            errors = [m.error for s in self.slots for m in s.members if isinstance(m, Trajectory) and m.error]
            last = f"; one of them: {errors[-1].kind}: {errors[-1].message}" if errors else ""
            raise InfrastructureError(
                f"{self._num_failed} rollouts failed, and max_exceptions is {self._limits.max_exceptions}{last}"
            )

    async def _finish(self, slot: _Slot) -> None:
        group = slot.whole()
        scored: Any = group
        if self._after_each is not None:
            scored = self._after_each(group)
            if not isinstance(scored, Awaitable):
                raise ConfigError(
                    f"after_each gave {type(scored).__name__} for a group; wanted a coroutine: define it with "
                    "`async def`"
                )
            scored = await scored
        slot.groups = [] if scored is None else [scored] if isinstance(scored, TrajectoryGroup) else list(scored)
        slot.is_settled = True
        slot.has_signal = self._refills.settle(slot.groups)

    def _let_go(self) -> None:
        """Close what was never run: Python reports coroutines that nobody awaited."""
        discard(self._runs_once)
        if isinstance(self._inputs, Generator):
            self._inputs.close()
        of_inputs = self._source if isinstance(self._inputs, Collection) else ()
        for item in chain(of_inputs, self._refills.rest()):
            discard(item.rollouts if isinstance(item, PendingGroup) else [item])
