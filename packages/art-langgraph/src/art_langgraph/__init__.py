"""Make a LangGraph agent trainable by swapping its chat model.

Importing this package loads nothing: names import what they need when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art_langgraph.chat_model import ArtChatModel

__all__ = ["ArtChatModel"]

_LAZY = {
    "ArtChatModel": "chat_model",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"art_langgraph.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"art_langgraph has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
