"""Which answers of a rollout came from models that are not trained.

The one thing that is left to callbacks: calls of other models go by no transport of ours. What a graph does in a way
that skips callbacks is then not counted; what is recorded does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from art_core.choices import exchange_id_of
from art_langgraph.answers import PROVIDER


class AnswersSeen(BaseCallbackHandler):
    """Every answer of a model: the name of the model, and the id of its exchange where it carries one.

    `in_histories` are the ids of the exchanges whose answers an `ArtChatModel` was sent, `open_streams` those streams
    of one that were begun and not read to their end.
    """

    run_inline = True  # it only adds to a list

    def __init__(self) -> None:
        self._answers: list[tuple[str, str | None, bool]] = []
        self.in_histories: set[str] = set()
        self.open_streams: set[object] = set()

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for generations in response.generations:
            message = getattr(generations[0], "message", None) if generations else None
            metadata = getattr(message, "response_metadata", None) or {}
            name = metadata.get("model_name") or (response.llm_output or {}).get("model_name") or "a model without name"
            is_art = metadata.get("model_provider") == PROVIDER
            self._answers.append((str(name), exchange_id_of(message), is_art))

    def others(self, recorded: set[str], *, trained: str) -> list[str]:
        """The names of the models of those answers that are none of the `recorded` exchanges, one for each answer.

        Nor what an `ArtChatModel` of the model called `trained` answered: it is recorded in a rollout inside this one.
        """
        return [
            name
            for name, exchange_id, is_art in self._answers
            if exchange_id not in recorded and not (is_art and name.partition("@")[0] == trained)
        ]


_seen: ContextVar[AnswersSeen | None] = ContextVar("art_langgraph_answers", default=None)
register_configure_hook(_seen, inheritable=True)


@contextmanager
def watched_answers() -> Iterator[AnswersSeen]:
    """Sees the answers of all models that are asked inside, in this task, its children and threads with its context."""
    seen = AnswersSeen()
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


def saw_history(messages: Iterable[BaseMessage]) -> None:
    """Tells the rollout around this, if there is one, what a model of it is sent."""
    if (seen := _seen.get()) is not None:
        seen.in_histories |= {id_ for message in messages if (id_ := exchange_id_of(message)) is not None}


@contextmanager
def watched_stream() -> Iterator[None]:
    """Around a stream: tells the rollout around it, if there is one, whether it was read to its end."""
    seen, stream = _seen.get(), object()
    if seen is not None:
        seen.open_streams.add(stream)
    try:
        yield
    except GeneratorExit:  # whoever read it stopped, or forgot it
        raise
    except BaseException:
        if seen is not None:
            seen.open_streams.discard(stream)
        raise
    if seen is not None:
        seen.open_streams.discard(stream)
