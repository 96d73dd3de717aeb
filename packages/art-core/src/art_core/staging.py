"""Files and folders that appear under their name when they are whole.

They are written next to their place, under a name of their own. Whoever writes one has it locked; so one that nobody
has locked is of a process that was killed, and the next that writes to the same place removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from art_core.saved import remove


@contextlib.contextmanager
def staged(place: Path, *, is_folder: bool = False) -> Iterator[Path]:
    """A new empty file, or folder, next to `place`, to be renamed to it. What is not renamed is removed.

    Raises:
        OSError: as the system refuses.
    """
    _remove_left(place)
    staging = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    if is_folder:
        staging.mkdir()
    else:
        staging.touch(exist_ok=False)
    descriptor = os.open(staging, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield staging
    finally:
        with contextlib.suppress(OSError):
            if _is_same(descriptor, staging):
                remove(staging)
        os.close(descriptor)


def _remove_left(place: Path) -> None:
    """Remove what processes that were killed have left of `place`."""
    with contextlib.suppress(PermissionError):  # a folder that may be written to, and not listed
        for left in place.parent.iterdir():
            number = left.name.removeprefix(f".{place.name}.").removesuffix(".tmp")
            if number.isdecimal() and left.name == f".{place.name}.{number}.tmp":
                _remove_unlocked(left)


def _remove_unlocked(left: Path) -> None:
    with contextlib.suppress(OSError):  # somebody writes it, or it is of another user: nobody here needs it gone
        descriptor = os.open(left, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(left)
        finally:
            os.close(descriptor)


def _is_same(descriptor: int, path: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False
