"""A run folder on disk: append-only logs, and checkpoints that are visible only when whole.

<folder>/<kind>.jsonl              one record per line, see `RunStore.append`
<folder>/checkpoints/step-0003/    what the trainer saved, plus state.json: cursor and the list of files
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from art_core.errors import DataError, RunLockedError
from art_core.protocols import Trainer
from art_core.saved import (
    STATE_FILE,
    STEP_NAME,
    checkpoint_fault,
    delete,
    digest,
    explained,
    read_cursor,
    remove,
    state_text,
    step_name,
    sync,
)
from art_core.types import Checkpoint

_log = logging.getLogger(__name__)
_BLOCK_BYTES = 1 << 20
_LOOK_S = 0.2
"""Whoever looks whether a folder is in use has its lock for an instant; who opens it waits so long."""
T = TypeVar("T")


class RunStore:
    """The `Store` of a directory. Holds the folder's lock while open, so that two processes never mix their work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.faults: dict[int, str] = {}  # steps whose checkpoint was found not to be whole, and why
        self._repaired: set[str] = set()
        with explained(folder, "open the run folder"):
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder)
            for torn in (folder / "checkpoints").glob(".tmp-*"):
                remove(torn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, kind: str, record: dict[str, Any]) -> None:
        """Add `record` to `<kind>.jsonl`.

        Raises:
            DataError: the record holds something JSON cannot (an object, NaN); nothing was written.
            StorageError: the disk is full or the folder not writable; the log is as it was before.
        """
        try:
            line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise DataError(f"a record for {kind}.jsonl cannot be written as JSON: {error}") from error
        path = self._log_path(kind)
        with explained(path, "append to"), path.open("ab", buffering=0) as file:
            before = file.tell()
            data = line.encode(errors="backslashreplace")  # turns a lone surrogate into its JSON escape
            written = 0
            try:
                while written < len(data):
                    written += file.write(data[written:])
            except OSError:
                file.truncate(before)
                raise

    def records(self, kind: str) -> list[dict[str, Any]]:
        """All records of `<kind>.jsonl`; an empty list when there is no such log yet."""
        path = self._log_path(kind)
        return list(read_records(path, lambda record: record)) if path.exists() else []

    def size_bytes(self, kind: str) -> int:
        """How long `<kind>.jsonl` is; 0 when there is no such log yet."""
        path = self._log_path(kind)
        return path.stat().st_size if path.exists() else 0

    def commit(self, trainer: Trainer, cursor: dict[str, Any]) -> Checkpoint:
        """Save the trainer with `cursor` as the checkpoint of its current step.

        Raises:
            DataError: the cursor holds something JSON cannot; nothing was written.
            StorageError: the disk is full or the folder not writable; there is no checkpoint of this step.
        """
        return self.write(trainer.step_count, trainer.save, cursor)

    def write(self, step: int, save: Callable[[Path], None], cursor: dict[str, Any]) -> Checkpoint:
        """As `commit`, of the files that `save` writes into the folder it is given."""
        try:
            json.dumps(cursor, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"the cursor of a checkpoint cannot be written as JSON: {error}") from error
        target = self.checkpoint_path(step)
        staging = target.parent / f".tmp-{target.name}"
        with explained(target, "write the checkpoint"):
            try:
                staging.mkdir()
                save(staging)
                files = {path.name: digest(path) for path in sorted(staging.iterdir())}
                (staging / STATE_FILE).write_text(state_text(step, cursor, files))
                for path in staging.iterdir():
                    sync(path)
                if os.path.lexists(target):  # debris, or a link to nothing: a whole one would have been continued from
                    remove(target)
                staging.rename(target)
                sync(target.parent)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
        self.faults.pop(step, None)
        return Checkpoint(step, target)

    def checkpoints(self) -> list[Checkpoint]:
        """All whole checkpoints, oldest first. What is not whole is skipped with a warning."""
        return sorted(self._whole(), key=lambda checkpoint: checkpoint.step)

    def _whole(self) -> Iterator[Checkpoint]:
        """Whole checkpoints, newest first; each is checked when its turn comes, which reads its files."""
        named = [(STEP_NAME.fullmatch(path.name), path) for path in (self.folder / "checkpoints").iterdir()]
        for step, path in sorted(((int(name[1]), path) for name, path in named if name), reverse=True):
            fault = checkpoint_fault(Checkpoint(step, path))
            if fault:
                self.faults[step] = fault
                _log.warning("skipping checkpoint %s: %s", path, fault)
            else:
                yield Checkpoint(step, path)

    def latest(self) -> Checkpoint | None:
        """The newest whole checkpoint. Newer ones that are not whole are skipped with a warning."""
        return next(self._whole(), None)

    def load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """The cursor of `checkpoint`.

        Raises:
            StorageError: the checkpoint is not whole.
        """
        return read_cursor(checkpoint)

    def prune(self, keep: Collection[int]) -> list[int]:
        """Delete all checkpoints but the newest whole one and those whose step is in `keep`, and say which they were.

        What somebody reads (see `held`) is left. Killed meanwhile, each is there as it was, or is gone.
        """
        newest = self.latest()
        deleted = []
        for path in sorted((self.folder / "checkpoints").iterdir()):
            name = STEP_NAME.fullmatch(path.name)
            if name and newest and path != newest.path and int(name[1]) not in keep:
                with explained(path, "delete"):
                    if delete(path):
                        deleted.append(int(name[1]))
                        self.faults.pop(int(name[1]), None)
        return deleted

    def _log_path(self, kind: str) -> Path:
        """The file of the log `kind`, without the record that a killed process left unfinished at its end."""
        path = self.folder / f"{kind}.jsonl"
        if kind not in self._repaired and path.exists():
            with explained(path, "repair"):
                drop_torn_tail(path)
        self._repaired.add(kind)
        return path

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of `step` is, or would be."""
        return self.folder / "checkpoints" / step_name(step)


def read_records(
    path: Path, parse: Callable[[dict[str, Any]], T], *, start: int = 0, end: int | None = None, containing: bytes = b""
) -> Iterator[T]:
    """The whole records of a log, parsed, one at a time. Takes no lock: the log may grow meanwhile.

    Of the records, those that begin at the byte `start` or later, and before `end`. What is being written at the end
    of the log, or was torn by a kill, is left out. `containing` skips, unread, the lines without these bytes.

    Raises:
        DataError: a line is no record, or `parse` refused it with a ValueError; the message begins with `file:line`.
        StorageError: the log cannot be read.
    """
    with explained(path, "read"), path.open("rb") as file:
        file.seek(start)
        offset = start
        for line in file:
            if not line.endswith(b"\n") or (end is not None and offset >= end):
                return
            if containing in line:
                try:
                    record = json.loads(line)
                    if not isinstance(record, dict):
                        raise DataError(f"a JSON {type(record).__name__}")
                    value = parse(record)
                except (ValueError, RecursionError) as error:
                    where = f"{path}:{_line_number(path, offset)}"
                    raise DataError(
                        f"{where}: not a record ({' '.join(str(error).split())[:300]}); remove the line to go on"
                    ) from error
                yield value
            offset += len(line)


def _line_number(path: Path, offset: int) -> int:
    """The number of the line that begins at `offset`; lines are not counted as long as nothing is wrong."""
    number = 1
    with path.open("rb") as file:
        while offset > 0 and (block := file.read(min(_BLOCK_BYTES, offset))):
            number += block.count(b"\n")
            offset -= len(block)
    return number


def _take_lock(folder: Path) -> int | None:
    """Lock `folder` for this process. The kernel releases the lock when the process ends, however it ends."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    deadline = time.monotonic() + _LOOK_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RunLockedError(
                f"{folder} is in use by process {holder}; wait for it to end, or give another output folder"
            ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


def run_is_open(folder: Path) -> bool:
    """Whether some process has the run in `folder` open, which serves or trains it then."""
    try:
        descriptor = os.open(folder / ".lock", os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def drop_torn_tail(log: Path) -> None:
    """Cut a last line without line end: what a killed process was writing."""
    with log.open("rb+") as file:
        size = whole = file.seek(0, os.SEEK_END)
        while whole:
            start = max(0, whole - _BLOCK_BYTES)
            file.seek(start)
            last = file.read(whole - start).rfind(b"\n")
            whole = start if last < 0 else start + last + 1
            if last >= 0:
                break
        if whole < size:
            _log.warning("%s: dropping an unfinished record of %d bytes at its end", log, size - whole)
            file.truncate(whole)


def checkpoint_faults(folder: Path) -> dict[int, str]:
    """What is wrong with the checkpoints of the run folder `folder` that are not whole, by step. Takes no lock."""
    path = folder / "checkpoints"
    named = [(STEP_NAME.fullmatch(entry.name), entry) for entry in path.iterdir()] if path.is_dir() else []
    faults = {int(name[1]): checkpoint_fault(Checkpoint(int(name[1]), entry)) for name, entry in named if name}
    return {step: fault for step, fault in faults.items() if fault}
