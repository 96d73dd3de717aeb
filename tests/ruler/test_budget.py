"""Budgets: what a call is taken to cost, before it, after it, and when nobody tells."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from art_ruler import ConfigError, JudgeReply, JudgeRequest, JudgeUnavailableError, Ruler
from art_ruler.budget import Budget, BudgetSpent
from art_ruler.fakes import ScriptedJudge, verdict_json


def numbers(*values: int) -> list[list[dict[str, Any]]]:
    return [[{"role": "user", "content": "?"}, {"role": "assistant", "content": str(value)}] for value in values]


def reply(prompt: int, answer: int, cost: float | None = None) -> Callable[[JudgeRequest], JudgeReply]:
    return lambda request: JudgeReply(verdict_json(dict.fromkeys(request.ids, 0.5)), prompt, answer, cost)


class Listed(ScriptedJudge):
    """Has a price of one cent a token asked and two a token answered."""

    usd_per_token = (0.01, 0.02)


async def test_a_judge_that_tells_no_usage_is_charged_by_estimate() -> None:
    scorer = Ruler(ScriptedJudge([reply(0, 0)]), max_tokens=3000)
    results = [await scorer.score(numbers(1, value)) for value in range(2, 42)]
    assert results[0].scores == (0.5, 0.5)
    assert results[-1].scores == (None, None)
    assert 1500 < scorer.usage.total_tokens <= 3000
    assert scorer.usage.estimated_calls == scorer.usage.calls == scorer.usage.unpriced_calls > 0
    assert scorer.usage.cost_usd is None


async def test_where_a_price_is_stated_what_is_estimated_costs_money() -> None:
    scorer = Ruler(Listed([reply(0, 0)]), max_cost_usd=30.0)
    for value in range(2, 22):
        await scorer.score(numbers(1, value))
    assert scorer.usage.cost_usd is not None
    assert 10.0 < scorer.usage.cost_usd <= 30.0
    assert scorer.usage.stopped_calls > 0
    assert (scorer.usage.unpriced_calls, scorer.usage.estimated_calls) == (0, scorer.usage.calls)


async def test_a_call_that_is_given_up_is_charged() -> None:
    slow = Listed([reply(300, 100)], latency_s=30.0)
    scorer = Ruler(slow, timeout_s=0.05, max_retries=0, max_tokens=2000)
    for value in range(2, 12):
        with contextlib.suppress(JudgeUnavailableError):
            await scorer.score(numbers(1, value))
    assert 1000 < scorer.usage.total_tokens <= 2000
    assert scorer.usage.stopped_calls > 0
    assert scorer.usage.cost_usd is not None
    assert scorer.usage.estimated_calls == scorer.usage.failed_calls == scorer.usage.calls


async def test_a_call_that_is_cancelled_is_charged() -> None:
    asked = asyncio.Event()

    class Slow(ScriptedJudge):
        async def complete(self, request: JudgeRequest) -> JudgeReply:
            asked.set()
            return await super().complete(request)

    scorer = Ruler(Slow(["-"], latency_s=30.0), max_tokens=2000)
    task = asyncio.create_task(scorer.score(numbers(1, 2)))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (scorer.usage.failed_calls, scorer.usage.estimated_calls, scorer.usage.unpriced_calls) == (1, 1, 1)
    assert scorer.usage.total_tokens > 300


@pytest.mark.parametrize("status", [None, 401, 429, 500])
async def test_a_call_that_the_provider_refused_is_not_charged(status: int | None) -> None:
    judge = ScriptedJudge([JudgeUnavailableError("no", status=status)])
    scorer = Ruler(judge, max_retries=0, max_tokens=2000)
    with pytest.raises(JudgeUnavailableError):
        await scorer.score(numbers(1, 2))
    assert (scorer.usage.total_tokens, scorer.usage.estimated_calls) == (0, 0)


async def test_calls_side_by_side_do_not_exceed_a_price_nobody_has_stated() -> None:
    judge = ScriptedJudge([reply(300, 100, 0.01)], latency_s=0.005)
    scorer = Ruler(judge, passes=8, max_concurrency=8, max_cost_usd=0.035)
    result = await scorer.score(numbers(1, 2))
    assert result.scores == (0.5, 0.5)
    assert scorer.usage.cost_usd == pytest.approx(0.03)
    assert (scorer.usage.calls, scorer.usage.stopped_calls) == (3, 5)
    assert judge.most_running > 1  # after the first


async def test_calls_side_by_side_do_not_exceed_a_stated_price() -> None:
    judge = Listed([reply(300, 100, 5.0)], latency_s=0.005)
    scorer = Ruler(judge, passes=8, max_concurrency=8, max_cost_usd=20.0)
    await scorer.score(numbers(1, 2))
    assert scorer.usage.cost_usd is not None
    assert 5.0 <= scorer.usage.cost_usd <= 20.0
    assert judge.most_running > 1


class Unlisted(ScriptedJudge):
    usd_per_token = None


@pytest.mark.parametrize("role", ["judge", "fallbacks"])
async def test_an_unknown_price_is_refused_before_any_call(role: str) -> None:
    listed, unlisted = Listed([reply(1, 1)]), Unlisted([reply(1, 1)])
    judges = {"judge": [listed, unlisted]} if role == "judge" else {"judge": [listed], "fallbacks": [unlisted]}
    scorer = Ruler(**judges, max_cost_usd=5.0)
    with pytest.raises(ConfigError, match="price of 'scripted' is unknown"):
        await scorer.score(numbers(1, 2))
    assert listed.requests == unlisted.requests == []


async def test_a_judge_that_tells_no_price_is_asked_once_under_a_limit_in_money() -> None:
    judge = ScriptedJudge([reply(300, 100)], latency_s=0.005)
    with pytest.raises(ConfigError, match="price of 'scripted' is unknown"):
        await Ruler(judge, passes=8, max_concurrency=8, max_cost_usd=5.0).score(numbers(1, 2))
    assert len(judge.requests) == 1


async def test_one_answer_that_was_thought_over_at_length_does_not_stop_the_others() -> None:
    judge = ScriptedJudge([reply(300, 100), reply(300, 9700), reply(300, 100)])
    scorer = Ruler(judge, max_tokens=20_000)
    scores = [(await scorer.score(numbers(1, value))).scores[0] for value in range(2, 14)]
    assert scores == [0.5] * 12
    assert scorer.usage.total_tokens == 10_000 + 11 * 400


def test_a_surplus_is_added_to_large_requests_as_to_small_ones() -> None:
    judge = ScriptedJudge(["-"])
    budget = Budget(max_tokens=100_000)
    budget.end(budget.begin(judge, 100, 100), 5200, None, is_answered=True)
    hold = budget.begin(judge, 10_000, 100)
    assert hold.total_tokens == 10_000 + 100 + 5000
    budget.end(hold, 10_100, None, is_answered=True)
    assert budget.begin(judge, 100, 100).total_tokens == 200 + 2500


def test_a_budget_says_whether_it_is_spent_or_too_small_for_the_call() -> None:
    judge = ScriptedJudge(["-"])
    budget = Budget(max_tokens=1000)
    with pytest.raises(BudgetSpent, match=r"max_tokens=1000\) has no room for a call of about 1100 tokens"):
        budget.begin(judge, 1000, 100)
    budget.end(budget.begin(judge, 900, 100), 1000, None, is_answered=True)
    with pytest.raises(BudgetSpent, match=r"max_tokens=1000\) is spent"):
        budget.begin(judge, 1, 1)


async def test_a_price_that_was_not_told_stays_unknown() -> None:
    judge = ScriptedJudge([reply(300, 100), reply(300, 100), JudgeUnavailableError("late", status=408)])
    scorer = Ruler(judge, max_retries=0)
    await scorer.score(numbers(1, 2))
    await scorer.score(numbers(1, 3))
    with pytest.raises(JudgeUnavailableError):
        await scorer.score(numbers(1, 4))
    assert (scorer.usage.cost_usd, scorer.usage.unpriced_calls, scorer.usage.estimated_calls) == (None, 3, 1)


@pytest.mark.parametrize("on_format_error", ["none", "raise"])
@pytest.mark.parametrize("found", [0, 1])
async def test_a_repair_that_the_budget_has_no_room_for_is_told(found: int, on_format_error: Any) -> None:
    def answer(request: JudgeRequest) -> JudgeReply:
        return JudgeReply(verdict_json(dict.fromkeys(request.ids[:found], 0.5)), 450, 50)

    result = await Ruler(ScriptedJudge([answer]), max_tokens=600, on_format_error=on_format_error).score(numbers(1, 2))
    assert (result.usage.calls, result.usage.stopped_calls, result.scores.count(None)) == (1, 1, 2 - found)
    assert (result.is_complete, result.is_retryable) == (False, True)
    assert "max_tokens=600" in (result.problem or "")
    problems = [verdict.problem or "" for verdict in result.verdicts if verdict.score is None]
    assert all("no valid score" in problem and "not asked to repair it" in problem for problem in problems)
