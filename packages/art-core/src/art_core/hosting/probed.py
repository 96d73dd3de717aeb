"""What each step answered the canary's probe, kept in the run folder for engines that serve it later."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from art_core.canary import ProbeAnswer, WeightSyncCanary, tolerance_of
from art_core.checkpoints.forking import ANSWERS
from art_core.errors import StorageError
from art_core.protocols import Engine
from art_core.saved import adapter_digest, explained
from art_core.storage import RunStore
from art_core.types import Checkpoint

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KeptAnswer:
    """An answer, the number format it was computed in, and the digest of the adapter that gave it ("" for none)."""

    answer: ProbeAnswer
    dtype: str
    weights: str


class KeptAnswers:
    """Those of the steps of one run, made by engines that compute in `dtype`.

    An answer is that of weights: where a step was made again, with other ones, what it answered before counts no more.
    A log that is damaged or cannot be written costs no step: a warning says what is not checked.
    """

    def __init__(self, store: RunStore, dtype: str) -> None:
        self._store = store
        self._dtype = dtype
        self._kept = dict(_read(store))

    def keep(self, step: int, answer: ProbeAnswer) -> None:
        """Remember what `step` answered."""
        try:
            made = KeptAnswer(answer, self._dtype, self._weights(step))
            if self._kept.get(step) != made:
                self._kept[step] = made
                record = {"step": step, "dtype": made.dtype, "weights": made.weights, **answer.as_json()}
                self._store.append(ANSWERS, record)
        except StorageError as error:
            _log.warning("%s; after a restart, engines of step %d are not checked", error, step)

    async def check(self, canary: WeightSyncCanary, engine: Engine, step: int) -> bool:
        """Whether what `step`, of which there is a checkpoint, answered is known; `engine` says the same then.

        Raises:
            WeightSyncError: it is known, and `engine` says something else.
        """
        kept = self._kept.get(step)
        if kept is None or kept.weights != self._weights(step):
            return False
        others = [one.answer for at, one in self._kept.items() if at != step and one.dtype == self._dtype]
        tolerance = tolerance_of(kept.dtype, self._dtype)
        await canary.check_again(engine, kept.answer, others=others, tolerance=tolerance)
        return True

    def _weights(self, step: int) -> str:
        return adapter_digest(Checkpoint(step, self._store.checkpoint_path(step))) if step else ""


def _read(store: RunStore) -> Iterator[tuple[int, KeptAnswer]]:
    log = store.folder / f"{ANSWERS}.jsonl"
    damaged = 0
    try:
        with explained(log, "read"):
            lines = log.read_bytes().splitlines() if log.exists() else []
    except StorageError as error:
        _log.warning("%s; engines for its older steps are not checked", error)
        return
    for line in lines:
        try:
            record: Any = json.loads(line)
            kept = KeptAnswer(ProbeAnswer.from_json(record), str(record["dtype"]), str(record["weights"]))
            yield int(record["step"]), kept
        except (ValueError, KeyError, TypeError, RecursionError):
            damaged += 1
    if damaged:
        _log.warning("%s: %d damaged lines; engines for the steps they were of are not checked", log, damaged)
