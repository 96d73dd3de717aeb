"""`train`: rollouts of a graph, a step, and again; before and after, how it does on tasks that it never saw."""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
)
from art_core.control import MetricRecord
from art_core.errors import ConfigError
from art_core.lines import progress_line, step_figures
from art_core.values import is_number
from art_langgraph._rollout import Rollout
from art_langgraph.checks import (
    check_model_and_attempt,
    check_names,
    check_numbers,
    check_takes_a_task,
    check_tasks,
)
from art_langgraph.failures import Failures
from art_langgraph.judging import Judging, check_judge, judge_group, judge_together
from art_langgraph.plan import batches, fingerprint
from art_langgraph.results import Evaluation, TrainingResult, mean_reward

_logger = logging.getLogger(__name__)
_ORIGIN = "langgraph/batches_before"
_PLAN = "langgraph/plan_"
_BEFORE = "before/"


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
    All tasks come once before one comes again; where there are fewer than `groups_per_step`, each batch has all.

    `attempt(task)` runs the graph once; see `rollout`. With a `judge`, it may return the final state of the graph or
    its messages instead of a reward: the judge is shown those, of all attempts at a task, and its scores are the
    rewards. The `validation` tasks are attempted before the first batch, after the last and after every `eval_every`-th
    one, `eval_samples` times each, and never trained on. A judge compares, so that its scores of two evaluations are on
    no common scale: for the gain it is asked once more, about the attempts of before and after at a task in one group.

    `options` are those of `art_core.TrainConfig`, and go before `config`. `max_concurrent`, `timeout_s`, `max_retries`
    and `max_exceptions` are those of `gather_trajectory_groups`; `seed` says in which order the tasks come. A failed
    attempt is counted and excluded; a batch all of whose attempts failed ends the training. `show_progress` tells on
    stderr how far it has come.

    A model that is not registered is served by a `LocalBackend(path)` until this ends. Called again, with the same
    tasks, `groups_per_step` and `seed`, it goes on where it was: `steps` counts all batches since the first call.
    Where every batch was skipped, a warning says so at the end.

    Raises:
        ConfigError: an option that does not exist, or an impossible value; nothing was started. Or the model was
            trained on other tasks, or in another order.
        InfrastructureError, DataError: every attempt of a batch failed.
    """
    check_model_and_attempt(model, attempt)
    check_names(options, train)
    made = TrainConfig.made(config, options)
    check_tasks("tasks", tasks)
    check_tasks("validation", validation, least=0)
    check_numbers(
        groups_per_step=groups_per_step, group_size=group_size, steps=steps, eval_samples=eval_samples, seed=seed
    )
    if eval_every is not None and not (is_number(eval_every, whole=True) and eval_every >= 1 and len(validation)):
        raise ConfigError(
            f"eval_every is {eval_every!r} with {len(validation)} validation tasks; wanted 1 or more of both"
        )
    check_judge(judge)
    bound = (attempt if isinstance(attempt, Rollout) else Rollout(attempt)).of(model)
    check_takes_a_task(bound)
    gather: dict[str, Any] = {
        "max_concurrent": max_concurrent,
        "timeout_s": timeout_s,
        "max_retries": max_retries,
        "max_exceptions": max_exceptions,
    }
    await gather_trajectory_groups([], pbar_desc=None, **gather)  # refuses impossible values
    async with _served(model, path, show_progress):
        run = _Run(model, bound, tasks, validation, eval_samples, _Options(group_size, judge, gather, show_progress))
        size = min(groups_per_step, len(tasks))
        if size < groups_per_step:
            run.say(f"each batch has all tasks: there are {size}, and groups_per_step is {groups_per_step}")
        await run.find_place(steps, tasks=_print_of(tasks), groups_per_step=float(size), seed=fingerprint(seed))
        if len(validation) and run.before is None and run.is_untrained:
            await run.evaluate()
        for items in islice(batches(len(tasks), size, seed), run.done, max(run.done, steps)):
            await run.step(items, made, of=steps)
            if eval_every is not None and run.done % eval_every == 0 and run.done < steps:
                await run.evaluate()
        if len(validation) and run.evaluated_after != run.done:
            await run.evaluate()
        run.tell_if_nothing_was_learned()
        return await run.result()


@dataclass(frozen=True)
class _Tried:
    """An evaluation with what it was made of, for a judge to look at again."""

    evaluation: Evaluation
    groups: Sequence[TrajectoryGroup] = ()
    states: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class _Run:
    model: TrainableModel
    attempt: Rollout
    tasks: Sequence[Any]
    validation: Sequence[Any]
    eval_samples: int
    options: _Options
    current_step: int = 0
    first_step: int = 0
    done: int = 0
    rewards: list[float] = field(default_factory=list)
    batch_s: list[float] = field(default_factory=list)
    num_skipped: int = 0
    last_skipped: str = ""
    before: _Tried | None = None
    evaluated: list[_Tried] = field(default_factory=list)
    evaluated_after: int | None = None

    @property
    def is_untrained(self) -> bool:
        """Whether the weights are those of before the first batch."""
        return self.current_step == self.first_step

    async def find_place(self, steps: int, **plan: float) -> None:
        """How many batches earlier calls have made, and how the model did before the first.

        Raises:
            ConfigError: they had another plan.
        """
        self.current_step = self.first_step = await self.model.get_step()
        num_batches = await self.model.get_num_batches()
        records = await self.model.backend().logged_metrics(self.model.project, self.model.name)
        origin = next((record for record in reversed(records) if _ORIGIN in record.metrics), None)
        if origin is not None:
            self.first_step = origin.step
            self.done = num_batches - round(origin.metrics[_ORIGIN])
        given = {f"{_PLAN}{name}": value for name, value in plan.items()}
        if origin is None or self.done == 0:
            await self.model.log(metrics={_ORIGIN: num_batches, **given}, split="train", step=self.current_step)
        elif others := [name for name in plan if origin.metrics.get(f"{_PLAN}{name}") != given[f"{_PLAN}{name}"]]:
            raise ConfigError(
                f"{self.model!r} was trained for {self.done} batches with other {' and '.join(others)} than are given "
                "now, so that they cannot be gone on with; give the same again (tasks are compared by their fields, or "
                "by what they print, which must be the same in each process), or give the model another name"
            )
        if self.options.judge is None:
            wanted = _print_of(self.validation)
            found = (_evaluation(record, len(self.validation)) for record in records if _is_of(record, wanted))
            self.before = next(map(_Tried, found), None)
        if self.done:
            left = "" if self.done < steps else f"; with steps={steps} there is nothing left to do"
            self.say(f"going on after {self.done} batches, at step {self.current_step}{left}")

    async def step(self, items: Sequence[int], config: TrainConfig, *, of: int) -> None:
        """One batch: attempts, their record, a training step."""
        name = f"batch {self.done + 1} of {of}"
        started = time.monotonic()
        given = [(f"task-{i}", self.tasks[i]) for i in items]
        groups, _, failed = await self._gather(given, self.options.group_size, name)
        await self.model.log(groups, split="train")
        result = await self.model.train(groups, config, verbose=False)
        self.done += 1
        if result.skipped is not None:
            self.num_skipped += 1
            self.last_skipped = result.skipped
        self.current_step = result.step
        mean = mean_reward([member for group in groups for member in group])
        assert mean is not None, "a batch in which every attempt failed is refused"
        self.rewards.append(mean)
        self.batch_s.append(time.monotonic() - started)
        left_s = sum(self.batch_s) / len(self.batch_s) * (of - self.done)
        skipped = f"skipped: {result.skipped}" if result.skipped else ""
        figures = step_figures(result.metrics)
        self.say(progress_line(name, f"step {result.step}", figures, skipped, failed, left_s=left_s))

    async def evaluate(self) -> None:
        """Attempts at the validation tasks, and their record."""
        name = "evaluation"
        given = [(f"validation-{index}", task) for index, task in enumerate(self.validation)]
        groups, states, failed = await self._gather(given, self.eval_samples, name)
        versions = [exchange.policy_version for group in groups for member in group for exchange in member.exchanges]
        evaluation = Evaluation.of(max(versions, default=self.current_step), list(map(list, groups)))
        is_judged = self.options.judge is not None
        tried = _Tried(evaluation, groups, states) if is_judged else _Tried(evaluation)
        self.evaluated.append(tried)
        self.evaluated_after = self.done
        metrics: dict[str, float] = {}
        if self.before is None and self.is_untrained:
            self.before = tried
            metrics = {} if is_judged else _before_metrics(evaluation, _print_of(self.validation))
        await self.model.log(groups, split="val", metrics=metrics)
        self.say(progress_line(name, f"step {evaluation.step}", f"reward {evaluation}", failed))

    def tell_if_nothing_was_learned(self) -> None:
        """Loudly: it is easily missed among the lines of a long training."""
        if self.num_skipped and self.num_skipped == len(self.rewards):
            _logger.warning(
                "%r learned nothing: each of the %d batches was skipped, the last because %s; wanted attempts at the "
                "same task with different rewards: easier tasks, a reward in parts, or a larger group_size",
                self.model,
                self.num_skipped,
                self.last_skipped,
            )

    async def result(self) -> TrainingResult:
        """What was done, and how much better the model is now."""
        before, after = self.before, self.evaluated[-1] if self.evaluated else None
        earlier = [before] if before is not None and not any(before is tried for tried in self.evaluated) else []
        made = TrainingResult(
            self.current_step,
            tuple(self.rewards),
            self.num_skipped,
            tuple(tried.evaluation for tried in [*earlier, *self.evaluated]),
            before.evaluation if before is not None else None,
            after.evaluation if after is not None and after is not before else None,
        )
        if self.options.judge is None or before is None or after is None or after is before:
            return made
        groups, states = list(zip(before.groups, after.groups, strict=True)), {**before.states, **after.states}
        first, last = await judge_together(groups, states, self.options.judge)
        return replace(
            made,
            before=Evaluation.of(before.evaluation.step, first),
            after=Evaluation.of(after.evaluation.step, last),
        )

    async def _gather(
        self, tasks: list[tuple[str, Any]], group_size: int, name: str
    ) -> tuple[list[TrajectoryGroup], dict[str, Any], str]:
        """The groups, the states that their graphs ended with by trajectory, and what is to tell of failed ones."""
        judge = self.options.judge
        states: dict[str, Any] = {}
        failures = Failures()

        async def attempted(task: Any) -> Trajectory:
            try:
                attempt = await self.attempt.attempt((task,), {}, is_judged=judge is not None)
            except Exception as error:
                failures.saw(error)
                raise
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
        failures.refuse_if_all(groups, name)
        return groups, states, failures.note(groups)

    def say(self, text: str) -> None:
        if self.options.show:
            _print(text)


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201


@contextlib.asynccontextmanager
async def _served(model: TrainableModel, path: Path | str, show: bool) -> AsyncIterator[None]:
    if model.is_registered:
        yield
        return
    if show:  # loading it takes a while
        _print(f"serving {model.base_model} here; its run is kept in {Path(path) / model.project / model.name}")
    async with LocalBackend(path) as backend:
        await model.register(backend)
        try:
            yield
        finally:
            model.unregister()


def _print_of(tasks: Sequence[Any]) -> float:
    return fingerprint([tasks[index] for index in range(len(tasks))])


def _before_metrics(evaluation: Evaluation, tasks: float) -> dict[str, float]:
    rewards = {f"{_BEFORE}{i:04d}": reward for i, reward in enumerate(evaluation.rewards) if reward is not None}
    return {**rewards, f"{_BEFORE}tasks": tasks, f"{_BEFORE}num_failed": float(evaluation.num_failed)}


def _is_of(record: MetricRecord, tasks: float) -> bool:
    return record.metrics.get(f"{_BEFORE}tasks") == tasks


def _evaluation(record: MetricRecord, num_tasks: int) -> Evaluation:
    rewards = tuple(record.metrics.get(f"{_BEFORE}{index:04d}") for index in range(num_tasks))
    return Evaluation(record.step, rewards, round(record.metrics.get(f"{_BEFORE}num_failed", 0.0)))
