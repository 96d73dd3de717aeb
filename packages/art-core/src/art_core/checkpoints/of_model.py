"""What a trainable model does with its checkpoints."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, Self

from art_core.checkpoints.keeping import KeepCheckpoints, kept_steps
from art_core.control import ForkRequest
from art_core.options import check_value, whole
from art_core.protocols import Backend


class WithCheckpoints(abc.ABC):
    """The part of `art_core.TrainableModel` that is about checkpoints."""

    project: str
    name: str
    base_model: str
    config: dict[str, Any]

    @abc.abstractmethod
    def __init__(
        self, *, name: str, project: str, base_model: str, config: Mapping[str, Any] | None = None
    ) -> None: ...

    @abc.abstractmethod
    def backend(self) -> Backend: ...

    @abc.abstractmethod
    async def register(self, backend: Backend) -> None: ...

    async def delete_checkpoints(
        self,
        best_checkpoint_metric: str | None = "val/reward",
        *,
        lowest: bool = False,
        keep_last: int = 1,
        keep_every: int | None = None,
        dry_run: bool = False,
    ) -> list[int]:
        """Delete all checkpoints but the newest `keep_last`, the best, and those of steps that `keep_every` divides.

        The best one has the highest (or `lowest`) mean of the metric `best_checkpoint_metric` that was logged for its
        step; None keeps no best one. Those that are being served, also as `name@step`, exported or forked are left too.

        Returns the steps whose checkpoints are left; with `dry_run` nothing is deleted.

        Raises:
            ConfigError: no checkpoint has a value of that metric, or a number is out of range; nothing was deleted.
        """
        check_value("keep_last", keep_last, whole(1))
        check_value("keep_every", keep_every, whole(1).or_none("no such rule"))
        policy = KeepCheckpoints.made(
            {"last": keep_last, "best": best_checkpoint_metric, "lowest": lowest, "every": keep_every}
        )
        backend = self.backend()
        state = await backend.state(self.project, self.name)
        if not state.checkpoint_steps:
            return []
        records = await backend.logged_metrics(self.project, self.name)
        kept = list(kept_steps(policy, state.checkpoint_steps, records))
        if dry_run:
            return kept
        return (await backend.delete_checkpoints(self.project, self.name, keep=kept)).checkpoint_steps

    async def fork(
        self, name: str, *, project: str | None = None, step: int | None = None, optimizer: bool = True
    ) -> Self:
        """A new model that begins with this one's checkpoint of `step` (default: the newest), at the same backend.

        It has the same base model and options, and counts on: the first step it makes is `step` + 1. Without
        `optimizer`, only the weights are taken over and the moments of AdamW begin anew. In a script that is started
        again, the same fork finds the model at the step it has reached.

        Raises:
            ConfigError: there is a model of that name already, which is not this fork.
            DataError: no such checkpoint.
        """
        check_value("step", step, whole(0).or_none("the newest"))
        backend = self.backend()
        request = ForkRequest(name=name, project=project, step=step, optimizer=optimizer)
        state = await backend.fork(self.project, self.name, request)
        made = type(self)(name=state.name, project=state.project, base_model=self.base_model, config=self.config)
        await made.register(backend)
        return made
