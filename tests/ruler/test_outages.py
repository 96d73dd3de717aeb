"""What becomes of a group when judges fail, in part or altogether, and what the result tells of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from art_ruler import ConfigError, JudgeReply, JudgeRequest, JudgeUnavailableError, Pass, Ruler
from art_ruler.fakes import HeuristicJudge, ScriptedJudge, shown_to, verdict_json

DOWN = JudgeUnavailableError("down", retryable=True, retry_after_s=0.0)
REFUSED = JudgeUnavailableError("against the policy", status=400)
NO_KEY = JudgeUnavailableError("wrong key", status=401)


def numbers(*values: int) -> list[list[dict[str, Any]]]:
    return [[{"role": "user", "content": "?"}, {"role": "assistant", "content": str(value)}] for value in values]


def fair(name: str = "fair") -> HeuristicJudge:
    return HeuristicJudge(lambda attempt: int(attempt[-1][1]) / 1000, name=name)


class Failing:
    """Fair, but fails where `fails` tells an error for the values shown, or for the number of the request."""

    def __init__(self, fails: Callable[[int, list[int]], Exception | None], name: str = "failing") -> None:
        self.name = name
        self.num_calls = 0
        self._fails = fails

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        values = [int(attempt[-1][1]) for attempt in shown_to(request).values()]
        self.num_calls += 1
        if (error := self._fails(self.num_calls, values)) is not None:
            raise error
        return await fair().complete(request)


def at_call(number: int, error: Exception) -> Callable[[int, list[int]], Exception | None]:
    return lambda at, values: error if at == number else None


@pytest.mark.parametrize("error", [DOWN, REFUSED, NO_KEY], ids=str)
@pytest.mark.parametrize("number", [1, 2, 4])
async def test_a_chunk_without_an_answer_leaves_the_others_theirs(error: JudgeUnavailableError, number: int) -> None:
    judge = Failing(at_call(number, error))
    scorer = Ruler(judge, max_group=4, max_retries=0)
    values = list(range(10, 970, 40))
    if number == 1 and error is NO_KEY:
        with pytest.raises(JudgeUnavailableError, match="wrong key"):
            await scorer.score(numbers(*values))
        assert judge.num_calls == 1
        return
    result = await scorer.score(numbers(*values))
    missing = result.scores.count(None)
    assert 1 <= missing <= 4
    assert judge.num_calls == 11
    scored = [(score, value / 1000) for score, value in zip(result.scores, values, strict=True) if score is not None]
    assert [score for score, _ in scored] == pytest.approx([value for _, value in scored])
    assert {verdict.problem for verdict in result.verdicts if verdict.score is None} == {str(error)}
    assert result.passes == (Pass("failing", problem=str(error), is_retryable=error.retryable),)
    assert (result.is_complete, result.is_retryable, result.problem) == (False, error.retryable, str(error))
    assert result.usage.failed_passes == 1


async def test_a_judge_that_is_down_is_not_asked_for_every_chunk() -> None:
    judge = Failing(lambda at, values: DOWN)
    with pytest.raises(JudgeUnavailableError, match="down"):
        await Ruler(judge, max_group=4, max_retries=0).score(numbers(*range(24)))
    assert judge.num_calls == 2


async def test_a_group_that_a_provider_refuses_in_one_pass_keeps_the_others() -> None:
    judge = Failing(at_call(2, REFUSED))
    result = await Ruler(judge, passes=3, max_retries=0, max_concurrency=1).score(numbers(100, 900))
    assert result.scores == (0.1, 0.9)
    assert [one.problem for one in result.passes].count(str(REFUSED)) == 1
    assert not result.is_retryable


@pytest.mark.parametrize("fallback_error", [DOWN, REFUSED], ids=str)
async def test_a_fall_back_that_fails_too_does_not_lose_what_the_judge_gave(fallback_error: Exception) -> None:
    values = list(range(10, 970, 40))
    primary, fallback = Failing(at_call(4, DOWN), "primary"), Failing(lambda at, values: fallback_error, "fallback")
    result = await Ruler(primary, fallbacks=[fallback], max_group=4, max_retries=0).score(numbers(*values))
    assert sum(score is not None for score in result.scores) >= 20
    assert result.passes == (Pass("primary", problem="down", is_retryable=True),)
    assert (result.usage.fallbacks, result.usage.failed_passes) == (1, 1)


async def test_a_fall_back_that_answers_counts_alone_and_is_named() -> None:
    values = list(range(10, 970, 40))
    primary = Failing(at_call(4, DOWN), "primary")
    result = await Ruler(primary, fallbacks=[fair("second")], passes=2, max_group=4, max_retries=0).score(
        numbers(*values)
    )
    assert None not in result.scores
    assert sorted(result.passes, key=lambda one: one.judge) == [Pass("primary"), Pass("second", is_fallback=True)]
    assert result.is_complete
    assert result.usage.failed_passes == 0


async def test_time_that_runs_out_during_a_fall_back_keeps_what_the_judge_gave() -> None:
    slow = ScriptedJudge([by_value], name="slow", latency_s=30.0)
    primary = Failing(at_call(4, DOWN), "primary")
    scorer = Ruler(primary, fallbacks=[slow], max_group=4, max_retries=0, total_timeout_s=1.0)
    result = await scorer.score(numbers(*range(10, 970, 40)))
    assert sum(score is not None for score in result.scores) >= 20
    assert result.passes[0].judge == "primary"
    assert not result.is_complete


def by_value(request: JudgeRequest) -> str:
    return verdict_json({i: int(attempt[-1][1]) / 1000 for i, attempt in shown_to(request).items()})


async def test_a_judge_of_a_panel_that_is_down_is_seen() -> None:
    good, bad = fair("good"), Failing(lambda at, values: DOWN, "bad")
    result = await Ruler([good, bad], passes=2, max_retries=0).score(numbers(100, 900))
    assert result.scores == (0.1, 0.9)
    assert result.passes == (Pass("good"), Pass("good"), *[Pass("bad", problem="down", is_retryable=True)] * 2)
    assert not result.is_complete
    assert result.is_retryable
    assert result.usage.failed_passes == 2
    assert [len(verdict.per_pass) for verdict in result.verdicts] == [4, 4]


async def test_a_judge_that_answers_nothing_usable_is_no_outage() -> None:
    result = await Ruler(ScriptedJudge(["nonsense"])).score(numbers(1, 2))
    assert result.scores == (None, None)
    assert (result.is_complete, result.is_retryable, result.problem) == (True, False, None)
    assert result.usage.failed_passes == 0


async def test_a_spent_budget_leaves_a_result_that_can_be_completed() -> None:
    result = await Ruler(fair(), max_tokens=10).score(numbers(1, 2))
    assert (result.is_complete, result.is_retryable) == (False, True)
    assert "max_tokens=10" in (result.problem or "")
    assert result.usage.stopped_calls == 1


@pytest.mark.parametrize(("error", "other"), [(DOWN, NO_KEY), (NO_KEY, DOWN)])
async def test_what_may_pass_is_what_is_raised(error: Exception, other: Exception) -> None:
    scorer = Ruler(ScriptedJudge([error]), fallbacks=[ScriptedJudge([other])], max_retries=0)
    with pytest.raises(JudgeUnavailableError) as caught:
        await scorer.score(numbers(1, 2))
    assert caught.value.retryable
    assert scorer.usage.failed_passes == 1


async def test_passes_that_never_began_are_not_told() -> None:
    slow = ScriptedJudge([by_value, by_value, by_value], latency_s=0.2)
    scorer = Ruler(slow, passes="auto", max_concurrency=1, total_timeout_s=0.3)
    result = await scorer.score(numbers(100, 900))
    assert result.scores == (0.1, 0.9)
    assert len(result.passes) == len(result.verdicts[0].per_pass) == 2
    assert result.problem == "not judged within total_timeout_s=0.3"
    assert result.is_retryable


class Other:
    """Not quite a judge."""

    name = "other"

    def __init__(self, complete: Callable[[JudgeRequest], Any]) -> None:
        self.complete = complete


async def text(request: JudgeRequest) -> str:
    return by_value(request)


async def nothing(request: JudgeRequest) -> None:
    return None


async def no_text(request: JudgeRequest) -> JudgeReply:
    return JudgeReply(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("complete", "got"),
    [
        (text, "gave a str"),
        (nothing, "gave a NoneType"),
        (no_text, "a JudgeReply whose text is no str"),
        (by_value, "is not async, it returned a str"),
        (lambda request: JudgeReply(by_value(request)), "is not async, it returned a JudgeReply"),
    ],
)
async def test_what_a_judge_must_return_is_told(complete: Callable[[JudgeRequest], Any], got: str) -> None:
    with pytest.raises(ConfigError, match=f"'other'.*{got}.*JudgeReply"):
        await Ruler(Other(complete)).score(numbers(1, 2))


async def test_a_time_out_of_the_judges_own_is_not_called_ours() -> None:
    judge = ScriptedJudge([TimeoutError("the tunnel collapsed")])
    with pytest.raises(JudgeUnavailableError, match="TimeoutError: the tunnel collapsed") as caught:
        await Ruler(judge, max_retries=0, timeout_s=50).score(numbers(1, 2))
    assert caught.value.retryable
    assert "timeout_s" not in str(caught.value)


def test_event_loops_that_are_closed_are_let_go() -> None:
    scorer = Ruler(ScriptedJudge([by_value], latency_s=0.001), passes=3, max_concurrency=1)
    for value in range(20):
        assert asyncio.run(scorer.score(numbers(1, value))).scores[0] is not None
    assert len(scorer._asker._in_loop) == 1


def test_score_sync_within_a_judge_says_what_to_do_instead() -> None:
    async def complete(request: JudgeRequest) -> JudgeReply:
        Ruler(fair()).score_sync(numbers(1, 2))
        raise AssertionError("it should not come to this")

    with pytest.raises(RuntimeError, match=r"await score\(\)"):
        Ruler(Other(complete)).score_sync(numbers(1, 2))
