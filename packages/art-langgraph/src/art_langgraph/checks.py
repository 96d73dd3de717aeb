"""What `train` is given, checked before anything starts. Raises ConfigError."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from art_core import TrainableModel, TrainConfig
from art_core.errors import ConfigError, did_you_mean
from art_core.moving import hint
from art_core.options import Kind, check_value, whole
from art_langgraph._rollout import Rollout

_ELSEWHERE = {
    "temperature": "how attempts are sampled is said where the chat model is made: ArtChatModel(model), which samples "
    "at temperature 1, as training wants",
    "max_tokens": "it is an option of the chat model: ArtChatModel(model, max_tokens=...)",
    "backend": "it is where the model is registered: await model.register(backend)",
}


def check_model_and_attempt(model: Any, attempt: Any) -> None:
    """Refuse what is given in the place of a model, or of a function that attempts a task."""
    if not isinstance(model, TrainableModel):
        swapped = isinstance(attempt, TrainableModel)
        wanted = (
            "the model comes first: train(model, attempt, tasks)"
            if swapped
            else "wanted art.TrainableModel(name=..., project=..., base_model='smollm2-135m')"
        )
        shown = repr(model) if isinstance(model, str) else f"a {type(model).__name__}"
        raise ConfigError(f"model, the first argument of train, is {shown}; {wanted}")
    if not isinstance(attempt, Rollout) and (not callable(attempt) or hasattr(attempt, "ainvoke")):
        raise ConfigError(
            f"attempt, the second argument of train, is a {type(attempt).__name__}; wanted a function of a task: write "
            "one that calls `await agent.ainvoke(...)` and returns a reward"
        )


def check_names(options: Iterable[str], train: Callable[..., Any]) -> None:
    """Refuse names that are neither options of `train` nor of `TrainConfig`; what ART calls them is told by that."""
    of_config = [field.name for field in dataclasses.fields(TrainConfig)]
    parameters = inspect.signature(train).parameters.values()
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY] + of_config
    for name in sorted(set(options) - set(known)):
        if hint("train", name) is None:
            instead = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else did_you_mean(name, known)
            raise ConfigError(f"train has no option {name!r}{instead}; its options are {sorted(known)}")


def check_tasks(name: str, tasks: Any, least: int = 1) -> None:
    """Refuse what is no list of at least `least` tasks."""
    is_sequence = hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")
    if not is_sequence or isinstance(tasks, str | bytes | Mapping):
        raise ConfigError(f"{name} is a {type(tasks).__name__}; wanted a list, which has a length and an order")
    if len(tasks) < least:
        raise ConfigError(f"{name} is empty; wanted one task at least")


def check_numbers(**numbers: Any) -> None:
    """Refuse what is no whole number, or too small a one for an option of that name."""
    least = {"group_size": 2, "steps": 0, "seed": None}
    for name, value in numbers.items():
        kind = whole(least.get(name, 1))
        if name == "group_size":
            kind = Kind(kind.fits, f"{kind.wanted}: attempts are compared with each other")
        check_value(name, value, kind)


def check_takes_a_task(attempt: Rollout) -> None:
    """Refuse a function that cannot be called with a task and nothing else."""
    try:
        signature = inspect.signature(attempt.function)
    except (TypeError, ValueError):  # of some callables written in C it is not known
        return
    try:
        signature.bind("a task")
    except TypeError as error:
        raise ConfigError(
            f"{attempt!r} takes {signature}, and train calls it with a task: {error}; wanted a function of the task "
            "alone: functools.partial(function, ...), or a lambda, gives it the rest"
        ) from None
