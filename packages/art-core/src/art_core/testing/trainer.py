"""A trainer without weights, for tests of what stands around one."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from art_core.errors import AdapterMismatchError, DataError, NonFiniteLossError, StorageError, TrainerClosedError
from art_core.objective import Objective
from art_core.types import Checkpoint, StepReport, TokenSample

_STATE_FILE = "recording.json"


class RecordingTrainer:
    """Satisfies `art_core.protocols.Trainer` and keeps in `steps` the rows and the objective of each step made.

    It accepts and refuses what a real trainer does. Its policy never changes: every token has the probability
    1 / `vocabulary_size`.
    """

    def __init__(self, *, vocabulary_size: int = 259) -> None:
        self.steps: list[tuple[tuple[TokenSample, ...], Objective]] = []
        self._vocabulary_size = vocabulary_size
        self._step_count = 0
        self._closed = False

    @property
    def step_count(self) -> int:
        return self._step_count

    async def step(self, rows: Sequence[TokenSample], objective: Objective) -> StepReport:
        self._check_open()
        num_trained = sum(row.num_trained for row in rows)
        if num_trained == 0:
            raise DataError(f"none of the {len(rows)} rows has a trained token, so there is nothing to learn from")
        for row in rows:
            self._check_ids(row.token_ids)
            if objective.loss != "sft" and row.num_trained:
                self._check_record(row)
        self.steps.append((tuple(rows), objective))
        self._step_count += 1
        metrics = {
            "train/trained_tokens": float(num_trained),
            "train/rows": float(len(rows)),
            "train/learning_rate": objective.learning_rate,
        }
        if objective.loss == "sft":
            metrics["train/loss"] = math.log(self._vocabulary_size)
        return StepReport(self._step_count, metrics)

    async def logprobs(self, token_ids: Sequence[int], *, num_completion: int) -> list[float]:
        self._check_open()
        if not 0 < num_completion < len(token_ids):
            raise DataError(f"{num_completion} completion tokens of a sequence of {len(token_ids)}")
        self._check_ids(token_ids)
        return [-math.log(self._vocabulary_size)] * num_completion

    def save(self, folder: Path) -> None:
        self._check_open()
        (folder / _STATE_FILE).write_text(json.dumps({"step_count": self._step_count}))

    def restore(self, checkpoint: Checkpoint) -> None:
        self._check_open()
        path = checkpoint.path / _STATE_FILE
        try:
            step_count = json.loads(path.read_text())["step_count"]
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(f"{path}: no readable state of a RecordingTrainer ({error})") from error
        if step_count != checkpoint.step:
            raise AdapterMismatchError(f"{path}: holds step {step_count}, but is given as step {checkpoint.step}")
        self._step_count = step_count

    async def aclose(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise TrainerClosedError("this trainer was closed")

    def _check_ids(self, token_ids: Sequence[int]) -> None:
        unknown = [token for token in token_ids if not 0 <= token < self._vocabulary_size]
        if unknown:
            raise DataError(f"token id {unknown[0]} is not among the {self._vocabulary_size} of this trainer")

    def _check_record(self, row: TokenSample) -> None:
        if row.policy_version > self._step_count:
            raise DataError(
                f"row of trajectory {row.trajectory_id!r}: sampled by policy version {row.policy_version}, but this "
                f"trainer has made {self._step_count} steps"
            )
        numbers = [row.advantage, *(p for p, is_trained in zip(row.logprobs, row.trained, strict=True) if is_trained)]
        if not all(math.isfinite(number) for number in numbers):
            raise NonFiniteLossError(
                f"the loss is not finite because of trajectory {row.trajectory_id!r}: its advantage or a recorded "
                "logprob is not"
            )
