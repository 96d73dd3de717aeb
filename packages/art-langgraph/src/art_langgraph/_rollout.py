"""`rollout`: a function that runs a graph on a task, made to give a recorded and rewarded trajectory.

The module has an underscore because the package exports a function `rollout`.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import logging
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, overload

from art_core import TrainableModel, Trajectory, capture
from art_core.capturing import CapturedTrajectory
from art_core.errors import ConfigError, DataError
from art_core.histories import conversations
from art_core.values import metric_value
from art_langgraph.connection import loop_of_rollout
from art_langgraph.others import AnswersSeen, watched_answers

_logger = logging.getLogger(__name__)
_told: set[str] = set()
_BROKEN_OFF = "a call whose stream is broken off is stopped, and is not recorded"
_current: ContextVar[CapturedTrajectory | None] = ContextVar("art_langgraph_trajectory", default=None)
# Threads are made as they are needed; how many rollouts run at once is for the one to say who gathers them.
_threads = ThreadPoolExecutor(max_workers=1024, thread_name_prefix="rollout")


def current_trajectory() -> CapturedTrajectory:
    """The trajectory of the rollout that this code is part of: to set `reward`, `metrics`, `metadata`, or read its URL.

    Raises:
        ConfigError: no rollout runs here; a thread that was started without its context knows of none.
    """
    trajectory = _current.get()
    if trajectory is None:
        raise ConfigError(
            "no rollout runs here; call current_trajectory() inside a function that is decorated with "
            "@art_langgraph.rollout (in a thread: one that was started by asyncio.to_thread or "
            "contextvars.copy_context().run)"
        )
    return trajectory


@dataclass(frozen=True)
class Attempt:
    """A finished rollout. `state` is what its graph ended with, where the function returned that."""

    trajectory: Trajectory
    state: Any = None


class Rollout:
    """A function that attempts a task; called like it, it gives the `Trajectory` of the attempt. See `rollout`."""

    def __init__(self, function: Callable[..., Any], model: TrainableModel | None = None) -> None:
        if not callable(function):
            raise ConfigError(f"rollout got a {type(function).__name__}; wanted a function that runs the agent")
        inner = function if isinstance(function, Rollout) else None
        made = function if inner is None else inner.function
        code = _innermost(made)
        if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
            raise ConfigError(
                f"{getattr(made, '__qualname__', repr(made))} has a `yield`, so calling it gives a generator; wanted a "
                "function that runs the agent and returns the reward"
            )
        # Names and documentation only: an object with a __call__ has attributes of its own, `model` perhaps.
        functools.update_wrapper(self, made, updated=("__dict__",) if inspect.isroutine(made) else ())
        self.function: Callable[..., Any] = made
        self.model: TrainableModel | None = model if inner is None else model or inner.model

    def of(self, model: TrainableModel) -> Rollout:
        """The same function for `model`.

        Raises:
            ConfigError: it belongs to another model already.
        """
        if self.model is not None and self.model is not model:
            raise ConfigError(f"{self!r} is a rollout of {self.model!r}; wanted one of {model!r}, or of none")
        return Rollout(self.function, model)

    async def __call__(self, *args: Any, **kwargs: Any) -> Trajectory:
        return (await self.attempt(args, kwargs)).trajectory

    def __get__(self, instance: object, owner: type | None = None) -> Rollout:
        """As a method of a class: that of the object."""
        bind = getattr(self.function, "__get__", None)
        return self if bind is None else Rollout(bind(instance, owner), self.model)

    def __reduce__(self) -> str | tuple[Any, ...]:
        name = getattr(self, "__qualname__", "")
        found: Any = sys.modules.get(self.__module__)
        for part in name.split("."):
            found = getattr(found, part, None)
        # What decorates a function stands in the function's place: it is found by that name.
        return name if found is self else (Rollout, (self.function, self.model))

    async def attempt(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_judged: bool = False) -> Attempt:
        """Run the function, with every call of the model recorded. With `is_judged` it need not give a reward.

        Raises:
            DataError: the model was not called, or the function gave no reward, or one that is not a finite number.
        """
        if self.model is None:
            raise ConfigError(
                f"{self!r} does not know its model; write @rollout(model) or rollout(function, model=model), or give "
                "it to art_langgraph.train, which does know it"
            )
        with watched_answers() as answers:
            async with capture(self.model) as captured:
                token, loop = _current.set(captured), loop_of_rollout.set(asyncio.get_running_loop())
                try:
                    given = await self._called(*args, **kwargs)
                finally:
                    _current.reset(token)
                    loop_of_rollout.reset(loop)
        recorded = {exchange.id for exchange in captured.exchanges}  # also where another trajectory is returned
        trajectory, state = self._outcome(captured, given, is_judged=is_judged)
        recorded |= {exchange.id for exchange in trajectory.exchanges}
        others = answers.others(recorded, trained=self.model.get_inference_name())
        if not trajectory.exchanges:
            raise DataError(self._not_recorded(captured, others, answers))
        if others:
            trajectory.metrics["other_models/calls"] = len(others)
            trajectory.log(f"calls of models that are not trained: {_counted(others)}")
        if answers.open_streams:
            trajectory.metrics["capture/streams_broken_off"] = len(answers.open_streams)
            trajectory.log(f"{len(answers.open_streams)} streams were not read to their end; {_BROKEN_OFF}")
        self._tell_of_foreign_answers(trajectory, answers, recorded)
        if trajectory.reward is None and trajectory.error is None and not is_judged:
            raise DataError(
                f"{self!r} gave no reward; return a number, or set current_trajectory().reward, "
                "or its error where the attempt says nothing about the model"
            )
        return Attempt(trajectory, state)

    async def _called(self, *args: Any, **kwargs: Any) -> Any:
        if inspect.iscoroutinefunction(_innermost(self.function)):
            return await self.function(*args, **kwargs)
        call = functools.partial(contextvars.copy_context().run, self._called_in_thread, *args, **kwargs)
        given = await asyncio.get_running_loop().run_in_executor(_threads, call)
        return await given if isinstance(given, Awaitable) else given

    def _called_in_thread(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.function(*args, **kwargs)
        except StopIteration as error:  # which no future can hold: whoever awaits it would wait for ever
            raise RuntimeError(f"{self!r} raised StopIteration; next(..., default) raises none") from error

    def _tell_of_foreign_answers(self, trajectory: Trajectory, answers: AnswersSeen, recorded: set[str]) -> None:
        """Where histories hold what the model answered in another rollout: as a rule a checkpointer's threads."""
        if not (foreign := len(answers.in_histories - recorded)):
            return
        trajectory.metrics["history/answers_from_elsewhere"] = foreign
        told = (
            f"{foreign} answers of trained models in its histories were made in no call of this rollout; where that is "
            "not meant, give each rollout a thread_id of its own: a checkpointer hands the messages of a thread to "
            "whoever uses the same id"
        )
        trajectory.log(told)
        if repr(self) not in _told:
            _told.add(repr(self))
            _logger.warning("%r, trajectory %s: %s", self, trajectory.id, told)

    def _outcome(self, captured: Trajectory, given: Any, *, is_judged: bool) -> tuple[Trajectory, Any]:
        """The trajectory, and the state that the graph ended with where that was given."""
        if given is None or given is captured:
            return captured, None
        if isinstance(given, Trajectory):
            return _merged(given, captured), None
        if type(given).__module__ == "langgraph.types" and hasattr(given, "value"):
            given = given.value  # what `invoke(..., version="v2")` gives
        if is_judged and _is_state(given):
            return captured, given
        number = float(given) if isinstance(given, Decimal | Fraction) else given
        try:
            captured.reward = float(metric_value(number, "it"))
        except DataError:
            shown = repr(given)
            state = "a state with messages, " if is_judged else ""
            hint = "; the final state of a graph is for a judge: train(..., judge=...)" if _is_state(given) else ""
            raise DataError(
                f"the reward that {self!r} returned is {shown if len(shown) <= 200 else shown[:197] + '...'}; wanted a "
                f"finite number, {state}a Trajectory, or None where it has set current_trajectory().reward{hint}"
            ) from None
        return captured, None

    def _not_recorded(self, captured: Trajectory, others: list[str], answers: AnswersSeen) -> str:
        told = f"{self!r} ended without a recorded call of {self.model!r}, so there is nothing to train on: "
        if answers.open_streams:
            return told + (
                f"{len(answers.open_streams)} streams were not read to their end; {_BROKEN_OFF}: read each whole, and "
                "limit it by max_tokens or stop"
            )
        assert self.model is not None, "an attempt without a model is refused"
        if self.model.get_inference_name() in {name.partition("@")[0] for name in others}:
            return told + (
                f"it was called outside the attempt's address ({_counted(others)}); use "
                "art_langgraph.ArtChatModel(model), or give the client base_url=current_trajectory().base_url"
            )
        if others:
            return told + (
                f"it called other models ({_counted(others)}); build the graph with "
                "art_langgraph.ArtChatModel(model) in their place"
            )
        if outside := captured.metrics.get("capture/calls_outside"):
            return told + (
                f"{outside} calls of the model were made in no rollout meanwhile; a thread that is started by hand "
                "does not know of it: submit contextvars.copy_context().run, or use asyncio.to_thread"
            )
        return told + (
            "it returned before it called the model, or called it by a client that is not led here; build the graph "
            "with art_langgraph.ArtChatModel(model), or give the client current_trajectory().base_url; where nodes "
            "have a cache_policy leave that out, for what is cached is not sampled"
        )

    def __repr__(self) -> str:
        return f"rollout {getattr(self.function, '__qualname__', repr(self.function))!r}"


@overload
def rollout(function: TrainableModel, /) -> Callable[[Callable[..., Any]], Rollout]: ...
@overload
def rollout(function: None = None, /, *, model: TrainableModel) -> Callable[[Callable[..., Any]], Rollout]: ...
@overload
def rollout(function: Callable[..., Any], /, *, model: TrainableModel | None = None) -> Rollout: ...
def rollout(function: Any = None, /, *, model: TrainableModel | None = None) -> Any:
    """Make a trajectory of each call of `function`, which runs an agent once and says how good that was.

    Every call of an `ArtChatModel` made inside is recorded. `function` may be asynchronous, or not: it then runs in a
    thread. It returns the reward; or None, having set `current_trajectory().reward`; or a `Trajectory` of its own. What
    is made is always awaited: `trajectory = await attempt(task)`. An exception goes through.

    Written `@rollout`, the model is the one given to `train`; with `@rollout(model)`, `rollout(function, model=model)`
    or `wrap_rollout(model, function)` the rollout can be called by itself, and gathered by `art_core`'s functions.

    Raises:
        DataError: when called: the model was not called, or there is no reward, or it is not a finite number.
        ConfigError: when called: the rollout has no model, or that is not registered.
    """
    if isinstance(function, TrainableModel):
        return functools.partial(Rollout, model=function)
    if function is None:
        return functools.partial(Rollout, model=model)
    return Rollout(function, model)


def wrap_rollout(model: TrainableModel, function: Callable[..., Any]) -> Rollout:
    """As `rollout(function, model=model)`; the name and the order that ART has."""
    if not isinstance(model, TrainableModel):
        raise ConfigError(f"wrap_rollout got a {type(model).__name__}; wanted wrap_rollout(model, function)")
    return Rollout(function, model)


def _merged(given: Trajectory, captured: Trajectory) -> Trajectory:
    """A trajectory that the function made itself, with all that was recorded and noted meanwhile; what it says goes
    first. One that has calls of its own, such as that of a rollout inside, gets the others as further conversations.
    """
    known = {exchange.id for exchange in given.exchanges}
    more = [exchange for exchange in captured.exchanges if exchange.id not in known]
    if not given.messages_and_choices and not given.additional_histories:
        given.messages_and_choices, given.tools = captured.messages_and_choices, captured.tools
        given.additional_histories, given.role = captured.additional_histories, captured.role
    elif known and more:
        given.additional_histories = [*given.additional_histories, *conversations(more)]
    given.exchanges = sorted([*given.exchanges, *more], key=lambda exchange: exchange.started_at)
    for name, value in captured.metrics.items():
        given.metrics.setdefault(name, value)
    if len(versions := {exchange.policy_version for exchange in given.exchanges}) > 1:
        given.metrics["capture/policy_versions"] = len(versions)
    given.metadata = {**captured.metadata, **given.metadata}
    given.scenario_id = given.scenario_id or captured.scenario_id
    given.logs += captured.logs
    if given.error is None:
        given.error = captured.error
        given.reward = captured.reward if given.reward is None else given.reward
    return given


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    is_function = inspect.isroutine(function)
    return function if is_function else type(function).__call__


def _is_state(given: Any) -> bool:
    if isinstance(given, Mapping):
        return "messages" in given
    return isinstance(given, list) and not any(isinstance(item, int | float) for item in given)


def _counted(names: list[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in Counter(names).most_common())
