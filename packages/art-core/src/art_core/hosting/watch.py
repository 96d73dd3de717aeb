"""What stands between callers and an engine: a gate that is closed while weights change, and a look at its health."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import cast

from art_core.errors import EngineClosedError
from art_core.protocols import Engine
from art_core.serve.wire import ApiError
from art_core.types import Checkpoint, Sampling, TokenChunk


class WatchedEngine:
    """Satisfies `Engine` by the engine within it.

    A load clears `ready`; whoever asked for it sets it again when the weights are checked. `ended` tells that the
    engine has said of itself that it is closed or broken; what `remedy` gives is then told to whoever calls. `on_close`
    is called when it is closed or has ended, possibly more than once.
    """

    def __init__(
        self,
        inner: Engine,
        ready: asyncio.Event,
        *,
        remedy: Callable[[], str],
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        self._inner = inner
        self._on_close = on_close
        self._remedy = remedy
        self._ready = ready
        self.ended = False
        self.num_active = 0
        self.last_used = time.monotonic()

    @property
    def policy_version(self) -> int:
        return self._inner.policy_version

    @property
    def max_context_tokens(self) -> int:
        return self._inner.max_context_tokens

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncIterator[TokenChunk]:
        self.num_active += 1
        try:
            chunks = cast("AsyncGenerator[TokenChunk, None]", self._inner.stream(prompt_ids, sampling))
            async with contextlib.aclosing(chunks):
                async for chunk in chunks:
                    yield chunk
        except EngineClosedError as error:
            self._end()
            raise EngineClosedError(f"{error}; {self._remedy()}") from error
        finally:
            self.num_active -= 1
            self.last_used = time.monotonic()

    async def load(self, checkpoint: Checkpoint) -> None:
        self._ready.clear()
        try:
            await self._inner.load(checkpoint)
        except EngineClosedError:
            self._end()
            raise

    async def aclose(self) -> None:
        self.ended = True
        try:
            await self._inner.aclose()
        finally:
            self._on_close()

    def _end(self) -> None:
        self.ended = True
        self._on_close()


class AtStep:
    """Satisfies `Engine` by `engine` for as long as that serves `step`; later requests are told to come again."""

    def __init__(self, engine: Engine, step: int) -> None:
        self._engine = engine
        self._step = step

    @property
    def policy_version(self) -> int:
        return self._step

    @property
    def max_context_tokens(self) -> int:
        return self._engine.max_context_tokens

    async def stream(self, prompt_ids: Sequence[int], sampling: Sampling) -> AsyncIterator[TokenChunk]:
        chunks = cast("AsyncGenerator[TokenChunk, None]", self._engine.stream(prompt_ids, sampling))
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                if chunk.policy_version != self._step:
                    raise ApiError(
                        503,
                        f"a newer step than {self._step} was loaded while this call waited; send it again",
                        code="weights_are_changing",
                        retry_after_s=1,
                    )
                yield chunk

    async def load(self, checkpoint: Checkpoint) -> None:
        raise EngineClosedError(f"this engine serves step {self._step} only, and not {checkpoint.step}")

    async def aclose(self) -> None:
        return
