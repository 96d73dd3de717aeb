"""How far rollouts have come, on stderr: a bar on a terminal, else a line now and then."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from art_core.lines import progress_line

_LINE_EVERY_S = 10.0


class Progress:
    """Counts what is done of what is known. With `description` None it shows nothing."""

    def __init__(self, description: str | None) -> None:
        self._description = description
        self._bar: Any = None
        self._task: Any = None
        self._total = self._done = self._failed = 0
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        if self._description is not None and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import Progress as Bar

            self._bar = Bar(console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._description, total=None)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def expect(self, num_more: int) -> None:
        """`num_more` rollouts have become known."""
        self._total += num_more
        self._show()

    def advance(self, *, failed: bool) -> None:
        """One rollout has ended."""
        self._done += 1
        self._failed += failed
        self._show()

    def _show(self) -> None:
        if self._description is None:
            return
        failed = f"{self._failed} failed" if self._failed else ""
        if self._bar is not None:
            text = progress_line(self._description, failed)
            self._bar.update(self._task, description=text, completed=self._done, total=self._total)
        elif time.monotonic() - self._last_line >= _LINE_EVERY_S:
            self._last_line = time.monotonic()
            line = progress_line(self._description, f"{self._done} of {self._total} rollouts", failed)
            print(line, file=sys.stderr, flush=True)  # noqa: T201


def lines_now_and_then(description: str, every_s: float = _LINE_EVERY_S) -> Callable[[str], None]:
    """Writes the lines that it gets to stderr; of those that differ in numbers only, one every `every_s` seconds."""
    shown: dict[str, Any] = {"kind": "", "at": 0.0}

    def show(line: str) -> None:
        kind = re.sub(r"\d+", "#", line.partition(":")[0])
        if kind != shown["kind"] or time.monotonic() - shown["at"] >= every_s:
            shown.update(kind=kind, at=time.monotonic())
            print(progress_line(description, line), file=sys.stderr, flush=True)  # noqa: T201

    return show
