"""What a rollout did, how it was judged, and the groups in which rollouts are compared."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self, overload

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, field_serializer

from art_core.choices import data_of, is_answer, message_of
from art_core.errors import DataError
from art_core.types import ChatMessage, Exchange, RolloutError, ToolSpec
from art_core.values import Metadata, Metrics, json_value, metric_value, readable

Rollout = Awaitable["Trajectory"] | Callable[[], Awaitable["Trajectory"]]
"""A rollout still to be run: a coroutine, which runs once, or a function without arguments, which can be run again."""


class History(BaseModel):
    """One conversation: messages as dicts, and between them the choices that a model answered with.

    A choice is what `completion.choices[0]` of the `openai` client is: it carries the id of its recorded exchange, by
    which its token ids are found again. A choice that a library has turned into a message dict is looked up by the
    same id where the library kept it. `role` is that of the agent whose conversation it is, where there are several.
    """

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    messages_and_choices: list[Any] = Field(default_factory=list)
    tools: list[ToolSpec] | None = None
    role: str = ""

    def messages(self) -> list[ChatMessage]:
        """The conversation as message dicts, the way an OpenAI client sends them.

        Raises:
            DataError: an item is neither a message dict nor a choice.
        """
        return [message_of(item, _at(index)) for index, item in enumerate(self.messages_and_choices)]

    @field_serializer("messages_and_choices")
    def _as_data(self, items: list[Any]) -> list[Any]:
        return [data_of(item, _at(index)) for index, item in enumerate(items)]


class _Clock:
    """Seconds since it was made. All are equal, so that it does not count when trajectories are compared."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Clock)

    __hash__ = None  # type: ignore[assignment]


class Trajectory(History):
    """What one rollout did and how it was judged.

    `exchanges` are the recorded calls: fetched when a capture ends, or looked up by the choices when the trajectory is
    trained on or logged. `reward` stays None until something has scored it; None is not 0; a bool counts as 1 or 0.
    `error` is set when the rollout itself failed for a reason the policy is not responsible for; such a trajectory is
    counted and never trained.

    `metrics` holds finite numbers and bools, `metadata` JSON values; anything else is refused when it is set.
    """

    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    scenario_id: str = ""
    additional_histories: list[History] = Field(default_factory=list)
    exchanges: list[Exchange] = Field(default_factory=list)
    reward: Annotated[float | None, BeforeValidator(lambda value: _reward(value))] = None
    metrics: Annotated[dict[str, Any], AfterValidator(Metrics)] = Field(default_factory=Metrics)
    metadata: Annotated[dict[str, Any], AfterValidator(Metadata)] = Field(default_factory=Metadata)
    logs: list[str] = Field(default_factory=list)
    error: RolloutError | None = None
    _clock: _Clock = PrivateAttr(default_factory=lambda: _Clock())

    @field_serializer("metadata")
    def _plain(self, metadata: dict[str, Any]) -> Any:
        return json_value(metadata, "metadata")  # what was put into an inner list or dict is checked only here

    @field_serializer("logs")
    def _lines(self, logs: list[str]) -> list[str]:
        return [readable(line) for line in logs]

    @property
    def num_trained_tokens(self) -> int:
        """Sampled tokens over all exchanges, but for those that a grammar forced: what training here would weigh."""
        return sum(len(exchange.completion_ids) - sum(exchange.forced) for exchange in self.exchanges)

    def log(self, message: str) -> None:
        """Add a line to `logs`."""
        self.logs.append(message)

    def finish(self) -> Self:
        """Set the metric `duration`: seconds since this trajectory was made. Returns the trajectory."""
        self.metrics["duration"] = self._clock.seconds
        return self

    def track_duration(self, name: str) -> _Stopwatch:
        """For `with` and `async with`: adds the seconds spent inside to the metric `<name>_duration`."""
        return _Stopwatch(self.metrics, f"{name}_duration")

    def for_logging(self) -> dict[str, Any]:
        """The trajectory as plain data to print; each message says whether it is `trainable`, an answer of a model."""
        messages = [
            {**message, "trainable": is_answer(item)}
            for message, item in zip(self.messages(), self.messages_and_choices, strict=True)
        ]
        fields = self.model_dump(mode="json", include={"reward", "metrics", "metadata", "tools", "logs", "error"})
        return {**fields, "messages": messages}

    def __str__(self) -> str:
        return f"Trajectory(reward={self.reward}, metrics={dict(self.metrics)}, metadata={dict(self.metadata)})"


class _Stopwatch:
    """Adds the time between entering and leaving to a metric."""

    def __init__(self, metrics: dict[str, Any], name: str) -> None:
        self._metrics = metrics
        self._name = name

    def __enter__(self) -> None:
        self._clock = _Clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._metrics[self._name] = self._metrics.get(self._name, 0.0) + self._clock.seconds

    async def __aenter__(self) -> None:
        self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


class TrajectoryGroup:
    """Rollouts of the same scenario, compared with each other.

    Made of trajectories, it is complete. An exception among them, or in `exceptions`, stands for a rollout that failed:
    it becomes a trajectory with that error. Made of rollouts still to be run (coroutines or other awaitables, or
    functions without arguments that return one), what is made is a `PendingGroup`, for `gather_trajectory_groups` or
    `await`.
    """

    trajectories: tuple[Trajectory, ...]
    scenario_id: str
    metadata: dict[str, Any]
    metrics: dict[str, Any]
    logs: list[str]

    if TYPE_CHECKING:

        @overload
        def __new__(
            cls,
            trajectories: Iterable[Trajectory | BaseException],
            *,
            exceptions: Iterable[BaseException] = ...,
            scenario_id: str = ...,
            metadata: dict[str, Any] | None = ...,
            metrics: dict[str, Any] | None = ...,
            logs: list[str] | None = ...,
        ) -> TrajectoryGroup: ...

        @overload
        def __new__(  # type: ignore[misc]  # what is made is not an instance: it becomes one when it is awaited
            cls,
            trajectories: Iterable[Rollout],
            *,
            scenario_id: str = ...,
            metadata: dict[str, Any] | None = ...,
            metrics: dict[str, Any] | None = ...,
            logs: list[str] | None = ...,
        ) -> PendingGroup: ...

    def __new__(
        cls,
        trajectories: Iterable[Any],
        *,
        exceptions: Iterable[BaseException] = (),
        scenario_id: str = "",
        metadata: dict[str, Any] | None = None,
        metrics: dict[str, Any] | None = None,
        logs: list[str] | None = None,
    ) -> Any:
        members = [*trajectories, *exceptions]
        pending = [member for member in members if _is_rollout(member)]
        kept: dict[str, Any] = {"metadata": Metadata(metadata), "metrics": Metrics(metrics), "logs": list(logs or ())}
        if pending:
            if len(pending) < len(members):
                discard(pending)
                raise DataError(
                    f"the group has {len(pending)} rollouts still to be run and {len(members) - len(pending)} finished "
                    "members; wanted one kind: await the rollouts first, or give rollouts only"
                )
            return PendingGroup(pending, scenario_id=scenario_id, **kept)
        group = super().__new__(cls)
        group.trajectories = tuple(_member(member, index) for index, member in enumerate(members))
        group.scenario_id = scenario_id or next((t.scenario_id for t in group.trajectories if t.scenario_id), "")
        group.metadata, group.metrics, group.logs = kept["metadata"], kept["metrics"], kept["logs"]
        return group

    def __getnewargs_ex__(self) -> tuple[tuple[Any, ...], dict[str, Any]]:  # for copy and pickle
        return ((self.trajectories,), {})

    def __iter__(self) -> Iterator[Trajectory]:
        return iter(self.trajectories)

    def __len__(self) -> int:
        return len(self.trajectories)

    def __repr__(self) -> str:
        return f"TrajectoryGroup({len(self)} trajectories, scenario_id={self.scenario_id!r})"

    def log(self, message: str) -> None:
        """Add a line to `logs`."""
        self.logs.append(message)

    @property
    def errors(self) -> list[RolloutError]:
        """Why members failed, for those that did."""
        return [trajectory.error for trajectory in self.trajectories if trajectory.error is not None]

    def with_rewards(self) -> ScoredGroup:
        """The group scored by the rewards that its trajectories carry.

        Raises:
            DataError: a trajectory that did not fail has no reward.
        """
        unscored = [t.id for t in self.trajectories if t.reward is None and t.error is None]
        if unscored:
            raise DataError(
                f"group {self.scenario_id!r}: no reward on {len(unscored)} of {len(self)} trajectories "
                f"({_listed(unscored)}); set trajectory.reward, or trajectory.error where the rollout failed"
            )
        return self.with_scores([trajectory.reward for trajectory in self.trajectories])

    def with_scores(self, scores: Sequence[float | None]) -> ScoredGroup:
        """The group with one reward per trajectory, in the order of the trajectories.

        A score of None, like a trajectory that carries an error, leaves its trajectory out of the comparison.

        Raises:
            DataError: another number of scores than trajectories, or a score that is not finite.
        """
        if isinstance(scores, str | Mapping) or not (hasattr(scores, "__len__") and hasattr(scores, "__getitem__")):
            raise DataError(
                f"group {self.scenario_id!r}: scores are a {type(scores).__name__}; wanted a list with one score, or "
                "None, for each trajectory, in the order given"
            )
        if len(scores) != len(self.trajectories):
            raise DataError(
                f"group {self.scenario_id!r}: {len(scores)} scores for {len(self.trajectories)} trajectories; "
                "a judge returns one score, or None, for each trajectory, in the order given"
            )
        for index, score in enumerate(scores):
            try:
                _ = score is None or metric_value(score, "it")
            except DataError:
                raise DataError(
                    f"group {self.scenario_id!r}: score {index} is {score!r}; wanted a finite number, "
                    "or None where the trajectory could not be scored"
                ) from None
        members = tuple(
            (trajectory, float(score))
            for trajectory, score in zip(self.trajectories, scores, strict=True)
            if score is not None and trajectory.error is None
        )
        return ScoredGroup(self.scenario_id, members, num_excluded=len(self.trajectories) - len(members))


class PendingGroup:
    """A group whose rollouts have not been run. Awaiting it is `gather_trajectory_groups` with this group alone."""

    def __init__(self, rollouts: Sequence[Rollout], *, scenario_id: str = "", **kept: Any) -> None:
        self.rollouts = tuple(rollouts)
        self.scenario_id = scenario_id
        self._kept = kept

    def complete(self, members: Sequence[Trajectory]) -> TrajectoryGroup:
        """The group of what the rollouts gave, in their order."""
        return TrajectoryGroup(members, scenario_id=self.scenario_id, **self._kept)

    def __await__(self) -> Generator[Any, None, TrajectoryGroup]:
        return self._run().__await__()

    async def _run(self) -> TrajectoryGroup:
        from art_core.gather import gather_trajectory_groups  # which imports this module

        (group,) = await gather_trajectory_groups([self], pbar_desc=None)
        return group

    def __getattr__(self, name: str) -> Any:
        if name in ("trajectories", "with_rewards", "with_scores", "errors"):
            raise DataError(
                f"this group has no {name} yet: its rollouts have not been run; "
                "await it, or give it to art_core.gather_trajectory_groups"
            )
        raise AttributeError(name)


@dataclass(frozen=True)
class ScoredGroup:
    """Trajectories of one scenario with their rewards: the only kind of group that can be trained on."""

    scenario_id: str
    members: tuple[tuple[Trajectory, float], ...]
    num_excluded: int = 0

    @property
    def rewards(self) -> list[float]:
        return [reward for _, reward in self.members]


class NoRolloutError(DataError):
    """What was given as a rollout is none: a mistake in the script, and no failed attempt."""


async def begun(rollout: Rollout, name: str) -> Any:
    """What `rollout`, called `name`, gives.

    Raises:
        NoRolloutError: it is a function that gives nothing to await.
    """
    given = rollout() if callable(rollout) else rollout
    if not isinstance(given, Awaitable):
        raise NoRolloutError(
            f"{name} gave {type(given).__name__} when it was called; wanted a coroutine: define the rollout with "
            "`async def`, or give functools.partial(asyncio.to_thread, rollout, ...) where it is not asynchronous"
        )
    return await given


def refuse_what_ran(rollouts: Iterable[Any], seen: set[int]) -> None:
    """Refuse coroutines that have been run, or are in `seen`, to which the others are added: each runs once.

    Raises:
        DataError: there is one.
    """
    for rollout in rollouts:
        if not inspect.iscoroutine(rollout):
            continue
        if id(rollout) in seen or inspect.getcoroutinestate(rollout) != inspect.CORO_CREATED:
            raise DataError(
                f"the rollout {rollout.__qualname__}() is to be run a second time, and a coroutine runs once; make a "
                "new one for each attempt, or give a function, such as functools.partial(rollout, model, task)"
            )
        seen.add(id(rollout))


def discard(rollouts: Iterable[Any]) -> None:
    """Let go of rollouts that will not be run, so that Python does not report them as forgotten."""
    for rollout in rollouts:
        if isinstance(rollout, asyncio.Future):
            rollout.cancel()
        elif hasattr(rollout, "cr_frame") or isinstance(rollout, Generator):
            rollout.close()


def _is_rollout(member: Any) -> bool:
    return isinstance(member, Awaitable) or (callable(member) and not isinstance(member, BaseException | type))


def _member(member: Any, index: int) -> Trajectory:
    if isinstance(member, Trajectory):
        return member
    if isinstance(member, BaseException):
        return Trajectory(error=RolloutError.of(member))
    raise DataError(
        f"member {index} of the group is a {type(member).__name__}; wanted a Trajectory, or a rollout that gives one"
    )


def _reward(value: Any) -> float | None:
    try:
        return None if value is None else float(metric_value(value, "reward"))
    except DataError:
        raise ValueError(
            f"{repr(value)[:100]} is not a finite number; wanted one as reward, or None while nothing has scored it"
        ) from None


def _at(index: int) -> str:
    return f"messages_and_choices[{index}]"


def _listed(names: Sequence[str], limit: int = 3) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
