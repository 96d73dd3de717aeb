"""Many groups with bounded memory: a few in flight, each handed on as soon as it is judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from art_ruler.concurrent import together
from art_ruler.errors import JudgeFormatError, JudgeUnavailableError, RulerError
from art_ruler.types import Result, Usage

if TYPE_CHECKING:
    from art_ruler import Ruler
    from art_ruler.files import GroupLine
    from art_ruler.scored import Scored

T = TypeVar("T")
_MAX_FAILURES_IN_A_ROW = 5


@dataclass
class Summary:
    """What became of the groups of a file. Each is counted once.

    `already_done` were in the output before and `scored` were added. `unscored` were added as well, but no answer held
    a valid score for any of their trajectories. `kept` groups were judged again without getting all the scores that
    they had: those stay. `failed` groups got no answer, or not to every pass, and `stopped` ones
    met the end of the budget: neither is in the output, so that running again tries them. `not_tried` were left after
    that. `unscored_trajectories` counts those without a score in all that is in the output for these groups; `stale`
    counts lines of the output that belong to none of them.
    """

    groups: int = 0
    already_done: int = 0
    scored: int = 0
    unscored: int = 0
    kept: int = 0
    failed: int = 0
    stopped: int = 0
    unscored_trajectories: int = 0
    stale: int = 0
    usage: Usage = field(default_factory=Usage)
    problem: str | None = None

    @property
    def tried(self) -> int:
        return self.scored + self.unscored + self.kept + self.failed + self.stopped

    @property
    def not_tried(self) -> int:
        return self.groups - self.already_done - self.tried


def leaves_others_a_chance(error: RulerError) -> bool:
    """Whether other groups may get an answer though this one got none: the trouble may pass, or is about this group."""
    return isinstance(error, JudgeUnavailableError) and (error.retryable or error.is_about_request)


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, concurrency: int) -> None:
    """Call `work` on every item, at most `concurrency` at a time. An item is taken when its turn comes.

    The first exception cancels what runs, takes no further item, and is raised as itself.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    await together([worker() for _ in range(concurrency)])


async def score_groups(
    ruler: Ruler,
    groups: Iterable[GroupLine],
    out: Scored,
    summary: Summary,
    *,
    concurrency: int,
    progress: Callable[[Summary], None] | None = None,
) -> None:
    """Score the groups that `out` does not hold yet and append each as soon as it is scored.

    A group is appended when every pass was answered, whatever the answers were worth; one in which a judge was down or
    slow, or refused it, is left for another time.

    `summary` is brought up to date after each group, so that it is right whatever ends this; its usage is all that
    `ruler` ever used. Ends early, without an error, when the budget is spent or when the judge seems to be down:
    several groups in a row were not answered in full that may be another time. Raises what `Ruler.score` raises when
    no call can succeed, as with a wrong key or an unknown model, at the first such answer; and for an answer that
    stays faulty, if the ruler is to raise for it.
    """
    failures_in_a_row = 0

    def failed(group: GroupLine, problem: object, *, may_pass: bool) -> None:
        nonlocal failures_in_a_row
        summary.failed += 1
        summary.problem = f"{group.where}: {problem}"
        failures_in_a_row = failures_in_a_row + 1 if may_pass else 0

    async def work(group: GroupLine) -> None:
        nonlocal failures_in_a_row
        found = out.take(group)
        if found is not None:
            summary.already_done += 1
            summary.unscored_trajectories += found
            return
        if summary.stopped or failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            return
        try:
            result = await ruler.score(group.trajectories, tools=group.tools)
        except JudgeFormatError as error:
            raise JudgeFormatError(f"{group.where}: {error}") from None
        except RulerError as error:
            if not leaves_others_a_chance(error):
                raise
            failed(group, error, may_pass=isinstance(error, JudgeUnavailableError) and error.retryable)
        else:
            if result.usage.stopped_calls:
                if not summary.failed and not summary.stopped:
                    summary.problem = f"{group.where}: {result.problem}"
                summary.stopped += 1
            elif not result.is_complete:
                failed(group, result.problem, may_pass=result.is_retryable)
            else:
                failures_in_a_row = 0
                _append(out, group, result, summary)
        summary.usage = ruler.usage
        if progress:
            progress(summary)

    try:
        await for_each(groups, work, concurrency=concurrency)
    finally:
        summary.usage = ruler.usage  # calls that were cancelled included


def _append(out: Scored, group: GroupLine, result: Result, summary: Summary) -> None:
    kept = out.append(group, scored_fields(result))
    missing = sum(score is None for score in result.scores)
    summary.unscored_trajectories += missing if kept is None else kept
    if missing and not summary.failed and not summary.stopped:  # those weigh more
        problem = next(verdict.problem for verdict in result.verdicts if verdict.score is None)
        summary.problem = f"{group.where}: {problem}"
    if kept is not None:
        summary.kept += 1
    elif missing and missing == len(result.scores):
        summary.unscored += 1
    else:
        summary.scored += 1


def scored_fields(result: Result) -> dict[str, Any]:
    """A result as plain JSON values."""
    return {
        "scores": list(result.scores),
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
        "agreement": asdict(result.agreement),
        "passes": [asdict(one) for one in result.passes],
        "usage": asdict(result.usage),
    }
