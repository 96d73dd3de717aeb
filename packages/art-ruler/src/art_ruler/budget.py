"""Counts what judging costs, and says when to stop. Safe to use from several threads."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass

from art_ruler.errors import ConfigError
from art_ruler.types import JudgeModel, Usage


class Meter:
    """Adds up usage, for itself and for the meter it is part of."""

    def __init__(self, whole: Meter | None = None) -> None:
        self._whole = whole
        self._counts: dict[str, int] = {}
        self._cost_usd: float | None = None
        self._lock = threading.Lock()

    @property
    def usage(self) -> Usage:
        with self._lock:
            return Usage(**self._counts, cost_usd=self._cost_usd)

    def add(self, *, cost_usd: float | None = None, **counts: int) -> None:
        """Add to the fields of `Usage`."""
        with self._lock:
            for name, count in counts.items():
                self._counts[name] = self._counts.get(name, 0) + count
            if cost_usd is not None:
                self._cost_usd = (self._cost_usd or 0.0) + cost_usd
        if self._whole is not None:
            self._whole.add(cost_usd=cost_usd, **counts)


class BudgetSpent(Exception):  # noqa: N818
    """There is no budget for the call. Not an error: what was not judged stays unscored."""


@dataclass(frozen=True)
class Hold:
    """What is set aside for a call in flight; `cost_usd` is None while the price is unknown."""

    judge: str
    prompt_tokens: int
    completion_tokens: int
    cost_usd: float | None
    surplus_tokens: int = 0
    """The part of `completion_tokens` that was added by experience."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass
class _Known:
    """What the calls of one judge have used so far."""

    num_calls: int = 0
    surplus_tokens: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


class Budget:
    """Lets a call begin only while what was spent and what is in flight leave room for it.

    What a call will use is estimated from its request, and what the calls of the same judge have used on average beyond
    such an estimate, as one that thinks at length does, is added. The price is what the judge states as
    `usd_per_token`, or else the mean of its calls so far; unknown once a call had none.
    """

    def __init__(self, *, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        self._max_cost_usd, self._max_tokens = max_cost_usd, max_tokens
        self._lock = threading.Lock()
        self._tokens = 0
        self._cost_usd = 0.0
        self._tokens_in_flight = 0
        self._usd_in_flight = 0.0
        self._known: defaultdict[str, _Known] = defaultdict(_Known)
        self._unpriced: set[str] = set()

    @property
    def limit(self) -> str:
        """The limits in words."""
        limits = [] if self._max_cost_usd is None else [f"max_cost_usd={self._max_cost_usd}"]
        return ", ".join(limits + ([] if self._max_tokens is None else [f"max_tokens={self._max_tokens}"]))

    def check_price(self, judge: JudgeModel) -> None:
        """Refuse a limit in money that cannot be kept.

        Raises:
            ConfigError: there is one, and `judge` is known to have no known price.
        """
        is_unpriced = judge.name in self._unpriced or getattr(judge, "usd_per_token", ()) is None
        if self._max_cost_usd is not None and is_unpriced:
            raise ConfigError(
                f"max_cost_usd={self._max_cost_usd} cannot be kept: the price of {judge.name!r} is unknown; limit "
                "max_tokens instead, or tell litellm the price with litellm.register_model"
            )

    def needs_price(self, judge: JudgeModel) -> bool:
        """Whether one call has to tell what `judge` costs before several may be in flight."""
        return self._max_cost_usd is not None and self._price(judge, 1, 1) is None

    def begin(self, judge: JudgeModel, prompt_tokens: int, completion_tokens: int) -> Hold:
        """Set aside what a call of about so many tokens will use; `end` must follow.

        Raises:
            BudgetSpent: there is no room for it.
            ConfigError: as `check_price`.
        """
        self.check_price(judge)
        with self._lock:
            known = self._known[judge.name]
            surplus = max(0, known.surplus_tokens) // max(1, known.num_calls)
            completion_tokens += surplus
            usd = self._price(judge, prompt_tokens, completion_tokens)
            hold = Hold(judge.name, prompt_tokens, completion_tokens, usd, surplus)
            is_spent = False
            room = True
            if self._max_tokens is not None:
                is_spent = self._tokens >= self._max_tokens
                room = self._tokens + self._tokens_in_flight + hold.total_tokens <= self._max_tokens
            if self._max_cost_usd is not None:
                is_spent |= self._cost_usd >= self._max_cost_usd
                room &= self._cost_usd + self._usd_in_flight + (usd or 0.0) <= self._max_cost_usd
            if is_spent:
                raise BudgetSpent(f"the budget ({self.limit}) is spent")
            if not room:
                costs = "" if usd is None else f", {usd:.2g} USD"
                raise BudgetSpent(
                    f"the budget ({self.limit}) has no room for a call of about {hold.total_tokens} tokens{costs}"
                )
            self._tokens_in_flight += hold.total_tokens
            self._usd_in_flight += usd or 0.0
            return hold

    def end(self, hold: Hold, used: int, cost_usd: float | None, *, is_answered: bool) -> None:
        """The call that began with `hold` is over and has used so many tokens; only an answered one is learned from."""
        with self._lock:
            self._tokens_in_flight -= hold.total_tokens
            self._usd_in_flight -= hold.cost_usd or 0.0
            self._tokens += used
            self._cost_usd += cost_usd or 0.0
            if not is_answered:
                return
            known = self._known[hold.judge]
            known.surplus_tokens += used - hold.total_tokens + hold.surplus_tokens
            known.num_calls += 1
            known.tokens += used
            known.cost_usd += cost_usd or 0.0
            if cost_usd is None:
                self._unpriced.add(hold.judge)

    def _price(self, judge: JudgeModel, prompt_tokens: int, completion_tokens: int) -> float | None:
        if (stated := price(judge, prompt_tokens, completion_tokens)) is not None:
            return stated
        known = self._known.get(judge.name)
        if known is None or not known.tokens or judge.name in self._unpriced:
            return None
        return known.cost_usd / known.tokens * (prompt_tokens + completion_tokens)


def price(judge: JudgeModel, prompt_tokens: int, completion_tokens: int) -> float | None:
    """What so many tokens cost by the price that `judge` states; None where it states none."""
    rates = getattr(judge, "usd_per_token", None)
    return None if rates is None else float(rates[0] * prompt_tokens + rates[1] * completion_tokens)
