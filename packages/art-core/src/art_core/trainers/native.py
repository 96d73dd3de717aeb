"""The native trainer: LoRA with AdamW on plain torch, on whatever this machine has."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from art_core.errors import (
    AdapterMismatchError,
    ContextLengthError,
    DataError,
    NonFiniteLossError,
    StorageError,
    TrainerClosedError,
)
from art_core.objective import Objective
from art_core.options import Kind, check_options, number, one_of, whole
from art_core.trainers.aggregation import minibatches
from art_core.trainers.batch import TokenBatch, pack
from art_core.trainers.gradient import KnownRow, UpdateSums, accumulate_gradient, row_logprobs, shaped_advantages
from art_core.trainers.memory import DEFAULT_ACTIVATION_BYTES
from art_core.trainers.optimizer_state import RandomState, apply_optimizer, read_optimizer, write_optimizer
from art_core.trainers.policy import LoraPolicy, plain_row
from art_core.trainers.shift import PolicyShift
from art_core.trainers.snapshot import Snapshot
from art_core.types import Checkpoint, DtypeName, StepReport, TokenSample
from art_core.values import is_number
from art_core.weights.lora import Adapter, LoraConfig, read_adapter, write_adapter

_Result = TypeVar("_Result")


@dataclass(frozen=True, kw_only=True)
class NativeTrainerConfig:
    """What makes a trainer; the loss and the learning rate come with each step.

    `base_model` is the name that stored adapters give as theirs. `activation_bytes` bounds what a
    micro-batch keeps for its backward pass; see `ActivationMemory`, which also chooses how many tokens a micro-batch
    has where `micro_batch_tokens` does not say it. `grad_clip` bounds the global norm of the gradient.
    `num_threads` is torch's number of threads for one operation, for the whole process; None leaves torch's choice.
    """

    model_folder: Path
    base_model: str
    seed: int
    lora: LoraConfig = field(default_factory=LoraConfig)
    dtype: DtypeName = "auto"
    micro_batch_tokens: int | None = None
    activation_bytes: int = DEFAULT_ACTIVATION_BYTES
    grad_clip: float = 1.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.99)
    num_threads: int | None = None

    def __post_init__(self) -> None:
        check_options(self, _KINDS)


_KINDS = {
    "seed": whole(),
    "dtype": one_of(DtypeName),
    "micro_batch_tokens": whole(1).or_none("what activation_bytes allow"),
    "activation_bytes": whole(1),
    "grad_clip": Kind(lambda value: is_number(value) and value > 0.0, "a number above 0, or inf for no limit"),
    "weight_decay": number(0.0),
    "betas": Kind(
        lambda value: isinstance(value, list | tuple) and len(value) == 2 and all(map(number(0.0, 1.0).fits, value)),
        "two numbers, each from 0 and below 1",
    ),
    "num_threads": whole(1).or_none("torch's choice"),
}


class _StepCancelledError(Exception):
    """Ends a step in the worker whose caller no longer waits for it. Never seen outside."""


class _StepGuard:
    """Settles whether a step takes place. After `cancel` returns, it has either been made or never will be."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True

    def check(self) -> None:
        if self._cancelled:
            raise _StepCancelledError

    @contextmanager
    def commit(self) -> Iterator[None]:
        with self._lock:
            self.check()
            yield


@dataclass(frozen=True)
class _Update:
    sums: UpdateSums
    batches: Sequence[TokenBatch]
    grad_norm: float
    clipped: bool


class NativeTrainer:
    """Satisfies `art_core.protocols.Trainer`. All torch work is done in one worker thread, one call after the other.

    Cancelling a `step` ends it within one layer's computation; `step_count` then tells whether it was made.

    Raises:
        ModelNotFoundError, ConfigError: as `LoraPolicy`.
    """

    def __init__(self, config: NativeTrainerConfig) -> None:
        self._config = config
        self._policy = LoraPolicy(
            config.model_folder,
            config.lora,
            seed=config.seed,
            dtype=config.dtype,
            activation_bytes=config.activation_bytes,
        )
        self._parameters = self._policy.parameters
        self._optimizer = torch.optim.AdamW(
            self._parameters.values(), betas=config.betas, weight_decay=config.weight_decay
        )
        self._random = RandomState(config.seed)
        self._step_count = 0
        self._worker = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix="art-trainer",
            initializer=_set_num_threads,
            initargs=(config.num_threads,),
        )
        self._closed = False

    @property
    def step_count(self) -> int:
        return self._step_count

    async def step(self, rows: Sequence[TokenSample], objective: Objective) -> StepReport:
        guard = _StepGuard()

        def work() -> StepReport:
            with self._random.used():
                return self._step(tuple(rows), objective, guard)

        return await self._in_worker(work, guard)

    async def logprobs(self, token_ids: Sequence[int], *, num_completion: int) -> list[float]:
        if not 0 < num_completion < len(token_ids):
            raise DataError(
                f"{num_completion} completion tokens of a sequence of {len(token_ids)}; wanted at least one, and at "
                "least one token before them"
            )
        guard = _StepGuard()
        return await self._in_worker(lambda: self._logprobs(list(token_ids), num_completion, guard), guard)

    def save(self, folder: Path) -> None:
        self._blocking(lambda: self._save(folder))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from `checkpoint`.

        Raises:
            StorageError: its optimiser state is missing or damaged.
            AdapterMismatchError: it belongs to another model, configuration or step. In either case this trainer is
                as before.
        """
        self._blocking(lambda: self._restore(checkpoint))

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            await asyncio.to_thread(self._worker.shutdown, wait=True, cancel_futures=True)
            del self._policy, self._parameters, self._optimizer

    async def _in_worker(self, work: Callable[[], _Result], guard: _StepGuard) -> _Result:
        self._check_open()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._worker, work)
        except asyncio.CancelledError:
            guard.cancel()
            raise

    def _blocking(self, work: Callable[[], _Result]) -> _Result:
        self._check_open()
        return self._worker.submit(work).result()

    def _check_open(self) -> None:
        if self._closed:
            raise TrainerClosedError("this trainer was closed; open a new one and restore the last checkpoint")

    def _step(self, rows: tuple[TokenSample, ...], objective: Objective, guard: _StepGuard) -> StepReport:
        started = time.perf_counter()
        self._check_rows(rows, objective)
        updates = minibatches(rows, objective, seed=(self._config.seed, self._step_count))
        if not updates:
            raise DataError(
                f"none of the {len(rows)} rows has a trained token, so there is nothing to learn from; "
                "rows need tokens that the policy sampled, with their logprobs"
            )
        version = self._step_count
        before = Snapshot(self._parameters.values(), self._optimizer if len(updates) > 1 else None)
        made: list[_Update] = []
        try:
            known = self._known(rows, objective, guard) if len(updates) > 1 or objective.kl_coef else []
            for number, chosen in enumerate(updates, start=1):
                of_update = [rows[index] for index in chosen]
                is_last = number == len(updates)
                made.append(self._update(of_update, [known[i] for i in chosen if known], objective, guard, is_last))
        except BaseException:
            if made:
                before.put_back()
                self._policy.refresh()
            raise
        metrics = {
            "train/learning_rate": objective.learning_rate,
            "train/rows": float(len(rows)),
            "train/rows_untrained": float(sum(not any(row.trained) for row in rows)),
            "train/trained_tokens": float(sum(row.num_trained for row in rows)),
            "train/weight_change": before.change(),
            "train/recomputed_share": self._policy.memory.recomputed_share(
                [b for update in made for b in update.batches]
            ),
            **_metrics(made, with_sampler=objective.loss != "sft"),
        }
        if objective.loss != "sft":
            metrics["train/row_ratio"] = float(objective.loss == "gspo")
            metrics["train/policy_lag_max"] = float(version - min(row.policy_version for row in rows))
        elapsed_s = time.perf_counter() - started
        metrics |= {"train/step_s": elapsed_s, "train/tokens_per_s": metrics["train/computed_tokens"] / elapsed_s}
        return StepReport(self._step_count, metrics)

    def _known(self, rows: Sequence[TokenSample], objective: Objective, guard: _StepGuard) -> list[KnownRow]:
        """What has to be computed for each row before the first of several updates, or for a KL term."""
        batches = self._policy.memory.micro_batches(rows, max_tokens=self._config.micro_batch_tokens)

        def logprobs() -> list[Tensor]:
            return row_logprobs(self._policy, rows, batches, on_layer=guard.check)

        in_advantage = objective.kl_in == "advantage"
        old = logprobs() if objective.updates > 1 or in_advantage else None
        reference = advantages = None
        if objective.kl_coef:
            adapter = None if objective.kl_reference is None else _reference(objective.kl_reference)
            if adapter is not None:
                self._policy.check_adapter(adapter, source=f"kl_reference {objective.kl_reference}")
            with self._policy.with_factors(None if adapter is None else adapter.factors):
                reference = logprobs()
            if in_advantage:
                assert old is not None
                advantages = shaped_advantages(rows, old, reference, objective)
        return [
            KnownRow(*(None if values is None else values[index] for values in (old, reference, advantages)))
            for index in range(len(rows))
        ]

    def _update(
        self,
        rows: Sequence[TokenSample],
        known: Sequence[KnownRow],
        objective: Objective,
        guard: _StepGuard,
        is_last: bool,
    ) -> _Update:
        """One optimiser update; the last of a step makes the step."""
        batches = self._policy.memory.micro_batches(rows, max_tokens=self._config.micro_batch_tokens)
        try:
            sums = accumulate_gradient(self._policy, rows, batches, objective, known=known, on_layer=guard.check)
            grad_norm = float(
                torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), max_norm=self._config.grad_clip)
            )
            if not math.isfinite(grad_norm):
                largest = max((abs(row.advantage) for row in rows if row.num_trained), default=0.0)
                raise NonFiniteLossError(
                    f"step {self._step_count + 1}: the gradient's norm is {grad_norm} and the loss {sums.loss:.4g}; "
                    "nothing was changed. Lower the learning rate, scale the rewards down (largest advantage "
                    f"{largest:.3g}), or look for logprobs that are far from the policy's (largest difference "
                    f"{sums.shift.max_mismatch:.3g})"
                )
            with guard.commit() if is_last else contextlib.nullcontext():
                for group in self._optimizer.param_groups:
                    group["lr"] = objective.learning_rate
                self._optimizer.step()
                self._policy.refresh()
                self._step_count += is_last
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        return _Update(sums, batches, grad_norm, clipped=grad_norm > self._config.grad_clip)

    def _check_rows(self, rows: Sequence[TokenSample], objective: Objective) -> None:
        """Refuse rows that this model cannot compute, naming the trajectory."""
        limit = self._policy.max_context_tokens
        for row in rows:
            if limit is not None and len(row.token_ids) > limit:
                raise ContextLengthError(
                    f"row of trajectory {row.trajectory_id!r}: {len(row.token_ids)} tokens, but the model reads at "
                    f"most {limit}; shorten the rollouts"
                )
            self._check_ids(row.token_ids, f"row of trajectory {row.trajectory_id!r}")
            if objective.loss != "sft" and row.policy_version > self._step_count:
                raise DataError(
                    f"row of trajectory {row.trajectory_id!r}: sampled by policy version {row.policy_version}, but "
                    f"this trainer has made {self._step_count} steps; restore the checkpoint that the engine serves"
                )

    def _check_ids(self, token_ids: Sequence[int], what: str) -> None:
        size = self._policy.vocabulary_size
        unknown = next((token for token in token_ids if not 0 <= token < size), None)
        if unknown is not None:
            raise DataError(f"{what}: token id {unknown} is not of this model, which has ids 0 to {size - 1}")

    def _logprobs(self, token_ids: list[int], num_completion: int, guard: _StepGuard) -> list[float]:
        self._check_ids(token_ids, "logprobs")
        (batch,) = pack([plain_row(token_ids, num_completion=num_completion)], max_tokens=len(token_ids))
        with torch.no_grad():
            logp_U, _ = self._policy.logprobs(batch, on_layer=guard.check)
        return [float(value) for value in logp_U]

    def _save(self, folder: Path) -> None:
        try:
            write_adapter(folder, self._config.lora, self._policy.layers, base_model=self._config.base_model)
            write_optimizer(folder, self._optimizer, self._parameters, step_count=self._step_count, random=self._random)
        except SafetensorError as error:  # what the library makes of a full disk
            raise StorageError(
                f"could not save step {self._step_count} into {folder}: {error}; free some space and run again"
            ) from error

    def _restore(self, checkpoint: Checkpoint) -> None:
        adapter = read_adapter(checkpoint.path)
        self._policy.check_adapter(adapter, source=str(checkpoint.path))
        state = read_optimizer(checkpoint.path, self._parameters)
        if state.step_count != checkpoint.step:
            raise AdapterMismatchError(
                f"{checkpoint.path}: holds the optimiser of step {state.step_count}, but is given as step "
                f"{checkpoint.step}; its files are not of one checkpoint"
            )
        self._policy.set_factors(adapter.factors)
        apply_optimizer(state, self._optimizer, self._parameters, self._random)
        self._step_count = state.step_count


def _reference(folder: Path) -> Adapter:
    try:
        return read_adapter(folder)
    except AdapterMismatchError as error:
        raise AdapterMismatchError(
            f"the checkpoint of kl_reference cannot be used: {error}. Name another step, or 0 for the untrained model"
        ) from error


def _metrics(updates: Sequence[_Update], *, with_sampler: bool) -> dict[str, float]:
    """What the updates of a step report: loss and gradient norm as means over updates, others over their tokens."""
    batches = [batch for update in updates for batch in update.batches]
    trained = sum(update.sums.num_trained for update in updates)
    metrics = {
        "train/loss": sum(update.sums.loss for update in updates) / len(updates),
        "train/grad_norm": sum(update.grad_norm for update in updates) / len(updates),
        "train/grad_clipped": sum(update.clipped for update in updates) / len(updates),
        "train/entropy": sum(update.sums.entropy for update in updates) / trained,
        "train/updates": float(len(updates)),
        "train/row_tokens": float(sum(batch.row_tokens for batch in batches)),
        "train/computed_tokens": float(sum(len(batch) for batch in batches)),
        "train/micro_batches": float(len(batches)),
    }
    if with_sampler:
        metrics["train/advantage_abs_mean"] = sum(update.sums.advantage for update in updates) / trained
        shift = sum((update.sums.shift for update in updates), PolicyShift())
        metrics |= dataclasses.replace(shift, kl_loss=shift.kl_loss / len(updates)).metrics()
    return metrics


def _set_num_threads(num_threads: int | None) -> None:
    if num_threads is not None:
        torch.set_num_threads(num_threads)
