"""Fakes of every seam and a tiny random model: what tests of code built on art_core need. Public and kept working."""

from __future__ import annotations

from art_core.testing.tiny import SPECIAL_TOKENS, write_tiny_model

__all__ = ["SPECIAL_TOKENS", "write_tiny_model"]
