"""Fakes of every seam and a tiny random model: what tests of code built on art_core need. Public and kept working."""

from __future__ import annotations

from art_core.testing.engine import Script, ScriptedEngine
from art_core.testing.store import MemoryStore
from art_core.testing.tiny import SPECIAL_TOKENS, write_tiny_model
from art_core.testing.trainer import RecordingTrainer

__all__ = ["SPECIAL_TOKENS", "MemoryStore", "RecordingTrainer", "Script", "ScriptedEngine", "write_tiny_model"]
