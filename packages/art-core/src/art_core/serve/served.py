"""A model as the routes see it, and who finds it by its name."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from art_core.protocols import Engine, Recorder
from art_core.render.base import ChatRenderer
from art_core.serve.wire import ApiError


@dataclass(frozen=True)
class Served:
    """One model that answers: its engine, and the renderer that turns messages into its prompts.

    `recorder` receives the exchanges of calls outside any trajectory; without one they are not kept.
    """

    name: str
    engine: Engine
    renderer: ChatRenderer
    recorder: Recorder | None = None
    created: int = field(default_factory=lambda: int(time.time()))


class Catalogue(Protocol):
    """The models of a server."""

    def served(self) -> Sequence[Served]:
        """All that answer now."""
        ...

    async def find(self, name: str) -> Served:
        """The model that a request's `model` field names, ready to answer.

        Waits, with a bound, while its weights are trained or swapped.

        Raises:
            ApiError: 404 for an unknown name; 503 with `retry_after_s` when the wait was too long.
        """
        ...


@dataclass(frozen=True)
class OneModel:
    """A catalogue of one, known by its name, and as `name@step` while it serves that step."""

    model: Served

    def served(self) -> Sequence[Served]:
        return (self.model,)

    async def find(self, name: str) -> Served:
        if name not in (self.model.name, f"{self.model.name}@{self.model.engine.policy_version}"):
            raise ApiError(
                404,
                f"model {name!r} is not served here; the only one is {self.model.name!r}",
                code="model_not_found",
                param="model",
            )
        return self.model
