"""Checkpoints that are read while others are deleted, and what else may lie among them."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from art_core.errors import RunLockedError, StorageError
from art_core.runs import Run
from art_core.saved import checkpoint_fault, held, is_held, read_cursor
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
        assert store.faults[3] == "state.json cannot be read (Not a directory)"
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


def test_no_bit_of_a_state_can_turn_unseen(tmp_path: Path) -> None:
    with RunStore(tmp_path) as store:
        only = store.commit(FolderTrainer(1), {"sft": {"update": 6, "losses": {"total": 1.5e-7}}, "name": "é"})
    state = only.path / "state.json"
    whole = state.read_bytes()
    cursor = read_cursor(only)
    assert cursor["name"] == "é"
    for place in range(len(whole)):
        state.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        if checkpoint_fault(only) is None:
            assert read_cursor(only) == cursor, place  # 1e-07 as 1E-07
    state.write_bytes(whole)
    assert checkpoint_fault(only) is None


def _without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {key: value for key, value in state.items() if key not in (name, "sha256")}


def _with(**changed: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**_without("sha256")(state), **changed}


@pytest.mark.parametrize(
    "damage",
    [
        *(_without(name) for name in ("step", "cursor", "files")),
        *(_with(cursor=cursor) for cursor in ([1], None, {"kl_reference": 3}, {"kl_reference": ["a"]})),
        *(_with(files=files) for files in (None, 1, "adapter.bin")),
        *(_with(files={name: None}) for name in ("a\0b", "adapter.bin")),
        _with(files=[]),
        _with(files={}),
        *(_with(step=step) for step in (True, "1", None)),
        _with(version=99),
        lambda state: [state],
    ],
)
def test_a_state_of_another_shape_is_a_fault_and_no_crash(
    tmp_path: Path, damage: Callable[[dict[str, Any]], Any]
) -> None:
    only, _ = committed(tmp_path, 1, 2)
    file = only.path / "state.json"
    file.write_text(json.dumps(damage(json.loads(file.read_text()))))
    assert checkpoint_fault(only) is not None
    with pytest.raises(StorageError, match="use another step or start a new run"):
        read_cursor(only)


def test_a_state_nested_too_deeply_is_a_fault_and_no_crash(tmp_path: Path) -> None:
    (only,) = committed(tmp_path, 1)
    (only.path / "state.json").write_text("[" * 100_000)
    assert checkpoint_fault(only) == "its state.json is not what was saved (it is nested too deeply)"


def test_a_state_without_a_hash_of_its_own_is_read(tmp_path: Path) -> None:
    (only,) = committed(tmp_path, 1)
    file = only.path / "state.json"
    file.write_text(json.dumps(_without("sha256")(json.loads(file.read_text()))))
    assert read_cursor(only) == {"n": 1}


@pytest.mark.parametrize("kind", ["folder", "link to itself", "link to nothing"])
def test_debris_whose_state_is_no_file_is_deleted_and_replaced(tmp_path: Path, kind: str) -> None:
    committed(tmp_path, 1, 2, 3)
    checkpoints = tmp_path / "checkpoints"
    for step in (1, 3):
        state = checkpoints / f"step-000{step}" / "state.json"
        state.unlink()
        if kind == "folder":
            state.mkdir()
        else:
            state.symlink_to("state.json" if kind == "link to itself" else "nowhere")
    with RunStore(tmp_path) as store:
        store.commit(FolderTrainer(3), {})
        assert store.prune(keep=()) == [1, 2]
    assert names(tmp_path) == ["step-0003"]


def test_a_checkpoint_that_is_a_link_to_nothing_is_replaced(tmp_path: Path) -> None:
    committed(tmp_path, 1, 2)
    shutil.rmtree(tmp_path / "checkpoints" / "step-0002")
    (tmp_path / "checkpoints" / "step-0002").symlink_to("nowhere")
    with RunStore(tmp_path) as store:
        assert store.latest() == Checkpoint(1, tmp_path / "checkpoints" / "step-0001")
        store.commit(FolderTrainer(2), {})
        assert store.latest() == Checkpoint(2, tmp_path / "checkpoints" / "step-0002")


@pytest.mark.parametrize("name", ["step-00002", "step-0000000002", "step-٠٠٠٢", "4", "0004.bak"])
def test_another_spelling_of_a_step_is_no_checkpoint(tmp_path: Path, name: str) -> None:
    committed(tmp_path, 1, 2)
    (tmp_path / "checkpoints" / "step-0002").rename(tmp_path / "checkpoints" / name)
    with RunStore(tmp_path) as store:
        assert [checkpoint.step for checkpoint in store.checkpoints()] == [1]
        assert store.prune(keep=()) == []
    assert Run(tmp_path).checkpoint_steps == [1]
    assert names(tmp_path) == sorted(["step-0001", name])
