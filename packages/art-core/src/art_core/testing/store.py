"""A `Store` that lives in memory."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from art_core.protocols import Trainer
from art_core.types import Checkpoint


class MemoryStore:
    """Keeps records and cursors in memory; what the trainer saves goes to a temporary folder."""

    def __init__(self) -> None:
        self._records: dict[str, list[str]] = {}
        self._cursors: dict[int, dict[str, Any]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="art-memory-store-")

    def append(self, kind: str, record: dict[str, Any]) -> None:
        self._records.setdefault(kind, []).append(json.dumps(record, allow_nan=False))

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._records.get(kind, [])]

    def commit(self, trainer: Trainer, cursor: dict[str, Any]) -> Checkpoint:
        path = Path(self._folder.name) / f"step-{trainer.step_count:04d}-{len(self._cursors)}"
        path.mkdir()
        trainer.save(path)
        self._cursors[trainer.step_count] = copy.deepcopy(cursor)
        self._latest = Checkpoint(trainer.step_count, path)
        return self._latest

    def latest(self) -> Checkpoint | None:
        return getattr(self, "_latest", None)

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        return copy.deepcopy(self._cursors[checkpoint.step])
