"""A judge gives a group its rewards: of what the attempts ended with, or of their trajectories."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from art_core.errors import ConfigError
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import RolloutError
from art_core.values import is_number


class Scores(Protocol):
    """A verdict that has the scores in a field, as that of `art_ruler`."""

    @property
    def scores(self) -> Sequence[float | None]: ...


Verdict = Sequence[float | None] | Scores


class ScoringJudge(Protocol):
    """An object that judges: `art_ruler.Ruler`, or a judge of `art_core`."""

    def score(self, attempts: Sequence[Any], /) -> Awaitable[Verdict]: ...


Judging = ScoringJudge | Callable[[Sequence[Any]], Awaitable[Verdict]]
"""Given the attempts at one task: one score for each, in their order, or None where there can be none."""


async def judge_group(group: TrajectoryGroup, states: Mapping[str, Any], judge: Judging) -> TrajectoryGroup:
    """Set the rewards of `group` to what `judge` says.

    It is shown the messages of the final state of each attempt that has one in `states` (by the trajectory's id), and
    otherwise the trajectory. A reward that the rollout gave becomes the metric `own_reward`. Where the judge fails, or
    has no score, the trajectory carries that as its error. Members that failed are not shown. What the judge says it
    has cost (`usage` of a verdict, as that of `art_ruler`) is kept as metrics of the group.

    Raises:
        ConfigError: the judge is not asynchronous, or is itself not set up.
    """
    members = [trajectory for trajectory in group if trajectory.error is None]
    for trajectory in members:
        if trajectory.reward is not None:
            trajectory.metrics["own_reward"] = trajectory.reward
            trajectory.reward = None
    if not members:
        return group
    try:
        verdict = await _ask(judge, [_shown(trajectory, states) for trajectory in members])
        group.metrics |= _costs(getattr(verdict, "usage", None))
        compared = TrajectoryGroup(members, scenario_id=group.scenario_id)
        scored = compared.with_scores(getattr(verdict, "scores", verdict))
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001  # a failure of the judge is data, like one of a rollout
        said = RolloutError.of(error)
        failure = RolloutError(kind=said.kind, message=f"the judge failed: {said.message}", source="judge")
        for trajectory in members:
            trajectory.error = failure
        return group
    rewards = {trajectory.id: reward for trajectory, reward in scored.members}
    for trajectory in members:
        trajectory.reward = rewards.get(trajectory.id)
        if trajectory.reward is None:
            trajectory.error = RolloutError(
                kind="Unscored", message="the judge gave this attempt no score", source="judge"
            )
    return group


async def judge_together(
    tasks: Sequence[tuple[TrajectoryGroup, TrajectoryGroup]], states: Mapping[str, Any], judge: Judging
) -> tuple[list[list[Trajectory]], list[list[Trajectory]]]:
    """The attempts of before and of after at each task, with rewards that compare: `judge` is shown both at once.

    What is given stays as it is. A task at which all attempts of one side failed is not judged, and has no rewards.
    """

    async def judged(index: int, sides: tuple[TrajectoryGroup, TrajectoryGroup]) -> tuple[list[Trajectory], ...]:
        before, after = ([member.model_copy() for member in side] for side in sides)
        for member in [*before, *after]:
            member.reward = None
        if all(any(member.error is None for member in side) for side in (before, after)):
            # A judge may favour what it is shown first.
            shown = [*before, *after] if index % 2 == 0 else [*after, *before]
            await judge_group(TrajectoryGroup(shown), states, judge)
        return before, after

    made = await asyncio.gather(*(judged(index, sides) for index, sides in enumerate(tasks)))
    return [before for before, _ in made], [after for _, after in made]


def check_judge(judge: Any) -> None:
    """Raises ConfigError for what cannot judge."""
    if judge is not None and not callable(judge) and not callable(getattr(judge, "score", None)):
        raise ConfigError(
            f"judge is a {type(judge).__name__}; wanted an async function of the attempts at a task, or an object "
            "with such a `score`, such as art_ruler.Ruler(...)"
        )


async def _ask(judge: Judging, attempts: list[Any]) -> Any:
    score: Any = getattr(judge, "score", judge)
    verdict = score(attempts)
    if not isinstance(verdict, Awaitable):
        raise ConfigError(
            f"the judge gave a {type(verdict).__name__} when it was called; wanted an async function: define it with "
            "`async def`"
        )
    return await verdict


def _costs(usage: Any) -> dict[str, float]:
    """`usage` as the metrics of a group that `art_core.rollout_metrics` adds up."""
    known: dict[str, Any] = {
        "judge_calls": getattr(usage, "calls", None),
        "judge_tokens": getattr(usage, "total_tokens", None),
        "judge_cost_usd": getattr(usage, "cost_usd", None),
    }
    return {name: float(value) for name, value in known.items() if is_number(value)}


def _shown(trajectory: Trajectory, states: Mapping[str, Any]) -> Any:
    state = states.get(trajectory.id)
    if state is None:
        return trajectory
    return state["messages"] if isinstance(state, Mapping) else state
