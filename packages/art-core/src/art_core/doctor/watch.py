"""Findings while a run trains: each is told once, when it becomes true."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel

from art_core.doctor.diagnosis import diagnose, is_worse
from art_core.doctor.history import RunHistory, Step
from art_core.errors import ArtError
from art_core.protocols import Store
from art_core.types import Finding, Severity, StepReport

FINDINGS = "findings"
"""The log of a run folder in which findings begin and end."""
_FIRST_STEPS, _LAST_STEPS = 20, 180
"""What is looked at of a long run: what it began with, and what it does now."""
_logger = logging.getLogger(__name__)


class Told(BaseModel):
    """A line of that log. One that ended has a name and a step only."""

    event: Literal["began", "ended"]
    step: int
    name: str
    severity: Severity = "note"
    evidence: str = ""
    remedy: str = ""


class Watch:
    """Looks at a run after each of its steps.

    `before` are the steps that the run has made already. What `store` says was found, and has not gone away since, is
    not told again.
    """

    def __init__(self, store: Store, before: Iterable[StepReport] = ()) -> None:
        self._store = store
        self._first: list[tuple[int, Step]] = []  # each with how many were seen before it
        self._last: deque[tuple[int, Step]] = deque()
        self._num_seen = 0
        self._forgotten: set[int] = set()
        self._supervised: list[Step] = []  # their numbers only
        self._told: dict[str, Severity] = {}
        try:
            for record in store.records(FINDINGS):
                told = Told.model_validate(record)
                if told.event == "began":
                    self._told[told.name] = told.severity
                else:
                    self._told.pop(told.name, None)
            for report in before:
                self._remember(Step(report.step, report.metrics))
        except (ArtError, ValueError) as error:
            text = " ".join(str(error).split())
            _logger.warning("what was found earlier cannot be read: %s; findings begin anew", text)

    def supervised(self, report: StepReport) -> None:
        """Remember an update of `train_sft`, in which nothing is looked for."""
        self._remember(Step(report.step, report.metrics))

    def observed(self, report: StepReport, *, log_as: str | None = None) -> StepReport:
        """`report` with the findings that are new with it, which are kept, and logged where `log_as` names the run.

        Never raises: a step that was made is not lost because something cannot be said about it.
        """
        try:
            new = self._observe(Step(report.step, report.metrics))
        except Exception:
            _logger.exception("what is wrong with step %d could not be found out", report.step)
            return report
        for finding in new if log_as is not None else ():
            _logger.warning("%s: %s", log_as, finding)
        return replace(report, findings=tuple(new))

    def _observe(self, step: Step) -> list[Finding]:
        self._remember(step)
        steps = tuple(one for _, one in sorted([*self._first, *self._last], key=lambda pair: pair[0]))
        history = RunHistory(
            steps=steps, supervised=tuple(self._supervised), rollouts=steps, forgotten=frozenset(self._forgotten)
        )
        current = {f.name: f for f in diagnose(history) if f.current}
        for name in [name for name in self._told if name not in current]:
            del self._told[name]
            self._store.append(FINDINGS, {"event": "ended", "step": step.number, "name": name})
        new = [f for f in current.values() if f.name not in self._told or is_worse(f.severity, self._told[f.name])]
        for finding in new:
            self._told[finding.name] = finding.severity
            self._store.append(
                FINDINGS, {"event": "began", "step": step.number, **finding.model_dump(mode="json", exclude={"steps"})}
            )
        return new

    def _remember(self, step: Step) -> None:
        if step.supervised:
            self._supervised.append(Step(step.number, {}))
            return
        place = self._num_seen, step
        self._num_seen += 1
        if step.made and len(self._first) < _FIRST_STEPS:  # what is compared with the beginning is what steps measured
            self._first.append(place)
            return
        self._last.append(place)
        if len(self._last) > _LAST_STEPS:
            _, forgotten = self._last.popleft()
            if forgotten.made:
                self._forgotten.add(forgotten.number)
