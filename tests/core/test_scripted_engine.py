"""What the scripted engine makes up: alternatives, and what a grammar means to it."""

from __future__ import annotations

import math

import pytest

from art_core.testing import ScriptedEngine
from art_core.types import Sampling


async def first_alternatives(engine: ScriptedEngine, count: int) -> list[tuple[int, float]]:
    [chunk] = [chunk async for chunk in engine.stream([1], Sampling(max_tokens=1, top_logprobs=count))]
    return list(chunk.top_logprobs[0])


async def test_the_scripted_token_comes_first_and_the_others_share_what_is_left() -> None:
    likely = math.log(0.75)
    found = await first_alternatives(ScriptedEngine([[1]], logprob=likely), 3)
    assert found == [(1, likely), (0, pytest.approx(math.log(0.125))), (2, pytest.approx(math.log(0.0625)))]
    unlikely = math.log(0.25)
    found = await first_alternatives(ScriptedEngine([[9]], logprob=unlikely), 2)
    assert found == [(9, unlikely), (0, pytest.approx(math.log(0.125)))]


async def test_a_certain_token_has_no_alternatives() -> None:
    assert await first_alternatives(ScriptedEngine([[4]], logprob=0.0), 5) == [(4, 0.0)]


async def test_a_grammar_is_shown_in_the_requests_and_changes_nothing() -> None:
    engine = ScriptedEngine([[7, 8]])
    sampling = Sampling(max_tokens=5, grammar='start: "a"', stop_token_ids=(8,))
    chunks = [chunk async for chunk in engine.stream([1], sampling)]
    assert [chunk.token_ids for chunk in chunks] == [(7,), (8,)]
    assert {chunk.forced for chunk in chunks} == {()}
    assert engine.requests == [((1,), sampling)]
