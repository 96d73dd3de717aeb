"""`art selftest`: show on one model that engine and trainer hold the same weights, that a step of learning rate zero
changes nothing, and that reinforcement raises a reward that can be raised.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from art_core.canary import WeightSyncCanary
from art_core.errors import ConfigError, DataError, WeightSyncError
from art_core.hosting.opening import Parts
from art_core.hosting.options import ModelOptions
from art_core.loop import train_step
from art_core.objective import Objective
from art_core.protocols import Engine, Trainer
from art_core.registry import check_adapters
from art_core.rows import training_rows
from art_core.storage import RunStore
from art_core.trajectories import Trajectory, TrajectoryGroup
from art_core.types import Exchange, Sampling, StepReport

GROUPS, GROUP_SIZE, TOKENS = 4, 8, 12
"""A batch: prompts, attempts at each, tokens of an attempt."""
DEFAULT_STEPS = 12
RATE_TIMES_WIDTH = 1.0
"""The learning rate of the toy task times the width of the model: wider models need smaller steps."""
MARGIN = 0.15
"""By how much the mean reward of the last two steps must be above that of the first; it is between 0 and 1."""
DRIFT = 1e-6
"""Nats that a log-probability of the trainer may change by in a step of learning rate zero."""
_QUESTIONS = ("Name a colour.", "Name an animal.", "Say a number.", "What is the weather like?")


@dataclass(frozen=True)
class SyncNumbers:
    """What engine and trainer say about the same sampled tokens, in nats; `tolerance` is that of the canary."""

    num_tokens: int
    mean_difference: float
    worst_difference: float
    tolerance: float


@dataclass(frozen=True)
class ZeroNumbers:
    """What a step of learning rate zero changed: log-probabilities in nats, and whether the same tokens are drawn."""

    trainer_drift: float
    engine_drift: float
    same_tokens: bool


@dataclass(frozen=True)
class SelftestResult:
    """`faults` say what is not as it must be; there is none where all went well.

    `rewards` are the means of the steps of the toy task, whose reward is the share of sampled tokens with an even id.
    """

    model: str
    engine: str
    trainer: str
    sync: SyncNumbers
    zero: ZeroNumbers
    rewards: tuple[float, ...]
    gain: float
    wanted_gain: float
    sync_after: SyncNumbers
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.faults

    def as_data(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


async def selftest(
    model: str,
    *,
    engine: str = "embedded",
    trainer: str = "native",
    steps: int = DEFAULT_STEPS,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> SelftestResult:
    """Run it on `model`, in a temporary folder; `say` gets a line for each thing that takes time.

    The toy task ends when its reward has risen enough, or after `steps`.

    Raises:
        ConfigError: no such engine or trainer, or fewer than 3 steps.
        ModelNotFoundError: no weights of that name.
    """
    if steps < 3:
        raise ConfigError(f"steps is {steps}; wanted 3 or more, since the last two are compared with the first")
    check_adapters(engine=engine, trainer=trainer)
    faults: list[str] = []
    async with open_bench(model, engine=engine, trainer=trainer, seed=seed, say=say) as bench:
        sync = await bench.sync_numbers()
        say(f"engine and trainer: mean {sync.mean_difference:.2g}, worst {sync.worst_difference:.2g} nats apart")
        faults += _sync_faults(sync, "before training")
        zero = await bench.zero_step()
        say(f"a step of learning rate 0: trainer drifts {zero.trainer_drift:.2g}, engine {zero.engine_drift:.2g} nats")
        faults += _zero_faults(zero, sync.tolerance)
        rewards: list[float] = []
        try:
            for step in range(1, steps + 1):
                report = await bench.learn(bench.learning_rate)
                rewards.append(report.metrics["reward/mean"])
                say(f"toy task, step {step} of {steps}: reward {rewards[-1]:.3f}")
                if report.metrics["step/skipped"]:  # all attempts earn the same: as a rule everything
                    break
                if step >= 3 and _gain(rewards) >= MARGIN:  # shown: more steps would only take time
                    break
        except WeightSyncError as error:
            faults.append(f"weight sync: {error}")
        gain = _gain(rewards)
        if not faults and not gain >= MARGIN:
            faults.append(
                f"toy task: the reward went from {rewards[0]:.3f} to {rewards[-1]:.3f}, a gain of {gain:.3f} in "
                f"{len(rewards)} steps; wanted {MARGIN} or more: the gradient, the weights that are served, "
                "or the record of what was sampled is wrong"
            )
        after = await bench.sync_numbers()
        say(f"engine and trainer: mean {after.mean_difference:.2g}, worst {after.worst_difference:.2g} nats apart")
        faults += _sync_faults(after, "after training")
    return SelftestResult(model, engine, trainer, sync, zero, tuple(rewards), gain, MARGIN, after, tuple(faults))


@dataclass
class Bench:
    """One model, opened as a host opens it."""

    engine: Engine
    trainer: Trainer
    canary: WeightSyncCanary
    store: RunStore
    prompts: list[tuple[int, ...]]
    learning_rate: float
    count: int = 0
    _drawn: int = field(default=0)

    async def sync_numbers(self) -> SyncNumbers:
        """Compare engine and trainer on what the engine samples."""
        apart: list[float] = []
        for index, prompt in enumerate(self.prompts):
            ids, served = await self._sampled(prompt, seed=index)
            wanted = await self.trainer.logprobs([*prompt, *ids], num_completion=len(ids))
            apart += [abs(a - b) for a, b in zip(served, wanted, strict=True)]
        return SyncNumbers(len(apart), sum(apart) / len(apart), max(apart), self.canary.tolerance)

    async def zero_step(self) -> ZeroNumbers:
        """Train with a learning rate of zero, and compare what was before and after."""
        before = [await self._sampled(prompt, seed=index) for index, prompt in enumerate(self.prompts)]
        trained = [await self._trainer_says(p, ids) for p, (ids, _) in zip(self.prompts, before, strict=True)]
        if (await self.learn(0.0)).metrics["step/skipped"]:
            raise DataError("every attempt at the toy task earned the same, so nothing can be shown; try another model")
        after = [await self._sampled(prompt, seed=index) for index, prompt in enumerate(self.prompts)]
        again = [await self._trainer_says(p, ids) for p, (ids, _) in zip(self.prompts, before, strict=True)]
        drift = max(abs(a - b) for old, new in zip(trained, again, strict=True) for a, b in zip(old, new, strict=True))
        same = [old for old, _ in before] == [new for new, _ in after]
        served = 0.0
        for (old_ids, old), (new_ids, new) in zip(before, after, strict=True):
            for x, y, a, b in zip(old_ids, new_ids, old, new, strict=False):
                if x != y:
                    break
                served = max(served, abs(a - b))
        return ZeroNumbers(drift, served, same)

    async def learn(self, learning_rate: float) -> StepReport:
        """One step of the toy task. Its `reward/mean` is that of the attempts it was made on."""
        groups: list[TrajectoryGroup] = []
        for number, prompt in enumerate(self.prompts):
            ids = [f"{self.count}-{number}-{member}" for member in range(GROUP_SIZE)]
            members = await asyncio.gather(*(self._attempt(prompt, id) for id in ids))
            groups.append(TrajectoryGroup(members, scenario_id=str(number)))
        self.count += 1
        version = self.engine.policy_version
        rows, _ = training_rows([group.with_rewards() for group in groups], policy_version=version)
        report = await train_step(
            rows,
            Objective(learning_rate=learning_rate),
            trainer=self.trainer,
            engine=self.engine,
            store=self.store,
            canary=self.canary,
            cursor={},
        )
        rewards = [member.reward or 0.0 for group in groups for member in group]
        return StepReport(report.step, {**report.metrics, "reward/mean": sum(rewards) / len(rewards)})

    async def _attempt(self, prompt: tuple[int, ...], id: str) -> Trajectory:
        self._drawn += 1
        ids, logprobs = await self._sampled(prompt, seed=1000 + self._drawn)
        exchange = Exchange(
            id=id,
            trajectory_id=id,
            messages=(),
            response={"role": "assistant", "content": ""},
            prompt_ids=prompt,
            completion_ids=tuple(ids),
            logprobs=tuple(logprobs),
            finish_reason="length",
            sampling=_sampling(0),
            policy_version=self.engine.policy_version,
            started_at=0.0,
            ended_at=0.0,
        )
        return Trajectory(id=id, exchanges=[exchange], reward=sum(token % 2 == 0 for token in ids) / len(ids))

    async def _sampled(self, prompt: Sequence[int], *, seed: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        logprobs: list[float] = []
        stream = self.engine.stream(prompt, _sampling(seed))
        async with aclosing(cast(Any, stream)) as chunks:
            async for chunk in chunks:
                ids += chunk.token_ids
                logprobs += chunk.logprobs
        return ids, logprobs

    async def _trainer_says(self, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
        return await self.trainer.logprobs([*prompt, *ids], num_completion=len(ids))


@asynccontextmanager
async def open_bench(
    model: str,
    *,
    engine: str = "embedded",
    trainer: str = "native",
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Bench]:
    """`model`, ready to be tried, in a temporary folder."""
    say(f"opening {model} with engine {engine} and trainer {trainer}")
    parts = await Parts.resolve(model, ModelOptions(seed=seed), engine=engine, trainer=trainer)
    renderer = await parts.open_renderer()
    prompts = [
        tuple(renderer.render_ids([{"role": "user", "content": question}], add_generation_prompt=True))
        for question in _QUESTIONS[:GROUPS]
    ]
    with tempfile.TemporaryDirectory(prefix="art-selftest-") as folder:
        store = RunStore(Path(folder) / "run")
        opened_engine = await parts.open_engine()
        try:
            opened_trainer = await parts.open_trainer()
            try:
                rate = RATE_TIMES_WIDTH / _width(parts.source.folder)
                yield Bench(opened_engine, opened_trainer, parts.canary(renderer), store, prompts, rate)
            finally:
                await opened_trainer.aclose()
        finally:
            await opened_engine.aclose()
            store.close()


def _gain(rewards: Sequence[float]) -> float:
    last = rewards[1:][-2:]
    return sum(last) / len(last) - rewards[0] if last else 0.0


def _width(folder: Path) -> float:
    config = json.loads((folder / "config.json").read_text())
    text = config.get("text_config", config)  # of models that see as well
    return float(text.get("hidden_size", 1024))


def _sampling(seed: int) -> Sampling:
    return Sampling(max_tokens=TOKENS, temperature=1.0, seed=seed)


def _sync_faults(numbers: SyncNumbers, when: str) -> list[str]:
    if numbers.mean_difference <= numbers.tolerance and numbers.worst_difference <= 10 * numbers.tolerance:
        return []
    return [
        f"weight sync {when}: engine and trainer are {numbers.mean_difference:.3g} nats apart in the mean, "
        f"{numbers.worst_difference:.3g} at the worst of {numbers.num_tokens} tokens; wanted {numbers.tolerance:g} and "
        f"{10 * numbers.tolerance:g}: they hold other weights, or compute them otherwise"
    ]


def _zero_faults(numbers: ZeroNumbers, tolerance: float) -> list[str]:
    faults = []
    if numbers.trainer_drift > DRIFT:
        faults.append(
            f"learning rate 0: the trainer's log-probabilities moved by {numbers.trainer_drift:.3g} nats; wanted at "
            f"most {DRIFT:g}: something else than the optimiser changes the weights"
        )
    if not numbers.same_tokens:
        faults.append(
            "learning rate 0: with the same seed the engine samples other tokens than before: loading changes "
            "what is served"
        )
    if numbers.engine_drift > tolerance:
        faults.append(
            f"learning rate 0: the engine's log-probabilities moved by {numbers.engine_drift:.3g} nats; wanted at most "
            f"{tolerance:g}: loading a checkpoint changes what is served"
        )
    return faults
