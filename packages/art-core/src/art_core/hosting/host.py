"""All models of a server: found by name, trained on request, opened again after a restart."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from art_core.checkpoints.forking import fork_run
from art_core.checkpoints.listing import logged_metrics
from art_core.config import TrainConfig
from art_core.control import ForkRequest, MetricRecord, ModelState, RegisterRequest, SftRequest
from art_core.errors import ArtError, ConfigError, DataError, ModelNotFoundError, UnknownTrajectoryError
from art_core.hosting.door import HostedBy, open_model
from art_core.hosting.exchanges import open_trajectory_ids
from art_core.hosting.model import HostedModel
from art_core.hosting.options import HostOptions
from art_core.hosting.pinned import PinnedEngines, step_number
from art_core.hosting.record import ModelRecord
from art_core.hosting.trajectories import OpenTrajectories
from art_core.hosting.watch import AtStep
from art_core.logged import refuse_names_of_training
from art_core.registry import check_adapters, check_sinks
from art_core.runs.reader import run_folders
from art_core.serve.metrics import ServerMetrics
from art_core.serve.served import Served
from art_core.serve.session import Sessions
from art_core.serve.wire import ApiError
from art_core.trajectories import TrajectoryGroup
from art_core.types import Exchange, StepReport
from art_core.values import check_name

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Recorder:
    """The `Recorder` of the calls that `model` answers, and of those of its trajectories."""

    host: ModelHost
    model: HostedModel

    def record(self, *exchanges: Exchange) -> None:
        self.host.record(self.model, *exchanges)


class ModelHost:
    """Serves and trains models, each in the run folder `<folder>/<project>/<name>/`.

    Satisfies `art_core.serve.served.Catalogue` and `art_core.serve.control.Control`. A model's inference name is
    `project/name`, which always means its newest weights; `project/name@step` pins a step. Models that earlier
    processes left in `folder` are opened when they are first asked for.

    Raises:
        ConfigError: no engine or trainer of that name.
    """

    def __init__(
        self,
        folder: Path,
        *,
        engine: str = "embedded",
        trainer: str = "native",
        options: HostOptions | None = None,
    ) -> None:
        check_adapters(engine=engine, trainer=trainer)
        self.folder = folder
        self.options = options or HostOptions()
        check_sinks(self.options.sinks)
        self.sessions = Sessions()
        self.metrics = ServerMetrics()
        self._by = HostedBy(engine, trainer, self.options)
        self._models: dict[str, HostedModel] = {}
        self._opening: dict[str, asyncio.Task[HostedModel]] = {}
        self._pinned = PinnedEngines(max_open=self.options.max_pinned, idle_s=self.options.pinned_idle_s)
        self._trajectories = OpenTrajectories(self.sessions, lambda model: _Recorder(self, model))
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """See what earlier processes have left in the folder.

        Raises:
            ConfigError: the folder cannot be made or written to.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ConfigError(
                f"path {self.folder} cannot be used: {error.strerror or error}; give another folder"
            ) from error
        for name, folder in run_folders(self.folder).items():
            try:
                ids = await asyncio.to_thread(open_trajectory_ids, folder)
            except (OSError, ArtError) as error:
                _log.warning("the calls of %s cannot be read: %s", name, error)
                continue
            self._trajectories.expect(ids, name)
        closing = self._trajectories.close_silent(self.options.trajectory_ttl_s, self.metrics.expired)
        self._sweeper = asyncio.create_task(closing)

    async def close(self) -> None:
        """Close every model. May be called twice."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for task in self._opening.values():
            task.cancel()
        if self._opening:
            await asyncio.wait(list(self._opening.values()))
        await self._pinned.close()
        models, self._models = list(self._models.values()), {}
        for model in models:
            await model.close()
        self.sessions.close_all()

    # -- what is served ----------------------------------------------------------------------------------------------

    def served(self) -> Sequence[Served]:
        return [model.served(recorder=_Recorder(self, model)) for model in self._models.values()]

    async def find(self, name: str) -> Served:
        """See `Catalogue.find`."""
        started = time.monotonic()
        base, at, step = name.partition("@")
        model = await self._model_in_time(base)
        recorder = _Recorder(self, model)
        try:
            if not at:
                await model.wait_ready(self.options.max_wait_s)
                return model.served(recorder=recorder)
            wanted = step_number(name, step)
            model.check_step(wanted)
            if wanted == model.step:
                await model.wait_ready(self.options.max_wait_s)
            if wanted == model.step:
                return model.served(AtStep(model.engine, wanted), recorder=recorder)
            engine = await self._pinned.get(
                (base, wanted),
                lambda: model.open_engine_at(wanted),
                what=f"{base}@{wanted}",
                max_wait_s=self.options.max_wait_s,
            )
            return model.served(engine, recorder=recorder)
        finally:
            self.metrics.waited(base, "call", time.monotonic() - started)

    def record(self, model: HostedModel, *exchanges: Exchange) -> None:
        """Keep the choices of a finished call of `model`, or of one of its trajectories."""
        model.log.record(*exchanges)
        for exchange in exchanges:
            self.metrics.exchange(model.name, exchange)
            self._trajectories.called(exchange.trajectory_id)

    def metrics_text(self) -> bytes:
        """What `GET /metrics` answers."""
        for model in self._models.values():
            self.metrics.serving(
                model.name, policy_version=model.engine.policy_version, num_dropped=model.log.num_dropped
            )
        return self.metrics.text()

    # -- models ------------------------------------------------------------------------------------------------------

    async def register(self, request: RegisterRequest) -> ModelState:
        """See `Backend.register`."""
        check_name("project", request.project)
        check_name("name", request.name)
        options = self.options.of_model(request.config)
        name = f"{request.project}/{request.name}"
        while name in self._opening:  # that may end with an error, or be of other options
            await asyncio.wait({self._opening[name]})
        model = self._models.get(name)
        if model is not None:
            model.record.check_same(request.base_model, options)
            await model.realign()
        else:
            model = await asyncio.shield(self._open(name, request))
        return model.state()

    def models(self) -> list[ModelState]:
        """The models that are open."""
        return [model.state() for model in self._models.values()]

    async def state(self, project: str, name: str) -> ModelState:
        """See `Backend.state`."""
        return (await self._model(project, name)).state()

    async def train(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        *,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> StepReport:
        """See `Backend.train`."""
        model = await self._model(project, name)
        outcome = "failed"
        try:
            self._refuse_calls_of_others(model, [e.id for group in groups for t in group for e in t.exchanges])
            report = await model.train(
                groups, config, on_progress, lambda waited_s: self.metrics.waited(model.name, "step", waited_s)
            )
            outcome = "skipped" if report.metrics.get("step/skipped") else "made"
        finally:
            self.metrics.step(model.name, outcome)
        return report

    async def train_sft(
        self, project: str, name: str, request: SftRequest, *, on_progress: Callable[[str], None] = lambda _: None
    ) -> StepReport:
        """See `Backend.train_sft`."""
        model = await self._model(project, name)
        outcome = "failed"
        try:
            examples = [*request.examples, *request.validation]
            self._refuse_calls_of_others(model, [e.id for example in examples for e in example.exchanges])
            report = await model.train_sft(
                request, on_progress, lambda waited_s: self.metrics.waited(model.name, "step", waited_s)
            )
            outcome = "skipped" if report.metrics.get("sft/already_finished") else "made"
        finally:
            self.metrics.step(model.name, outcome)
        return report

    def _refuse_calls_of_others(self, model: HostedModel, ids: Sequence[str]) -> None:
        """Raise where `ids` are of calls that another open model has answered: steps of two models look alike."""
        for other in self._models.values():
            if other is not model and (foreign := other.log.known(ids)):
                raise DataError(
                    f"{len(foreign)} of {len(ids)} recorded calls were answered by {other.name!r} and not by "
                    f"{model.name!r}, the first of them {foreign[0]!r}; train each model on its own trajectories"
                )

    async def log(
        self,
        project: str,
        name: str,
        groups: Sequence[TrajectoryGroup],
        *,
        split: str,
        step: int | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """See `Backend.log`."""
        refuse_names_of_training(split, metrics or {}, "given to log")
        model = await self._model(project, name)
        at = model.step if step is None else step
        async with model.writing:
            try:
                await asyncio.to_thread(model.run.log_groups, split, at, groups, metrics)
            finally:
                model.feed.wake()

    async def logged_metrics(self, project: str, name: str) -> list[MetricRecord]:
        """See `Backend.logged_metrics`."""
        model = await self._model(project, name)
        return await asyncio.to_thread(logged_metrics, model.run)

    async def delete_checkpoints(self, project: str, name: str, *, keep: Sequence[int]) -> ModelState:
        """See `Backend.delete_checkpoints`."""
        model = await self._model(project, name)
        await model.delete_checkpoints(keep)
        return model.state()

    async def fork(self, project: str, name: str, request: ForkRequest) -> ModelState:
        """See `Backend.fork`."""
        source = await self._model(project, name)
        new = request.project or project, request.name
        await asyncio.to_thread(fork_run, source.run, request.step, self.folder, *new, optimizer=request.optimizer)
        options = source.record.options.model_dump()
        return await self.register(
            RegisterRequest(project=new[0], name=new[1], base_model=source.record.base_model, config=options)
        )

    # -- trajectories ------------------------------------------------------------------------------------------------

    async def open_trajectory(self, project: str, name: str, trajectory_id: str) -> None:
        """Record the calls below `/t/<trajectory_id>` from now on."""
        model = await self._model(project, name)
        await self.recover(trajectory_id)
        self._trajectories.open(trajectory_id, model)

    async def close_trajectory(self, trajectory_id: str) -> list[Exchange]:
        """See `Backend.close_trajectory`. Asked again, it gives the same record."""
        await self.recover(trajectory_id)
        return await self._trajectories.close(trajectory_id)

    async def find_exchanges(
        self, project: str, name: str, ids: Sequence[str], *, missing_ok: bool = False
    ) -> list[Exchange]:
        """See `Backend.find_exchanges`."""
        model = await self._model(project, name)
        return await asyncio.to_thread(model.log.find, ids, missing_ok=missing_ok)

    async def recover(self, trajectory_id: str) -> None:
        """Where `trajectory_id` was open when an earlier process ended, open its model, which opens it again."""
        name = self._trajectories.model_to_open(trajectory_id)
        if name is not None:
            try:
                await self._model(*name.split("/"))
            except ModelNotFoundError as error:
                raise UnknownTrajectoryError(
                    f"trajectory {trajectory_id!r} was open when the server ended, and its model {name!r} cannot be "
                    f"opened again: {error}"
                ) from error

    # -- opening -----------------------------------------------------------------------------------------------------

    async def _model(self, project: str, name: str) -> HostedModel:
        """The model, opened if an earlier process has left it.

        Raises:
            ModelNotFoundError: it was never registered here.
        """
        full = f"{project}/{name}"
        if full in self._opening:
            return await asyncio.shield(self._opening[full])
        if full in self._models:
            return self._models[full]
        folder = run_folders(self.folder).get(full)
        record = None if folder is None else ModelRecord.read(folder)
        if record is None:
            raise ModelNotFoundError(
                f"model {full!r} is not registered here; registered are {sorted(self._models)}. Register it first"
            )
        config = record.options.model_dump()
        request = RegisterRequest(project=project, name=name, base_model=record.base_model, config=config)
        return await asyncio.shield(self._open(full, request))

    async def _model_in_time(self, name: str) -> HostedModel:
        """`_model` for a call: 404 for an unknown one, 503 where opening it takes too long."""
        model = self._models.get(name)
        if model is not None:
            return model
        project, _, rest = name.partition("/")
        try:
            async with asyncio.timeout(self.options.max_wait_s):
                return await self._model(project, rest)
        except TimeoutError:
            raise ApiError(
                503, f"model {name!r} is still being loaded; send the call again", code="loading", retry_after_s=5
            ) from None
        except ModelNotFoundError:
            raise ApiError(
                404,
                f"model {name!r} is not served here; there are {sorted(self._models)}, and each with @step",
                code="model_not_found",
                param="model",
            ) from None

    def _open(self, name: str, request: RegisterRequest) -> asyncio.Task[HostedModel]:
        """Begin to open a model; what waits for it may be cancelled without harm to others."""

        async def opened() -> HostedModel:
            try:
                model = await self._opened(request)
                self._trajectories.restore(model)
                self._models[name] = model
                return model
            finally:
                del self._opening[name]

        task = self._opening[name] = asyncio.create_task(opened())
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # somebody may have waited, or not
        return task

    async def _opened(self, request: RegisterRequest) -> HostedModel:
        folder = self.folder / request.project / request.name
        return await open_model(
            folder, request.project, request.name, request.base_model, request.config, host=self._by
        )
