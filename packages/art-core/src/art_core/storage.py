"""A run folder on disk: append-only logs, and checkpoints that are visible only when whole.

<folder>/<kind>.jsonl              one record per line, see `RunStore.append`
<folder>/checkpoints/step-0003/    what the trainer saved, plus state.json: cursor and the list of files
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from art_core.errors import DataError, RunLockedError, StorageError
from art_core.protocols import Trainer
from art_core.types import Checkpoint

_log = logging.getLogger(__name__)
_STATE = "state.json"
STEP_NAME = re.compile(r"step-(\d{4,})")
_BLOCK_BYTES = 1 << 20
T = TypeVar("T")


def step_name(step: int) -> str:
    """The name of what belongs to `step`, which `STEP_NAME` reads: `step-0003`."""
    return f"step-{step:04d}"


class RunStore:
    """The `Store` of a directory. Holds the folder's lock while open, so that two processes never mix their work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._repaired: set[str] = set()
        with _explained(folder, "open the run folder"):
            (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
            self._lock = _take_lock(folder)
            for torn in (folder / "checkpoints").glob(".tmp-*"):
                shutil.rmtree(torn)

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
        with _explained(path, "append to"), path.open("ab", buffering=0) as file:
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
        try:
            json.dumps(cursor, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise DataError(f"the cursor of a checkpoint cannot be written as JSON: {error}") from error
        step = trainer.step_count
        target = self.checkpoint_path(step)
        staging = target.parent / f".tmp-{target.name}"
        with _explained(target, "write the checkpoint"):
            try:
                staging.mkdir()
                trainer.save(staging)
                files = {path.name: _digest(path) for path in sorted(staging.iterdir())}
                state = {"step": step, "cursor": cursor, "files": files}
                (staging / _STATE).write_text(json.dumps(state, indent=2, allow_nan=False) + "\n")
                for path in staging.iterdir():
                    _sync(path)
                if target.exists():  # debris of an earlier attempt: a whole checkpoint would have been continued from
                    shutil.rmtree(target)
                staging.rename(target)
                _sync(target.parent)
            except BaseException:
                shutil.rmtree(staging, ignore_errors=True)
                raise
        return Checkpoint(step, target)

    def checkpoints(self) -> list[Checkpoint]:
        """All whole checkpoints, oldest first. What is not whole is skipped with a warning."""
        return sorted(self._whole(), key=lambda checkpoint: checkpoint.step)

    def _whole(self) -> Iterator[Checkpoint]:
        """Whole checkpoints, newest first; each is checked when its turn comes, which reads its files."""
        named = [(STEP_NAME.fullmatch(path.name), path) for path in (self.folder / "checkpoints").iterdir()]
        for step, path in sorted(((int(name[1]), path) for name, path in named if name), reverse=True):
            fault = _fault(path, step=step)
            if fault:
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
        fault = _fault(checkpoint.path, step=checkpoint.step)
        if fault:
            raise StorageError(f"checkpoint {checkpoint.path}: {fault}; use another step or start a new run")
        cursor: dict[str, Any] = json.loads((checkpoint.path / _STATE).read_text())["cursor"]
        return cursor

    def prune(self, keep: Collection[int]) -> None:
        """Delete all checkpoints but the newest whole one and those whose step is in `keep`."""
        newest = self.latest()
        for path in (self.folder / "checkpoints").iterdir():
            name = STEP_NAME.fullmatch(path.name)
            if name and newest and path != newest.path and int(name[1]) not in keep:
                with _explained(path, "delete"):
                    shutil.rmtree(path)

    def _log_path(self, kind: str) -> Path:
        """The file of the log `kind`, without the record that a killed process left unfinished at its end."""
        path = self.folder / f"{kind}.jsonl"
        if kind not in self._repaired and path.exists():
            with _explained(path, "repair"):
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
    with _explained(path, "read"), path.open("rb") as file:
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


@contextlib.contextmanager
def _explained(path: Path, action: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except OSError as error:
        hint = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
        raise StorageError(f"could not {action} {path}: {error.strerror or error}{hint}") from error


def _take_lock(folder: Path) -> int | None:
    """Lock `folder` for this process. The kernel releases the lock when the process ends, however it ends."""
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise RunLockedError(
            f"{folder} is in use by process {holder}; wait for it to end, or give another output folder"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    return descriptor


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


def _digest(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size_bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _fault(path: Path, *, step: int) -> str | None:
    """Why the folder `path` is not the whole checkpoint of `step`; None if it is."""
    try:
        state = json.loads((path / _STATE).read_text())
        files: dict[str, dict[str, Any]] = state["files"]
        if state["step"] != step:
            return f"its {_STATE} says step {state['step']}"
        for name, wanted in files.items():
            if _digest(path / name) != wanted:
                return f"{name} is not the file that was saved"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"not whole ({type(error).__name__}: {error})"
    return None


def checkpoint_faults(folder: Path) -> dict[int, str]:
    """What is wrong with the checkpoints of the run folder `folder` that are not whole, by step. Takes no lock."""
    path = folder / "checkpoints"
    named = [(STEP_NAME.fullmatch(entry.name), entry) for entry in path.iterdir()] if path.is_dir() else []
    faults = {int(name[1]): _fault(entry, step=int(name[1])) for name, entry in named if name}
    return {step: fault for step, fault in faults.items() if fault}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
