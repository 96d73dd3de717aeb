from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from art_core.canary import ProbeAnswer, WeightSyncCanary
from art_core.errors import WeightSyncError
from art_core.testing import RecordingTrainer, ScriptedEngine
from art_core.types import Checkpoint


class FixedTrainer(RecordingTrainer):
    """Says the same log-probability for every token, whatever was trained."""

    def __init__(self, logprob: float, step_count: int = 0) -> None:
        super().__init__()
        self.logprob = logprob
        self._fixed_step_count = step_count

    @property
    def step_count(self) -> int:
        return self._fixed_step_count

    async def logprobs(self, token_ids: Sequence[int], *, num_completion: int) -> list[float]:
        return [self.logprob] * num_completion


class ByTokenTrainer(RecordingTrainer):
    """Says one log-probability for each kind of token."""

    def __init__(self, logprob_of: dict[int, float]) -> None:
        super().__init__()
        self.logprob_of = logprob_of

    async def logprobs(self, token_ids: Sequence[int], *, num_completion: int) -> list[float]:
        return [self.logprob_of[token] for token in token_ids[-num_completion:]]


def engine(logprob: float = -0.5) -> ScriptedEngine:
    return ScriptedEngine(lambda prompt, sampling: [5] * sampling.max_tokens, logprob=logprob)


async def test_equal_weights_pass_with_their_error_as_a_metric() -> None:
    metrics = await WeightSyncCanary([1, 2, 3], tolerance=0.01).check(engine(), FixedTrainer(-0.495))
    assert metrics["canary/error"] == pytest.approx(0.005)
    assert metrics["canary/movement"] == 0.0


async def test_other_weights_stop_the_run_and_the_message_has_both_numbers() -> None:
    with pytest.raises(WeightSyncError, match=r"-0\.50000, the trainer -0\.90000"):
        await WeightSyncCanary([1, 2, 3], tolerance=0.01).check(engine(), FixedTrainer(-0.9))


async def test_logprobs_that_are_no_numbers_stop_the_run() -> None:
    with pytest.raises(WeightSyncError):
        await WeightSyncCanary([1, 2, 3], tolerance=0.01).check(engine(), FixedTrainer(float("nan")))


async def test_a_checkpoint_that_was_never_loaded_stops_the_run() -> None:
    with pytest.raises(WeightSyncError, match="serves step 0 but the trainer has made step 3"):
        await WeightSyncCanary([1], tolerance=0.01).check(engine(), FixedTrainer(-0.5, step_count=3))


async def test_movement_is_what_the_last_step_changed_on_the_probe(tmp_path: Path) -> None:
    canary = WeightSyncCanary([1, 2], tolerance=0.01)
    served = engine(-0.5)
    await canary.check(served, FixedTrainer(-0.5))
    await served.load(Checkpoint(1, tmp_path))
    served._logprob = -0.75
    metrics = await canary.check(served, FixedTrainer(-0.75, step_count=1))
    assert metrics["canary/movement"] == pytest.approx(0.25)


async def test_movement_is_measured_where_the_probe_is_answered_otherwise_now(tmp_path: Path) -> None:
    canary = WeightSyncCanary([1, 2], tolerance=0.01, num_tokens=2)
    answers = iter([[5, 6], [5, 7], [8, 7]])
    served = ScriptedEngine(lambda _prompt, _sampling: next(answers), logprob=-0.5)
    trainer = ByTokenTrainer({5: -0.5, 6: -0.5, 7: -0.5, 8: -0.5})
    await canary.check(served, trainer)
    # Token 5 begins both answers; what follows it differs, and is not compared.
    trainer.logprob_of = {5: -0.505, 7: -0.5}
    assert (await canary.check(served, trainer))["canary/movement"] == pytest.approx(0.005)
    # Nothing in common: what the trainer says now of the token that the last answer began with.
    trainer.logprob_of = {5: -0.9, 7: -0.5, 8: -0.5}
    assert (await canary.check(served, trainer))["canary/movement"] == pytest.approx(0.395)


async def test_an_engine_that_goes_on_with_the_old_weights_is_found_even_within_the_tolerance(tmp_path: Path) -> None:
    canary = WeightSyncCanary([1, 2], tolerance=0.25)
    served = engine(-0.5)
    await canary.check(served, FixedTrainer(-0.5))
    await served.load(Checkpoint(1, tmp_path))
    with pytest.raises(WeightSyncError, match="still serves the old weights"):
        await canary.check(served, FixedTrainer(-0.51, step_count=1))


async def test_an_engine_of_an_older_step_is_compared_with_what_the_step_answered(tmp_path: Path) -> None:
    kept: dict[int, ProbeAnswer] = {}
    canary = WeightSyncCanary([1, 2], tolerance=0.01, on_answer=kept.__setitem__)
    await canary.check(engine(-0.5), FixedTrainer(-0.5))
    # The scripted engine shares out what is left among other tokens, whose logprobs move more than that of the first.
    moved = math.log1p(-math.exp(-0.5)) - math.log1p(-math.exp(-0.495))
    assert await canary.check_again(engine(-0.495), kept[0]) == pytest.approx(moved)
    with pytest.raises(WeightSyncError, match=r"serves step 0, but its answer to the probe is 0\.25000 nats from"):
        await canary.check_again(engine(-0.75), kept[0])
    assert await canary.check_again(engine(-0.75), kept[0], tolerance=0.5) > 0.2
    of_another_step = dict(kept)
    await WeightSyncCanary([1, 2], 0.01, on_answer=of_another_step.__setitem__).check(
        engine(-0.75), FixedTrainer(-0.75)
    )
    with pytest.raises(WeightSyncError, match="that of another step to the bit"):
        await canary.check_again(engine(-0.75), kept[0], tolerance=0.5, others=of_another_step.values())
    assert await canary.check_again(engine(-0.5), kept[0], others=kept.values()) == 0.0


def test_answers_are_compared_as_far_as_they_say_the_same() -> None:
    one = ProbeAnswer((5, 6, 7), ({5: -0.5, 4: -2.0}, {6: -0.5}, {7: -0.5}))
    other = ProbeAnswer((5, 9, 7), ({5: -0.5, 4: -2.1}, {9: -0.1, 6: -0.7}, {7: -3.0}))
    assert one.difference(one) == 0.0
    assert one.difference(other) == other.difference(one) == pytest.approx(0.2)  # the third follows something else
    assert one.difference(ProbeAnswer((8,), ({8: -0.1},))) == float("inf")
    assert ProbeAnswer.from_json(json.loads(json.dumps(one.as_json()))) == one
