"""One chat call: request -> prompt ids -> engine -> message -> exchange."""

from __future__ import annotations

import time
from typing import Any

from art_core.carriers import choice_exchange_id, fingerprint, new_call_id
from art_core.render.base import ChatRenderer
from art_core.render.grammars import json_object_grammar, json_schema_grammar
from art_core.serve.chat_request import ChatRequest
from art_core.serve.retries import Attempt, Recorded
from art_core.serve.sampled import Progress, Sampled
from art_core.serve.schemas import check_grammar
from art_core.serve.served import Served
from art_core.serve.session import Prompt, Session, whole_prompt
from art_core.serve.wire import MIN_LOGPROB, logprobs_content, unsupported, usage, wire_finish_reason
from art_core.types import TokenChunk


class ChatCall:
    """A call that was accepted: its prompt is built and fits, and what restricts its answer can be enforced.

    `choices` are to be sampled to their ends; then `record()`. Both the plain and the streamed answer are made here.

    Raises:
        ApiError, DataError: the request cannot be served.
    """

    def __init__(self, request: ChatRequest, *, model: Served, session: Session | None, attempt: Attempt) -> None:
        renderer = model.renderer
        self.request = request
        self.attempt = attempt
        self.created = int(time.time())
        self._model = model
        self._session = session
        calling = request.calling
        self._tools = list(calling.offered)
        grammar = grammar_of(request, renderer)
        num_choices = request.n or 1
        repeats = attempt.repeats
        if repeats:
            first = repeats[0].exchange
            prompt, self.id = Prompt(first.prompt_ids, first.forked), first.id.partition("-")[0]
        else:
            make = whole_prompt if session is None else session.prompt
            prompt, self.id = make(renderer, request.messages, self._tools), new_call_id()
        self.prompt = prompt
        self.choices = [
            Sampled(
                choice_exchange_id(self.id, index, num_choices=num_choices),
                prompt,
                request.sampling(
                    num_prompt_tokens=len(prompt.ids),
                    max_context_tokens=model.engine.max_context_tokens,
                    stop_token_ids=renderer.get_stop_token_ids(),
                    index=index,
                    grammar=grammar,
                ),
                renderer.completion_parser(
                    tools=self._tools,
                    prompt_ids=prompt.ids,
                    stop=request.stop or (),
                    only_one_call=calling.only_one,
                ),
                engine=model.engine,
                session=session,
                only_one_call=calling.only_one,
                repeats=repeats[index] if repeats else None,
            )
            for index in range(num_choices)
        ]

    def record(self) -> None:
        """Put the finished choices into the record, unless they are there already.

        Raises:
            UnknownTrajectoryError: the trajectory was closed meanwhile.
        """
        if self.attempt.repeats:
            return
        recorder = self._model.recorder if self._session is None else self._session
        recorded = [
            Recorded(choice.exchange(self.request.messages, self._tools, self.request.metadata), choice.chunk)
            for choice in self.choices
        ]
        if recorder is not None:
            recorder.record(*(item.exchange for item in recorded))
        self.attempt.answered(recorded)

    def body(self) -> dict[str, Any]:
        """The plain answer."""
        choices = [
            {
                "index": index,
                "message": choice.message,
                "finish_reason": self._finish_reason(choice),
                "logprobs": self._logprobs(choice.chunk),
                **_tokens(choice.chunk),
                **choice.extras,
            }
            for index, choice in enumerate(self.choices)
        ]
        more = {"usage": self.usage(), "system_fingerprint": fingerprint(self.id), **self._prompt_ids()}
        return {**self._envelope("chat.completion", choices), **more}

    def opening(self) -> list[dict[str, Any]]:
        """The first events of a stream; the first of all has the prompt's ids."""
        events = [self._event(_delta(index, {"role": "assistant"})) for index in range(len(self.choices))]
        events[0] |= self._prompt_ids()
        return events

    def events(self, index: int, step: Progress) -> list[dict[str, Any]]:
        """The events of what choice `index` has just sampled; the first of them has the tokens."""
        tokens = {"logprobs": self._logprobs(step.chunk), **_tokens(step.chunk)}
        deltas = step.deltas or [{}]
        return [
            self._event(_delta(index, delta, **(tokens if place == 0 else {}))) for place, delta in enumerate(deltas)
        ]

    def closing(self) -> list[dict[str, Any]]:
        """The last event of each choice."""
        return [
            self._event(
                _delta(
                    index,
                    {"content": ""} if choice.message["content"] == "" else {},
                    finish_reason=self._finish_reason(choice),
                    **choice.extras,
                )
            )
            | {"system_fingerprint": fingerprint(choice.id)}
            for index, choice in enumerate(self.choices)
        ]

    def usage_event(self) -> dict[str, Any]:
        return {**self._envelope("chat.completion.chunk", []), "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Token counts; the prompt counts once, however many choices there are."""
        return usage(len(self.prompt.ids), sum(len(choice.chunk.token_ids) for choice in self.choices))

    def _finish_reason(self, choice: Sampled) -> str:
        return wire_finish_reason(choice.finish_reason or "stop", choice.message)

    def _logprobs(self, chunk: TokenChunk) -> Any:
        if not self.request.logprobs:
            return None
        return logprobs_content(chunk.token_ids, chunk.logprobs, chunk.top_logprobs, self._model.renderer.token_text)

    def _event(self, choice: dict[str, Any]) -> dict[str, Any]:
        return self._envelope("chat.completion.chunk", [choice])

    def _envelope(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"chatcmpl-{self.id}",
            "object": kind,
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": list(self.prompt.ids)}


def grammar_of(request: ChatRequest, renderer: ChatRenderer) -> str | None:
    """What restricts the answer of `request`, known to be enforceable; None for nothing.

    A schema that is new here takes up to seconds to check.

    Raises:
        ApiError: 400, a schema that cannot be enforced, or a model whose format is not known well enough.
    """
    calling, schema = request.calling, request.answer_schema
    if calling.offered and not renderer.supports_tools:
        raise unsupported(
            "this model's chat template shows no tool-call format that this server can read; "
            "send no tools, or serve a model made for tool calls",
            "tools",
        )
    answer = None
    if schema is not None:
        answer = json_object_grammar() if schema == {"type": "object"} else json_schema_grammar(schema)
        check_grammar(answer, code="invalid_json_schema", param="response_format")
    name = ""
    if calling.callable:
        name = "tool_choice"
    elif calling.offered and schema is not None:
        name = "response_format"
    if not name:
        return answer  # an only call needs no grammar: calls are read as they come, and the first one ends the answer
    tools = calling.callable or calling.offered
    instead = None if calling.callable else schema
    grammar = renderer.tool_call_grammar(tools, only_one=calling.only_one, instead=instead)
    if grammar is None:
        raise unsupported(
            f"{name!r} with tools needs the exact format in which the model writes calls, which is not known for this "
            "one; leave it out",
            name,
        )
    for tool in tools:
        param = f"tools[{(request.tools or []).index(tool)}].function.parameters"
        check_grammar(renderer.tool_call_grammar([tool]) or grammar, code="invalid_function_parameters", param=param)
    return grammar


def _tokens(chunk: TokenChunk) -> dict[str, Any]:
    """What was sampled, always: OpenAI's `logprobs`, which have to be asked for, cost many times as much."""
    logprobs = [max(logprob, MIN_LOGPROB) for logprob in chunk.logprobs]
    return {"token_ids": list(chunk.token_ids), "token_logprobs": logprobs}


def _delta(index: int, delta: dict[str, Any], *, finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": None, **extra}
