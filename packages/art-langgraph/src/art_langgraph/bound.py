"""A chat model with tools bound, which may be bound again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding


class BoundTools(RunnableBinding[LanguageModelInput, AIMessage]):
    """An `ArtChatModel` with tools bound."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with `tools` in place of those that were bound, and the options of both."""
        kept = {name: value for name, value in self.kwargs.items() if name != "tools"}
        before: list[dict[str, Any]] = self.kwargs.get("tools") or []
        if before and all(tool.get("function", {}).get("strict") for tool in before):
            kept["strict"] = True
        given = {name: value for name, value in options.items() if value is not None}
        bound: Any = self.bound
        again: Runnable[LanguageModelInput, AIMessage] = bound.bind_tools(tools, **{**kept, **given})
        return again.with_config(self.config) if self.config else again

    @classmethod
    def lc_id(cls) -> list[str]:
        return RunnableBinding.lc_id()
