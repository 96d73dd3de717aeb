"""The lock on an output, by the means of each system."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from art_ruler import ConfigError
from art_ruler.locking import lock
from art_ruler.scored import ScoredFile


def opened(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


def test_one_at_a_time_until_it_is_closed(tmp_path: Path) -> None:
    first, second = opened(tmp_path / "f"), opened(tmp_path / "f")
    assert lock(first)
    assert not lock(second)
    os.close(first)
    assert lock(second)
    os.close(second)


def test_the_end_of_a_process_is_the_end_of_its_lock(tmp_path: Path) -> None:
    code = (
        f"import os; from art_ruler.locking import lock; assert lock(os.open({str(tmp_path / 'f')!r}, 66)); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    file = opened(tmp_path / "f")
    assert lock(file)
    os.close(file)


class Windows(ModuleType):
    """`msvcrt` as Windows has it: the bytes of one file that somebody has locked."""

    LK_NBLCK = 2

    def __init__(self) -> None:
        super().__init__("msvcrt")
        self.locked: set[tuple[int, int]] = set()

    def locking(self, file: int, mode: int, count: int) -> None:
        assert (mode, count) == (self.LK_NBLCK, 1)
        place = (os.fstat(file).st_ino, os.lseek(file, 0, os.SEEK_CUR))
        if place in self.locked:
            raise PermissionError(errno.EACCES, "Permission denied")
        self.locked.add(place)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    system = Windows()
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setitem(sys.modules, "msvcrt", system)
    return system


def test_windows_locks_a_byte_that_no_file_has(tmp_path: Path, windows: Windows) -> None:
    first, second = opened(tmp_path / "f"), opened(tmp_path / "f")
    os.write(first, b"abc")
    assert lock(first)
    assert os.lseek(first, 0, os.SEEK_CUR) == 3
    assert not lock(second)
    ((_, place),) = windows.locked
    assert place > 1 << 31
    os.close(first)
    os.close(second)


def test_an_output_is_held_on_windows_too(tmp_path: Path, windows: Windows) -> None:
    with (
        ScoredFile(tmp_path / "out", {"judges": []}),
        pytest.raises(ConfigError, match="being written by another process"),
    ):
        ScoredFile(tmp_path / "out", {"judges": []})


def test_a_file_system_without_locks_is_named(
    tmp_path: Path, windows: Windows, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, mode: int, count: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(windows, "locking", refuse)
    with pytest.raises(
        ConfigError, match="cannot be locked against other processes: No locks available; give an --out"
    ):
        ScoredFile(tmp_path / "out", {"judges": []})
