"""One chat call: request -> prompt ids -> engine -> message -> exchange."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any, cast

from art_core.errors import EngineClosedError
from art_core.protocols import Engine, Recorder
from art_core.render.base import ChatRenderer, ContentDelta, Delta, ReasoningDelta
from art_core.serve.session import Prompt, Session
from art_core.serve.wire import ApiError, ChatRequest, logprobs_content, usage, wire_finish_reason
from art_core.types import ChatMessage, Exchange, FinishReason, TokenChunk


@dataclass(frozen=True)
class Progress:
    """Newly sampled tokens, and the parts of the message (in the wire shape of a streamed delta) they have decided."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    deltas: list[dict[str, Any]]


class ChatCall:
    """A call that was accepted: its prompt is built and fits.

    Iterate `progress()` to its end, then `finish()`; both the plain and the streamed answer are made of these.

    Raises:
        ApiError, DataError: the request cannot be served.
    """

    def __init__(
        self,
        request: ChatRequest,
        *,
        engine: Engine,
        renderer: ChatRenderer,
        session: Session | None,
        recorder: Recorder | None = None,
    ) -> None:
        tools = request.offered_tools
        if tools and not renderer.supports_tools:
            raise ApiError(
                400,
                "this model's chat template shows no tool-call format that this server can read; "
                "send no tools, or serve a model made for tool calls",
                code="unsupported_parameter",
                param="tools",
            )
        if session is not None:
            self.prompt = session.prompt(renderer, request.messages, tools)
        else:
            ids = renderer.render_ids(request.messages, tools=tools, add_generation_prompt=True)
            self.prompt = Prompt(tuple(ids))
        self.sampling = request.sampling(
            num_prompt_tokens=len(self.prompt.ids),
            max_context_tokens=engine.max_context_tokens,
            stop_token_ids=renderer.get_stop_token_ids(),
        )
        self.request = request
        self.id = uuid.uuid4().hex
        self.created = int(time.time())
        self._engine = engine
        self._renderer = renderer
        self._session = session
        self._recorder = recorder
        self._tools = tools
        self._parser = renderer.completion_parser(tools=tools, prompt_ids=self.prompt.ids)
        self._started_at = time.time()
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._policy_version: int | None = None
        self._finish_reason: FinishReason | None = None
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []

    async def progress(self) -> AsyncGenerator[Progress, None]:
        """Sample. Closing or cancelling this frees the engine's slot at once.

        Raises:
            UnknownTrajectoryError: the trajectory was closed meanwhile.
            EngineClosedError: the engine broke, or ended without a finish reason.
        """
        chunks = cast("AsyncGenerator[TokenChunk, None]", self._engine.stream(self.prompt.ids, self.sampling))
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                if self._session is not None:
                    self._session.check_open()
                self._token_ids += chunk.token_ids
                self._logprobs += chunk.logprobs
                self._policy_version = chunk.policy_version
                self._finish_reason = chunk.finish_reason
                deltas = self._parser.push(chunk.token_ids)
                if chunk.finish_reason is not None:
                    deltas += self._parser.finish()
                yield Progress(chunk.token_ids, chunk.logprobs, [self._keep(delta) for delta in deltas])
        if self._finish_reason is None:
            raise EngineClosedError("the engine stopped before it finished the completion; start it again")

    def _keep(self, delta: Delta) -> dict[str, Any]:
        if isinstance(delta, ContentDelta):
            self._content.append(delta.text)
            return {"content": delta.text}
        if isinstance(delta, ReasoningDelta):
            self._reasoning.append(delta.text)
            return {"reasoning_content": delta.text}
        call = {
            "id": f"call_{uuid.uuid4().hex}",
            "type": "function",
            "function": {"name": delta.name, "arguments": delta.arguments},
        }
        self._calls.append(call)
        return {"tool_calls": [{"index": len(self._calls) - 1, **call}]}

    def finish(self) -> Answer:
        """The whole answer, and its exchange in the trajectory's record.

        Raises:
            UnknownTrajectoryError: the trajectory was closed meanwhile.
        """
        if self._finish_reason is None or self._policy_version is None:
            raise EngineClosedError("the engine has not finished the completion")
        content = "".join(self._content)
        message: ChatMessage = {"role": "assistant", "content": content or (None if self._calls else "")}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        if self._calls:
            message["tool_calls"] = self._calls
        exchange = Exchange(
            id=self.id,
            trajectory_id=self._session.trajectory_id if self._session is not None else "",
            messages=tuple(self.request.messages),
            tools=tuple(self._tools),
            response=message,
            prompt_ids=self.prompt.ids,
            completion_ids=tuple(self._token_ids),
            logprobs=tuple(self._logprobs),
            finish_reason=self._finish_reason,
            sampling=self.sampling,
            policy_version=self._policy_version,
            forked=self.prompt.forked,
            num_malformed_calls=self._parser.num_malformed_calls,
            started_at=self._started_at,
            ended_at=time.time(),
        )
        recorder = self._recorder if self._session is None else self._session
        if recorder is not None:
            recorder.record(exchange)
        return Answer(
            message=message,
            finish_reason=wire_finish_reason(self._finish_reason, message),
            extras={
                "exchange_id": self.id if recorder is not None else None,
                "policy_version": self._policy_version,
                "malformed_tool_calls": self._parser.num_malformed_calls,
            },
            usage=usage(len(self.prompt.ids), len(self._token_ids)),
            token_ids=list(self._token_ids),
            logprobs=self.wire_logprobs(self._token_ids, self._logprobs),
        )

    def wire_logprobs(self, token_ids: list[int] | tuple[int, ...], logprobs: list[float] | tuple[float, ...]) -> Any:
        """The `logprobs` field for these tokens; None unless they were asked for."""
        if not self.request.logprobs:
            return None
        return logprobs_content([self._renderer.token_text(token_id) for token_id in token_ids], logprobs)


@dataclass(frozen=True)
class Answer:
    """A finished call. `extras` are this server's own fields of the choice.

    `exchange_id` is null for a call that nobody records; `malformed_tool_calls` counts attempted calls that could
    not be read, whose text is part of the content.
    """

    message: ChatMessage
    finish_reason: str
    extras: dict[str, Any]
    usage: dict[str, int]
    token_ids: list[int]
    logprobs: Any
