"""Checkpoints that are read while others are deleted, and what else may lie among them."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from art_core.errors import RunLockedError, StorageError
from art_core.saved import checkpoint_fault, held, is_held
from art_core.storage import RunStore, run_is_open
from art_core.types import Checkpoint
from tests.core.test_storage import FolderTrainer


def committed(folder: Path, *steps: int) -> list[Checkpoint]:
    with RunStore(folder) as store:
        return [store.commit(FolderTrainer(step), {"n": step}) for step in steps]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_what_is_read_is_not_deleted(tmp_path: Path) -> None:
    first, second, _ = committed(tmp_path, 1, 2, 3)
    with RunStore(tmp_path) as store:
        with held(first), held(first):
            assert is_held(first)
            assert not is_held(second)
            assert store.prune(keep=()) == [2]
        assert not is_held(first)
        assert store.prune(keep=()) == [1]
    assert names(tmp_path) == ["step-0003"]


def _hold(checkpoint: Checkpoint, channel: Connection) -> None:
    with held(checkpoint):
        channel.send("held")
        channel.recv()


@pytest.mark.slow
def test_what_another_process_reads_is_not_deleted_until_it_ends_however_it_does(tmp_path: Path) -> None:
    first, _ = committed(tmp_path, 1, 2)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_hold, args=(first, theirs))
    process.start()
    assert ours.recv() == "held"
    with RunStore(tmp_path) as store:
        assert store.prune(keep=()) == []
        process.kill()
        process.join()
        assert store.prune(keep=()) == [1]
    for one in (ours, theirs, process):
        one.close()


def test_what_was_deleted_cannot_be_read(tmp_path: Path) -> None:
    first, _ = committed(tmp_path, 1, 2)
    with RunStore(tmp_path) as store:
        store.prune(keep=())
    with pytest.raises(StorageError, match=r"could not read the checkpoint .*step-0001: No such file"), held(first):
        pass


def test_a_killed_deletion_is_finished_at_the_next_opening(tmp_path: Path) -> None:
    committed(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "step-0001").rename(tmp_path / "checkpoints" / ".tmp-deleted-step-0001")
    (tmp_path / "checkpoints" / ".tmp").write_text("a file")
    (tmp_path / "checkpoints" / ".tmp-file").write_text("a file")
    with RunStore(tmp_path) as store:
        assert [checkpoint.step for checkpoint in store.checkpoints()] == [2]
    assert names(tmp_path) == [".tmp", "step-0002"]


def test_b038_debris_is_skipped_with_its_reason_and_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    committed(tmp_path, 1)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-0002").mkdir()
    (checkpoints / "step-0003").write_text("a file")
    (checkpoints / "0007 (copy)").mkdir()
    (checkpoints / "step-0008 (copy)").mkdir()
    with RunStore(tmp_path) as store:
        latest = store.latest()
        assert latest == Checkpoint(1, checkpoints / "step-0001")
        assert store.faults[2] == "state.json is missing"
        assert "NotADirectoryError" in store.faults[3]
        assert "skipping checkpoint" in caplog.text
        store.commit(FolderTrainer(2), {})
        store.commit(FolderTrainer(3), {})
        assert store.faults == {}
        assert [checkpoint.step for checkpoint in store.checkpoints()] == [1, 2, 3]
        store.prune(keep=())
    assert names(tmp_path) == ["0007 (copy)", "step-0003", "step-0008 (copy)"]


def test_a_lost_file_is_named(tmp_path: Path) -> None:
    (only,) = committed(tmp_path, 1)
    (only.path / "adapter.bin").unlink()
    assert checkpoint_fault(only) == "adapter.bin is missing"


def test_whether_a_run_is_open_can_be_seen_without_disturbing(tmp_path: Path) -> None:
    assert not run_is_open(tmp_path)
    with RunStore(tmp_path):
        assert run_is_open(tmp_path)
        with pytest.raises(RunLockedError, match=str(os.getpid())):
            RunStore(tmp_path)
    assert not run_is_open(tmp_path)
