"""Make a LangGraph agent trainable by swapping its chat model.

Importing this package loads nothing: names import what they need when asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from art_langgraph._rollout import Rollout, current_trajectory, rollout, wrap_rollout
    from art_langgraph.chat_model import ArtChatModel
    from art_langgraph.convert import from_wire, to_wire
    from art_langgraph.of_rollout import init_chat_model
    from art_langgraph.results import Evaluation, TrainingResult
    from art_langgraph.stats import Interval
    from art_langgraph.training import train

__all__ = [
    "ArtChatModel",
    "Evaluation",
    "Interval",
    "Rollout",
    "TrainingResult",
    "current_trajectory",
    "from_wire",
    "init_chat_model",
    "rollout",
    "to_wire",
    "train",
    "wrap_rollout",
]

_LAZY = {
    "ArtChatModel": "chat_model",
    "Evaluation": "results",
    "Interval": "stats",
    "Rollout": "_rollout",
    "TrainingResult": "results",
    "current_trajectory": "_rollout",
    "from_wire": "convert",
    "init_chat_model": "of_rollout",
    "rollout": "_rollout",
    "to_wire": "convert",
    "train": "training",
    "wrap_rollout": "_rollout",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(f"art_langgraph.{_LAZY[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"art_langgraph has no {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
