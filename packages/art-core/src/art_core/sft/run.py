"""Supervised training from its first update, or where it was interrupted, to its last.

Every update is one step of the trainer. Between checkpoints nothing is kept: a run that was killed goes on from the
newest one, makes the same updates in the same order with the same learning rates, and so ends with the same weights.
What was begun and finished stands in the store's log `sft`; how far it came, in the cursors of its checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from art_core.canary import WeightSyncCanary
from art_core.dataset import iterate_dataset
from art_core.errors import ConfigError, DataError
from art_core.lines import progress_line
from art_core.loop import committed
from art_core.memory import return_free_memory
from art_core.objective import Objective
from art_core.outcomes import num_supervised
from art_core.protocols import Engine, Store, Trainer
from art_core.runs.records import step_report
from art_core.sft.preparing import PreparedSet
from art_core.sft.schedule import learning_rates, num_updates
from art_core.sft_config import SftConfig
from art_core.types import Checkpoint, StepReport, TokenSample

LOG = "sft"
"""The store's log of supervised trainings: what was begun, with its options, and what was finished, with its result."""
_SHAPES: dict[str, dict[str, type]] = {
    "begun": {"run": str, "start": int, "updates": int, "identity": dict},
    "finished": {"run": str, "identity": dict, "step": int, "metrics": dict},
}
"""What the records of each event hold."""
_MOST_UPDATES = 1_000_000
"""Each has its learning rate in memory; a run of more was not meant."""
_OF_VALIDATION = {
    "sft/validation_dropped_overlong": "sft/dropped_overlong",
    "sft/validation_without_answer": "sft/examples_without_answer",
    "sft/validation_rows_cut": "sft/rows_cut",
}
"""What is left out of the held-out examples, and what it is called of those trained on."""


@dataclass
class SftRun:
    """One supervised training.

    `checkpoints` are those of the store by their steps; `log_step` keeps the report of an update, once its checkpoint
    is there. The trainer stands at the newest checkpoint, and the engine serves it.
    """

    training: PreparedSet
    validation: PreparedSet | None
    config: SftConfig
    trainer: Trainer
    engine: Engine
    store: Store
    canary: WeightSyncCanary
    checkpoints: Mapping[int, Checkpoint]
    log_step: Callable[[StepReport], None]
    on_progress: Callable[[str], None]
    on_commit: Callable[[Collection[int]], Awaitable[None]] | None = None
    """Called behind each checkpoint, with the steps of those that this run has made."""
    counters: dict[str, float] = field(default_factory=dict)
    num_validation_failed: int = 0
    """Held-out trajectories that the client left out."""
    made: dict[int, Checkpoint] = field(default_factory=dict)
    """The checkpoints that this run has made, by their steps."""

    async def execute(self) -> StepReport:
        """Train, commit, load and check; the report is that of the whole training.

        The same training, once finished, is not made again: the report then says `sft/already_finished`.

        Raises:
            ConfigError: another training was interrupted and not finished, and `restart` was not asked for.
            DataError: the log was damaged by hand.
            NonFiniteLossError: see `Trainer.step`; the checkpoints made before it stay.
        """
        self._total = num_updates(len(self.training.examples), self.config)
        if self._total > _MOST_UPDATES:
            raise ConfigError(
                f"epochs={self.config.epochs} with {len(self.training.examples)} examples are {self._total} updates; "
                f"wanted {_MOST_UPDATES} at most: give fewer epochs, or a larger batch_size"
            )
        place = self._place()
        if isinstance(place, StepReport):
            return place
        if place is None:
            place = await self._begin()
        begun, cursor = place
        done: int = cursor["update"]
        for report in cursor["reports"]:
            self.log_step(StepReport(report["step"], report["metrics"]))
        if 0 < done < self._total:
            self.on_progress(f"going on behind update {done} of {self._total}")
        losses = await self._train(begun, done, _Losses(**cursor["losses"]))
        return await self._finish(begun, losses, resumed_after=done)

    # -- where it stands ---------------------------------------------------------------------------------------------

    @property
    def _identity(self) -> dict[str, Any]:
        validation = "" if self.validation is None else self.validation.digest
        return {"examples": self.training.digest, "validation": validation, "options": self.config.identity}

    def _place(self) -> StepReport | tuple[dict[str, Any], dict[str, Any]] | None:
        """The result of the same training, if it was finished; what was begun, and how far it is; None to begin."""
        if self.config.restart:
            return None
        records = [_checked(record, number) for number, record in enumerate(self.store.records(LOG), start=1)]
        current = self.trainer.step_count
        # what was finished behind the newest checkpoint, or begun there, was lost with its checkpoints
        finished = [record for record in records if record["event"] == "finished" and record["step"] <= current]
        same = [record for record in finished if record["identity"] == self._identity]
        if same:
            return self._finished_before(same[-1]["metrics"])
        all_begun = [record for record in records if record["event"] == "begun" and record["start"] <= current]
        begun = all_begun[-1] if all_begun else None
        if begun is None or any(record["run"] == begun["run"] for record in finished):
            return None
        cursor, newest = self._newest_cursor(begun)
        if cursor is None:
            if made := self._updates_within(begun):
                raise ConfigError(
                    f"a supervised training was interrupted behind update {made} of {begun['updates']}, and the model "
                    "was trained otherwise since, so it cannot go on; restart=True begins anew on the weights there are"
                )
            return None  # it left nothing behind
        is_same = begun["identity"] == self._identity
        if cursor["update"] == begun["updates"]:  # only the record that it was finished is missing
            if not is_same:
                return None
            return (
                (begun, cursor) if newest else self._finished_before(self._summary(begun, _Losses(**cursor["losses"])))
            )
        if not is_same:
            raise ConfigError(
                f"another supervised training was interrupted behind update {cursor['update']} of {begun['updates']}: "
                f"{'; '.join(_differences(begun['identity'], self._identity))}. Give what it was begun with to go on, "
                "or restart=True to begin anew on the weights there are"
            )
        if not newest:
            raise ConfigError(
                f"this training was interrupted behind update {cursor['update']} of {begun['updates']}, and the model "
                "was trained otherwise since, so it cannot go on; restart=True begins anew on the weights there are"
            )
        return begun, cursor

    def _newest_cursor(self, begun: dict[str, Any]) -> tuple[dict[str, Any] | None, bool]:
        """The cursor of the newest checkpoint of the training that was `begun`, and whether none is newer."""
        current = self.trainer.step_count
        first, last = begun["start"] + 1, begun["start"] + begun["updates"]
        for step in sorted((step for step in self.checkpoints if first <= step <= last), reverse=True):
            cursor = self.store.load(self.checkpoints[step]).get("sft", {})
            if cursor.get("run") == begun["run"]:
                return cursor, step == current
        return None, False

    def _updates_within(self, begun: dict[str, Any]) -> int:
        """How many updates of the training that was `begun` are in the weights, whose checkpoints are all gone."""
        reports = map(step_report, self.store.records("steps"))
        return num_supervised((r for r in reports if r.step > begun["start"]), step=self.trainer.step_count)

    def _finished_before(self, metrics: dict[str, float]) -> StepReport:
        return StepReport(self.trainer.step_count, {**metrics, "sft/already_finished": 1.0})

    # -- what it does ------------------------------------------------------------------------------------------------

    async def _begin(self) -> tuple[dict[str, Any], dict[str, Any]]:
        start = self.trainer.step_count
        identity = self._identity
        run = hashlib.sha256(json.dumps([identity, start], sort_keys=True).encode()).hexdigest()[:16]
        before = await self._held_out_loss("before")
        begun = {
            "event": "begun",
            "run": run,
            "start": start,
            "updates": self._total,
            "identity": identity,
            "validation_loss": before,
        }
        self.store.append(LOG, begun)
        return begun, {"update": 0, "losses": asdict(_Losses()), "reports": []}

    async def _train(self, begun: dict[str, Any], done: int, losses: _Losses) -> _Losses:
        config = self.config
        rates = learning_rates(self._total, config)
        reports: list[StepReport] = []
        pace = _Pace(self._total - done)
        batches = iterate_dataset(
            self.training.examples,
            config.batch_size,
            config.epochs,
            initial_step=done,
            seed=config.seed,
            shuffle=config.shuffle,
        )
        for batch in batches:
            update = batch.step + 1
            rows = [row for example in batch.items for row in example]
            rate = rates[batch.step]
            report = await self.trainer.step(rows, Objective(loss="sft", learning_rate=rate))
            own = {"sft/update": update, "sft/updates": self._total, "sft/epoch": batch.epoch + 1}
            metrics = {**report.metrics, "train/learning_rate": rate, **{name: float(n) for name, n in own.items()}}
            reports.append(StepReport(report.step, metrics))
            losses.add(report.metrics["train/loss"])
            pace.advance(sum(len(row.token_ids) for row in rows))
            place, loss = f"update {update} of {self._total}", f"loss {losses.last:.4f}"
            self.on_progress(progress_line(place, loss, f"{pace.tokens_per_s:.0f} tokens/s", left_s=pace.left_s))
            if update % config.save_every == 0 or update == self._total:
                await self._commit(begun, update, losses, reports)
                reports = []
        return losses

    async def _commit(self, begun: dict[str, Any], update: int, losses: _Losses, reports: Sequence[StepReport]) -> None:
        place = {
            "run": begun["run"],
            "update": update,
            "of": self._total,
            "losses": asdict(losses),
            "reports": [{"step": report.step, "metrics": report.metrics} for report in reports],
        }
        checkpoint = await committed(self.store, self.trainer, {"sft": place, "metrics": reports[-1].metrics})
        self.made[checkpoint.step] = checkpoint
        for report in reports:
            self.log_step(report)
        if self.on_commit is not None:
            await self.on_commit(self.made)

    async def _finish(self, begun: dict[str, Any], losses: _Losses, *, resumed_after: int) -> StepReport:
        return_free_memory()
        step = self.trainer.step_count
        if self.engine.policy_version != step:
            await self.engine.load(self.made[step])
        synced = await self.canary.check(self.engine, self.trainer)
        after = await self._held_out_loss("after")
        metrics = self._summary(begun, losses, after)
        record = {"event": "finished", "run": begun["run"], "identity": begun["identity"], "step": step}
        self.store.append(LOG, {**record, "metrics": metrics})
        return StepReport(step, {**metrics, **synced, "sft/resumed_after": float(resumed_after)})

    def _summary(
        self, begun: dict[str, Any], losses: _Losses, validation_loss: float | None = None
    ) -> dict[str, float]:
        metrics = {
            **self.counters,
            **self.training.counters,
            "sft/updates": float(self._total),
            "sft/epochs": float(self.config.epochs),
            "sft/loss_first": losses.first,
            "sft/loss_last": losses.last,
            "sft/loss_mean": losses.total / losses.count,
        }
        if self.validation is not None:
            metrics["sft/validation_examples"] = float(len(self.validation.examples))
            metrics["sft/validation_failed"] = float(self.num_validation_failed)
            metrics |= {name: self.validation.counters[counted] for name, counted in _OF_VALIDATION.items()}
            metrics["sft/validation_in_training"] = float(_num_shared(self.validation, self.training))
            metrics["sft/validation_loss_before"] = begun["validation_loss"]
            if validation_loss is not None:
                metrics["sft/validation_loss_after"] = validation_loss
        return metrics

    async def _held_out_loss(self, when: str) -> float | None:
        """Cross-entropy per trained token of the held-out examples."""
        if self.validation is None:
            return None
        total, num_tokens = 0.0, 0
        for row in self.validation.rows:
            logprobs = await _trained_logprobs(row, self.trainer)
            total -= sum(logprobs)
            num_tokens += len(logprobs)
        self.on_progress(f"held-out loss {when} training: {total / num_tokens:.4f}")
        return total / num_tokens


def _checked(record: dict[str, Any], number: int) -> dict[str, Any]:
    """`record`, which is line `number` of the log.

    Raises:
        DataError: it is none that was written here.
    """
    shape = next((shape for event, shape in _SHAPES.items() if record.get("event") == event), None)
    if shape is None or any(type(record.get(name)) is not kind for name, kind in shape.items()):
        raise DataError(
            f"line {number} of {LOG}.jsonl in the run folder tells of no supervised training: {str(record)[:100]}; "
            "restore it, or remove the line to go on"
        )
    return record


async def _trained_logprobs(row: TokenSample, trainer: Trainer) -> list[float]:
    places = [place for place, is_trained in enumerate(row.trained) if is_trained]
    first, end = places[0], places[-1] + 1
    logprobs = await trainer.logprobs(row.token_ids[:end], num_completion=end - first)
    return [logprobs[place - first] for place in places]


def _num_shared(validation: PreparedSet, training: PreparedSet) -> int:
    known = {row.token_ids for row in training.rows}
    return sum(all(row.token_ids in known for row in rows) for rows in validation.examples)


def _differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    texts = [f"the {name} were others" for name in ("examples",) if was[name] != now[name]]
    texts += ["the validation examples were others"] if was["validation"] != now["validation"] else []
    old, new = was["options"], now["options"]
    names = [name for name in new if old.get(name) != new[name]]
    return texts + [f"{name} was {old.get(name)!r}, now {new[name]!r}" for name in names]


@dataclass
class _Losses:
    """What is told of the losses of all updates; as much to keep for many as for few."""

    first: float = 0.0
    last: float = 0.0
    total: float = 0.0
    count: int = 0

    def add(self, loss: float) -> None:
        self.first = loss if self.count == 0 else self.first
        self.last = loss
        self.total += loss
        self.count += 1


class _Pace:
    """How fast `total` updates go."""

    def __init__(self, total: int) -> None:
        self._started = time.monotonic()
        self._num_left = total
        self._num_done = 0
        self._num_tokens = 0

    def advance(self, num_tokens: int) -> None:
        """An update on rows of `num_tokens` is made."""
        self._num_done += 1
        self._num_left -= 1
        self._num_tokens += num_tokens

    @property
    def tokens_per_s(self) -> float:
        return self._num_tokens / self._elapsed_s

    @property
    def left_s(self) -> float:
        return self._elapsed_s / self._num_done * self._num_left

    @property
    def _elapsed_s(self) -> float:
        return max(time.monotonic() - self._started, 1e-9)
