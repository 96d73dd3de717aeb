"""Which answers of a rollout came from models that are not trained.

The one thing that is left to callbacks: calls of other models go by no transport of ours. What a graph does in a way
that skips callbacks is then not counted; what is recorded does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from art_core.choices import exchange_id_of


class AnswersSeen(BaseCallbackHandler):
    """Every answer of a model: the name of the model, and the id of its exchange where it carries one."""

    run_inline = True  # it only adds to a list

    def __init__(self) -> None:
        self._answers: list[tuple[str, str | None]] = []

    def on_llm_end(self, response: LLMResult, **_: Any) -> None:
        for generations in response.generations:
            message = getattr(generations[0], "message", None) if generations else None
            metadata = getattr(message, "response_metadata", None) or {}
            name = metadata.get("model_name") or (response.llm_output or {}).get("model_name") or "a model without name"
            self._answers.append((str(name), exchange_id_of(message)))

    def others(self, recorded: set[str]) -> list[str]:
        """The names of the models of those answers that are none of the `recorded` exchanges, one for each answer."""
        return [name for name, exchange_id in self._answers if exchange_id not in recorded]


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
