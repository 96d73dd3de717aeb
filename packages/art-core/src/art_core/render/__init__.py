"""Messages and tools <-> token ids: the one place that tokenises."""

from __future__ import annotations

from art_core.render.base import ChatRenderer, CompletionParser, ContentDelta, Delta, ReasoningDelta, ToolCallDelta
from art_core.render.chatml import ChatMLHermesRenderer
from art_core.render.loading import load_renderer
from art_core.render.tokenizer import TextTokenizer

__all__ = [
    "ChatMLHermesRenderer",
    "ChatRenderer",
    "CompletionParser",
    "ContentDelta",
    "Delta",
    "ReasoningDelta",
    "TextTokenizer",
    "ToolCallDelta",
    "load_renderer",
]
