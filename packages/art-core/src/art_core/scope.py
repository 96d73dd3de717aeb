"""Which trajectory a call belongs to: a context variable, and the address it leads to."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from art_core.trajectories import Trajectory


class ServedModel(NamedTuple):
    """A model at the server whose root is `root`."""

    root: str
    project: str
    name: str


@dataclass(eq=False)
class Scope:
    """An open capture: calls of `model` go to `base_url`. `outer` is the capture around it, of whatever model.

    `num_outside` counts calls of the model's clients that were made in no capture of it while this one was open.
    `owner` is what the capture was asked for: the caller's model.
    """

    model: ServedModel
    base_url: str
    outer: Scope | None
    owner: object = None
    num_outside: int = field(default=0)


_current: ContextVar[Scope | None] = ContextVar("art_core_capture", default=None)
_records: ContextVar[list[Trajectory] | None] = ContextVar("art_core_records", default=None)
_open: dict[ServedModel, set[Scope]] = {}
_lock = threading.Lock()


def current_scope(model: ServedModel) -> Scope | None:
    """The innermost capture of `model` around this code; captures of other models around or inside it do not count."""
    scope = _current.get()
    while scope is not None and scope.model != model:
        scope = scope.outer
    return scope


def innermost_scope() -> Scope | None:
    """The innermost capture around this code, of whatever model."""
    return _current.get()


def enter(model: ServedModel, base_url: str, owner: object = None) -> Scope:
    """Begin a capture in this context."""
    scope = Scope(model, base_url, outer=_current.get(), owner=owner)
    with _lock:
        _open.setdefault(model, set()).add(scope)
    _current.set(scope)
    return scope


def leave(scope: Scope) -> None:
    """End it: the capture around it is the current one again."""
    # Not by token: a generator may be left in another context than it was entered in.
    _current.set(scope.outer)
    with _lock:
        others = _open[scope.model]
        others.discard(scope)
        if not others:
            del _open[scope.model]


def collect_records() -> list[Trajectory]:
    """A list that gets the trajectory of every capture that is left in this context from now on, an outer one last."""
    records: list[Trajectory] = []
    _records.set(records)
    return records


def keep_record(trajectory: Trajectory) -> None:
    """Add the trajectory of a capture that is being left to the list of this context, if it has one."""
    records = _records.get()
    if records is not None:
        records.append(trajectory)


def address_of_call(model: ServedModel) -> str | None:
    """The base URL that a call of `model` from this context is recorded under; None outside every capture of it.

    A call that belongs to no capture is counted on those of its model that are open.
    """
    scope = current_scope(model)
    if scope is not None:
        return scope.base_url
    with _lock:
        for other in _open.get(model, ()):
            other.num_outside += 1
    return None
