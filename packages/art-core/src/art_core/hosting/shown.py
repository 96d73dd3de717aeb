"""What of a model's run its sinks are shown."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from art_core.hosting.record import ModelRecord
from art_core.protocols import SinkRun
from art_core.registry import open_sink
from art_core.runs.records import LogLine, step_report
from art_core.sinks.feed import Feed


def open_feed(record: ModelRecord, folder: Path) -> Feed:
    """Hands what is logged in the run folder `folder` to the sinks that `record` names."""
    options = record.options
    details = {
        "base_model": record.base_model,
        "trainer": record.trainer,
        "seed": options.seed,
        "dtype": options.dtype,
        "lora": options.lora,
    }
    openers = {
        name: functools.partial(open_sink, name, SinkRun(folder / name, record.project, record.name, details))
        for name in options.sinks
    }
    return Feed(folder, {"steps": _step, "metrics": _log_line, "sft": _supervised}, openers)


def _step(record: dict[str, Any]) -> tuple[int, Mapping[str, float]]:
    report = step_report(record)
    return report.step, report.metrics


def _supervised(record: dict[str, Any]) -> tuple[int, Mapping[str, float]]:
    """The results of a supervised training that has ended, such as its held-out loss."""
    return int(record.get("step", 0)), record.get("metrics", {})


def _log_line(record: dict[str, Any]) -> tuple[int, Mapping[str, float]]:
    line = LogLine.parse(record)
    return line.step, line.named_metrics()
