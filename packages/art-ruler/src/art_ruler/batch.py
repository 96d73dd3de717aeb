"""Many groups with bounded memory: a few in flight, each handed on as soon as it is judged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from art_ruler.errors import JudgeFormatError, JudgeUnavailableError, RulerError
from art_ruler.types import Result, Usage

if TYPE_CHECKING:
    from art_ruler import Ruler
    from art_ruler.files import GroupLine, ScoredFile

T = TypeVar("T")
_MAX_FAILURES_IN_A_ROW = 5
_REFUSED_AS_IT_IS = (400, 413, 422)  # HTTP: too long, against a policy, malformed


@dataclass
class Summary:
    """What became of the groups of a file.

    `already_done` were in the output before; `scored` were added; `unscored` counts trajectories without a score in
    them. `failed` groups got no answer and `stopped` ones met the end of the budget: neither is in the output, so that
    running again tries them. `not_tried` were left after that.
    """

    groups: int = 0
    already_done: int = 0
    scored: int = 0
    unscored: int = 0
    failed: int = 0
    stopped: int = 0
    usage: Usage = field(default_factory=Usage)
    problem: str | None = None

    @property
    def not_tried(self) -> int:
        return self.groups - self.already_done - self.scored - self.failed - self.stopped


def leaves_others_a_chance(error: RulerError) -> bool:
    """Whether other groups may get an answer though this one got none: the trouble may pass, or is about this group."""
    return isinstance(error, JudgeUnavailableError) and (error.retryable or error.status in _REFUSED_AS_IT_IS)


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]], *, concurrency: int) -> None:
    """Call `work` on every item, at most `concurrency` at a time. An item is taken when its turn comes.

    The first exception cancels what runs, takes no further item, and is raised as itself.
    """
    queue = iter(items)

    async def worker() -> None:
        for item in queue:
            await work(item)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(concurrency):
                workers.create_task(worker())
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None


async def score_groups(
    ruler: Ruler,
    groups: Iterable[GroupLine],
    out: ScoredFile,
    summary: Summary,
    *,
    concurrency: int,
    progress: Callable[[Summary], None] | None = None,
) -> None:
    """Score the groups that `out` does not hold yet and append each as soon as it is scored.

    `summary` is brought up to date after each group, so that it is right whatever ends this. Ends early, without an
    error, when the budget is spent or when several groups in a row get no answer. Raises what `Ruler.score` raises when
    no call can succeed, as with a wrong key or an unknown model, at the first such answer; and for an answer that
    stays faulty, if the ruler is to raise for it.
    """
    failures_in_a_row = 0

    async def work(group: GroupLine) -> None:
        nonlocal failures_in_a_row
        if out.take(group):
            summary.already_done += 1
            return
        if summary.stopped or failures_in_a_row >= _MAX_FAILURES_IN_A_ROW:
            return
        try:
            result = await ruler.score(group.trajectories, tools=group.tools)
        except JudgeFormatError as error:
            summary.usage += error.usage or Usage()
            raise JudgeFormatError(f"{group.where}: {error}") from None
        except RulerError as error:
            summary.usage += error.usage or Usage()
            if not leaves_others_a_chance(error):
                raise
            summary.failed += 1
            summary.problem = f"{group.where}: {error}"
            failures_in_a_row += 1
        else:
            failures_in_a_row = 0
            summary.usage += result.usage
            if result.usage.stopped_calls:
                summary.stopped += 1
            else:
                out.append(group, scored_fields(result))
                summary.scored += 1
                summary.unscored += sum(score is None for score in result.scores)
        if progress:
            progress(summary)

    await for_each(groups, work, concurrency=concurrency)


def scored_fields(result: Result) -> dict[str, Any]:
    """A result as plain JSON values."""
    from dataclasses import asdict

    return {
        "scores": list(result.scores),
        "verdicts": [asdict(verdict) for verdict in result.verdicts],
        "agreement": asdict(result.agreement),
        "usage": asdict(result.usage),
    }
