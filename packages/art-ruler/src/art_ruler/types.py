"""The values that go in and out. Plain and frozen; importing this loads nothing heavy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, overload, runtime_checkable

ChatMessage = dict[str, Any]
"""One chat message in the OpenAI wire shape."""


@dataclass(frozen=True)
class Verdict:
    """What the judges said of one trajectory.

    `score` is the average over passes and judges, in [0, 1]; None where it could not be scored, and then `problem`
    says why. `per_pass` holds the score of each pass, in the order of `Result.passes`; None where that pass gave none.
    `rank` is 1 for the best and larger for worse ones, unlike the reward "rank"; equal scores share a rank.
    `explanation` is the judge's own, of the first pass that scored it.
    """

    score: float | None
    explanation: str
    per_pass: tuple[float | None, ...]
    rank: int | None
    problem: str | None = None


@dataclass(frozen=True)
class Pass:
    """One showing of the group to one judge.

    `judge` names the one whose scores these are; `is_fallback` tells that it stood in for another. `problem` says why
    the group was not answered, or not all of it, although a repeated call might have been: None where it was, whatever
    the answers were worth. `is_retryable` tells that the same group may be answered later.
    """

    judge: str
    is_fallback: bool = False
    problem: str | None = None
    is_retryable: bool = False


@dataclass(frozen=True)
class Agreement:
    """How far the passes agree with each other. Both figures are None where fewer than two passes can be compared.

    `kendall_tau` is the mean tau-b over all pairs of passes, 1 for the same order and -1 for the reverse. `flip_rate`
    is the share of pairs of trajectories, among those that both of two passes told apart, that the two put in
    opposite orders.
    """

    kendall_tau: float | None
    flip_rate: float | None
    num_passes: int


@dataclass(frozen=True)
class Usage:
    """What judging has cost. Two of them can be added.

    `calls` counts requests sent to a judge, `failed_calls` those among them without an answer, and `retries` those
    among them that repeat a failed one. `repairs` counts answers that had to be asked for a second time.
    `cost_usd` is None while no call had a known price; `unpriced_calls` counts those that cost something unknown.
    `estimated_calls` counts calls whose tokens, and cost, are an estimate: the provider told none, or the call was
    given up before its answer came. `fallbacks` counts times that a pass was handed to a fall-back judge,
    `failed_passes` passes that were not answered in full, by fall-backs neither. `downgrades` counts calls that failed
    because the provider refused a JSON schema, JSON mode or a parameter, and were made again without. `stopped_calls`
    counts calls not made because the budget had no room for them. `cut_trajectories` counts, for each judge, different
    trajectories that did not fit whole; `cache_failures` answers that the cache could not keep.
    """

    calls: int = 0
    failed_calls: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    cache_hits: int = 0
    cut_trajectories: int = 0
    repairs: int = 0
    unpriced_calls: int = 0
    fallbacks: int = 0
    downgrades: int = 0
    stopped_calls: int = 0
    estimated_calls: int = 0
    failed_passes: int = 0
    cache_failures: int = 0

    def __add__(self, other: Usage) -> Usage:
        sums = {
            field.name: getattr(self, field.name) + getattr(other, field.name)
            for field in fields(self)
            if field.name != "cost_usd"
        }
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(**sums, cost_usd=sum(costs) if costs else None)

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True)
class Result(Sequence[float | None]):
    """Scores of one group, in the order of its trajectories; itself a sequence of them.

    `scores` are the rewards asked for (raw scores, ranks or normalised ranks); `verdicts` hold the raw scores. `passes`
    tells who was asked, judge by judge.
    """

    scores: tuple[float | None, ...]
    verdicts: tuple[Verdict, ...]
    agreement: Agreement
    usage: Usage
    passes: tuple[Pass, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every pass of every judge was answered, by a fall-back at least, and no repair of an answer was
        stopped by the budget. A score may then still be None, where the answer held no valid one: asking again later
        helps only with the rest."""
        return self.problem is None

    @property
    def is_retryable(self) -> bool:
        """Whether a pass failed that may be answered later: the provider was down, time or budget ran out."""
        return any(one.is_retryable for one in self.passes)

    @property
    def problem(self) -> str | None:
        """Why the first pass that was not answered in full was not."""
        return next((one.problem for one in self.passes if one.problem is not None), None)

    @overload
    def __getitem__(self, index: int) -> float | None: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[float | None, ...]: ...
    def __getitem__(self, index: int | slice) -> float | tuple[float | None, ...] | None:
        return self.scores[index]

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[float | None]:
        return iter(self.scores)


@dataclass(frozen=True)
class JudgeRequest:
    """One question to a judge model.

    `ids` are the blind ids shown, in the order shown; the answer has to name each of them once. `schema` is the JSON
    schema of the answer. `seed` differs between passes; a judge that draws at random may draw from it.
    """

    messages: tuple[ChatMessage, ...]
    schema: dict[str, Any]
    ids: tuple[str, ...]
    seed: int


@dataclass(frozen=True)
class JudgeReply:
    """One answer of a judge model.

    `text` is what it wrote, without reasoning the provider reports separately. `cost_usd` is None where the price is
    unknown. `cut` tells that the provider stopped it at a token limit, `refusal` holds its words if it refused.
    """

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    cut: bool = False
    refusal: str | None = None


@runtime_checkable
class JudgeModel(Protocol):
    """Anything that can answer a `JudgeRequest`.

    `name` identifies the judge in reports and in the cache: two judges that may answer differently have different
    names. A judge may also have `context_tokens`, the longest request it reads, in tokens, and `usd_per_token`, what a
    token of a request and one of an answer costs.
    """

    name: str

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        """Answer `request`.

        Raises:
            JudgeUnavailableError: there was no answer; its `retryable` tells whether to ask again.
        """
        ...
