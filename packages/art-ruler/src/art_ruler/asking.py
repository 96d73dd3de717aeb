"""One question to one judge: from the cache or over the wire, within limits, repeated where that can help, repaired
once where the answer is faulty."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, wait_random_exponential

from art_ruler.budget import Budget, BudgetSpent, Meter, price
from art_ruler.cache import ReplyCache
from art_ruler.cutting import estimate_tokens
from art_ruler.errors import ConfigError, JudgeFormatError, JudgeUnavailableError, RequestRefusedError
from art_ruler.prompt import repair_messages
from art_ruler.types import JudgeModel, JudgeReply, JudgeRequest
from art_ruler.verdict import ReadVerdict, read_verdict

MAX_RETRY_AFTER_S = 120.0
"""A provider that asks to wait longer than this is not waited for."""
_MAX_DOWNGRADES = 12  # two for the format, and more parameters than anybody sends
_ANSWER_TOKENS_PER_ID = 60
_TIMED_OUT = 408
_QUOTED = 80  # characters of an answer that a message shows
_backoff = wait_random_exponential(multiplier=0.5, max=30)


class Again:
    """`judge`, to be asked something a second time: it gets the same messages with another seed, and what it answers is
    another entry of the cache."""

    def __init__(self, judge: JudgeModel) -> None:
        self.name = judge.name
        self.fingerprint = f"{getattr(judge, 'fingerprint', judge.name)} again"
        self.usd_per_token = getattr(judge, "usd_per_token", None)
        self._judge = judge
        self._repeats: dict[int, tuple[JudgeRequest, JudgeRequest]] = {}

    async def complete(self, request: JudgeRequest) -> JudgeReply:
        # One repeat of each request, however often it is made: a judge may know by it what was refused the last time.
        # The request is kept beside it, so that no other one gets its identity.
        _, repeat = self._repeats.setdefault(id(request), (request, replace(request, seed=request.seed ^ 1)))
        return await self._judge.complete(repeat)


class Asker:
    """Asks judges. Belongs to no event loop; `max_concurrency` holds in each loop."""

    def __init__(
        self,
        *,
        budget: Budget,
        cache: ReplyCache | None,
        max_concurrency: int,
        timeout_s: float,
        max_retries: int,
        on_format_error: Literal["none", "raise"],
    ) -> None:
        self.budget = budget
        self._cache = cache
        self._max_concurrency, self._timeout_s, self._max_retries = max_concurrency, timeout_s, max_retries
        self._on_format_error = on_format_error
        self._in_loop: dict[asyncio.AbstractEventLoop, _InLoop] = {}

    async def ask(self, judge: JudgeModel, request: JudgeRequest, meter: Meter) -> ReadVerdict:
        """The verdict of `judge`, with what is valid in it; its faults tell what is not.

        Raises:
            JudgeUnavailableError: there is no answer, also after retries.
            JudgeFormatError: the repaired answer is faulty as well, and the caller wants that to be an error.
            BudgetSpent: there is no budget for the first call.
        """
        if self._cache is not None and (text := self._cache.get(judge, request)) is not None:
            verdict = read_verdict(text, request.ids)
            if verdict.is_sound:
                meter.add(cache_hits=1)
                return verdict
        reply = await self._call(judge, request, meter)
        verdict = _read(reply, request.ids)
        if not verdict.is_sound:
            reply, verdict = await self._repaired(judge, request, reply, verdict, meter)
        if verdict.is_sound:
            if self._cache is not None and not self._cache.put(judge, request, reply.text):
                meter.add(cache_failures=1)
        elif self._on_format_error == "raise" and verdict.stop is None:
            raise JudgeFormatError(
                f"judge {judge.name!r}: its answer cannot be used, also after it was asked to repair it: "
                f"{'; '.join(verdict.faults[:5])} (it answered {_quoted(reply)}); try another judge, or take None for "
                "what is not scored"
            )
        return verdict if verdict.is_sound else replace(verdict, quote=_quoted(reply))

    async def _repaired(
        self, judge: JudgeModel, request: JudgeRequest, reply: JudgeReply, verdict: ReadVerdict, meter: Meter
    ) -> tuple[JudgeReply, ReadVerdict]:
        """Ask once more; the better of the two answers. They are not mixed: each has a scale of its own."""
        fault = "; ".join(verdict.faults[:5])
        again = replace(request, messages=repair_messages(request.messages, reply.text, fault, request.ids))
        meter.add(repairs=1)
        try:
            second = await self._call(judge, again, meter)
        except JudgeUnavailableError:
            return reply, verdict
        except BudgetSpent as spent:
            return reply, replace(verdict, stop=str(spent))
        repaired = _read(second, request.ids)
        return (second, repaired) if len(repaired.scores) >= len(verdict.scores) else (reply, verdict)

    async def _call(self, judge: JudgeModel, request: JudgeRequest, meter: Meter) -> JudgeReply:
        try:
            return await self._call_in_some_form(judge, request, meter, is_retry=False)
        except JudgeUnavailableError as error:
            failure = error
        # Its machinery costs more than all else here, so it is set up when there is something to repeat.
        attempts = AsyncRetrying(
            stop=stop_after_attempt(self._max_retries + 1),
            retry=retry_if_exception(_is_worth_a_retry),
            wait=_wait,
            reraise=True,
        )
        async for attempt in attempts:
            with attempt:
                if attempt.retry_state.attempt_number == 1:  # the one that has failed already
                    raise failure
                return await self._call_in_some_form(judge, request, meter, is_retry=True)
        raise AssertionError("tenacity ends by returning or raising")

    async def _call_in_some_form(
        self, judge: JudgeModel, request: JudgeRequest, meter: Meter, *, is_retry: bool
    ) -> JudgeReply:
        for _ in range(_MAX_DOWNGRADES):
            try:
                return await self._call_once(judge, request, meter, is_retry=is_retry)
            except RequestRefusedError:
                meter.add(downgrades=1)
                is_retry = False
        raise JudgeUnavailableError(f"judge {judge.name!r}: its provider refuses every form of the request")

    async def _call_once(self, judge: JudgeModel, request: JudgeRequest, meter: Meter, *, is_retry: bool) -> JudgeReply:
        here = self._here()
        async with here.slots:
            if self.budget.needs_price(judge):  # calls that begin side by side could together exceed the limit
                async with here.pricing:
                    if self.budget.needs_price(judge):
                        return await self._send(judge, request, meter, is_retry=is_retry)
            return await self._send(judge, request, meter, is_retry=is_retry)

    async def _send(self, judge: JudgeModel, request: JudgeRequest, meter: Meter, *, is_retry: bool) -> JudgeReply:
        try:
            hold = self.budget.begin(
                judge,
                sum([estimate_tokens(message["content"]) for message in request.messages]),
                _ANSWER_TOKENS_PER_ID * len(request.ids),
            )
        except BudgetSpent:
            meter.add(stopped_calls=1)
            raise
        meter.add(calls=1, retries=int(is_retry))
        reply: JudgeReply | None = None
        failure: JudgeUnavailableError | None = None
        is_given_up = False
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                reply = await _answer(judge, request)
        except TimeoutError as error:
            is_given_up = True
            said = f"no answer within {self._timeout_s} s; allow more with timeout_s"
            failure = JudgeUnavailableError(
                f"judge {judge.name!r}: {said if limit.expired() else f'TimeoutError: {error}'}", retryable=True
            )
        except asyncio.CancelledError:
            is_given_up = True
            raise
        except JudgeUnavailableError as error:
            is_given_up = error.status == _TIMED_OUT
            raise
        finally:
            if reply is None:
                meter.add(failed_calls=1)
                if is_given_up:  # the provider may have worked on it, and bills that
                    meter.add(
                        prompt_tokens=hold.prompt_tokens,
                        completion_tokens=hold.completion_tokens,
                        cost_usd=hold.cost_usd,
                        estimated_calls=1,
                        unpriced_calls=int(hold.cost_usd is None),
                    )
                self.budget.end(
                    hold,
                    hold.total_tokens if is_given_up else 0,
                    hold.cost_usd if is_given_up else 0.0,
                    is_answered=False,
                )
        if failure is not None or reply is None:
            raise failure or AssertionError("no reply and no exception")
        prompt_tokens, completion_tokens, cost_usd = reply.prompt_tokens, reply.completion_tokens, reply.cost_usd
        is_estimated = not prompt_tokens and not completion_tokens
        if is_estimated:
            prompt_tokens, completion_tokens = hold.prompt_tokens, estimate_tokens(reply.text)
        if cost_usd is None:
            cost_usd = price(judge, prompt_tokens, completion_tokens)
        meter.add(
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost_usd=cost_usd,
            unpriced_calls=int(cost_usd is None),
            estimated_calls=int(is_estimated),
        )
        self.budget.end(hold, prompt_tokens + completion_tokens, cost_usd, is_answered=True)
        self.budget.check_price(judge)
        return reply

    def _here(self) -> _InLoop:
        loop = asyncio.get_running_loop()
        if (here := self._in_loop.get(loop)) is None:
            for other in list(self._in_loop):
                if other.is_closed():
                    self._in_loop.pop(other, None)
            here = self._in_loop[loop] = _InLoop(asyncio.Semaphore(self._max_concurrency))
        return here


@dataclass
class _InLoop:
    """What belongs to one event loop: a semaphore and a lock do, to the one that first waits for them."""

    slots: asyncio.Semaphore
    pricing: asyncio.Lock = field(default_factory=asyncio.Lock)


async def _answer(judge: JudgeModel, request: JudgeRequest) -> JudgeReply:
    """The answer of `judge`, which anybody may have written.

    Raises:
        ConfigError: it is not what a judge returns.
    """
    answer: Any = judge.complete(request)
    if hasattr(answer, "__await__"):
        answer = await answer
        if isinstance(answer, JudgeReply) and isinstance(answer.text, str):
            return answer
        got = "a JudgeReply whose text is no str" if isinstance(answer, JudgeReply) else f"a {type(answer).__name__}"
        raise ConfigError(f"judge {judge.name!r}: its complete() gave {got}; wanted a JudgeReply(text=...)")
    raise ConfigError(
        f"judge {judge.name!r}: its complete() is not async, it returned a {type(answer).__name__}; wanted "
        "`async def complete(self, request)` that returns a JudgeReply"
    )


def _quoted(reply: JudgeReply) -> str:
    text = " ".join(reply.text[: 4 * _QUOTED].split())
    return repr(text if len(text) <= _QUOTED else f"{text[:_QUOTED]}...")


def _read(reply: JudgeReply, ids: tuple[str, ...]) -> ReadVerdict:
    if reply.refusal:
        return ReadVerdict(faults=(f"the judge refused: {str(reply.refusal)[:200]}",))
    verdict = read_verdict(reply.text, ids, cut=reply.cut)
    if reply.cut and not verdict.is_sound:
        cut = "it was cut at the token limit of the answer, so write shorter explanations, or none"
        return replace(verdict, faults=(cut, *verdict.faults))
    return verdict


def _is_worth_a_retry(error: BaseException) -> bool:
    return (
        isinstance(error, JudgeUnavailableError)
        and error.retryable
        and (error.retry_after_s is None or error.retry_after_s <= MAX_RETRY_AFTER_S)
    )


def _wait(state: RetryCallState) -> float:
    """What the provider asked for, else a random time that doubles its range with each try (AWS "full jitter")."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, JudgeUnavailableError) and error.retry_after_s is not None:
        return error.retry_after_s
    return _backoff(state)
