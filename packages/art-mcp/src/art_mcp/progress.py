"""Tell a person how far a run is: one live line on a terminal, plain lines elsewhere, everything into `run.log`."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

from rich.console import Console
from rich.live import Live
from rich.text import Text

from art_core.lines import progress_line

_PLAIN_INTERVAL_S = 15.0
_UNITS_BEFORE_GUESS = 20  # the first rollouts of a run wait for each other and tell little about those to come


class Progress:
    """Progress of a run as work units done of work units planned.

    A unit is about one rollout's worth of work; the time left assumes that units to come take as long as the units of
    this process did on average.
    """

    def __init__(self, log: Path | None = None, *, stream: IO[str] | None = None, quiet: bool = False) -> None:
        self._console = Console(file=stream or sys.stderr, highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, refresh_per_second=4) if self._console.is_terminal else None
        self._quiet = quiet
        self._log = log.open("a", encoding="utf-8") if log else None
        self._phase = ""
        self._done_in_phase = self._total_in_phase = 0
        self._figures: dict[str, str] = {}
        self._units_done = self._units_total = 0.0
        self._work_s = 0.0
        self._started = self._last_plain = time.monotonic()
        self._tokens = 0
        self._phase_started = self._started

    def __enter__(self) -> Self:
        if self._live and not self._quiet:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(Text(""))
            self._live.stop()
        if self._log:
            self._log.close()
            self._log = None

    def plan(self, units: float) -> None:
        """Announce how many units the whole run has left from here."""
        self._units_total = self._units_done + units

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Begin a phase of `total` items, of which `done` were done before."""
        self._phase, self._total_in_phase, self._done_in_phase = name, total, done
        self._figures, self._tokens, self._phase_started = {}, 0, time.monotonic()
        self._refresh()

    def advance(
        self, figures: Mapping[str, str] | None = None, *, units: float = 1.0, items: int = 1, tokens: int = 0
    ) -> None:
        """`items` of the phase are done; show `figures`, and tokens per second since the phase began."""
        self._units_done += units
        self._done_in_phase += items
        self._tokens += tokens
        self._figures.update(figures or {})
        self._refresh()

    def skip(self, units: float) -> None:
        """Units of the plan turn out not to be needed."""
        self._units_total -= units

    def line(self, text: str) -> None:
        """A line that stays."""
        stamp = time.strftime("%H:%M:%S")
        self._write_to_log(f"{stamp} {text}\n")
        if not self._quiet:
            self._console.print(Text(f"{stamp} {text}"))

    def _write_to_log(self, text: str) -> None:
        if self._log is None:
            return
        try:
            self._log.write(text)
            self._log.flush()
        except OSError as error:  # the log is a courtesy: a full disk must not end what may not need it
            self._log = None
            self._console.print(Text(f"run.log cannot be written any more: {error.strerror}"))

    def status(self) -> str:
        """The current state in one line."""
        notes = [f"{self._done_in_phase} of {self._total_in_phase}"]
        notes += [f"{name} {value}" for name, value in self._figures.items()]
        elapsed = time.monotonic() - self._phase_started
        if self._tokens and elapsed > 0:
            notes.append(f"{self._tokens / elapsed:.0f} tokens/s")
        return progress_line(self._phase, *notes, left_s=self.time_left_s())

    def time_left_s(self) -> float | None:
        if self._units_done < _UNITS_BEFORE_GUESS or self._units_total <= self._units_done:
            return None
        elapsed = time.monotonic() - self._started
        return elapsed / self._units_done * (self._units_total - self._units_done)

    def _refresh(self) -> None:
        if self._quiet:
            return
        if self._live:
            self._live.update(Text(self.status()))
        elif time.monotonic() - self._last_plain > _PLAIN_INTERVAL_S:
            self._last_plain = time.monotonic()
            self.line(self.status())
