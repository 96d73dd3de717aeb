"""Where a run stands: in which phase, and how much of it is done; found again from what is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from art_core.protocols import Trainer
from art_core.storage import RunStore
from art_core.types import Checkpoint
from art_mcp.progress import Progress
from art_mcp.stack import ServedModel


async def resume(
    latest: Checkpoint, store: RunStore, trainer: Trainer, model: ServedModel, progress: Progress
) -> dict[str, Any]:
    """Put trainer and engine where `latest` was committed, and complete the metrics log if it is one record short."""
    stored = store.load(latest)
    trainer.restore(latest)
    await model.engine.load(latest)
    progress.line(f"continuing from checkpoint {latest.path}")
    if "sft" in stored:
        return updates_made(stored["metrics"])  # what is not logged of them, the warm-up logs when it goes on
    cursor = {key: stored[key] for key in ("phase", "done")}
    log_step(store, cursor, latest.step, {**stored["extra"], **stored["metrics"], "step/skipped": 0.0})
    return cursor


def updates_made(metrics: Mapping[str, float]) -> dict[str, Any]:
    """Where the run stands behind the update of the warm-up that reported `metrics`."""
    return {"phase": "warmup", "done": round(metrics["sft/update"]), "of": round(metrics["sft/updates"])}


def past_skipped_steps(cursor: dict[str, Any], store: RunStore, policy_version: int) -> dict[str, Any]:
    """`cursor`, or behind the steps after it that were made and changed nothing: they left no checkpoint."""
    for record in store.records("metrics"):
        next_step = cursor["done"] + 1 if cursor["phase"] == "train" else 1
        if (record["phase"], record["done"], record["policy_version"]) == ("train", next_step, policy_version):
            cursor = {"phase": "train", "done": next_step}
    return cursor


def log_step(store: RunStore, cursor: dict[str, Any], policy_version: int, metrics: dict[str, float]) -> None:
    """Add the step at `cursor` to the metrics log, unless an interrupted run had come that far."""
    place = (cursor["phase"], cursor["done"])
    if all((record["phase"], record["done"]) != place for record in store.records("metrics")):
        store.append("metrics", {**cursor, "policy_version": policy_version, "metrics": metrics})
