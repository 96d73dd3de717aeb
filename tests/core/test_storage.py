from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest

from art_core.errors import DataError, RunLockedError, StorageError
from art_core.objective import Objective
from art_core.storage import RunStore
from art_core.types import Checkpoint, StepReport


class FolderTrainer:
    """Saves one file that says which step it was."""

    def __init__(self, step: int, payload: str = "weights") -> None:
        self.step_count = step
        self.payload = payload

    async def step(self, rows: object, objective: Objective) -> StepReport:
        raise AssertionError("not used here")

    async def logprobs(self, token_ids: object, *, num_completion: int) -> list[float]:
        raise AssertionError("not used here")

    def save(self, folder: Path) -> None:
        (folder / "adapter.bin").write_text(f"{self.payload} {self.step_count}")

    def restore(self, checkpoint: Checkpoint) -> None:
        raise AssertionError("not used here")

    async def aclose(self) -> None:
        return None


class FailingTrainer(FolderTrainer):
    def save(self, folder: Path) -> None:
        super().save(folder)
        raise OSError(28, "No space left on device")


def test_records_come_back_in_order_with_exact_floats(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append("metrics", {"x": 0.1 + 0.2})
        store.append("metrics", {"x": -9999.0, "text": "zwölf\u2028 lines\n\ud800"})
    with RunStore(tmp_path) as store:
        assert store.records("metrics") == [{"x": 0.1 + 0.2}, {"x": -9999.0, "text": "zwölf\u2028 lines\n\ud800"}]
        assert store.records("nothing") == []


def test_a_record_torn_by_a_kill_is_dropped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.append("metrics", {"a": 1})
    with (tmp_path / "metrics.jsonl").open("a") as log:
        log.write('{"a": 2, "b"')
    with RunStore(tmp_path) as store:
        assert store.records("metrics") == [{"a": 1}]
        store.append("metrics", {"a": 3})
        assert store.records("metrics") == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes", Path("x")])
def test_what_json_cannot_hold_is_refused_and_nothing_is_written(tmp_path: Path, value: object) -> None:
    with RunStore(tmp_path) as store:
        store.append("metrics", {"a": 1})
        with pytest.raises(DataError, match=r"metrics\.jsonl"):
            store.append("metrics", {"a": value})
        assert store.records("metrics") == [{"a": 1}]


def test_a_damaged_line_is_named_with_its_number(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"a": 1}\nrubbish\n')
    with RunStore(tmp_path) as store, pytest.raises(DataError, match=r"metrics\.jsonl:2"):
        store.records("metrics")


@pytest.mark.parametrize("line", [b'{"x": "\xff"}', b"5", b"[" * 100_000])
def test_whatever_a_damaged_line_holds_it_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"a": 1}\n' + line + b"\n")
    with RunStore(tmp_path) as store, pytest.raises(DataError, match=r"metrics\.jsonl:2: "):
        store.records("metrics")


def test_a_commit_is_found_with_its_cursor(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        assert store.latest() is None
        store.commit(FolderTrainer(1), {"phase": "warmup"})
        store.commit(FolderTrainer(2), {"phase": "train", "metrics": {"loss": 0.5}})
    with RunStore(tmp_path) as store:
        latest = store.latest()
        assert latest is not None
        assert latest.step == 2
        assert (latest.path / "adapter.bin").read_text() == "weights 2"
        assert store.load(latest) == {"phase": "train", "metrics": {"loss": 0.5}}
        assert [checkpoint.step for checkpoint in store.checkpoints()] == [1, 2]


def test_a_save_that_fails_leaves_the_previous_checkpoint_and_no_debris(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        store.commit(FolderTrainer(1), {})
        with pytest.raises(StorageError, match="free some space"):
            store.commit(FailingTrainer(2), {})
        latest = store.latest()
        assert latest is not None
        assert latest.step == 1
        assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-0001"]


def _damage_empty(path: Path) -> None:
    for file in path.iterdir():
        file.unlink()


def _damage_truncated(path: Path) -> None:
    (path / "adapter.bin").write_text("wei")


def _damage_missing_file(path: Path) -> None:
    (path / "adapter.bin").unlink()


def _damage_state(path: Path) -> None:
    (path / "state.json").write_text("{")


def _damage_other_step(path: Path) -> None:
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "step": 7}))


@pytest.mark.parametrize(
    "damage", [_damage_empty, _damage_truncated, _damage_missing_file, _damage_state, _damage_other_step]
)
def test_a_checkpoint_that_is_not_whole_is_skipped_and_replaced_by_the_next_commit(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    with RunStore(tmp_path) as store:
        store.commit(FolderTrainer(1), {"good": True})
        broken = store.commit(FolderTrainer(2), {})
        damage(broken.path)  # type: ignore[operator]
        (tmp_path / "checkpoints" / ".tmp-step-0009").mkdir()
        (tmp_path / "checkpoints" / "step-0007 (copy)").mkdir()
    with RunStore(tmp_path) as store:
        latest = store.latest()
        assert latest is not None
        assert latest.step == 1
        assert "step-0002" in caplog.text
        with pytest.raises(StorageError, match="use another step"):
            store.load(Checkpoint(2, broken.path))
        store.commit(FolderTrainer(2, "new"), {})
        again = store.latest()
        assert again is not None
        assert (again.path / "adapter.bin").read_text() == "new 2"
        assert not (tmp_path / "checkpoints" / ".tmp-step-0009").exists()


def test_the_systems_folder_for_temporary_files_plays_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be on another disk, across which nothing can be renamed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "not there"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    with RunStore(tmp_path / "run") as store:
        store.commit(FolderTrainer(1), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-0001"]


def test_prune_keeps_the_newest_and_the_named(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        for step in range(1, 6):
            store.commit(FolderTrainer(step), {})
        store.prune(keep={2})
        assert [checkpoint.step for checkpoint in store.checkpoints()] == [2, 5]


def test_a_second_opening_is_refused_and_names_the_holder(tmp_path: Path) -> None:
    with RunStore(tmp_path), pytest.raises(RunLockedError, match=str(os.getpid())):
        RunStore(tmp_path)
    RunStore(tmp_path).close()


def _append_for_ever(folder: Path) -> None:
    with RunStore(folder) as store:
        number = 0
        while True:
            store.append("log", {"n": number, "padding": "x" * 5000})
            store.commit(FolderTrainer(number % 9000 + 1), {"n": number})
            store.prune(keep=())
            number += 1


@pytest.mark.slow
@pytest.mark.parametrize("delay_s", [0.3, 0.37, 0.45, 0.61])
def test_killed_at_any_moment_the_folder_opens_with_whole_records_and_a_whole_checkpoint(
    tmp_path: Path, delay_s: float
) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_append_for_ever, args=(tmp_path,))
    process.start()
    while not (tmp_path / "log.jsonl").exists():
        time.sleep(0.01)
    time.sleep(delay_s)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    process.close()
    with RunStore(tmp_path) as store:
        numbers = [record["n"] for record in store.records("log")]
        latest = store.latest()
        assert numbers == list(range(len(numbers)))
        assert latest is not None
        assert store.load(latest)["n"] in (numbers[-1], numbers[-1] - 1)
