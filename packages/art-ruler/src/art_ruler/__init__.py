"""Score a group of trajectories against each other with an LLM judge.

Importing this package loads nothing but the standard library; litellm is loaded when a judge is first asked.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from art_ruler.errors import (
    ConfigError,
    DataError,
    JudgeFormatError,
    JudgeUnavailableError,
    RulerError,
)
from art_ruler.types import Agreement, JudgeModel, JudgeReply, JudgeRequest, Pass, Result, Usage, Verdict

if TYPE_CHECKING:
    from art_ruler._litellm import LiteLLMJudge
    from art_ruler._ruler import Ruler
    from art_ruler.compat import TrajectoryScore, ruler, ruler_score_group
    from art_ruler.prompt import DEFAULT_RUBRIC

_WHERE = {
    "DEFAULT_RUBRIC": "art_ruler.prompt",
    "LiteLLMJudge": "art_ruler._litellm",
    "Ruler": "art_ruler._ruler",
    "TrajectoryScore": "art_ruler.compat",
    "ruler": "art_ruler.compat",
    "ruler_score_group": "art_ruler.compat",
}

__all__ = [
    "DEFAULT_RUBRIC",
    "Agreement",
    "ConfigError",
    "DataError",
    "JudgeFormatError",
    "JudgeModel",
    "JudgeReply",
    "JudgeRequest",
    "JudgeUnavailableError",
    "LiteLLMJudge",
    "Pass",
    "Result",
    "Ruler",
    "RulerError",
    "TrajectoryScore",
    "Usage",
    "Verdict",
    "ruler",
    "ruler_score_group",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
