"""What the symptoms look at: the numbers of a run's steps. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from art_core.types import Finding, Severity

WINDOW = 3
"""Calls of `train` whose counts are added up, so that a small batch is no finding by chance."""
FIRST = 3
"""Steps at the beginning of a run that later ones are compared with."""
_SHOWN_STEPS = 100


@dataclass(frozen=True)
class Step:
    """One call of `train`: the step it made, or stayed at, and what it reported.

    A number that is not among `metrics` was not measured, and is no evidence of anything.
    """

    number: int
    metrics: Mapping[str, float]

    @property
    def made(self) -> bool:
        """Whether the weights were trained."""
        return not self.metrics.get("step/skipped")

    @property
    def supervised(self) -> bool:
        """Whether it is an update of `train_sft`, which has no rollouts, and a learning rate that ends near 0."""
        return "sft/update" in self.metrics

    def sum(self, names: Sequence[str]) -> float | None:
        """The sum of those of `names` that were measured; None where none was."""
        values = [self.metrics[name] for name in names if name in self.metrics]
        return sum(values) if values else None


@dataclass(frozen=True)
class RunHistory:
    """A run, as numbers.

    `steps` are the calls of `train`, in order, and `supervised` the updates of `train_sft`. `rollouts` are what the
    rollouts of each step were like: as a rule the same, but for runs whose steps did not report it. `logged` are sums
    over what was given to `log`, by split. `reward_range` is what the rewards should lie in, where it was stated.
    `checkpoint_faults` says what is wrong with the checkpoints that are not whole, by step. `forgotten` are numbers of
    steps that were made and are in `steps` no more.
    """

    steps: tuple[Step, ...] = ()
    supervised: tuple[Step, ...] = ()
    rollouts: tuple[Step, ...] = ()
    logged: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    reward_range: tuple[float, float] | None = None
    checkpoint_faults: Mapping[int, str] = field(default_factory=dict)
    forgotten: frozenset[int] = frozenset()

    def forgot_between(self, earlier: Step, later: Step) -> bool:
        """Whether steps that were made between the two are in `steps` no more."""
        return any(number in self.forgotten for number in range(earlier.number + 1, later.number))

    @property
    def made(self) -> tuple[Step, ...]:
        """The steps that trained the weights."""
        return tuple(step for step in self.steps if step.made)

    @property
    def numbered(self) -> tuple[Step, ...]:
        """All that made a checkpoint or could have, supervised updates among them, by their numbers."""
        return tuple(sorted((*self.made, *self.supervised), key=lambda step: step.number))


Symptom = Callable[[RunHistory], Finding | None]


def finding(
    name: str, severity: Severity, seen: Sequence[Step], series: Sequence[Step], evidence: str, remedy: str
) -> Finding:
    """A finding that was `seen` at some steps of `series`; where they are is added to the evidence."""
    current = bool(seen) and bool(series) and seen[-1] is series[-1]
    numbers = list(dict.fromkeys(step.number for step in seen))
    return Finding(
        name=name,
        severity=severity,
        evidence=f"{evidence} ({spans(numbers)})" if numbers else evidence,
        remedy=remedy,
        steps=tuple(numbers[-_SHOWN_STEPS:]),
        current=current,
    )


def spans(numbers: Sequence[int], limit: int = 6) -> str:
    """`[3, 4, 5, 9]` -> `steps 3-5, 9`; of more than `limit` pieces the last."""
    pieces: list[list[int]] = []
    for number in sorted(set(numbers)):
        if pieces and number == pieces[-1][-1] + 1:
            pieces[-1].append(number)
        else:
            pieces.append([number])
    shown = [f"{piece[0]}-{piece[-1]}" if len(piece) > 1 else str(piece[0]) for piece in pieces]
    left_out = "..., " if len(shown) > limit else ""
    word = "step" if len(set(numbers)) == 1 else "steps"
    return f"{word} {left_out}{', '.join(shown[-limit:])}"


@dataclass(frozen=True)
class Pooled:
    """A share over the last `WINDOW` steps: `part` of `whole`."""

    step: Step
    part: float
    whole: float

    @property
    def share(self) -> float:
        return self.part / self.whole


def pooled(
    series: Sequence[Step], part: Sequence[str], whole: Sequence[str], *, at_least: float, least_whole: float
) -> list[Pooled]:
    """The steps at which `part` was at least the share `at_least` of `whole`, both here and over the window.

    Shares of less than `least_whole` in the window say nothing.
    """
    hits = []
    measured = [(step, step.sum(part), step.sum(whole)) for step in series]
    known = [(step, some, all_) for step, some, all_ in measured if some is not None and all_ is not None]
    for index, (step, some, all_) in enumerate(known):
        window = known[max(0, index + 1 - WINDOW) : index + 1]
        total_part, total = sum(item[1] for item in window), sum(item[2] for item in window)
        if not all_ or total < least_whole or some / all_ < at_least or total_part / total < at_least:
            continue
        hits.append(Pooled(step, total_part, total))
    return hits


def worst_of(hits: Sequence[Pooled]) -> Pooled:
    """The highest share; of equal ones that of the most."""
    return max(hits, key=lambda hit: (hit.share, hit.whole))


def worst_share(hits: Sequence[Pooled]) -> str:
    """`3 of 4`: the part and the whole of the highest share, with `at worst` where it is one of several."""
    worst = worst_of(hits)
    return f"{'at worst ' if len(hits) > 1 else ''}{worst.part:.0f} of {worst.whole:.0f}"


def lasting(series: Sequence[Step], is_so: Callable[[Step], bool], *, least: int) -> list[Step]:
    """The steps for which `is_so`, where it is so for `least` of them in a row; a run counts from its `least`-th on."""
    hits: list[Step] = []
    for so, steps in itertools.groupby(series, key=is_so):
        if so:
            hits += list(steps)[least - 1 :]
    return hits


def beginning(series: Sequence[Step], name: str) -> float | None:
    """The median of `name` over the first steps; None before there are enough."""
    values = [step.metrics[name] for step in series if name in step.metrics][:FIRST]
    return median(values) if len(values) == FIRST else None


def after_beginning(series: Sequence[Step], name: str) -> list[tuple[Step, float]]:
    """The steps behind the first ones, with their `name`."""
    return [(step, step.metrics[name]) for step in series if name in step.metrics][FIRST:]
