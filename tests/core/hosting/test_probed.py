"""What each step answered the canary, kept in a run folder."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from art_core.canary import WeightSyncCanary
from art_core.errors import StorageError, WeightSyncError
from art_core.hosting.probed import KeptAnswers
from art_core.saved import ADAPTER_FILE
from art_core.storage import RunStore
from art_core.testing import RecordingTrainer, ScriptedEngine
from art_core.types import Checkpoint


class Trainer(RecordingTrainer):
    def __init__(self, step: int, logprob: float) -> None:
        super().__init__()
        self.made = step
        self.logprob = logprob

    @property
    def step_count(self) -> int:
        return self.made

    async def logprobs(self, token_ids: object, *, num_completion: int) -> list[float]:
        return [self.logprob] * num_completion


async def engine(step: int, logprob: float) -> ScriptedEngine:
    made = ScriptedEngine(lambda _prompt, sampling: [5] * sampling.max_tokens, logprob=logprob)
    if step:
        await made.load(Checkpoint(step, Path("nowhere")))
    return made


def saved(store: RunStore, step: int, adapter: bytes) -> None:
    def save(folder: Path) -> None:
        (folder / ADAPTER_FILE).write_bytes(adapter)

    store.write(step, save, {})


async def answered(store: RunStore, step: int, logprob: float = -0.5, dtype: str = "float32") -> KeptAnswers:
    """The answers of `store` once `step` has answered."""
    kept = KeptAnswers(store, dtype)
    canary = WeightSyncCanary([1], tolerance=0.01, on_answer=kept.keep)
    await canary.check(await engine(step, logprob), Trainer(step, logprob))
    return kept


async def is_known(kept: KeptAnswers, step: int, logprob: float) -> bool:
    return await kept.check(WeightSyncCanary([1], tolerance=0.01), await engine(step, logprob), step)


async def test_an_answer_is_kept_once_however_often_the_run_is_opened(tmp_path: Path) -> None:
    for _ in range(2):
        with RunStore(tmp_path) as store:
            kept = await answered(store, 0)
            assert [record["step"] for record in store.records("canary")] == [0]
            assert await is_known(kept, 0, -0.5)


async def test_an_answer_that_cannot_be_kept_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_store: RunStore, kind: str, _record: object) -> None:
        raise StorageError(f"append to {kind}.jsonl: No space left on device")

    monkeypatch.setattr(RunStore, "append", full)
    with RunStore(tmp_path) as store:
        kept = await answered(store, 0)
        assert await is_known(kept, 0, -0.5)  # as long as this process lives
    assert "No space left on device; after a restart, engines of step 0 are not checked" in caplog.text


async def test_what_a_step_answered_counts_no_more_where_it_was_made_again_with_other_weights(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        saved(store, 1, b"first")
        kept = await answered(store, 1)
        assert await is_known(kept, 1, -0.5)
        with pytest.raises(WeightSyncError, match="nats from what that step answered"):
            await is_known(kept, 1, -0.9)
        saved(store, 1, b"second")  # by a supervised training, which does not ask the canary of each
        assert not await is_known(kept, 1, -0.9)
        saved(store, 1, b"first")
        assert await is_known(KeptAnswers(store, "float32"), 1, -0.5)


async def test_an_answer_in_another_number_format_may_differ_by_what_that_explains(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        saved(store, 1, b"weights")
        await answered(store, 1, dtype="bfloat16")
        in_float = KeptAnswers(store, "float32")
        assert await is_known(in_float, 1, -0.55)
        with pytest.raises(WeightSyncError):
            await is_known(in_float, 1, -1.5)
        with pytest.raises(WeightSyncError):
            await is_known(await answered(store, 1, dtype="float32"), 1, -0.55)


async def test_another_steps_answer_to_the_bit_is_found_within_the_tolerance(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        saved(store, 1, b"one")
        saved(store, 2, b"two")
        await answered(store, 1, -0.5, "bfloat16")
        kept = await answered(store, 2, -0.51, "bfloat16")
        assert await is_known(kept, 2, -0.51)
        assert await is_known(kept, 2, -0.52)
        with pytest.raises(WeightSyncError, match="that of another step to the bit"):
            await is_known(kept, 2, -0.5)


async def test_a_damaged_line_costs_the_answers_in_it_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with RunStore(tmp_path) as store:
        for step in (1, 2):
            saved(store, step, b"weights %d" % step)
            await answered(store, step)
    log = tmp_path / "canary.jsonl"
    first, second = log.read_text().splitlines()
    log.write_text("\n".join(["null", first[:40], second, json.dumps({"step": 2}), "{"]))
    with caplog.at_level(logging.WARNING), RunStore(tmp_path) as store:
        kept = KeptAnswers(store, "float32")
        assert not await is_known(kept, 1, -0.5)
        assert await is_known(kept, 2, -0.5)
        await answered(store, 1)
        assert await is_known(KeptAnswers(store, "float32"), 1, -0.5)  # behind the damage
    assert "canary.jsonl: 4 damaged lines" in caplog.text


async def test_a_log_that_cannot_be_read_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "canary.jsonl").mkdir()
    with RunStore(tmp_path) as store:
        kept = await answered(store, 0)
        assert await is_known(kept, 0, -0.5)
    assert "canary.jsonl" in caplog.text
