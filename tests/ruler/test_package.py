"""What the package is from outside."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

import art_ruler
from art_ruler.fakes import HeuristicJudge, NoisyJudge, ScriptedJudge, attempts_in, plain_quality
from art_ruler.types import JudgeModel


def test_the_public_names() -> None:
    assert art_ruler.__all__ == [
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
    assert all(getattr(art_ruler, name) is not None for name in art_ruler.__all__)
    assert callable(art_ruler.ruler)
    with pytest.raises(AttributeError, match="nothing"):
        _ = art_ruler.nothing


def test_importing_it_loads_nothing_heavy_and_is_quick() -> None:
    code = (
        "import sys, time; started = time.process_time(); import art_ruler; took = time.process_time() - started; "
        "heavy = {'litellm', 'pydantic', 'openai', 'httpx', 'rich', 'typer', 'tenacity'} & set(sys.modules); "
        "art_ruler.Ruler('openai/m'); print(sorted(heavy), 'litellm' in sys.modules, took)"
    )
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.monotonic() - started < 30
    heavy, later, took = done.stdout.rsplit(" ", 2)
    assert (heavy, later) == ("[]", "False")
    assert float(took) < 0.2


def test_the_fakes_are_judges() -> None:
    for fake in (ScriptedJudge(["x"]), NoisyJudge(), HeuristicJudge()):
        assert isinstance(fake, JudgeModel)
    with pytest.raises(ValueError, match="at least one"):
        ScriptedJudge([])


def test_plain_quality_goes_by_signs_of_success() -> None:
    empty = plain_quality([("user", "x"), ("assistant", "(empty response)")])
    gave_up = plain_quality([("assistant", "Sorry, I cannot do that")])
    failed = plain_quality([("tool", "#1: Error: no such city"), ("assistant", "It is 4 degrees in Oslo")])
    fine = plain_quality([("tool", "#1: 4"), ("assistant", "It is 4 degrees in Oslo")])
    assert 0.0 == empty < gave_up < failed < fine <= 1.0
    assert plain_quality([("user", "x")]) == 0.0


def test_a_prompt_without_attempts_shows_none() -> None:
    assert attempts_in("no marks") == {}
    assert attempts_in("<abcd attempt BCD>\nno end") == {}


def test_noise_and_bias_are_what_they_say() -> None:
    from art_ruler import Ruler

    trajectories = [[{"role": "assistant", "content": str(i)}] for i in range(4)]
    biased = Ruler(NoisyJudge(lambda a: 0.5, position_bias=0.2)).score_sync(trajectories)
    assert sorted(score or 0.0 for score in biased) == pytest.approx([0.3, 0.5 - 0.2 / 3, 0.5 + 0.2 / 3, 0.7])
    scores = [
        score
        for seed in range(200)
        for score in Ruler(NoisyJudge(lambda a: 0.5, noise=0.1, seed=seed)).score_sync(trajectories)
        if score is not None
    ]
    mean = sum(scores) / len(scores)
    assert mean == pytest.approx(0.5, abs=0.015)
    assert (sum((s - mean) ** 2 for s in scores) / len(scores)) ** 0.5 == pytest.approx(0.1, abs=0.01)
