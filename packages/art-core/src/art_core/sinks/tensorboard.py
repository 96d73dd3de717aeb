"""Metrics as TensorBoard's event files."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from art_core.protocols import SinkRun


class TensorBoardSink:
    """Satisfies `art_core.protocols.MetricSink`. What is logged is on disk when `log` returns.

    Each process that goes on with a run adds a file to the same folder, which TensorBoard shows as one run.
    """

    def __init__(self, run: SinkRun) -> None:
        self._writer: EventFileWriter | None = EventFileWriter(str(run.folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._writer is None:
            raise ValueError("this sink was closed")
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
