"""What checkpoints a run has. Takes no lock: it may be served and trained meanwhile."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from art_core.control import MetricRecord
from art_core.outcomes import best_step
from art_core.runs import Run
from art_core.saved import STATE_FILE, checkpoint_fault, is_held, read_cursor, step_name
from art_core.storage import run_is_open
from art_core.types import Checkpoint


@dataclass(frozen=True)
class CheckpointInfo:
    """One checkpoint. `fault` says why it is not whole, and is empty where it is: only then can anything be read.

    `saved_at` is in seconds since the epoch. `metrics` are what its training step reported, and over them what
    `model.log` was given for the step. `newest` and `best` are the ones among those that are whole. `use` says who
    needs it now: the server that has the run open (`served`), or whoever reads it: an engine of `name@step`, an export,
    a fork (`read`).
    """

    step: int
    path: Path
    saved_at: float
    size_bytes: int
    metrics: dict[str, float]
    fault: str = ""
    newest: bool = False
    best: bool = False
    use: Literal["", "served", "read"] = ""


def list_checkpoints(chosen: Run) -> list[CheckpointInfo]:
    """The checkpoints of a run, oldest first, none marked as the best. Reads all their files, to see which are whole.

    Raises:
        DataError, StorageError: what was logged cannot be read.
    """
    found = [Checkpoint(step, chosen.folder / "checkpoints" / step_name(step)) for step in chosen.checkpoint_steps]
    faults = {checkpoint.step: checkpoint_fault(checkpoint) or "" for checkpoint in found}
    whole = [step for step, fault in faults.items() if not fault]
    newest = max(whole, default=0)
    records = logged_metrics(chosen)
    is_open = run_is_open(chosen.folder)
    infos = []
    for checkpoint in found:
        step = checkpoint.step
        held = is_held(checkpoint)
        infos.append(
            CheckpointInfo(
                step=step,
                path=checkpoint.path,
                saved_at=_saved_at(checkpoint.path),
                size_bytes=_size_bytes(checkpoint.path),
                metrics={} if faults[step] else _metrics(checkpoint, records),
                fault=faults[step],
                newest=step == newest,
                use="served" if is_open and step == newest else "read" if held else "",
            )
        )
    return infos


def logged_metrics(chosen: Run) -> list[MetricRecord]:
    """What was given to `log`, under its full names, in order."""
    return [MetricRecord(step=line.step, metrics=line.named_metrics()) for line in chosen.log_lines()]


def mark_best(
    chosen: Run, infos: Sequence[CheckpointInfo], metric: str, *, lowest: bool = False
) -> list[CheckpointInfo]:
    """`infos`, which are those of `chosen`, with the best by `metric` among the whole ones marked.

    Raises:
        ConfigError: there are checkpoints, and no whole one has a value of `metric`.
    """
    if not infos:
        return []
    whole = [info.step for info in infos if not info.fault]
    best = best_step(logged_metrics(chosen), metric, whole, lowest=lowest)
    return [replace(info, best=info.step == best) for info in infos]


def _metrics(checkpoint: Checkpoint, records: list[MetricRecord]) -> dict[str, float]:
    cursor = read_cursor(checkpoint)
    reported = [cursor.get(part) for part in ("counters", "metrics")]
    named = [pair for part in reported if isinstance(part, dict) for pair in part.items()]
    merged = {name: value for name, value in named if isinstance(value, int | float)}
    for record in records:
        if record.step == checkpoint.step:
            merged.update(record.metrics)
    return merged


def _saved_at(path: Path) -> float:
    for file in (path / STATE_FILE, path):
        with contextlib.suppress(OSError):
            return file.stat().st_mtime
    return 0.0


def _size_bytes(path: Path) -> int:
    total = 0
    for file in path.rglob("*"):
        with contextlib.suppress(OSError):  # deleted meanwhile
            total += file.lstat().st_size
    return total
