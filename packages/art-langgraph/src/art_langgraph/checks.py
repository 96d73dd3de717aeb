"""What `train` is given, checked before anything starts. Raises ConfigError."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from art_core.errors import ConfigError
from art_core.values import is_number
from art_langgraph._rollout import Rollout


def check_tasks(name: str, tasks: Any, least: int = 1) -> None:
    """Refuse what is no list of at least `least` tasks."""
    is_sequence = hasattr(tasks, "__len__") and hasattr(tasks, "__getitem__")
    if not is_sequence or isinstance(tasks, str | bytes | Mapping):
        raise ConfigError(f"{name} is a {type(tasks).__name__}; wanted a list, which has a length and an order")
    if len(tasks) < least:
        raise ConfigError(f"{name} is empty; wanted one task at least")


def check_numbers(**numbers: Any) -> None:
    """Refuse what is no whole number, or too small a one for an option of that name."""
    for name, value in numbers.items():
        if not is_number(value, whole=True):
            raise ConfigError(f"{name} is {value!r}; wanted a whole number")
        least = {"group_size": 2, "steps": 0, "seed": value}.get(name, 1)
        if value < least:
            why = ": attempts are compared with each other" if name == "group_size" else ""
            raise ConfigError(f"{name} is {value}; wanted {least} or more{why}")


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
