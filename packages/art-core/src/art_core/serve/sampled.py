"""One completion while it is sampled: tokens -> parts of the message -> exchange."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from art_core.carriers import tool_call_id
from art_core.errors import EngineClosedError
from art_core.protocols import Engine
from art_core.render.base import CompletionParser, ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from art_core.serve.retries import Recorded
from art_core.serve.session import Prompt, Session
from art_core.types import ChatMessage, Exchange, FinishReason, Sampling, TokenChunk, ToolSpec

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Newly sampled tokens, and the parts of the message (in the wire shape of a streamed delta) they have decided."""

    chunk: TokenChunk
    deltas: list[dict[str, Any]]

    @classmethod
    def merged(cls, steps: Sequence[Progress]) -> Progress:
        """Steps of one choice that followed each other as one; neighbouring pieces of text are one piece."""
        if len(steps) == 1:
            return steps[0]
        deltas: list[dict[str, Any]] = []
        for delta in (delta for step in steps for delta in step.deltas):
            [(key, value)] = delta.items()
            if key != "tool_calls" and deltas and key in deltas[-1]:
                deltas[-1] = {key: deltas[-1][key] + value}
            else:
                deltas.append(delta)
        return cls(_concatenated([step.chunk for step in steps]), deltas)


class Sampled:
    """A completion of `prompt`. Iterate `progress()` to its end; then `message`, `chunk` and `exchange()` are whole.

    It ends with the engine, with the token that completes a stop string, or, with `only_one_call`, with the token that
    completes the first tool call. What the engine drew beyond that token in the same chunk is dropped: nothing was
    made of it. With `repeats`, the recorded tokens take the place of the engine's.
    """

    def __init__(
        self,
        exchange_id: str,
        prompt: Prompt,
        sampling: Sampling,
        parser: CompletionParser,
        *,
        engine: Engine,
        session: Session | None,
        only_one_call: bool = False,
        repeats: Recorded | None = None,
    ) -> None:
        self.id = exchange_id
        self.prompt = prompt
        self.sampling = sampling
        self.finish_reason: FinishReason | None = None
        self._parser = parser
        self._engine = engine
        self._session = session
        self._only_one_call = only_one_call
        self._repeats = repeats
        self._started_at = time.time()
        self._taken: list[TokenChunk] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []

    async def progress(self) -> AsyncGenerator[Progress, None]:
        """Sample. Closing or cancelling this frees the engine's slot at once.

        Raises:
            UnknownTrajectoryError: the trajectory was closed meanwhile.
            EngineClosedError: the engine broke, or ended without a finish reason.
        """
        source = _again(self._repeats) if self._repeats else self._engine.stream(self.prompt.ids, self.sampling)
        async with contextlib.aclosing(cast("AsyncGenerator[TokenChunk, None]", source)) as chunks:
            async for chunk in chunks:
                if self._session is not None:
                    self._session.check_open()
                yield self._take(chunk)
                if self.finish_reason is not None:
                    return
        raise EngineClosedError("the engine stopped before it finished the completion; start it again")

    def _take(self, chunk: TokenChunk) -> Progress:
        deltas: list[Delta] = []
        for index, token_id in enumerate(chunk.token_ids):
            deltas += self._parser.push((token_id,))
            if self._only_one_call and any(isinstance(delta, ToolCallDelta) for delta in deltas):
                chunk = _cut(chunk, index + 1)
                deltas = _up_to_first_call(deltas)
                break
            if self._parser.stopped:
                chunk = _cut(chunk, index + 1)
                deltas += self._parser.finish()
                break
        else:
            if chunk.finish_reason is not None:
                deltas += self._parser.finish()
                if self._only_one_call:
                    deltas = _up_to_first_call(deltas)
        self.finish_reason = chunk.finish_reason
        self._taken.append(chunk)
        return Progress(chunk, [self._keep(delta) for delta in _joined(deltas)])

    def _keep(self, delta: Delta) -> dict[str, Any]:
        if isinstance(delta, ContentDelta):
            self._content.append(delta.text)
            return {"content": delta.text}
        if isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
            return {"reasoning_content": delta.text}
        call = {
            "id": tool_call_id(self.id, len(self._calls)),
            "type": "function",
            "function": {"name": delta.name, "arguments": delta.arguments},
        }
        self._calls.append(call)
        return {"tool_calls": [{"index": len(self._calls) - 1, **call}]}

    @property
    def message(self) -> ChatMessage:
        content = "".join(self._content)
        message: ChatMessage = {"role": "assistant", "content": content or (None if self._calls else "")}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        return message

    @cached_property
    def chunk(self) -> TokenChunk:
        """All its tokens as one chunk, once it is finished."""
        return _concatenated(self._taken)

    @property
    def extras(self) -> dict[str, Any]:
        """This server's own fields of the choice.

        `malformed_tool_calls` counts attempted calls that could not be read, whose text is part of the content.
        """
        return {
            "exchange_id": self.id,
            "policy_version": self._taken[-1].policy_version,
            "malformed_tool_calls": self._parser.num_malformed_calls,
        }

    def exchange(
        self, messages: Sequence[ChatMessage], tools: Sequence[ToolSpec], metadata: Mapping[str, str] | None = None
    ) -> Exchange:
        """The finished call."""
        if self.finish_reason is None:
            raise EngineClosedError("the engine has not finished the completion")
        chunk = self.chunk
        return Exchange(
            id=self.id,
            trajectory_id="" if self._session is None else self._session.trajectory_id,
            messages=tuple(messages),
            tools=tuple(tools),
            response=self.message,
            prompt_ids=self.prompt.ids,
            completion_ids=chunk.token_ids,
            logprobs=chunk.logprobs,
            forced=chunk.forced,
            finish_reason=self.finish_reason,
            sampling=self.sampling,
            policy_version=chunk.policy_version,
            forked=self.prompt.forked,
            num_malformed_calls=self._parser.num_malformed_calls,
            metadata=dict(metadata or {}),
            started_at=self._started_at,
            ended_at=time.time(),
        )


async def side_by_side(sources: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """What `sources` yield, as it comes, each item with the index of its source. The first error ends all of them."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    queue: asyncio.Queue[tuple[int, T] | BaseException | None] = asyncio.Queue(maxsize=len(sources))

    async def pump(index: int, source: AsyncGenerator[T, None]) -> None:
        end: BaseException | None = None
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    await queue.put((index, item))
        except Exception as error:  # noqa: BLE001 - raised again by the one who reads the queue
            end = error
        await queue.put(end)

    tasks = [asyncio.create_task(pump(index, source)) for index, source in enumerate(sources)]
    try:
        running = len(tasks)
        while running:
            got = await queue.get()
            if isinstance(got, BaseException):
                raise got
            if got is None:
                running -= 1
            else:
                yield got
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _again(recorded: Recorded) -> AsyncIterator[TokenChunk]:
    yield recorded.chunk


def _cut(chunk: TokenChunk, size: int) -> TokenChunk:
    return TokenChunk(
        chunk.token_ids[:size],
        chunk.logprobs[:size],
        chunk.policy_version,
        "stop",
        chunk.forced[:size],
        chunk.top_logprobs[:size],
    )


def _concatenated(chunks: Sequence[TokenChunk]) -> TokenChunk:
    """Chunks of one completion that followed each other as one."""
    return TokenChunk(
        token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
        logprobs=tuple(logprob for chunk in chunks for logprob in chunk.logprobs),
        policy_version=chunks[-1].policy_version,
        finish_reason=chunks[-1].finish_reason,
        forced=_filled([(chunk.forced, len(chunk.token_ids)) for chunk in chunks], False),
        top_logprobs=_filled([(chunk.top_logprobs, len(chunk.token_ids)) for chunk in chunks], ()),
    )


def _up_to_first_call(deltas: Sequence[Delta]) -> list[Delta]:
    calls = [place for place, delta in enumerate(deltas) if isinstance(delta, ToolCallDelta)]
    return list(deltas[: calls[0] + 1] if calls else deltas)


def _joined(deltas: Sequence[Delta]) -> list[Delta]:
    """Neighbouring pieces of text as one."""
    joined: list[Delta] = []
    for delta in deltas:
        last = joined[-1] if joined else None
        if isinstance(delta, ContentDelta) and isinstance(last, ContentDelta):
            joined[-1] = ContentDelta(last.text + delta.text)
        else:
            joined.append(delta)
    return joined


def _filled(parts: Sequence[tuple[Sequence[T], int]], missing: T) -> tuple[T, ...]:
    """The parts in one; a part that says nothing counts as `missing`, and nothing but such parts as nothing."""
    if not any(part for part, _ in parts):
        return ()
    return tuple(item for part, size in parts for item in (part or [missing] * size))
