"""Hands what a run's logs hold to its sinks, which may be slow, fail or hang: the run never waits for them."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from art_core.protocols import MetricSink

Parse = Callable[[dict[str, Any]], tuple[int, Mapping[str, float]]]
"""A record of a log -> the step, and the metrics of that step that it holds."""

_RETRY_AFTER_S = 60.0
_HANGS_AFTER_S = 60.0
_LOOK_EVERY_S = 30.0
_log = logging.getLogger(__name__)


class Feed:
    """Sinks that follow the logs of a run folder, each in a thread of its own.

    `logs` names them (`steps` is `<folder>/steps.jsonl`) and says what a record of each means; `openers` open sinks, by
    name, when there is something to log. How far a sink has come is kept in `<folder>/sinks/<name>.json`, so that a run
    that goes on in another process goes on there: what is in the logs reaches each sink once, also what was logged
    while it was not there. A record that a sink fails at is lost to it; it is told once in a row, counted, and the sink
    is opened again after `retry_after_s`. One that does not come back from a call for `hangs_after_s` is told once and
    counted too: it gets what it missed when it comes back, or is opened in another process.
    """

    def __init__(
        self,
        folder: Path,
        logs: Mapping[str, Parse],
        openers: Mapping[str, Callable[[], MetricSink]],
        *,
        retry_after_s: float = _RETRY_AFTER_S,
        hangs_after_s: float = _HANGS_AFTER_S,
    ) -> None:
        self._followers = [
            _Follower(folder, logs, name, opener, retry_after_s, hangs_after_s) for name, opener in openers.items()
        ]

    @property
    def num_failures(self) -> int:
        """How often a sink could not be opened, did not take a record, or hung."""
        return sum(follower.num_failures + follower.num_hangs for follower in self._followers)

    def metrics(self) -> dict[str, float]:
        """For the report of a step."""
        return {"sinks/failures": float(self.num_failures)} if self._followers else {}

    def wake(self) -> None:
        """Something was logged: look now. Without it, the first time excepted, sinks look every half minute."""
        for follower in self._followers:
            follower.wake()

    def close(self, timeout_s: float = 15.0) -> None:
        """Hand on what is left and close the sinks; those that take longer are given up. May be called twice."""
        for follower in self._followers:
            follower.end()
        deadline = time.monotonic() + timeout_s
        for follower in self._followers:
            follower.join(max(0.0, deadline - time.monotonic()))


class _Follower:
    def __init__(
        self,
        folder: Path,
        logs: Mapping[str, Parse],
        name: str,
        opener: Callable[[], MetricSink],
        retry_after_s: float,
        hangs_after_s: float,
    ) -> None:
        self.num_failures = 0
        self.num_hangs = 0
        self._folder = folder
        self._logs = logs
        self._name = name
        self._opener = opener
        self._retry_after_s = retry_after_s
        self._hangs_after_s = hangs_after_s
        self._called_at: float | None = None  # since when the sink has not come back from a call
        self._told_call: float | None = None  # that of which it was told
        self._cursor = folder / "sinks" / f"{name}.json"
        self._positions: dict[str, int] = {}
        self._sink: MetricSink | None = None
        self._closed_until = 0.0
        self._told = False
        self._woken = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._follow, name=f"art-sink-{self._name}", daemon=True)
            self._thread.start()
        self._woken.set()
        self._look_for_hang()

    def _look_for_hang(self) -> None:
        called_at = self._called_at
        if called_at is None or called_at == self._told_call or time.monotonic() - called_at < self._hangs_after_s:
            return
        self._told_call = called_at
        self.num_hangs += 1
        _log.warning(
            "%s: the sink %r has not come back for %.0f s; training goes on, and metrics are in the run folder",
            self._folder,
            self._name,
            time.monotonic() - called_at,
        )

    def end(self) -> None:
        self._ending = True
        if self._thread is not None:
            self._woken.set()

    def join(self, timeout_s: float) -> None:
        if self._thread is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.warning("%s: the sink %r does not end and is given up", self._folder, self._name)
        self._thread = None

    def _follow(self) -> None:
        self._positions = self._read_cursor()
        while True:
            until_retry_s = max(0.0, self._closed_until - time.monotonic()) if self._closed_until else _LOOK_EVERY_S
            self._woken.wait(until_retry_s)
            self._woken.clear()
            ending = self._ending
            if time.monotonic() >= self._closed_until:
                self._closed_until = 0.0
                self._hand_on()
            if ending:
                break
        self._close()

    def _hand_on(self) -> None:
        for kind, parse in self._logs.items():
            log = self._folder / f"{kind}.jsonl"
            if log.exists():  # shorter than it was: lines were removed by hand
                self._positions[kind] = min(self._positions.get(kind, 0), log.stat().st_size)
            records = _read(log, self._positions.get(kind, 0), parse)
            while True:
                try:
                    if (record := next(records, None)) is None:
                        break
                    end, (step, metrics) = record
                    if self._sink is None:
                        with self._call():
                            self._sink = self._opener()
                    self._write_cursor(self._positions | {kind: end})  # first: twice is worse than not at all
                    self._positions[kind] = end
                    if metrics:
                        with self._call():
                            self._sink.log(step, metrics)
                    self._told = False
                except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever a library does, the run goes on
                    self._failed(error)
                    return

    @contextlib.contextmanager
    def _call(self) -> Iterator[None]:
        self._called_at = time.monotonic()
        try:
            yield
        finally:
            self._called_at = None

    def _failed(self, error: BaseException) -> None:
        self.num_failures += 1
        self._close()
        self._closed_until = time.monotonic() + self._retry_after_s
        if not self._told:
            self._told = True
            _log.warning(
                "%s: the sink %r fails (%s: %s); training goes on, metrics are in the run folder, and the sink is "
                "tried again every %g s",
                self._folder,
                self._name,
                type(error).__name__,
                " ".join(str(error).split())[:300],
                self._retry_after_s,
            )

    def _close(self) -> None:
        sink, self._sink = self._sink, None
        if sink is not None:
            with contextlib.suppress(Exception, SystemExit), self._call():  # it failed before, and that was told
                sink.close()

    def _read_cursor(self) -> dict[str, int]:
        try:
            positions = json.loads(self._cursor.read_text())
            return {kind: max(0, int(positions[kind])) for kind in self._logs if kind in positions}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError) as error:
            _log.warning("%s cannot be read (%s): the sink %r begins anew", self._cursor, error, self._name)
            return {}

    def _write_cursor(self, positions: Mapping[str, int]) -> None:
        self._cursor.parent.mkdir(exist_ok=True)
        temporary = self._cursor.with_suffix(".tmp")
        temporary.write_text(json.dumps(positions))
        temporary.replace(self._cursor)


def _read(log: Path, start: int, parse: Parse) -> Iterator[tuple[int, tuple[int, Mapping[str, float]]]]:
    """The whole records of `log` from the byte `start` on, each with where it ends. Others may write meanwhile."""
    if not log.exists():
        return
    with log.open("rb") as file:
        file.seek(start)
        end = start
        for line in file:
            if not line.endswith(b"\n"):
                return
            end += len(line)
            try:
                parsed = parse(json.loads(line))
            except (ValueError, TypeError, LookupError, RecursionError):  # readers of the log name a damaged line
                continue
            yield end, parsed
