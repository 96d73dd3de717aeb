"""A sink that keeps what it is given, or fails when told to."""

from __future__ import annotations

from collections.abc import Mapping


class RecordingSink:
    """Satisfies `art_core.protocols.MetricSink`.

    `logged` holds each call of `log`; with `error` set, `log` raises it instead.
    """

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.error: Exception | None = None
        self.closed = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if self.closed:
            raise ValueError("this sink was closed")
        if self.error is not None:
            raise self.error
        self.logged.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True
