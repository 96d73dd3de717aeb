"""Fakes of every seam and a tiny random model: what tests of code built on art_core need. Public and kept working."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from art_core.testing.engine import Script, ScriptedEngine
from art_core.testing.sink import RecordingSink
from art_core.testing.store import MemoryStore
from art_core.testing.tiny import SPECIAL_TOKENS, write_tiny_model
from art_core.testing.trainer import RecordingTrainer

if TYPE_CHECKING:
    from art_core.testing.backend import InProcessBackend, Logged

__all__ = [
    "SPECIAL_TOKENS",
    "InProcessBackend",
    "Logged",
    "MemoryStore",
    "RecordingSink",
    "RecordingTrainer",
    "Script",
    "ScriptedEngine",
    "write_tiny_model",
]


def __getattr__(name: str) -> Any:  # the backend brings the server with it, which the others do not need
    if name not in ("InProcessBackend", "Logged"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from art_core.testing import backend

    return getattr(backend, name)
