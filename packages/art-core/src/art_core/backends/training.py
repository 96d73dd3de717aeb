"""`backend.train(model, groups)`: a model in place of its project and name."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol, overload

from art_core.config import TrainConfig
from art_core.errors import ConfigError
from art_core.model import TrainableModel, TrainResult
from art_core.trajectories import TrajectoryGroup
from art_core.types import StepReport


class TrainMethod(Protocol):
    """`train` of a backend, which takes a model in place of its project and name as well."""

    @overload
    async def __call__(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        *,
        on_progress: Callable[[str], None] = ...,
    ) -> StepReport: ...

    @overload
    async def __call__(
        self, project: TrainableModel, name: Iterable[TrajectoryGroup], /, **options: Any
    ) -> TrainResult: ...


class also_takes_a_model:  # noqa: N801  # used as a decorator
    """Decorates `train` of a backend, so that `backend.train(model, groups, **options)` is `model.train(...)`."""

    def __init__(self, method: Callable[..., Awaitable[StepReport]]) -> None:
        self._method = method
        functools.update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, backend: Any, owner: type | None = None) -> TrainMethod:
        async def train(*args: Any, **kwargs: Any) -> Any:
            if not args or not isinstance(args[0], TrainableModel):
                return await self._method(backend, *args, **kwargs)
            model, *rest = args
            if model.backend() is not backend:
                raise ConfigError(f"{model!r} is registered with another backend; call model.train(...) instead")
            return await model.train(*rest, **kwargs)

        return train
