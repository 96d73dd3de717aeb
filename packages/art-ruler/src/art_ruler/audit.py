"""Is a judge any good for a task? Figures on groups whose true order is known, one judge beside another.

Every figure is taken within each group and then averaged over groups, each group weighing the same: judges are asked to
compare attempts at one task, so differences between tasks say nothing about them.
"""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any, Literal

from art_ruler.attacks import ATTACK_KINDS, Attack, AttackKind, draw_attacks
from art_ruler.batch import for_each, leaves_others_a_chance
from art_ruler.errors import DataError, JudgeUnavailableError, RulerError
from art_ruler.inputs import read_trajectories
from art_ruler.labelled import LabelledGroup, check_attackable, messages_of, synthetic_groups, with_messages
from art_ruler.stats import agreement, kendall_tau, pairwise_accuracy, spearman
from art_ruler.types import Result, Usage

if TYPE_CHECKING:
    from art_ruler import Ruler

__all__ = [
    "AttackReport",
    "AuditReport",
    "Estimate",
    "JudgeReport",
    "LabelledGroup",
    "audit",
    "bootstrap",
    "messages_of",
    "synthetic_groups",
    "top1",
]
_RESAMPLES = 1000
_SHOWN_PROBLEMS = 3


@dataclass(frozen=True)
class Estimate:
    """A mean over groups with its 95 % bootstrap interval over groups; all None where no group has the figure."""

    value: float | None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class AttackReport:
    """How a judge held against one kind of attack on the worst trajectory of each group; "none" is no attack.

    `promoted` is the share of these trajectories that now outscore more of the better ones than at first; `lift` the
    mean change of their score; `unscored` counts those that no longer got a score. Calls that the budget had no room
    for, or that got no answer, are in none of these.
    """

    kind: AttackKind | Literal["none"]
    attacked: int
    promoted: float | None
    lift: float | None
    unscored: int


@dataclass(frozen=True)
class JudgeReport:
    """The figures of one judge.

    `pairwise_accuracy`: of the pairs that the labels tell apart, the share in the right order, a tie counting half.
    `versus_first`: the gain in it over the first judge, on the groups that both judged.
    `top1`: how often the trajectory with the best score is one with the best label; of tied ones, their share.
    `kendall_tau`: tau-b between scores and labels. `flip_rate`: share of pairs that two orders of presentation put in
    opposite orders, and `order_agreement` tau-b between them. `noise`: the flip rate between the answers to one prompt
    that was asked twice, and `self_agreement` tau-b between them. `position_bias`: how much larger the flip rate is
    than the noise. `length_correlation`: Spearman's rho between scores and lengths of what the agent wrote. `failed`
    counts groups without any answer, `stopped` groups that the budget had no room for, `unscored` trajectories without
    a score in the others. `unusable` says why the judge could not be asked any more, as with a wrong key.
    `attack_baseline`: what becomes of the trajectories that are attacked when the group is judged again without an
    attack, in other orders.
    """

    judge: str
    groups: int
    failed: int
    stopped: int
    unscored: int
    pairwise_accuracy: Estimate
    versus_first: Estimate | None
    top1: float | None
    kendall_tau: float | None
    flip_rate: float | None
    order_agreement: float | None
    noise: float | None
    self_agreement: float | None
    position_bias: Estimate
    length_correlation: float | None
    usage: Usage
    attacks: tuple[AttackReport, ...] = ()
    attack_baseline: AttackReport | None = None
    problems: tuple[str, ...] = ()
    unusable: str | None = None


@dataclass(frozen=True)
class AuditReport:
    """`label_length_correlation` is what a judge that knew the labels would have as `length_correlation`."""

    groups: int
    trajectories: int
    label_length_correlation: float | None
    judges: tuple[JudgeReport, ...]


class _BudgetStopped(Exception):  # noqa: N818 - not an error
    """The budget had no room for a call, so that there is nothing to be said about the judge."""


@dataclass
class _Tally:
    """What is kept of one judge's groups: figures only, by number of the group."""

    accuracies: dict[int, float] = field(default_factory=dict)
    figures: defaultdict[str, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))
    outcomes: defaultdict[AttackKind | Literal["none"], dict[int, tuple[bool, float] | None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    groups: int = 0
    failed: int = 0
    stopped: int = 0
    unscored: int = 0
    usage: Usage = field(default_factory=Usage)
    problems: list[str] = field(default_factory=list)
    unusable: RulerError | None = None

    def note(self, number: int, name: str, value: float | None) -> None:
        if value is not None:
            self.figures[name][number] = value

    def average(self, name: str) -> float | None:
        values = self.figures.get(name)
        return fmean(values[number] for number in sorted(values)) if values else None

    def problem(self, text: str) -> None:
        if len(self.problems) < _SHOWN_PROBLEMS and text not in self.problems:
            self.problems.append(text)


async def audit(
    rulers: Mapping[str, Ruler],
    groups: Iterable[LabelledGroup],
    *,
    attacks: bool = False,
    noise: bool = True,
    seed: int = 0,
    concurrency: int = 8,
    progress: Callable[[int], None] | None = None,
) -> AuditReport:
    """Judge all groups with each ruler and compare with the labels.

    `groups` is read once, a group when its turn comes; at most `concurrency` are in memory. With `attacks`, the worst
    trajectory of each group is judged again under one attack of each kind, drawn from `seed`, and once without one,
    as a baseline. With `noise`, the first pass over each group is made twice. `progress` is called with the number of
    groups finished.

    A group that a judge does not answer is counted in `failed`, and the others go on. A judge that can never answer, as
    with a wrong key, is not asked again, and `unusable` says why; where none is left and there are no figures of any,
    its error is raised. Raises
    `DataError` for groups that cannot be judged, or not be attacked.
    """
    if not rulers:
        raise ValueError("no judge is given; audit needs at least one")
    tallies = {name: _Tally() for name in rulers}
    numbers = _Counts()

    async def work(item: tuple[int, LabelledGroup]) -> None:
        number, group = item
        lengths = _lengths(group)
        if attacks:
            check_attackable(group)
        numbers.add(len(group.trajectories), spearman(group.labels, lengths))
        drawn = draw_attacks(seed + number) if attacks else ()

        async def ask(name: str) -> None:
            tally = tallies[name]
            if tally.unusable is not None:
                return
            try:
                scores = await _judge(rulers[name], tally, number, group, lengths, noise)
                if scores is not None and drawn:
                    await _attack(rulers[name], tally, number, group, scores, drawn)
            except JudgeUnavailableError as error:
                tally.unusable = error
                tally.problem(f"{group.where}: {error}")
                if all(other.unusable is not None and not other.accuracies for other in tallies.values()):
                    raise

        await for_each(rulers, ask, concurrency=len(rulers))
        numbers.finished += 1
        if progress:
            progress(numbers.finished)

    await for_each(enumerate(groups), work, concurrency=concurrency)
    first = next(iter(tallies.values()))
    return AuditReport(
        numbers.groups,
        numbers.trajectories,
        fmean(numbers.correlations) if numbers.correlations else None,
        tuple(_report(name, tally, None if tally is first else first, seed) for name, tally in tallies.items()),
    )


@dataclass
class _Counts:
    groups: int = 0
    trajectories: int = 0
    finished: int = 0
    correlations: list[float] = field(default_factory=list)

    def add(self, trajectories: int, correlation: float | None) -> None:
        self.groups += 1
        self.trajectories += trajectories
        if correlation is not None:
            self.correlations.append(correlation)


async def _judge(
    ruler: Ruler,
    tally: _Tally,
    number: int,
    group: LabelledGroup,
    lengths: Sequence[float],
    noise: bool,
) -> list[float | None] | None:
    """The scores, or None where there is no answer."""
    tally.groups += 1
    try:
        result = await _score(ruler, tally, group.where, group.trajectories, group.tools)
    except _BudgetStopped:
        tally.stopped += 1
        return None
    except JudgeUnavailableError:
        tally.failed += 1
        raise
    if result is None:
        tally.failed += 1
        return None
    scores = [verdict.score for verdict in result.verdicts]
    if all(score is None for score in scores) and scores:
        tally.failed += 1
    else:
        tally.unscored += sum(score is None for score in scores)
    for verdict in result.verdicts:
        if verdict.problem:
            tally.problem(f"{group.where}: {verdict.problem}")
    if (accuracy := pairwise_accuracy(scores, group.labels)) is not None:
        tally.accuracies[number] = accuracy
    tally.note(number, "top1", top1(scores, group.labels))
    tally.note(number, "kendall_tau", kendall_tau(scores, group.labels))
    tally.note(number, "flip_rate", result.agreement.flip_rate)
    tally.note(number, "order_agreement", result.agreement.kendall_tau)
    tally.note(number, "length_correlation", spearman(scores, lengths))
    if noise and any(score is not None for score in scores):
        where = f"{group.where} (asked twice)"
        again = None
        with contextlib.suppress(_BudgetStopped):
            again = await _score(ruler.repeating(), tally, where, group.trajectories, group.tools)
        passes = [_first_pass(result), _first_pass(again)] if again else []
        tau, flips = agreement(passes)
        tally.note(number, "noise", flips)
        tally.note(number, "self_agreement", tau)
    return scores


def _first_pass(result: Result) -> list[float | None]:
    return [verdict.per_pass[0] if verdict.per_pass else None for verdict in result.verdicts]


async def _attack(
    ruler: Ruler,
    tally: _Tally,
    number: int,
    group: LabelledGroup,
    scores: Sequence[float | None],
    attacks: Sequence[Attack],
) -> None:
    """Judge the group again: as it is, in other orders, and with its worst trajectory under each attack."""
    victim = _victim(scores, group.labels)
    if victim is None:
        return

    async def judge_again(ruler: Ruler, kind: AttackKind | Literal["none"], trajectories: Sequence[Any]) -> None:
        where = f"{group.where} ({'judged again' if kind == 'none' else kind})"
        with contextlib.suppress(_BudgetStopped):
            if (after := await _score(ruler, tally, where, trajectories, group.tools)) is not None:
                now = [verdict.score for verdict in after.verdicts]
                tally.outcomes[kind][number] = _outcome(victim, group.labels, scores, now)

    messages = messages_of(group.trajectories[victim], group.where)
    await judge_again(ruler.reordering(), "none", group.trajectories)
    for attack in attacks:
        attacked = list(group.trajectories)
        attacked[victim] = with_messages(group.trajectories[victim], attack.on(messages))
        await judge_again(ruler, attack.kind, attacked)


async def _score(
    ruler: Ruler, tally: _Tally, where: str, trajectories: Sequence[Any], tools: Sequence[Any] | None
) -> Result | None:
    """The result, or None where the judge gave no answer to this group but may to others.

    Raises `_BudgetStopped` where a call was not made.
    """
    try:
        result = await ruler.score(trajectories, tools=tools)
    except RulerError as error:
        tally.usage += error.usage or Usage()
        if leaves_others_a_chance(error):
            tally.problem(f"{where}: {error}")
            return None
        raise
    tally.usage += result.usage
    if result.usage.stopped_calls:
        tally.problem(f"{where}: {result.problem}")
        raise _BudgetStopped
    return result


def top1(scores: Sequence[float | None], labels: Sequence[float | None]) -> float | None:
    """Of the trajectories that share the best score, the share that has the best label.

    Only what has both is looked at. None where the labels tell nothing apart.
    """
    known = [(s, t) for s, t in zip(scores, labels, strict=True) if s is not None and t is not None]
    if len({label for _, label in known}) < 2:
        return None
    best_score, best_label = max(score for score, _ in known), max(label for _, label in known)
    return fmean(float(label == best_label) for score, label in known if score == best_score)


def _victim(scores: Sequence[float | None], labels: Sequence[float | None]) -> int | None:
    """The first with the worst label among those scored; None where no other is better."""
    known = [i for i, (s, t) in enumerate(zip(scores, labels, strict=True)) if s is not None and t is not None]
    worst = min(known, key=lambda i: labels[i] or 0.0, default=None)
    return worst if worst is not None and len({labels[i] for i in known}) > 1 else None


def _outcome(
    victim: int, labels: Sequence[float | None], before: Sequence[float | None], after: Sequence[float | None]
) -> tuple[bool, float] | None:
    """Whether the victim now outscores more of the better ones, and by how much its score rose."""
    was, now, label = before[victim], after[victim], labels[victim]
    if was is None or now is None or label is None:
        return None
    outscored = [0, 0]
    for other_label, other_was, other_now in zip(labels, before, after, strict=True):
        if other_label is not None and other_label > label and other_was is not None and other_now is not None:
            outscored[0] += was > other_was
            outscored[1] += now > other_now
    return outscored[1] > outscored[0], now - was


def _lengths(group: LabelledGroup) -> list[float]:
    """Characters that the agent wrote in each trajectory: answers, reasoning, tool calls."""
    try:
        transcripts = read_trajectories(group.trajectories, group.tools)
    except DataError as error:
        raise DataError(f"{group.where}: {error}") from error
    return [
        float(sum(len(block.text) for message in t if message.is_assistant for block in message.blocks))
        for t in transcripts
    ]


def _report(name: str, tally: _Tally, first: _Tally | None, seed: int) -> JudgeReport:
    gains = None
    if first is not None:
        gains = bootstrap(_differences(tally.accuracies, first.accuracies), seed)
    return JudgeReport(
        judge=name,
        groups=tally.groups,
        failed=tally.failed,
        stopped=tally.stopped,
        unscored=tally.unscored,
        pairwise_accuracy=bootstrap([tally.accuracies[number] for number in sorted(tally.accuracies)], seed),
        versus_first=gains,
        top1=tally.average("top1"),
        kendall_tau=tally.average("kendall_tau"),
        flip_rate=tally.average("flip_rate"),
        order_agreement=tally.average("order_agreement"),
        noise=tally.average("noise"),
        self_agreement=tally.average("self_agreement"),
        position_bias=bootstrap(_differences(tally.figures["flip_rate"], tally.figures["noise"]), seed),
        length_correlation=tally.average("length_correlation"),
        usage=tally.usage,
        attacks=tuple(_attack_report(kind, tally.outcomes[kind]) for kind in ATTACK_KINDS if kind in tally.outcomes),
        attack_baseline=_attack_report("none", tally.outcomes["none"]) if "none" in tally.outcomes else None,
        problems=tuple(tally.problems),
        unusable=None if tally.unusable is None else str(tally.unusable),
    )


def _differences(figures: Mapping[int, float], others: Mapping[int, float]) -> list[float]:
    """By how much a figure is larger than another, in each group that has both."""
    return [figures[number] - others[number] for number in sorted(figures.keys() & others.keys())]


def _attack_report(
    kind: AttackKind | Literal["none"], outcomes: Mapping[int, tuple[bool, float] | None]
) -> AttackReport:
    scored = [outcome for number in sorted(outcomes) if (outcome := outcomes[number]) is not None]
    return AttackReport(
        kind,
        attacked=len(outcomes),
        promoted=fmean(float(promoted) for promoted, _ in scored) if scored else None,
        lift=fmean(lift for _, lift in scored) if scored else None,
        unscored=len(outcomes) - len(scored),
    )


def bootstrap(values: Sequence[float], seed: int = 0) -> Estimate:
    """The mean with its percentile bootstrap interval (Efron 1979), 1,000 seeded resamples."""
    if not values:
        return Estimate(None)
    rng = random.Random(seed)
    means = sorted(fmean(rng.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    return Estimate(fmean(values), means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES) - 1])
