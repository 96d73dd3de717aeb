"""What `train` gives back: evaluations, and the gain between the first and the last. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from art_core import Trajectory
from art_core.errors import DataError
from art_langgraph.stats import Interval, interval


@dataclass(frozen=True)
class Evaluation:
    """How a model does on the validation tasks: `step` is that of the newest weights that answered.

    `rewards` has the mean reward of each task, None where all its attempts failed. `num_failed` counts those of all
    tasks: they have no part in the means.
    """

    step: int
    rewards: tuple[float | None, ...]
    num_failed: int = 0

    @classmethod
    def of(cls, step: int, tasks: Sequence[Sequence[Trajectory]]) -> Evaluation:
        """That of the attempts at each task."""
        num_failed = sum(attempt.error is not None for attempts in tasks for attempt in attempts)
        return cls(step, tuple(mean_reward(attempts) for attempts in tasks), num_failed)

    @property
    def interval(self) -> Interval:
        """The mean over the tasks that have a reward."""
        return interval([reward for reward in self.rewards if reward is not None])

    def gain_over(self, before: Evaluation) -> Interval:
        """The mean difference of a task's rewards, over the tasks that have both; of nan where none has.

        Raises:
            DataError: another number of tasks.
        """
        if len(before.rewards) != len(self.rewards):
            raise DataError(
                f"evaluations of {len(before.rewards)} and {len(self.rewards)} tasks; wanted two of the same tasks"
            )
        pairs = zip(before.rewards, self.rewards, strict=True)
        return interval([new - old for old, new in pairs if old is not None and new is not None])

    @property
    def coverage(self) -> str:
        """On what the mean rests: `12 tasks`, or `20 of 24 tasks, 7 attempts failed`."""
        num_scored, num_tasks = sum(reward is not None for reward in self.rewards), len(self.rewards)
        tasks = _counted(num_tasks, "task")
        told = tasks if num_scored == num_tasks else f"{num_scored} of {tasks}"
        return f"{told}, {_counted(self.num_failed, 'attempt')} failed" if self.num_failed else told

    def __str__(self) -> str:
        return f"{self.interval} on {self.coverage}"


@dataclass(frozen=True)
class TrainingResult:
    """What `train` did. `rewards` has the mean reward of each batch that was made now; `num_skipped` counts those that
    taught nothing. `evaluations` are in their order; there are none without validation tasks.

    `before` is how the model did before its first batch, None where that was not tried on these validation tasks;
    `after` how it does after the last, None where it was not tried again. With a judge they are scored beside each
    other, and `before` is known only to the call that made the first batch.
    """

    step: int
    rewards: tuple[float, ...] = ()
    num_skipped: int = 0
    evaluations: tuple[Evaluation, ...] = ()
    before: Evaluation | None = None
    after: Evaluation | None = None

    @property
    def gain(self) -> Interval | None:
        """Of `after` over `before`; None where one of them is not there."""
        if self.before is None or self.after is None:
            return None
        return self.after.gain_over(self.before)

    def __str__(self) -> str:
        told = f"step {self.step}"
        if self.after is None:
            return told if self.before is None else f"{told}: reward {self.before.interval} before"
        if self.before is None:
            return f"{told}: reward {self.after}; gain unknown: not tried on these tasks before the first batch"
        told += f": reward {self.before.interval} before, {self.after.interval} after, gain {self.gain}"
        if self.before.num_failed or self.after.num_failed:
            told += f" (before: {self.before.coverage}; after: {self.after.coverage})"
        return told


def mean_reward(attempts: Sequence[Trajectory]) -> float | None:
    """Of those that did not fail; None where all did."""
    rewards = [attempt.reward for attempt in attempts if attempt.error is None and attempt.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
