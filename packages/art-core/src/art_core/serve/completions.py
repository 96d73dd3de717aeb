"""One text call: `POST /v1/completions`.

It is recorded like a chat call, one exchange for each choice, without messages: what was asked is `prompt_ids`, and
the text of the answer is the `response`'s content. No chat turn ever continues such an exchange.
"""

from __future__ import annotations

import time
from typing import Any

from art_core.carriers import choice_exchange_id, new_call_id
from art_core.serve.requests import CompletionRequest
from art_core.serve.retries import Attempt, Recorded
from art_core.serve.sampled import Progress, Sampled
from art_core.serve.served import Served
from art_core.serve.session import Prompt, Session
from art_core.serve.wire import invalid, text_logprobs, usage


class CompletionCall:
    """A call that was accepted; see `ChatCall`. Choice `p * n + i` is the answer `i` to prompt `p`.

    Raises:
        ApiError, DataError: the request cannot be served.
    """

    def __init__(self, request: CompletionRequest, *, model: Served, session: Session | None, attempt: Attempt) -> None:
        renderer = model.renderer
        self.request = request
        self.attempt = attempt
        self.created = int(time.time())
        self._model = model
        self._session = session
        repeats = attempt.repeats
        self.id = repeats[0].exchange.id.partition("-")[0] if repeats else new_call_id()
        self._num_each = request.n or 1
        self._prompts = [self._prompt(index, prompt) for index, prompt in enumerate(request.prompts)]
        num_choices = len(self._prompts) * self._num_each
        self._offsets = [0] * num_choices
        self.choices = [
            Sampled(
                choice_exchange_id(self.id, index, num_choices=num_choices),
                prompt,
                request.sampling(
                    num_prompt_tokens=len(prompt.ids),
                    max_context_tokens=model.engine.max_context_tokens,
                    stop_token_ids=renderer.get_stop_token_ids(),
                    index=index % self._num_each,
                ),
                renderer.text_parser(stop=request.stop or ()),
                engine=model.engine,
                session=session,
                repeats=repeats[index] if repeats else None,
            )
            for index, prompt in enumerate(prompt for prompt in self._prompts for _ in range(self._num_each))
        ]

    def _prompt(self, index: int, prompt: str | list[int]) -> Prompt:
        renderer = self._model.renderer
        ids = tuple(renderer.encode(prompt) if isinstance(prompt, str) else prompt)
        size = renderer.vocabulary_size
        if (unknown := max(ids)) >= size:
            raise invalid(f"'prompt' has the token id {unknown}; the model's ids are below {size}", f"prompt.{index}")
        return Prompt(ids, forked=self._session is not None and self._session.forks(ids))

    def record(self) -> None:
        """Put the finished choices into the record, unless they are there already.

        Raises:
            UnknownTrajectoryError: the trajectory was closed meanwhile.
        """
        if self.attempt.repeats:
            return
        recorder = self._model.recorder if self._session is None else self._session
        recorded = [Recorded(choice.exchange((), ()), choice.chunk) for choice in self.choices]
        if recorder is not None:
            recorder.record(*(item.exchange for item in recorded))
        self.attempt.answered(recorded)

    def body(self) -> dict[str, Any]:
        """The plain answer."""
        choices = [
            {
                "index": index,
                "text": choice.message["content"],
                "finish_reason": choice.finish_reason,
                "logprobs": self._logprobs(index, choice.chunk),
                "token_ids": list(choice.chunk.token_ids),
                "prompt_token_ids": list(choice.prompt.ids),
                **choice.extras,
            }
            for index, choice in enumerate(self.choices)
        ]
        return {**self._envelope(choices), "usage": self.usage()}

    def opening(self) -> list[dict[str, Any]]:
        """The first event of each choice has its prompt's ids."""
        return [
            self._envelope([_piece(index, "", prompt_token_ids=list(choice.prompt.ids))])
            for index, choice in enumerate(self.choices)
        ]

    def events(self, index: int, step: Progress) -> list[dict[str, Any]]:
        """The event of what choice `index` has just sampled."""
        text = "".join(delta["content"] for delta in step.deltas)
        tokens = {"logprobs": self._logprobs(index, step.chunk), "token_ids": list(step.chunk.token_ids)}
        return [self._envelope([_piece(index, text, **tokens)])]

    def closing(self) -> list[dict[str, Any]]:
        """The last event of each choice."""
        return [
            self._envelope([_piece(index, "", finish_reason=choice.finish_reason, **choice.extras)])
            for index, choice in enumerate(self.choices)
        ]

    def usage_event(self) -> dict[str, Any]:
        return {**self._envelope([]), "usage": self.usage()}

    def usage(self) -> dict[str, int]:
        """Token counts; each prompt counts once, however many answers it has."""
        num_prompt_tokens = sum(len(prompt.ids) for prompt in self._prompts)
        return usage(num_prompt_tokens, sum(len(choice.chunk.token_ids) for choice in self.choices))

    def _logprobs(self, index: int, chunk: Any) -> Any:
        if self.request.logprobs is None:
            return None
        made = text_logprobs(
            chunk.token_ids,
            chunk.logprobs,
            chunk.top_logprobs,
            self._model.renderer.token_text,
            offset=self._offsets[index],
        )
        self._offsets[index] += sum(map(len, made["tokens"]))
        return made

    def _envelope(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"cmpl-{self.id}",
            "object": "text_completion",
            "created": self.created,
            "model": self.request.model,
            "choices": choices,
        }


def _piece(index: int, text: str, *, finish_reason: str | None = None, **extra: Any) -> dict[str, Any]:
    return {"index": index, "text": text, "finish_reason": finish_reason, "logprobs": None, **extra}
