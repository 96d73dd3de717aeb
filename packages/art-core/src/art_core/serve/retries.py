"""Repeats of a call whose answer never arrived, so that each answer is recorded once.

A client that did not get an answer sends the same body again. OpenAI's clients then count up `x-stainless-retry-count`;
others may give every attempt the same `idempotency-key`. Within a trajectory such a repeat gets the answer that was
recorded, token by token, and nothing is sampled or recorded again. Where the earlier attempt failed, or its client hung
up before it was recorded, there is nothing to repeat and the call is made anew. The same body without either header is
another call, and recorded as one.

Where several calls of the same body run side by side and the client sends no `idempotency-key`, it cannot be told whose
answer was lost: a repeat gets the one that was recorded last.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from art_core.types import Exchange, TokenChunk


@dataclass(frozen=True)
class Recorded:
    """A recorded answer and its tokens, with what the exchange itself does not keep of them."""

    exchange: Exchange
    chunk: TokenChunk


class Attempt:
    """One delivery of a request. `repeats` is the recorded answer to give again; empty for a new call."""

    def __init__(self, attempts: Attempts | None = None, key: str = "", repeats: Sequence[Recorded] = ()) -> None:
        self._attempts = attempts
        self._key = key
        self.repeats = tuple(repeats)

    def answered(self, recorded: Sequence[Recorded]) -> None:
        """The answer is in the record and about to be sent."""
        if self._attempts is not None and not self.repeats:
            self._attempts.keep(self._key, recorded)

    def failed(self) -> None:
        """Nothing was recorded."""
        if self._attempts is not None and not self.repeats:
            self._attempts.miss(self._key)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Notes a failure of what is done inside."""
        try:
            yield
        except BaseException:
            self.failed()
            raise


class Attempts:
    """The answers given in one trajectory, by what was asked."""

    def __init__(self) -> None:
        self._answers: dict[str, tuple[Recorded, ...]] = {}
        self._missed: Counter[str] = Counter()

    def begin(self, path: str, headers: Mapping[str, str], body: bytes) -> Attempt:
        """The attempt that a request with these headers (names in lower case) and this body is."""
        idempotency_key = headers.get("idempotency-key", "")
        digest = hashlib.sha256(f"{path}\0{idempotency_key}\0".encode(errors="replace") + body)
        key = digest.hexdigest()
        if not idempotency_key and headers.get("x-stainless-retry-count", "0") in ("0", ""):
            return Attempt(self, key)
        if self._missed[key] > 0:
            self._missed[key] -= 1
            return Attempt(self, key)
        return Attempt(self, key, self._answers.get(key, ()))

    def keep(self, key: str, recorded: Sequence[Recorded]) -> None:
        self._answers[key] = tuple(recorded)

    def miss(self, key: str) -> None:
        self._missed[key] += 1
