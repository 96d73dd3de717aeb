"""A `Store` that lives in memory."""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

from art_core.errors import DataError, StorageError
from art_core.protocols import Trainer
from art_core.types import Checkpoint


class MemoryStore:
    """Keeps records and cursors in memory; what the trainer saves goes to a temporary folder of the object's own."""

    def __init__(self) -> None:
        self._records: dict[str, list[str]] = {}
        self._cursors: dict[Path, str] = {}
        self._checkpoints: list[Checkpoint] = []
        self._folder = Path(tempfile.mkdtemp(prefix="art-memory-store-"))
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def append(self, kind: str, record: dict[str, Any]) -> None:
        self._records.setdefault(kind, []).append(_json(record, kind))

    def records(self, kind: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._records.get(kind, [])]

    def commit(self, trainer: Trainer, cursor: dict[str, Any]) -> Checkpoint:
        text = _json(cursor, "cursor")
        path = self._folder / f"step-{trainer.step_count:04d}-{len(self._checkpoints)}"
        path.mkdir()
        trainer.save(path)
        checkpoint = Checkpoint(trainer.step_count, path)
        self._cursors[path] = text
        self._checkpoints.append(checkpoint)
        return checkpoint

    def latest(self) -> Checkpoint | None:
        return max(self._checkpoints, key=lambda checkpoint: checkpoint.step, default=None)

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        if checkpoint.path not in self._cursors:
            raise StorageError(f"checkpoint {checkpoint.path} is not there")
        cursor: dict[str, Any] = json.loads(self._cursors[checkpoint.path])
        return cursor


def _json(record: dict[str, Any], kind: str) -> str:
    try:
        return json.dumps(record, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise DataError(f"a record of {kind!r} cannot be written as JSON: {error}") from error
