"""In which order tasks are trained on, and whether two lists of tasks are the same. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum
from itertools import count
from typing import Any

from pydantic import BaseModel

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_DEEPEST = 20


def batches(num_tasks: int, size: int, seed: int) -> Iterator[list[int]]:
    """Endless batches of `size` different tasks, by their numbers, `size` at most `num_tasks`.

    Each task comes once in each pass over all, and each pass has an order of its own, which depends on the arguments
    only. A batch that one pass leaves unfinished is filled from the next.
    """
    waiting: list[int] = []
    for epoch in count():
        order = list(range(num_tasks))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        order.sort(key=waiting.__contains__)  # stable: those already in the unfinished batch come last
        waiting += order
        while len(waiting) >= size:
            yield waiting[:size]
            del waiting[:size]


def fingerprint(value: Any) -> float:
    """A whole number below 2**48 that equal values share, in every process, and that others hardly ever do.

    Objects count by their fields, or by what they print; one without either by its type.
    """
    return float(int(hashlib.sha256(_told(value, 0).encode("utf-8", "surrogatepass")).hexdigest()[:12], 16))


def _told(value: Any, depth: int) -> str:
    name = f"{type(value).__module__}.{type(value).__qualname__}"
    if depth > _DEEPEST:
        return name
    if isinstance(value, Enum):
        return f"{name}.{value.name}"
    if isinstance(value, Mapping):
        return _joined("{}", sorted(f"{_told(key, depth + 1)}:{_told(item, depth + 1)}" for key, item in value.items()))
    if isinstance(value, Set):
        return _joined("<>", sorted(_told(item, depth + 1) for item in value))
    if isinstance(value, str | bytes | range):
        return repr(value)
    if isinstance(value, Sequence):
        return _joined("[]", [_told(item, depth + 1) for item in value])
    if (fields := _fields(value)) is not None:
        return name + _told(fields, depth + 1)
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return _ADDRESS.sub("", repr(value))


def _fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields}
    kind: Any = type(value)
    if kind.__repr__ is object.__repr__ and not hasattr(value, "__qualname__"):
        return dict(getattr(value, "__dict__", {}))
    return None


def _joined(brackets: str, parts: Sequence[str]) -> str:
    return brackets[0] + "".join(f"{len(part)}:{part}," for part in parts) + brackets[1]
