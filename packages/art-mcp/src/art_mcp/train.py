"""`art-mcp train`: baseline -> optional warm-up -> GRPO steps -> final evaluation -> report.

The run is written as if nothing ever stopped it. Each unit of work (a rollout, an optimiser step) is stored when it is
done and looked up before it is made, so running it again continues where it was, and gives the same result.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from art_core.canary import WeightSyncCanary, tolerance_of
from art_core.config import TrainConfig
from art_core.doctor import Watch
from art_core.errors import DataError, StorageError
from art_core.lines import progress_line
from art_core.loop import score, train_step
from art_core.objective import Objective
from art_core.protocols import Trainer
from art_core.registry import check_sinks, open_trainer
from art_core.rollout_metrics import rollout_metrics
from art_core.rows import training_rows
from art_core.sft.run import SftRun
from art_core.sft.schedule import num_updates
from art_core.sinks.feed import Feed
from art_core.storage import RunStore
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import StepReport, TokenSample
from art_core.weights.source import resolve_model
from art_mcp.arena import Arena, Job
from art_mcp.curriculum import choose, observed
from art_mcp.cursor import log_step, past_skipped_steps, resume, updates_made
from art_mcp.progress import Progress
from art_mcp.report import Report, count_outcomes, outcomes, write_report
from art_mcp.runfolder import RunFolder
from art_mcp.scenarios import Scenario
from art_mcp.settings import RunSettings
from art_mcp.shown import log_evaluation, loss_figures, open_feed, split_metrics
from art_mcp.stack import ServedModel, Toolbox, open_model, open_toolbox
from art_mcp.stats import success_rate
from art_mcp.warmup import agent_limits, demonstrated, demonstrations, supervision


class RewardAsVerified:
    """The `Judge` of verified scenarios: the reward was computed from the attempt when it ended."""

    async def score(self, trajectories: Sequence[Trajectory]) -> list[float | None]:
        return [trajectory.reward for trajectory in trajectories]


async def train(settings: RunSettings, folder: Path, progress: Progress, *, sinks: Sequence[str] = ()) -> Report:
    """Train as `settings` say, with everything earned kept in `folder`; continue an unfinished run found there.

    `sinks` also show the metrics.
    """
    started = time.monotonic()
    check_sinks(sinks)
    run_folder = RunFolder(folder)
    run_folder.refuse_foreign_files()
    source = resolve_model(settings.model, progress=progress.line)
    with RunStore(folder) as store:
        run_folder.claim(settings)
        async with open_toolbox(settings, progress.line) as toolbox:
            scenarios = await run_folder.scenarios(settings, toolbox, progress)
            with open_feed(folder, settings, sinks) as feed:
                async with (
                    open_model(source, settings) as model,
                    _open_run(settings, run_folder, store, toolbox, model, scenarios, progress, feed, started) as run,
                ):
                    return await run.execute()


@dataclass
class _Run:
    settings: RunSettings
    folder: RunFolder
    store: RunStore
    model: ServedModel
    toolbox: Toolbox
    arena: Arena
    trainer: Trainer
    canary: WeightSyncCanary
    watch: Watch
    progress: Progress
    feed: Feed
    train_set: list[Scenario]
    held_out: list[Scenario]
    cursor: dict[str, Any]
    elapsed_before_s: float
    started: float
    attempted: set[str]
    """Rollouts that earlier processes made or tried to make."""
    warmed_up: bool = False
    told: Counter[str] = field(default_factory=Counter)
    """What of the server pool's counts stands in the log."""

    async def execute(self) -> Report:
        """The whole run, from wherever it stands."""
        try:
            return await self._phases()
        except BaseException:
            with contextlib.suppress(StorageError):
                self._tick("stopped")
            raise

    async def _phases(self) -> Report:
        settings, progress = self.settings, self.progress
        progress.plan(self._units_left())
        baseline = await self._evaluate("baseline", at=lambda: self.cursor["phase"] == "baseline")
        rate = success_rate(outcomes(baseline, self.held_out))
        progress.line(f"baseline: success {rate} on held-out scenarios")

        warmup: list[Trajectory] | None = None
        if settings.warmup == "on" or (settings.warmup == "auto" and rate.value < settings.warmup_threshold):
            await self._warm_up()
            self.warmed_up = True
            warmup = await self._evaluate("warmup", at=lambda: self.cursor["phase"] == "warmup")
            rate = success_rate(outcomes(warmup, self.held_out))
            progress.line(f"after warm-up: success {rate}")
        else:
            progress.skip(self._warmup_units())
            progress.line(f"no warm-up (--warmup {settings.warmup}, baseline success {rate.value:.2f})")

        for step in range(1, settings.steps + 1):
            if self.cursor["phase"] == "train" and self.cursor["done"] >= step:
                continue
            await self._grpo_step(step)

        final = await self._evaluate("final", at=lambda: True)
        rate = success_rate(outcomes(final, self.held_out))
        progress.line(f"final: success {rate}")
        report = Report.build(
            settings=settings,
            held_out=self.held_out,
            baseline=baseline,
            warmup=warmup,
            final=final,
            wall_s=self._elapsed_s(),
            counters=self._counters(),
        )
        write_report(self.folder.path, report, self.store.records("metrics"), final, self.held_out)
        return report

    # -- phases ------------------------------------------------------------------------------------------------------

    async def _evaluate(self, phase: str, *, at: Any) -> list[Trajectory]:
        """The held-out attempts of `phase`: made now if the run stands there, else read back."""
        self.progress.phase(f"{phase} evaluation", len(self.held_out) * self.settings.samples)
        jobs = [
            Job(phase, 0, scenario, member) for member in range(self.settings.samples) for scenario in self.held_out
        ]
        if not at():
            lost = [job.id for job in jobs if job.id not in self.attempted]
            if lost:
                raise DataError(
                    f"{self.folder.path / 'trajectories.jsonl'} no longer holds {len(lost)} attempts of the {phase} "
                    f"evaluation ({lost[0]}, ...); restore it, or start a new run in another folder"
                )
            return [self.arena.earned[job.id] for job in jobs if job.id in self.arena.earned]
        trajectories = await self.arena.run(jobs)
        log_evaluation(self.store, phase, self.trainer.step_count, trajectories)
        self.feed.wake()
        self._tick(phase)
        return trajectories

    async def _warm_up(self) -> None:
        settings = self.settings
        if self.cursor["phase"] == "train":
            return
        training = await demonstrations(
            self.store,
            self.model,
            self.toolbox,
            demonstrated(self.train_set, settings.warmup_demos),
            answer_every=settings.warmup_answer_every,
            say=self.progress.line,
        )
        config = supervision(settings)
        total = num_updates(len(training.examples), config)
        units = len(training.examples) * settings.warmup_epochs * _DEMO_UNITS / total
        done = self.cursor["done"] if self.cursor["phase"] == "warmup" else 0
        self.progress.phase("warm-up on demonstrations", total, done)
        metrics: dict[str, float] = {}

        def log(report: StepReport) -> None:
            metrics.update(report.metrics)
            self.cursor = updates_made(report.metrics)
            log_step(self.store, self.cursor, report.step, report.metrics)

        async def committed(_: Collection[int]) -> None:
            self.feed.wake()
            self.store.prune(keep=self._milestones())
            self._tick(f"warmup {self.cursor['done']}")
            loss, tokens = metrics["train/loss"], int(metrics["train/computed_tokens"])
            self.progress.advance({"loss": f"{loss:.2f}"}, units=units, tokens=tokens)

        await SftRun(
            training=training,
            validation=None,
            config=config,
            trainer=self.trainer,
            engine=self.model.engine,
            store=self.store,
            canary=self.canary,
            checkpoints={checkpoint.step: checkpoint for checkpoint in self.store.checkpoints()},
            log_step=log,
            on_progress=lambda _: None,
            on_commit=committed,
        ).execute()

    async def _grpo_step(self, step: int) -> None:
        settings = self.settings
        scenarios = self._scenarios_of(step)
        self.progress.phase(f"step {step}/{settings.steps}", len(scenarios) * settings.group_size)
        jobs = [Job("train", step, scenario, m) for scenario in scenarios for m in range(settings.group_size)]
        trajectories = await self.arena.run(jobs)
        groups = [
            TrajectoryGroup((t for t in trajectories if t.scenario_id == scenario.id), scenario_id=scenario.id)
            for scenario in scenarios
        ]
        scored = await score(groups, RewardAsVerified())
        config = TrainConfig(loss=settings.loss, learning_rate=settings.learning_rate)
        rows, counters = training_rows(scored, policy_version=self.model.engine.policy_version, config=config)
        summary = {
            **split_metrics("train", groups),
            **rollout_metrics(groups),
            **observed((scenario, group.rewards) for scenario, group in zip(scenarios, scored, strict=True)),
            **counters,
        }
        cursor = {"phase": "train", "done": step}
        metrics = await self._optimise(rows, config.objective(), cursor, extra=summary)
        self.progress.advance(units=len(jobs) * _TRAINING_UNITS, items=0)
        too_small = int(counters["groups/too_small"])
        rate = summary.get("tokens/sampled_per_s", 0.0)
        notes = [f"{too_small} groups with fewer than two scored attempts"] if too_small else []
        notes += ["skipped: nothing to learn from"] if metrics["step/skipped"] else [loss_figures(metrics)]
        self.progress.line(
            progress_line(
                f"step {step}/{settings.steps}",
                f"reward {summary['train/reward']:.2f}",
                f"success {summary['train/success']:.2f}",
                f"{int(counters['groups/without_signal'])} of {len(groups)} groups without signal",
                f"rollouts {summary['time/rollout_s']:.0f} s at {rate:.0f} tokens/s",
                f"training {metrics.get('time/train_s', 0.0):.0f} s",
                *notes,
                left_s=self.progress.time_left_s(),
            )
        )
        for finding in self.watch.observed(StepReport(self.trainer.step_count, metrics)).findings:
            self.progress.line(str(finding))

    async def _optimise(
        self,
        rows: Sequence[TokenSample],
        objective: Objective,
        cursor: dict[str, Any],
        extra: dict[str, float] | None = None,
    ) -> dict[str, float]:
        report = await train_step(
            rows,
            objective,
            trainer=self.trainer,
            engine=self.model.engine,
            store=self.store,
            canary=self.canary,
            cursor={**cursor, "extra": extra or {}},
        )
        metrics = {**(extra or {}), **report.metrics}
        self.cursor = cursor
        log_step(self.store, cursor, report.step, metrics)
        self.feed.wake()
        self.store.prune(keep=self._milestones())
        self._tick(f"{cursor['phase']} {cursor['done']}")
        return metrics

    # -- bookkeeping -------------------------------------------------------------------------------------------------

    def _scenarios_of(self, step: int) -> list[Scenario]:
        """The training scenarios of `step`.

        Those that were demonstrated are left out where enough others remain: what is known by heart shows no difference
        between attempts, and so teaches nothing.
        """
        known = {s.id for s in demonstrated(self.train_set, self.settings.warmup_demos)} if self.warmed_up else set()
        fresh = [scenario for scenario in self.train_set if scenario.id not in known]
        pool = fresh if len(fresh) >= self.settings.groups_per_step else self.train_set
        records = [r for r in self.store.records("metrics") if r["phase"] == "train" and r["done"] < step]
        earlier = [record["metrics"] for record in records]
        return choose(pool, earlier, num_groups=self.settings.groups_per_step, seed=self.settings.seed)

    def _milestones(self) -> set[int]:
        """Steps whose checkpoint stays: the end of the warm-up."""
        records = self.store.records("metrics")
        return {r["policy_version"] for r in records if r["phase"] == "warmup" and r["done"] == r["of"]}

    def _warmup_units(self) -> float:
        settings = self.settings
        demos = min(settings.warmup_demos, len(self.train_set)) * settings.warmup_epochs
        return demos * _DEMO_UNITS + len(self.held_out) * settings.samples

    def _units_left(self) -> float:
        settings = self.settings
        evaluation = len(self.held_out) * settings.samples
        per_step = (1.0 + _TRAINING_UNITS) * min(settings.groups_per_step, len(self.train_set)) * settings.group_size
        left = evaluation + settings.steps * per_step
        if self.cursor["phase"] == "train":
            done: int = self.cursor["done"]
            return left - done * per_step
        return left + self._warmup_units() + (evaluation if self.cursor["phase"] == "baseline" else 0.0)

    def _elapsed_s(self) -> float:
        return self.elapsed_before_s + time.monotonic() - self.started

    def _tick(self, what: str) -> None:
        new = self.toolbox.pool.counts - self.told
        self.told += new
        self.store.append("events", {"done": what, "elapsed_s": round(self._elapsed_s(), 3), "servers": dict(new)})

    def _counters(self) -> dict[str, int]:
        settings = self.settings
        wanted = settings.num_train + settings.num_held_out if settings.scenarios is None else 0
        covered = {scenario.tool for scenario in (*self.train_set, *self.held_out)}
        return {
            **count_outcomes(*(self.store.records(kind) for kind in ("trajectories", "metrics", "events"))),
            "demonstrations_shortened": sum(record["shortened"] for record in self.store.records("demonstrations")),
            "tools_without_scenarios": sum(name not in covered for name in self.toolbox.tools),
            "scenarios_missing": max(0, wanted - len(self.train_set) - len(self.held_out)),
        }


_DEMO_UNITS = 2.5
"""Work of training on one demonstration once, in rollouts."""
_TRAINING_UNITS = 0.5
"""Work of training on one rollout, in rollouts: members of a group share most of what is computed."""


@contextlib.asynccontextmanager
async def _open_run(
    settings: RunSettings,
    folder: RunFolder,
    store: RunStore,
    toolbox: Toolbox,
    model: ServedModel,
    scenarios: list[Scenario],
    progress: Progress,
    feed: Feed,
    started: float,
) -> AsyncIterator[_Run]:
    folder.check_identity(store, model.source)
    if getattr(model.engine, "batch_invariant", True) is False:
        progress.line("on this machine results depend on load: a run that is resumed will differ a little")
    trainer = open_trainer(
        "native",
        model_folder=model.source.folder,
        base_model=model.source.name,
        lora=_lora(settings),
        seed=settings.seed,
        dtype=settings.dtype,
        num_threads=settings.threads,
    )
    try:
        cursor: dict[str, Any] = {"phase": "baseline", "done": 0}
        latest = store.latest()
        if latest is not None:
            cursor = await resume(latest, store, trainer, model, progress)
        cursor = past_skipped_steps(cursor, store, trainer.step_count)
        train_set = [scenario for scenario in scenarios if scenario.split == "train"]
        held_out = [scenario for scenario in scenarios if scenario.split == "held_out"]
        earned = folder.trajectories(store)
        events = store.records("events")
        if earned or latest:
            progress.line(f"resuming {folder.path}: {len(earned)} rollouts and {trainer.step_count} updates are kept")
        limits = agent_limits(settings, scenarios, model, toolbox)
        if len(train_set) < settings.groups_per_step:
            progress.line(f"only {len(train_set)} training scenarios: a step has as many groups, not --groups-per-step")
        progress.line(f"attempts: {limits.max_turns} turns of at most {limits.max_tokens} tokens")
        arena = Arena(
            model=model,
            toolbox=toolbox,
            store=store,
            progress=progress,
            limits=limits,
            eval_temperature=settings.eval_temperature,
            run_seed=settings.seed,
            max_concurrency=settings.concurrency,
            earned={trajectory.id: trajectory for trajectory in earned if trajectory.error is None},
        )
        probe = model.renderer.render_ids([{"role": "user", "content": train_set[0].task}], add_generation_prompt=True)
        canary = WeightSyncCanary(probe, tolerance_of(_dtype_name(settings)))
        await canary.check(model.engine, trainer)
        made = [record for record in store.records("metrics") if record["phase"] == "train"]
        yield _Run(
            settings=settings,
            folder=folder,
            store=store,
            model=model,
            toolbox=toolbox,
            arena=arena,
            trainer=trainer,
            canary=canary,
            watch=Watch(store, [StepReport(record["policy_version"], record["metrics"]) for record in made]),
            progress=progress,
            feed=feed,
            train_set=train_set,
            held_out=held_out,
            cursor=cursor,
            elapsed_before_s=max((event["elapsed_s"] for event in events), default=0.0),
            started=started,
            attempted={trajectory.id for trajectory in earned},
        )
    finally:
        await trainer.aclose()


def _lora(settings: RunSettings) -> Any:
    from art_core.weights.lora import LoraConfig

    return LoraConfig(rank=settings.rank, alpha=2.0 * settings.rank)


def _dtype_name(settings: RunSettings) -> str:
    from art_core.weights.loading import best_device, compute_dtype

    return str(compute_dtype(settings.dtype, best_device())).removeprefix("torch.")
