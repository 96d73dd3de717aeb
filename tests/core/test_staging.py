"""What appears under its name when it is whole, and what the killed leave."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from art_core.staging import staged


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_renamed_stays_and_what_is_not_is_removed(tmp_path: Path, is_folder: bool) -> None:
    place = tmp_path / "out"
    with contextlib.suppress(KeyboardInterrupt), staged(place, is_folder=is_folder) as staging:
        assert (staging.is_dir(), staging.parent) == (is_folder, tmp_path)
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    with staged(place, is_folder=is_folder) as staging:
        staging.rename(place)
    assert names(tmp_path) == ["out"]


def test_only_what_a_killed_process_has_left_of_the_same_place_is_removed(tmp_path: Path) -> None:
    for name in (f".out.{os.getpid()}.tmp", ".out.1.tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    (tmp_path / ".out.2.tmp").touch()
    (tmp_path / ".out.3.tmp").symlink_to("nowhere")
    others = [".out.3.tmp", ".out.1.old", ".out..tmp", ".out.x.tmp", ".other.1.tmp", "out.1.tmp", ".out.1.tmp.gz"]
    for name in others[1:]:
        (tmp_path / name).touch()
    with staged(tmp_path / "out") as staging:
        assert names(tmp_path) == sorted([*others, staging.name])
    assert names(tmp_path) == sorted(others)


def _write(place: Path, channel: Connection) -> None:
    with staged(place, is_folder=True) as staging:
        (staging / "half").touch()
        channel.send(staging.name)
        channel.recv()


@pytest.mark.slow
def test_what_another_process_writes_is_left_alone_until_it_ends_however_it_does(tmp_path: Path) -> None:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(tmp_path / "out", theirs))
    process.start()
    written = ours.recv()
    with staged(tmp_path / "out"):
        assert written in names(tmp_path)
    process.kill()
    process.join()
    assert names(tmp_path) == [written]
    with staged(tmp_path / "out"):
        assert written not in names(tmp_path)
    assert names(tmp_path) == []
    for one in (ours, theirs, process):
        one.close()
