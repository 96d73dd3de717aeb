"""`train`: rollouts of a graph, a step, and again; before and after, how it does on tasks that it never saw."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from art_core import (
    LocalBackend,
    TrainableModel,
    TrainConfig,
    Trajectory,
    TrajectoryGroup,
    gather_trajectory_groups,
    iterate_dataset,
)
from art_core.errors import ConfigError, DataError, InfrastructureError
from art_langgraph._rollout import Rollout
from art_langgraph.judging import Judging, check_judge, judge_group
from art_langgraph.stats import Interval, interval

_DONE = "langgraph/batches_done"
_BEFORE = "before/"


@dataclass(frozen=True)
class Evaluation:
    """How the model of `step` does on the validation tasks. `rewards` has the mean reward of each task, None where all
    its attempts failed; `interval` is the mean over the tasks.
    """

    step: int
    rewards: tuple[float | None, ...]

    @property
    def interval(self) -> Interval:
        return interval([reward for reward in self.rewards if reward is not None])

    def gain_over(self, before: Evaluation) -> Interval:
        """The mean difference of a task's rewards, over the tasks that have both."""
        pairs = zip(before.rewards, self.rewards, strict=True)
        return interval([new - old for old, new in pairs if old is not None and new is not None])


@dataclass(frozen=True)
class TrainingResult:
    """What `train` did. `rewards` has the mean reward of each batch that was made now; `num_skipped` counts those that
    taught nothing. `evaluations` are in the order of their steps, the first and the last of the whole training
    included; there are none without validation tasks.
    """

    step: int
    rewards: tuple[float, ...] = ()
    num_skipped: int = 0
    evaluations: tuple[Evaluation, ...] = ()

    @property
    def before(self) -> Evaluation | None:
        return self.evaluations[0] if self.evaluations else None

    @property
    def after(self) -> Evaluation | None:
        return self.evaluations[-1] if self.evaluations else None

    @property
    def gain(self) -> Interval | None:
        """Of the last evaluation over the first; None without validation tasks."""
        return self.evaluations[-1].gain_over(self.evaluations[0]) if self.evaluations else None

    def __str__(self) -> str:
        if not self.evaluations:
            return f"step {self.step}"
        first, last = self.evaluations[0], self.evaluations[-1]
        return f"step {self.step}: reward {first.interval} before, {last.interval} after, gain {self.gain}"


@dataclass
class _Options:
    group_size: int
    judge: Judging | None
    gather: dict[str, Any]
    show: bool


async def train(
    model: TrainableModel,
    attempt: Rollout | Callable[..., Any],
    tasks: Sequence[Any],
    *,
    groups_per_step: int = 4,
    group_size: int = 8,
    steps: int = 20,
    validation: Sequence[Any] = (),
    eval_every: int | None = None,
    eval_samples: int = 1,
    judge: Judging | None = None,
    config: TrainConfig | None = None,
    max_concurrent: int | None = None,
    timeout_s: float | None = None,
    max_retries: int = 0,
    max_exceptions: int | float | None = None,
    seed: int = 0,
    path: Path | str = ".art",
    show_progress: bool = True,
    **options: Any,
) -> TrainingResult:
    """Train `model` on `tasks` for `steps` batches, each of `groups_per_step` tasks with `group_size` attempts at each.

    `attempt(task)` runs the graph once; see `rollout`. With a `judge`, it may return the final state of the graph or
    its messages instead of a reward: the judge is shown those, of all attempts at a task, and its scores are the
    rewards. The `validation` tasks are attempted before the first batch, after the last and after every `eval_every`-th
    one, `eval_samples` times each, and never trained on.

    `options` are those of `art_core.TrainConfig`, and go before `config`. `max_concurrent`, `timeout_s`, `max_retries`
    and `max_exceptions` are those of `gather_trajectory_groups`, `seed` that of `iterate_dataset`. A failed attempt is
    counted and excluded; a batch all of whose attempts failed ends the training. `show_progress` tells on stderr how
    far it has come.

    A model that is not registered is served by a `LocalBackend(path)` until this ends. Called again, with the same
    arguments, it goes on where it was: `steps` counts the batches of earlier calls too.

    Raises:
        ConfigError: an option that does not exist, or an impossible value; nothing was started.
        InfrastructureError, DataError: every attempt of a batch failed.
    """
    made = TrainConfig.made(config, options)
    _check(tasks, groups_per_step=groups_per_step, group_size=group_size, steps=steps, eval_samples=eval_samples)
    if eval_every is not None and (eval_every < 1 or not len(validation)):
        raise ConfigError(
            f"eval_every is {eval_every} with {len(validation)} validation tasks; wanted 1 or more of both"
        )
    check_judge(judge)
    bound = (attempt if isinstance(attempt, Rollout) else Rollout(attempt)).of(model)
    gather = {
        "max_concurrent": max_concurrent,
        "timeout_s": timeout_s,
        "max_retries": max_retries,
        "max_exceptions": max_exceptions,
    }
    async with _served(model, path):
        run = _Run(model, bound, tasks, validation, eval_samples, _Options(group_size, judge, gather, show_progress))
        await run.find_place()
        if validation and run.before is None:
            await run.evaluate(is_first=True)
        epochs = -(-steps * groups_per_step // len(tasks))
        batches = iterate_dataset(
            range(len(tasks)), groups_per_step, num_epochs=epochs, initial_step=run.done, seed=seed
        )
        for batch in islice(batches, max(0, steps - run.done)):
            await run.step(batch.items, made, of=steps)
            if eval_every is not None and run.done % eval_every == 0 and run.done < steps:
                await run.evaluate()
        if validation and run.evaluated_after != run.done:
            await run.evaluate()
        return TrainingResult(await model.get_step(), tuple(run.rewards), run.num_skipped, tuple(run.evaluations))


@dataclass
class _Run:
    model: TrainableModel
    attempt: Rollout
    tasks: Sequence[Any]
    validation: Sequence[Any]
    eval_samples: int
    options: _Options
    done: int = 0
    rewards: list[float] = field(default_factory=list)
    num_skipped: int = 0
    evaluations: list[Evaluation] = field(default_factory=list)
    evaluated_after: int | None = None

    @property
    def before(self) -> Evaluation | None:
        return self.evaluations[0] if self.evaluations else None

    async def find_place(self) -> None:
        """How many batches earlier calls have made, and how the model did before the first."""
        step = await self.model.get_step()
        records = await self.model.backend().logged_metrics(self.model.project, self.model.name)
        places = [(record.step, int(record.metrics[_DONE])) for record in records if _DONE in record.metrics]
        if not places:
            await self._mark()
            return
        at_step, done = places[-1]
        self.done = done + max(0, step - at_step)  # a step after the last mark was made, and its mark was not
        for record in records:
            found = {name.removeprefix(_BEFORE): value for name, value in record.metrics.items() if _is_before(name)}
            if found and record.metrics.get(f"{_BEFORE}tasks") == len(self.validation):
                rewards = tuple(found.get(f"{index:04d}") for index in range(len(self.validation)))
                self.evaluations = [Evaluation(record.step, rewards)]
                break
        self._say(f"going on after {self.done} batches, at step {step}")

    async def step(self, items: Sequence[int], config: TrainConfig, *, of: int) -> None:
        """One batch: attempts, their record, a training step."""
        name = f"batch {self.done + 1} of {of}"
        groups = await self._gather([(f"task-{i}", self.tasks[i]) for i in items], self.options.group_size, name)
        await self.model.log(groups, split="train")
        result = await self.model.train(groups, config)
        self.done += 1
        self.num_skipped += result.skipped is not None
        rewards = [member.reward for group in groups for member in group if member.reward is not None]
        self.rewards.append(sum(rewards) / len(rewards))
        await self._mark(step=result.step)
        failed = Counter(error.kind for group in groups for error in group.errors)
        notes = [f"skipped: {result.skipped}"] if result.skipped else []
        notes += [f"failed: {', '.join(f'{kind} {count}' for kind, count in failed.items())}"] if failed else []
        self._say("  ".join([f"{name}: step {result.step}  reward {self.rewards[-1]:.3f}", *notes]))

    async def evaluate(self, *, is_first: bool = False) -> None:
        """Attempts at the validation tasks, and their record."""
        name = "evaluation"
        given = [(f"validation-{index}", task) for index, task in enumerate(self.validation)]
        groups = await self._gather(given, self.eval_samples, name)
        rewards = tuple(_mean([m.reward for m in group if m.reward is not None]) for group in groups)
        evaluation = Evaluation(await self.model.get_step(), rewards)
        self.evaluations.append(evaluation)
        self.evaluated_after = self.done
        metrics: dict[str, float] = {}
        if is_first:
            metrics = {f"{_BEFORE}{i:04d}": reward for i, reward in enumerate(rewards) if reward is not None}
            metrics[f"{_BEFORE}tasks"] = len(rewards)
        await self.model.log(groups, split="val", metrics=metrics)
        self._say(f"{name}: step {evaluation.step}  reward {evaluation.interval} on {len(rewards)} tasks")

    async def _gather(self, tasks: list[tuple[str, Any]], group_size: int, name: str) -> list[TrajectoryGroup]:
        judge = self.options.judge
        states: dict[str, Any] = {}

        async def attempted(task: Any) -> Trajectory:
            attempt = await self.attempt.attempt((task,), {}, is_judged=judge is not None)
            if attempt.state is not None:
                states[attempt.trajectory.id] = attempt.state
            return attempt.trajectory

        async def scored(group: TrajectoryGroup) -> TrajectoryGroup:
            return group if judge is None else await judge_group(group, states, judge)

        groups = await gather_trajectory_groups(
            (
                TrajectoryGroup((functools.partial(attempted, task) for _ in range(group_size)), scenario_id=id)
                for id, task in tasks
            ),
            after_each=scored,
            pbar_desc=name if self.options.show else None,
            **self.options.gather,
        )
        _refuse_all_failed(groups, name)
        return groups

    async def _mark(self, step: int | None = None) -> None:
        await self.model.log(metrics={_DONE: self.done}, split="train", step=step)

    def _say(self, text: str) -> None:
        if self.options.show:
            print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextlib.asynccontextmanager
async def _served(model: TrainableModel, path: Path | str) -> AsyncIterator[None]:
    if model.is_registered:
        yield
        return
    async with LocalBackend(path) as backend:
        await model.register(backend)
        try:
            yield
        finally:
            model.unregister()


def _check(tasks: Sequence[Any], **numbers: int) -> None:
    if not hasattr(tasks, "__len__") or not hasattr(tasks, "__getitem__"):
        raise ConfigError(f"tasks is a {type(tasks).__name__}; wanted a list, which has a length and an order")
    if not len(tasks):
        raise ConfigError("tasks is empty; wanted one task at least")
    for name, value in numbers.items():
        least = {"group_size": 2, "steps": 0}.get(name, 1)
        if value < least:
            why = ": attempts are compared with each other" if name == "group_size" else ""
            raise ConfigError(f"{name} is {value}; wanted {least} or more{why}")


def _refuse_all_failed(groups: Sequence[TrajectoryGroup], name: str) -> None:
    errors = [error for group in groups for error in group.errors]
    if len(errors) < sum(map(len, groups)):
        return
    kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(error.kind for error in errors).most_common())
    kind = DataError if all(error.kind == "DataError" for error in errors) else InfrastructureError
    raise kind(f"{name}: every attempt failed ({kinds}), so nothing was trained; the first: {errors[0].message}")


def _is_before(name: str) -> bool:
    return name.startswith(_BEFORE) and name != f"{_BEFORE}tasks"


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
