"""Counts what judging costs, and says when to stop. Safe to use from several threads."""

from __future__ import annotations

import threading

from art_ruler.errors import ConfigError
from art_ruler.types import JudgeReply, Usage


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


class Budget:
    """Lets a call begin only while what was spent and what is in flight leave room for it.

    What a call will use is estimated from its request and from the answers so far, by the one that used most for its
    estimate. Before the first answer nothing is known of the price, or of a judge that thinks at length: calls that
    begin side by side then may together exceed the limit.
    """

    def __init__(self, *, max_cost_usd: float | None = None, max_tokens: int | None = None) -> None:
        self._max_cost_usd, self._max_tokens = max_cost_usd, max_tokens
        self._lock = threading.Lock()
        self._tokens = 0
        self._cost_usd = 0.0
        self._in_flight = 0  # estimated tokens
        self._tokens_per_estimate = 1.0
        self._usd_per_estimate = 0.0

    @property
    def limit(self) -> str:
        """The limits in words."""
        limits = [] if self._max_cost_usd is None else [f"max_cost_usd={self._max_cost_usd}"]
        return ", ".join(limits + ([] if self._max_tokens is None else [f"max_tokens={self._max_tokens}"]))

    def begin(self, estimate: int) -> bool:
        """Whether a call of about `estimate` tokens may begin; if so, `end` must follow."""
        with self._lock:
            flying = self._in_flight + estimate
            if self._max_tokens is not None and self._tokens + flying * self._tokens_per_estimate > self._max_tokens:
                return False
            if self._max_cost_usd is not None and (
                self._cost_usd >= self._max_cost_usd
                or self._cost_usd + flying * self._usd_per_estimate > self._max_cost_usd
            ):
                return False
            self._in_flight = flying
            return True

    def end(self, estimate: int, reply: JudgeReply | None, judge: str) -> None:
        """The call that began with `estimate` is over; `reply` is None if it failed.

        Raises:
            ConfigError: there is a limit in money, and the price of this judge is unknown.
        """
        with self._lock:
            self._in_flight -= estimate
            if reply is None:
                return
            used = reply.prompt_tokens + reply.completion_tokens
            self._tokens += used
            self._tokens_per_estimate = max(self._tokens_per_estimate, used / max(1, estimate))
            if reply.cost_usd is not None:
                self._cost_usd += reply.cost_usd
                self._usd_per_estimate = max(self._usd_per_estimate, reply.cost_usd / max(1, estimate))
            elif self._max_cost_usd is not None:
                raise ConfigError(
                    f"max_cost_usd={self._max_cost_usd} cannot be kept: the price of {judge!r} is unknown; limit "
                    "max_tokens instead, or tell litellm the price with litellm.register_model"
                )
