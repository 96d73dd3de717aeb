"""A lock on an open file that the system lifts when the process ends, however it ends."""

from __future__ import annotations

import importlib
import os
from typing import Any

_FAR = 1 << 40
"""Windows keeps others from reading and writing the bytes that are locked: so one is taken that no file has."""


def lock(file: int) -> bool:
    """Take the file behind the descriptor `file` for this process alone; False where another one has it.

    Closing the descriptor gives it back. Raises `OSError` where the file system has no locks.
    """
    system: Any = _module("fcntl")
    try:
        if system is not None:
            system.flock(file, system.LOCK_EX | system.LOCK_NB)
            return True
        system = importlib.import_module("msvcrt")
        before = os.lseek(file, 0, os.SEEK_CUR)
        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            system.locking(file, system.LK_NBLCK, 1)
        finally:
            os.lseek(file, before, os.SEEK_SET)
    except (BlockingIOError, PermissionError):  # what flock and what msvcrt says of a file that is taken
        return False
    return True


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:  # Windows has no fcntl
        return None
