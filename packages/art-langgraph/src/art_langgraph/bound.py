"""A chat model with options bound, which may be bound again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain_core.language_models import LanguageModelInput
from langchain_core.messages import AIMessage
from langchain_core.runnables import Runnable, RunnableBinding

_OF_TOOLS = ("tools", "tool_choice", "parallel_tool_calls", "response_format", "strict", "ls_structured_output_format")


class BoundModel(RunnableBinding[LanguageModelInput, AIMessage]):
    """An `ArtChatModel` with options, tools among them perhaps. Agents bind their tools to what they are given."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The model with `tools` in place of those that were bound, and the options of both."""
        kept = {name: value for name, value in self.kwargs.items() if name != "tools"}
        before: list[dict[str, Any]] = self.kwargs.get("tools") or []
        if before and all(tool.get("function", {}).get("strict") for tool in before):
            kept["strict"] = True
        given = {name: value for name, value in options.items() if value is not None}
        bound: Any = self.bound
        return self._like_this(bound.bind_tools(tools, **{**kept, **given}))

    def with_structured_output(self, schema: Any = None, **options: Any) -> Runnable[LanguageModelInput, Any]:
        """As that of the model, with the options that were bound, but for what was said about tools."""
        kept = {name: value for name, value in self.kwargs.items() if name not in _OF_TOOLS}
        bound: Any = self.bound
        return self._like_this(bound.with_structured_output(schema, **{**kept, **options}))

    def _like_this(self, made: Runnable[LanguageModelInput, Any]) -> Runnable[LanguageModelInput, Any]:
        return made.with_config(self.config) if self.config else made

    @classmethod
    def lc_id(cls) -> list[str]:
        return RunnableBinding.lc_id()
