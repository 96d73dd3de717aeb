"""Scores groups of trajectories. The module has an underscore because the package exports a function `ruler`."""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from art_ruler._litellm import LiteLLMJudge
from art_ruler.asking import Again, Asker
from art_ruler.budget import Budget, Meter
from art_ruler.cache import ReplyCache
from art_ruler.concurrent import run_sync, together
from art_ruler.consensus import AUTO_PASSES, MIN_AUTO_PASSES, average, is_settled, orders, weighted
from art_ruler.errors import ConfigError, JudgeUnavailableError, RulerError
from art_ruler.inputs import Transcript, digest, read_trajectories
from art_ruler.passes import PassOutcome, Plan, run_pass
from art_ruler.prompt import DEFAULT_RUBRIC
from art_ruler.stats import agreement, num_beaten, ranks
from art_ruler.types import Agreement, JudgeModel, Pass, Result, Usage, Verdict

Reward = Literal["score", "rank", "normalized_rank"]
OnFormatError = Literal["none", "raise"]
_HUGE = 10**18


class Ruler:
    """Scores the trajectories of a group against each other with one or several judges.

    `judge` is a model name as litellm knows it, a `JudgeModel`, or several of them, averaged with `weights` (default:
    equal). Where a judge is unavailable its pass is handed to the `fallbacks`, in order. `api_base`, `api_key`,
    `extra_headers` and `judge_params` go to the judges given by name; judges that differ in them are made with
    `LiteLLMJudge`.

    `passes` shows the group that many times, each time in a new order drawn from `seed`; "auto" goes on until no
    single pass decides the order, at most 6 times. Groups of more than `max_group`, or of more than fits in
    `context_tokens` (one number, or one for each judge name; default: what litellm knows of the model), are judged in
    chunks with shared anchors. `reward` decides what `Result.scores` holds, always higher for the better: the score in
    [0, 1]; "rank", the number of others an attempt beats, ties counting half; or "normalized_rank", that divided by the
    number of others (1.0 where there is none).

    `max_concurrency` limits the calls in flight in one event loop, `timeout_s` one call, `total_timeout_s` one
    `score`, in seconds, without the import of litellm. A call that can succeed later is made again up to `max_retries`
    times. With `max_cost_usd` or `max_tokens`, over the life of this object, no call begins that would exceed it by its
    price and by what is known of calls so far; what is then not judged is None.

    Raises:
        ConfigError: an option is impossible or does not go with another.
    """

    def __init__(
        self,
        judge: str | JudgeModel | Sequence[str | JudgeModel],
        *,
        rubric: str = DEFAULT_RUBRIC,
        passes: int | Literal["auto"] = 1,
        seed: int = 0,
        weights: Sequence[float] | None = None,
        fallbacks: Sequence[str | JudgeModel] = (),
        reward: Reward = "score",
        on_format_error: OnFormatError = "none",
        max_group: int = 8,
        context_tokens: int | Mapping[str, int] | None = None,
        max_concurrency: int = 8,
        timeout_s: float = 60.0,
        total_timeout_s: float | None = None,
        max_retries: int = 3,
        cache: Path | str | None = None,
        max_cost_usd: float | None = None,
        max_tokens: int | None = None,
        api_base: str | None = None,
        api_key: str | None = None,
        extra_headers: Mapping[str, str] | None = None,
        judge_params: Mapping[str, Any] | None = None,
    ) -> None:
        _check_choice("reward", reward, get_args(Reward))
        _check_choice("on_format_error", on_format_error, get_args(OnFormatError))
        if passes != "auto":
            _check_number("passes", passes, at_least=1, whole=True)
        _check_number("max_group", max_group, at_least=2, whole=True)
        _check_number("max_concurrency", max_concurrency, at_least=1, whole=True)
        _check_number("max_retries", max_retries, at_least=0, whole=True)
        _check_number("timeout_s", timeout_s, above=0)
        for name, limit in (("total_timeout_s", total_timeout_s), ("max_cost_usd", max_cost_usd)):
            if limit is not None:
                _check_number(name, limit, above=0)
        if max_tokens is not None:
            _check_number("max_tokens", max_tokens, at_least=1, whole=True)
        for tokens in context_tokens.values() if isinstance(context_tokens, Mapping) else [context_tokens]:
            if tokens is not None:
                _check_number("context_tokens", tokens, at_least=1, whole=True)
        if not isinstance(rubric, str) or not rubric.strip():
            raise ConfigError("rubric is empty; say what makes an attempt good, or leave it out for the default")

        def opened(given: str | JudgeModel) -> JudgeModel:
            if not isinstance(given, str):
                if isinstance(given, JudgeModel):
                    return given
                raise ConfigError(
                    f"judge is a {type(given).__name__}; wanted the name of a model, or an object with `name` and "
                    "`complete`"
                )
            return LiteLLMJudge(
                given,
                api_base=api_base,
                api_key=api_key,
                extra_headers=extra_headers,
                judge_params=judge_params,
                timeout_s=timeout_s,
            )

        given = [judge] if isinstance(judge, str) or not isinstance(judge, Sequence) else list(judge)
        if not given:
            raise ConfigError("judge is an empty list; name at least one")
        self._judges = [opened(one) for one in given]
        self._fallbacks = [opened(one) for one in ([fallbacks] if isinstance(fallbacks, str) else fallbacks)]
        self._weights = [1.0] * len(given) if weights is None else list(weights)
        if len(self._weights) != len(given):
            raise ConfigError(f"{len(self._weights)} weights for {len(given)} judges; give one for each")
        for weight in self._weights:
            _check_number("a weight", weight, above=0)
        self._context_tokens = context_tokens
        if isinstance(context_tokens, Mapping):
            names = {one.name for one in (*self._judges, *self._fallbacks)}
            if unknown := sorted(set(context_tokens) - names):
                raise ConfigError(f"context_tokens names {unknown[0]!r}, but the judges are {sorted(names)}")
        self._rubric, self._passes, self._reward = rubric, passes, reward
        self._seed: int | str = seed
        self._max_group, self._total_timeout_s = max_group, total_timeout_s
        self._orders: dict[int, list[list[int]]] = {}
        self._is_repeat = False
        self._is_ready = False
        self._meter = Meter()
        self._asker = Asker(
            budget=Budget(max_cost_usd=max_cost_usd, max_tokens=max_tokens),
            cache=None if cache is None else ReplyCache(Path(cache)),
            max_concurrency=max_concurrency,
            timeout_s=timeout_s,
            max_retries=max_retries,
            on_format_error=on_format_error,
        )

    def __repr__(self) -> str:
        return f"Ruler({[judge.name for judge in self._judges]}, passes={self._passes!r}, seed={self._seed})"

    @property
    def usage(self) -> Usage:
        """Everything spent so far, failed calls and failed groups included."""
        return self._meter.usage

    def repeating(self) -> Ruler:
        """This ruler, with its budget and usage, making the first pass of each group once more.

        The prompts are the same letter by letter (but for the anchors of a group that is judged in chunks), and the
        answers another entry of the cache: what differs from the first pass of this ruler is the judge's noise.
        """
        again = copy.copy(self)
        again._is_repeat = True
        return again

    def reordering(self) -> Ruler:
        """This ruler, with its budget and usage, showing attempts in other orders under other ids."""
        again = copy.copy(self)
        again._seed, again._orders = f"{self._seed}/other", {}
        return again

    async def prepare(self) -> None:
        """Load what the judges and fall-backs need, without asking any of them. `score` does it where it was not done.

        Raises:
            ConfigError: one of them can never be asked, as with a name that has no provider.
        """
        if not self._is_ready:
            for judge in (*self._judges, *self._fallbacks):
                if isinstance(judge, LiteLLMJudge):
                    await judge.prepare()
                self._asker.budget.check_price(judge)
            self._is_ready = True

    async def score(self, trajectories: Sequence[Any], *, tools: Sequence[Any] | None = None) -> Result:
        """One score for each trajectory, in their order; None where there is no valid one, never a guess.

        Trajectories that did the same are judged once and get the same score. No trajectories is no call; a single
        one is judged against the criteria alone. What is given is not changed.

        Raises:
            DataError: something given is not a conversation.
            ConfigError: a judge can never be asked, or its context is too small for the criteria.
            JudgeUnavailableError: no judge gave any score; or one cannot be used as it is set up, and no fall-back is.
            JudgeFormatError: an answer could not be used, and `on_format_error` is "raise".
        """
        transcripts = read_trajectories(trajectories, tools)
        digests = [digest(transcript) for transcript in transcripts]
        # In an order that the caller's has no influence on: a permuted group is shown the same way.
        members = {key: i for i, key in enumerate(sorted(set(digests)))}
        by_digest = dict(zip(digests, transcripts, strict=True))
        unique: list[Transcript] = [by_digest[key] for key in members]
        meter = Meter(self._meter)
        panel = [_Bench([judge, *self._fallbacks], list(members), []) for judge in self._judges]
        late = None
        try:
            if unique:
                await self.prepare()
                try:
                    async with asyncio.timeout(self._total_timeout_s) as limit:
                        await together([self._judge(bench, unique, meter) for bench in panel])
                except TimeoutError:
                    if not limit.expired():
                        raise
                    late = f"not judged within total_timeout_s={self._total_timeout_s}"
            return self._result(panel, [members[key] for key in digests], meter, late)
        except RulerError as error:
            error.usage = meter.usage
            raise

    def score_sync(self, trajectories: Sequence[Any], *, tools: Sequence[Any] | None = None) -> Result:
        """`score` for code that is not async, notebooks included. Waits on a thread that all such calls share."""
        return run_sync(self.score(trajectories, tools=tools))

    async def _judge(self, bench: _Bench, transcripts: Sequence[Transcript], meter: Meter) -> None:
        """Make the passes of one judge. Their outcomes are filled as answers come in."""
        is_auto = self._passes == "auto"
        num_passes = AUTO_PASSES if self._passes == "auto" else self._passes
        shown = self._orders.get(len(transcripts))  # which member is which is drawn by their hashes, group by group
        if shown is None:
            draw = random.Random(f"{self._seed}/orders/{len(transcripts)}")
            shown = self._orders[len(transcripts)] = orders(len(transcripts), num_passes, draw, in_turn=is_auto)
        if self._is_repeat:
            shown, num_passes, is_auto = shown[:1], 1, False
        made = 0
        while made < num_passes:
            ahead = min(MIN_AUTO_PASSES, num_passes) if is_auto and not made else 1 if is_auto else num_passes
            bench.outcomes += [PassOutcome(bench.judges[0].name) for _ in range(ahead)]
            await together(
                [self._pass(bench, i, shown[i], transcripts, meter) for i in range(made, made + ahead)],
            )
            made += ahead
            if is_auto and is_settled([outcome.scores for outcome in bench.outcomes]):
                break

    async def _pass(
        self, bench: _Bench, number: int, order: list[int], transcripts: Sequence[Transcript], meter: Meter
    ) -> None:
        failures: list[JudgeUnavailableError] = []
        try:
            for place, judge in enumerate(bench.judges):
                if place:
                    meter.add(fallbacks=1)
                outcome = PassOutcome(judge.name, is_fallback=place > 0)
                try:
                    plan = self._plan(bench, judge, transcripts, meter)
                    await run_pass(
                        Again(judge) if self._is_repeat else judge,
                        plan,
                        order,
                        rubric=self._rubric,
                        seed=f"{self._seed}/{number}",
                        asker=self._asker,
                        meter=meter,
                        outcome=outcome,
                    )
                finally:  # judges have a scale each: the one that scored most is heard, also when time runs out
                    if len(outcome.scores) >= len(bench.outcomes[number].scores):
                        bench.outcomes[number] = outcome
                if not outcome.failures:
                    return
                failures += outcome.failures
        finally:
            if not bench.outcomes[number].is_answered:
                meter.add(failed_passes=1)
        failure = next((error for error in failures if error.retryable), failures[-1])
        bench.outcomes[number].failures = [failure]
        bench.unavailable = bench.unavailable or failure
        if not bench.outcomes[number].scores and not failure.retryable and not failure.is_about_request:
            raise failure

    def _plan(self, bench: _Bench, judge: JudgeModel, transcripts: Sequence[Transcript], meter: Meter) -> Plan:
        if (plan := bench.plans.get(id(judge))) is not None:
            return plan
        context = self._context_tokens
        if isinstance(context, Mapping):
            context = context.get(judge.name)
        if context is None:
            context = getattr(judge, "context_tokens", None)
        if id(judge) not in bench.plans:  # another pass may have made it meanwhile
            bench.plans[id(judge)] = plan = Plan.of(
                transcripts,
                digests=bench.digests,
                rubric=self._rubric,
                max_group=self._max_group,
                context_tokens=context,
            )
            if plan.num_cut:
                meter.add(cut_trajectories=plan.num_cut)
        return bench.plans[id(judge)]

    def _result(self, panel: Sequence[_Bench], members: Sequence[int], meter: Meter, late: str | None) -> Result:
        outcomes = [outcome for bench in panel for outcome in bench.outcomes]
        scores = weighted([average([o.scores for o in bench.outcomes]) for bench in panel], self._weights)
        if members and not scores:
            failures = [bench.unavailable for bench in panel if bench.unavailable is not None]
            if failures:
                raise next((error for error in failures if error.retryable), failures[0])
            if late:
                raise JudgeUnavailableError(f"no attempt was judged: {late}", retryable=True)
        by_member = [scores.get(member) for member in members]
        explanations: dict[int, str] = {}
        for outcome in reversed(outcomes):  # the first that has one counts
            explanations |= outcome.explanations
        verdicts = [
            Verdict(
                score=score,
                explanation=explanations.get(m, ""),
                per_pass=tuple([o.scores.get(m) for o in outcomes]),
                rank=rank,
                problem=None if score is not None else _problem(panel, m, late),
            )
            for m, score, rank in zip(members, by_member, ranks(by_member), strict=True)
        ]
        made = [outcome.scores for outcome in outcomes if outcome.scores]
        everyone = sorted(set(members))
        vectors = [[one.get(member) for member in everyone] for one in made]
        return Result(
            scores=tuple(_rewards(by_member, self._reward)),
            verdicts=tuple(verdicts),
            agreement=Agreement(*agreement(vectors), len(made)),
            usage=meter.usage,
            passes=tuple([_reported(outcome, late) for outcome in outcomes]),
        )


@dataclass
class _Bench:
    """One judge and who stands in for it, with what has come of its passes so far."""

    judges: list[JudgeModel]
    digests: list[str]
    outcomes: list[PassOutcome]

    def __post_init__(self) -> None:
        self.plans: dict[int, Plan] = {}
        self.unavailable: JudgeUnavailableError | None = None


def _reported(outcome: PassOutcome, late: str | None) -> Pass:
    if outcome.is_answered:
        return Pass(outcome.judge, outcome.is_fallback)
    failure = outcome.failures[0] if outcome.failures else None
    return Pass(
        outcome.judge,
        outcome.is_fallback,
        str(failure or outcome.stop or late or "not begun"),
        is_retryable=failure is None or failure.retryable,
    )


def _problem(panel: Sequence[_Bench], member: int, late: str | None) -> str:
    for bench in panel:
        if any(member in outcome.scores for outcome in bench.outcomes):
            continue
        for outcome in bench.outcomes:
            if member in outcome.problems:
                return outcome.problems[member]
    return late or "no judge scored it"


def _rewards(scores: Sequence[float | None], reward: Reward) -> list[float | None]:
    if reward == "score":
        return list(scores)
    beaten = num_beaten(scores)
    if reward == "rank":
        return beaten
    others = sum(score is not None for score in scores) - 1
    return [None if count is None else count / others if others else 1.0 for count in beaten]


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} is {value!r}; wanted one of {', '.join(map(repr, choices))}")


def _check_number(
    name: str, value: Any, *, at_least: float | None = None, above: float | None = None, whole: bool = False
) -> None:
    bound = f"at least {at_least}" if at_least is not None else f"above {above}"
    bound += f", below {_HUGE:.0e}"
    fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool) and abs(value) < _HUGE
    if not fits or (at_least is not None and value < at_least) or (above is not None and value <= above):
        is_huge = isinstance(value, int) and abs(value) >= _HUGE  # too long to be written out
        got = f"an integer of {value.bit_length()} bits" if is_huge else repr(value)
        raise ConfigError(f"{name} is {got}; wanted a {'whole ' if whole else ''}number, {bound}")
