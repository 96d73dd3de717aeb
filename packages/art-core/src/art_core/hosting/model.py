"""One model that is served and trained: engine, trainer, run folder, and the order in which they change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import Any

from art_core.canary import WeightSyncCanary
from art_core.checkpoints.forking import skipped_batches, supervised_updates
from art_core.checkpoints.pruning import keep_only
from art_core.config import TrainConfig
from art_core.control import ModelState, SftRequest
from art_core.doctor import Watch
from art_core.errors import ConfigError, DataError, WeightSyncError
from art_core.hosting.exchanges import ExchangeLog
from art_core.hosting.opening import Parts
from art_core.hosting.probed import KeptAnswers
from art_core.hosting.record import ModelRecord
from art_core.hosting.shown import open_feed
from art_core.hosting.watch import WatchedEngine
from art_core.loop import train_step
from art_core.objective import Objective
from art_core.protocols import Engine, Trainer
from art_core.render import ChatRenderer
from art_core.rollout_metrics import rollout_metrics
from art_core.rows import scored_groups, training_rows
from art_core.runs import ModelRun
from art_core.runs.records import committed_reports
from art_core.saved import REFERENCES, held, references
from art_core.serve.served import Served
from art_core.serve.wire import ApiError
from art_core.sft.preparing import prepared
from art_core.sft.run import SftRun
from art_core.sft_config import SftConfig
from art_core.storage import RunStore
from art_core.trajectories import TrajectoryGroup
from art_core.types import Checkpoint, StepReport, TokenSample

_logger = logging.getLogger(__name__)

_SFT = "supervised training"


class HostedModel:
    """Made by `art_core.hosting.door`, which holds the run folder's lock until `close`.

    Steps are made one at a time, in the order in which they were asked for. Whenever trainer, engine and the newest
    checkpoint do not stand at the same step (a failed or cancelled step, an engine that broke), they are put there
    again before the next step, and by `realign`.
    """

    def __init__(self, record: ModelRecord, parts: Parts, store: RunStore, log: ExchangeLog) -> None:
        self.record = record
        self.store = store
        self.run = ModelRun(store)
        self.log = log
        self.feed = open_feed(record, store.folder)
        self.fault: str | None = None
        self.writing = asyncio.Lock()  # one `log` at a time, so that its lines stay together
        self._ready = asyncio.Event()
        self._parts = parts
        self._turn = asyncio.Lock()
        self._checkpoints: dict[int, Checkpoint] = {}
        self._num_supervised = self._num_skipped = 0
        self._references: set[int] = set()  # steps that the newest step was kept near: the next will be as well
        self._renderer: ChatRenderer
        self._answers: KeptAnswers
        self._canary: WeightSyncCanary
        self._watch: Watch
        self._trainer: Trainer | None = None
        self._engine: WatchedEngine | None = None
        self._running: asyncio.Task[StepReport] | None = None
        self._realigning: asyncio.Task[None] | None = None
        self._closing = False

    @property
    def name(self) -> str:
        return self.record.inference_name

    @property
    def step(self) -> int:
        """Step of the newest checkpoint; 0 is the untrained model."""
        return max(self._checkpoints, default=0)

    @property
    def engine(self) -> WatchedEngine:
        assert self._engine is not None, "the model is not open"
        return self._engine

    def state(self) -> ModelState:
        return ModelState(
            project=self.record.project,
            name=self.record.name,
            base_model=self.record.base_model,
            inference_name=self.name,
            step=self.step,
            checkpoint_steps=sorted(self._checkpoints),
            folder=str(self.store.folder),
            supervised_updates=self._num_supervised,
            skipped_batches=self._num_skipped,
            damaged=[f"step {step}: {fault}" for step, fault in sorted(self.store.faults.items())],
            forked_from=self.record.forked_from,
        )

    def served(self, engine: Engine | None = None, **fields: Any) -> Served:
        """The model as the routes see it, answered by `engine`, or by the one with the newest weights."""
        return Served(self.name, engine or self.engine, self._renderer, created=self.record.created, **fields)

    async def wait_ready(self, max_wait_s: float) -> None:
        """Return when the newest weights can answer.

        Raises:
            ApiError: 503, when that takes longer, or when engine and trainer were found to disagree.
        """
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._ready.wait(), max_wait_s)
        if not self._ready.is_set():
            raise ApiError(
                503,
                f"the weights of {self.name!r} were still being changed after {max_wait_s:g} s; send the call again",
                code="weights_are_changing",
                retry_after_s=max(1, min(30, round(max_wait_s))),
            )
        if self.fault is not None:
            raise ApiError(503, f"model {self.name!r} answers nothing: {self.fault}", code="WeightSyncError")

    async def train(
        self,
        groups: Sequence[TrajectoryGroup],
        config: TrainConfig,
        on_progress: Callable[[str], None],
        on_turn: Callable[[float], None],
    ) -> StepReport:
        """One step on `groups`, see `Backend.train`. `on_turn` is told how long it waited for steps before it."""
        scored = scored_groups(groups)
        async with self._next_turn(on_progress, on_turn) as trainer:
            objective = self._objective(config)
            rows, counters = await asyncio.to_thread(training_rows, scored, policy_version=self.step, config=config)
            counters |= await asyncio.to_thread(rollout_metrics, groups)
            on_progress(f"training step {self.step + 1} on {len(rows)} rows")
            self._running = asyncio.create_task(self._step(rows, objective, trainer, counters))
            try:
                return await self._whole(self._running, trainer)
            except BaseException as error:
                self._blame(error)
                raise
            finally:
                self._ready.set()

    async def train_sft(
        self, request: SftRequest, on_progress: Callable[[str], None], on_turn: Callable[[float], None]
    ) -> StepReport:
        """Supervised training, see `Backend.train_sft`. Meanwhile the weights that it began with are served."""
        config = SftConfig.made(None, request.options)
        on_progress(f"reading {len(request.examples)} examples")
        limit = self.engine.max_context_tokens
        training, validation = await asyncio.to_thread(prepared, request, self._renderer, config, limit)
        async with self._next_turn(on_progress, on_turn) as trainer:
            logged = {r.step: r for r in self.run.steps() if not r.metrics.get("step/skipped")}
            run = SftRun(
                training=training,
                validation=validation,
                config=config,
                trainer=trainer,
                engine=self.engine,
                store=self.store,
                canary=self._canary,
                checkpoints=self._checkpoints,
                log_step=lambda report: None if logged.get(report.step) == report else self._log_step(report),
                on_progress=on_progress,
                on_commit=self._prune,
                counters={"sft/trajectories_failed": float(request.num_failed)},
                num_validation_failed=request.num_validation_failed,
            )
            self._running = asyncio.create_task(run.execute(), name=_SFT)
            try:
                report = await self._running
                self._checkpoints |= run.made
                self._forget_deleted()
                await self._prune()
                self._count_batches()
                self.feed.wake()
                return report
            except BaseException as error:
                self._blame(error)
                if run.made and self.fault is None and not self._closing:
                    # the next rollouts are to be of the newest of them
                    self._realigning = asyncio.create_task(self._realign_quietly())
                raise
            finally:
                self._ready.set()

    @contextlib.asynccontextmanager
    async def _next_turn(
        self, on_progress: Callable[[str], None], on_turn: Callable[[float], None]
    ) -> AsyncIterator[Trainer]:
        """The trainer, at the newest checkpoint, for one training at a time."""
        if self._turn.locked():
            on_progress("waiting for the step before")
        asked = time.monotonic()
        async with self._turn:
            on_turn(time.monotonic() - asked)
            if not self._aligned():
                on_progress("going back to the newest checkpoint")
                await self._align()
            assert self._trainer is not None, "aligned models have one"
            yield self._trainer

    def _blame(self, error: BaseException) -> None:
        """Answer no calls where what is served was loaded by a training that ended with `error` before its check."""
        if not self.engine.ended and self.engine.policy_version != self.step:
            self.fault = f"its last step could not be checked ({type(error).__name__}: {error})"

    async def realign(self) -> None:
        """Put trainer and engine at the newest checkpoint, with a new engine where the old one ended.

        A step that is being made is waited for, so that who counts steps then counts it. Supervised training, which may
        take hours, is not: meanwhile the weights it began with are served.
        """
        if self._trains_supervised() and self.fault is None and not self.engine.ended:
            return
        async with self._turn:
            if not self._aligned():
                await self._align()

    def _trains_supervised(self) -> bool:
        return self._running is not None and not self._running.done() and self._running.get_name() == _SFT

    async def _realign_quietly(self) -> None:
        try:
            await self.realign()
        except Exception:  # the next step, or register, tries again and tells
            _logger.exception("%s: the newest checkpoint could not be loaded", self.name)

    async def delete_checkpoints(self, keep: Sequence[int]) -> None:
        """See `Backend.delete_checkpoints`. Those of steps that are made while this waits stay."""
        asked_of = set(self._checkpoints)
        async with self._turn:
            unknown = sorted(set(keep) - set(self._checkpoints) - {0})
            if unknown:
                raise ConfigError(
                    f"keep names step {unknown[0]}, of which {self.name!r} has no checkpoint; "
                    f"there are {sorted(self._checkpoints)}"
                )
            try:
                made_since = set(self._checkpoints) - asked_of
                await asyncio.to_thread(self.store.prune, {*keep, *made_since, *self._references})
            finally:
                self._forget_deleted()

    async def open_engine_at(self, step: int) -> WatchedEngine:
        """Another engine, for an older step, whose checkpoint is not deleted while it is open.

        Raises:
            ApiError: 404, there is no such step; 503, the engine serves other weights than those of the step.
        """
        self.check_step(step)
        checkpoint = self._checkpoints[step] if step else None
        with contextlib.ExitStack() as stack:
            if checkpoint is not None:
                await asyncio.to_thread(stack.enter_context, held(checkpoint))
            engine = await self._parts.open_engine(checkpoint)
            try:
                if not await self._answers.check(self._canary, engine, step):
                    _logger.warning("%s@%d is not checked: what it once answered is not kept", self.name, step)
            except BaseException as error:
                await engine.aclose()
                if isinstance(error, WeightSyncError):
                    raise ApiError(503, f"{self.name}@{step}: {error}", code="WeightSyncError") from error
                raise
            release = stack.pop_all().close
        return WatchedEngine(engine, asyncio.Event(), remedy=lambda: "send the call again", on_close=release)

    def check_step(self, step: int) -> None:
        """Refuse a step that cannot be served.

        Raises:
            ApiError: 404, naming the steps there are.
        """
        if step not in self._checkpoints and step != 0:
            raise ApiError(
                404,
                f"model {self.name!r} has no checkpoint of step {step}; there are {[0, *sorted(self._checkpoints)]} "
                "(0 is the untrained model)",
                code="model_not_found",
                param="model",
            )

    async def close(self) -> None:
        """Free everything, and the folder's lock last, after a step that is being made. May be called twice."""
        self._closing = True
        try:
            if self._realigning is not None:
                await asyncio.wait({self._realigning})
            if self._running is not None:
                if self._trains_supervised():
                    self._running.cancel()  # it may take hours, and goes on from its newest checkpoint
                await asyncio.wait({self._running})
            if self._engine is not None:
                await self._engine.aclose()
            if self._trainer is not None:
                await self._trainer.aclose()
        finally:
            try:
                await asyncio.to_thread(self.feed.close)
            finally:
                self.log.close()
                self.store.close()

    async def start(self) -> None:
        """Open everything, at the newest checkpoint. `close` is the caller's, also when this fails."""
        self._renderer = await self._parts.open_renderer()
        self._answers = KeptAnswers(self.store, await asyncio.to_thread(self._parts.dtype))
        self._canary = await asyncio.to_thread(self._parts.canary, self._renderer, self._answers.keep)
        await self._align()
        self._watch = await asyncio.to_thread(lambda: Watch(self.store, self.run.steps()))

    async def _step(
        self, rows: Sequence[TokenSample], objective: Objective, trainer: Trainer, counters: dict[str, float]
    ) -> StepReport:
        started = time.monotonic()
        cursor: dict[str, Any] = {"counters": counters}
        if objective.kl_reference is not None:
            cursor[REFERENCES] = sorted(self._references)
        report = await train_step(
            rows,
            objective,
            trainer=trainer,
            engine=self.engine,
            store=self.store,
            canary=self._canary,
            cursor=cursor,
        )
        if report.step > self.step:
            self._checkpoints[report.step] = Checkpoint(report.step, self.store.checkpoint_path(report.step))
            await self._prune()
        metrics = {**counters, **report.metrics, **self.feed.metrics(), "time/step_s": time.monotonic() - started}
        report = StepReport(report.step, metrics)
        self._log_step(report)
        self._num_skipped += bool(metrics.get("step/skipped"))
        return self._watch.observed(report, log_as=self.name)

    def _log_step(self, report: StepReport) -> None:
        self.run.log_step(report)
        if "sft/update" in report.metrics:
            self._watch.supervised(report)
        self.feed.wake()

    async def _prune(self, made: Collection[int] = ()) -> None:
        """Delete what need not stay, of all checkpoints and those that supervised training has `made` so far."""
        if (policy := self.record.options.keep_checkpoints) is not None:
            steps, also = {*self._checkpoints, *made}, {*self._references, self.step}
            await asyncio.to_thread(keep_only, policy, self.run, steps, also=also)
            self._forget_deleted()

    def _forget_deleted(self) -> None:
        self._checkpoints = {step: one for step, one in self._checkpoints.items() if one.path.exists()}

    def _objective(self, config: TrainConfig) -> Objective:
        if not config.kl_reference:
            self._references = set()
            return config.objective()
        if config.kl_reference not in self._checkpoints:
            raise ConfigError(
                f"kl_reference names step {config.kl_reference}, of which {self.name!r} has no checkpoint; there are "
                f"{[0, *sorted(self._checkpoints)]} (0 is the untrained model)"
            )
        self._references = {config.kl_reference}
        return config.objective(self._checkpoints[config.kl_reference].path)

    async def _whole(self, task: asyncio.Task[StepReport], trainer: Trainer) -> StepReport:
        """What `task` gives. Cancelled before the optimiser's step, it ends; after it, the step is made whole first."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if trainer.step_count == self.step:
                task.cancel()
            while not task.done():
                with contextlib.suppress(
                    asyncio.CancelledError
                ):  # cancelled again: the step needs its time all the same
                    await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # the cancellation is what the caller is told
            raise

    def _aligned(self) -> bool:
        engine, trainer = self._engine, self._trainer
        if engine is None or trainer is None or engine.ended or self.fault is not None:
            return False
        return trainer.step_count == engine.policy_version == self.step

    async def _align(self) -> None:
        found = await asyncio.to_thread(self.store.checkpoints)
        self._checkpoints = {checkpoint.step: checkpoint for checkpoint in found}
        await asyncio.to_thread(self._log_unlogged, found)
        self.feed.wake()
        newest = self._checkpoints.get(self.step)
        self._references |= references(newest) if newest is not None else set()
        if self._trainer is not None and newest is None and self._trainer.step_count:
            await self._trainer.aclose()
            self._trainer = None
        if self._trainer is None:
            self._trainer = await self._parts.open_trainer()
        if newest is not None and self._trainer.step_count != newest.step:
            await asyncio.to_thread(self._trainer.restore, newest)
        served = self._engine
        self._ready.clear()
        try:
            if served is None or served.ended or served.policy_version != self.step or self.fault is not None:
                if served is not None:
                    await served.aclose()  # its memory is needed
                engine = await self._parts.open_engine(newest)
                self._engine = WatchedEngine(engine, self._ready, remedy=self._remedy)
            self.fault = "its weights are not checked yet"
            try:
                await self._canary.check(self.engine, self._trainer)
            except BaseException as error:
                self.fault = f"{type(error).__name__}: {error}; register it again to try once more"
                raise
            self.fault = None
        finally:
            self._ready.set()

    def _log_unlogged(self, checkpoints: Sequence[Checkpoint]) -> None:
        """Log what steps reported whose checkpoint is there, and which ended before they could be logged."""
        try:
            logged = {report.step for report in self.run.steps()}
        except DataError as error:
            _logger.warning("%s: %s; steps that were not logged are not looked for", self.name, error)
            return
        for checkpoint in checkpoints:
            if checkpoint.step not in logged:
                for report in committed_reports(self.store.load(checkpoint), checkpoint.step):
                    if report.step not in logged:
                        self.run.log_step(report)
        self._count_batches()

    def _count_batches(self) -> None:
        self._num_supervised = supervised_updates(self.run, self.step)
        self._num_skipped = skipped_batches(self.run, self.step)

    def _remedy(self) -> str:
        return f"register {self.name!r} again to go on from step {self.step}"
