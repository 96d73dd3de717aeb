"""An engine that says what a script tells it to: for tests of servers, rollouts and runs, without torch."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Sequence

from art_core.errors import ConfigError, ContextLengthError, DataError, EngineClosedError
from art_core.types import Checkpoint, FinishReason, Sampling, TokenChunk

Script = Callable[[tuple[int, ...], Sampling], Sequence[int]]
"""Given prompt ids and sampling, the ids the model would go on to draw."""


class ScriptedEngine:
    """Satisfies `art_core.protocols.Engine` with scripted completions.

    `script` is a function, or completions that are given out in the order in which requests begin. A completion ends
    like a model's: after the first stop token ("stop") or after `max_tokens` ("length"); a script that ends before
    either also finishes with "stop". What the script raises is what the request raises.

    Every token has the logprob `logprob`. Where `top_logprobs` are asked for, they are the scripted token, and behind
    it the lowest other ids, each half as likely as the one before (all together at most 1); none but the scripted
    token where `logprob` is 0. A `grammar` changes nothing and no token is marked as forced: the script says what is
    drawn, and `requests` shows the grammar that was asked for.

    `delay_s` passes before each token. `load` accepts any checkpoint, unless `load_error` is set, which it raises.
    `requests` lists prompt ids and sampling of every request that began, `loaded` the checkpoints that are or were
    served.
    """

    def __init__(
        self,
        script: Script | Sequence[Sequence[int]],
        *,
        max_context_tokens: int = 4096,
        delay_s: float = 0.0,
        logprob: float = -0.5,
        load_error: Exception | None = None,
    ) -> None:
        if not logprob <= 0.0 or logprob == float("-inf"):
            raise ConfigError(f"logprob is {logprob}; wanted a finite number, 0 or below")
        self._script: Script = script if callable(script) else _in_order(script)
        self._max_context_tokens = max_context_tokens
        self._delay_s = delay_s
        self._logprob = logprob
        self._version = 0
        self._closed = asyncio.Event()
        self._failure: str | None = None
        self._changed = asyncio.Event()  # replaced by a new one at each change
        self._num_active = 0
        self._loads_waiting = 0
        self.load_error = load_error
        self.requests: list[tuple[tuple[int, ...], Sampling]] = []
        self.loaded: list[Checkpoint] = []

    @property
    def policy_version(self) -> int:
        return self._version

    @property
    def max_context_tokens(self) -> int:
        return self._max_context_tokens

    @property
    def num_active(self) -> int:
        """Requests that have begun and are not finished."""
        return self._num_active

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncIterator[TokenChunk]:
        """One chunk per scripted token; see `Engine.stream`."""
        prompt = tuple(prompt_ids)
        if not prompt:
            raise DataError("the prompt is empty; wanted at least one token id, since a completion follows something")
        if len(prompt) + sampling.max_tokens > self._max_context_tokens:
            raise ContextLengthError(
                f"the prompt has {len(prompt)} tokens and up to {sampling.max_tokens} are to be sampled; "
                f"the context holds {self._max_context_tokens}"
            )
        self._refuse_if_closed()
        while self._loads_waiting and not self._closed.is_set():
            await self._changed.wait()
        self._refuse_if_closed()
        self._num_active += 1
        try:
            self.requests.append((prompt, sampling))
            version = self._version
            token_ids, reason = _ended(self._script(prompt, sampling), sampling)
            for index, token in enumerate(token_ids):
                await self._pause()
                last = index == len(token_ids) - 1
                top = (self._top_logprobs(token, sampling.top_logprobs),) if sampling.top_logprobs else ()
                yield TokenChunk((token,), (self._logprob,), version, reason if last else None, top_logprobs=top)
            if not token_ids:
                yield TokenChunk((), (), version, reason)
        finally:
            self._num_active -= 1
            self._announce()

    async def load(self, checkpoint: Checkpoint) -> None:
        """Wait until no request is in flight, then serve `checkpoint`: its step is the new `policy_version`."""
        self._refuse_if_closed()
        self._loads_waiting += 1
        try:
            while self._num_active and not self._closed.is_set():
                await self._changed.wait()
            self._refuse_if_closed()
            if self.load_error is not None:
                raise self.load_error
            self._version = checkpoint.step
            self.loaded.append(checkpoint)
        finally:
            self._loads_waiting -= 1
            self._announce()

    def fail(self, reason: str) -> None:
        """Break: requests in flight and all later ones raise `EngineClosedError` with `reason`."""
        self._failure = reason
        self._closed.set()
        self._announce()

    async def aclose(self) -> None:
        self._closed.set()
        self._announce()

    def _top_logprobs(self, token: int, count: int) -> tuple[tuple[int, float], ...]:
        likelihood = math.exp(self._logprob)
        rest = min(likelihood, 1.0 - likelihood)
        others = [other for other in range(count) if other != token][: count - 1] if rest > 0.0 else []
        return (token, self._logprob), *((o, math.log(rest) - k * math.log(2)) for k, o in enumerate(others, start=1))

    async def _pause(self) -> None:
        """Let `delay_s` pass, or notice that the engine was closed meanwhile."""
        if self._delay_s > 0.0:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), self._delay_s)
        else:
            await asyncio.sleep(0)
        self._refuse_if_closed()

    def _announce(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _refuse_if_closed(self) -> None:
        if self._closed.is_set():
            how = f"broke: {self._failure}" if self._failure else "is closed"
            raise EngineClosedError(f"the engine {how}; open a new one to go on")


def _in_order(completions: Sequence[Sequence[int]]) -> Script:
    remaining = iter(completions)

    def script(_prompt_ids: tuple[int, ...], _sampling: Sampling) -> Sequence[int]:
        try:
            return next(remaining)
        except StopIteration:
            raise DataError(
                f"the script holds {len(completions)} completions and another request began; "
                "add one, or script a function"
            ) from None

    return script


def _ended(token_ids: Sequence[int], sampling: Sampling) -> tuple[list[int], FinishReason]:
    """`token_ids` up to where a model would have ended, and why it ended."""
    ended: list[int] = []
    for token in token_ids:
        ended.append(token)
        if token in sampling.stop_token_ids:
            return ended, "stop"
        if len(ended) == sampling.max_tokens:
            return ended, "length"
    return ended, "stop"
