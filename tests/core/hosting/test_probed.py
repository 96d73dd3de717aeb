"""What each step answered the canary, kept in a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from art_core.canary import ProbeAnswer, WeightSyncCanary
from art_core.errors import StorageError
from art_core.hosting.probed import remember_answers
from art_core.storage import RunStore
from art_core.testing import RecordingTrainer, ScriptedEngine


class Trainer(RecordingTrainer):
    async def logprobs(self, token_ids: object, *, num_completion: int) -> list[float]:
        return [-0.5] * num_completion


def engine() -> ScriptedEngine:
    return ScriptedEngine(lambda _prompt, sampling: [5] * sampling.max_tokens, logprob=-0.5)


async def test_an_answer_is_kept_once_however_often_the_run_is_opened(tmp_path: Path) -> None:
    for _ in range(2):
        canary = WeightSyncCanary([1], tolerance=0.01)
        with RunStore(tmp_path) as store:
            remember_answers(canary, store)
            await canary.check(engine(), Trainer())
            assert [record["step"] for record in store.records("canary")] == [0]


async def test_an_answer_that_cannot_be_kept_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_store: RunStore, kind: str, _record: object) -> None:
        raise StorageError(f"append to {kind}.jsonl: No space left on device")

    monkeypatch.setattr(RunStore, "append", full)
    canary = WeightSyncCanary([1], tolerance=0.01)
    with RunStore(tmp_path) as store:
        remember_answers(canary, store)
        assert (await canary.check(engine(), Trainer()))["canary/error"] == 0.0
    assert "No space left on device; after a restart, engines of step 0 are not checked" in caplog.text
    assert isinstance(canary.answers[0], ProbeAnswer)
