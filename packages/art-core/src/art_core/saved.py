"""A checkpoint on disk: its name, whether it is whole, what it says, and who reads it. Needs no lock of its run.

<folder>/step-0003/    what the trainer saved, plus state.json: step, cursor, size and hash of each file, its own hash
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from art_core.errors import ArtError, StorageError
from art_core.types import Checkpoint

STATE_FILE = "state.json"
ADAPTER_FILE = "adapter_model.safetensors"
"""In the folder of a checkpoint: what PEFT calls it, whichever trainer wrote it."""
REFERENCES = "kl_reference"
"""The field of a cursor that names the steps which a step was kept near."""
STEP_NAME = re.compile(r"step-([0-9]{4}|[1-9][0-9]{4,})")
"""Each step has one name: `step-00021` is none."""


def step_name(step: int) -> str:
    """The name of what belongs to `step`, which `STEP_NAME` reads: `step-0003`."""
    return f"step-{step:04d}"


def state_text(step: int, cursor: dict[str, Any], files: dict[str, dict[str, Any]]) -> str:
    """What `state.json` says of a checkpoint with `files`, whose sizes and hashes are those of `digest`.

    Raises:
        ValueError, TypeError: the cursor holds something JSON cannot.
    """
    state = json.loads(json.dumps({"step": step, "cursor": cursor, "files": files}, allow_nan=False))
    return json.dumps({**state, "sha256": _own_hash(state)}, indent=2) + "\n"


def checkpoint_fault(checkpoint: Checkpoint) -> str | None:
    """Why the folder of `checkpoint` is not the whole checkpoint of its step; None if it is. Reads all its files."""
    try:
        state = _state(checkpoint)
        if state["step"] != checkpoint.step:
            return f"its {STATE_FILE} says step {state['step']}"
        for name, wanted in state["files"].items():
            if digest(checkpoint.path / name) != wanted:
                return f"{name} is not the file that was saved"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"{Path(error.filename or checkpoint.path).name} cannot be read ({error.strerror or error})"
    except ValueError as error:
        return f"its {STATE_FILE} is not what was saved ({error})"
    return None


def _state(checkpoint: Checkpoint) -> dict[str, Any]:
    """What `state.json` of `checkpoint` says, with a `cursor`, and `files` by their names.

    Raises:
        ValueError: it is damaged.
    """
    try:
        state = json.loads((checkpoint.path / STATE_FILE).read_bytes())
        own = state.pop("sha256", None)  # those of earlier versions have none
        step, cursor, files = (state[name] for name in ("step", "cursor", "files"))
        kept_near = cursor.get(REFERENCES, [])
        shapes = [(step, int), (cursor, dict), (files, dict), (kept_near, list), *((one, int) for one in kept_near)]
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (KeyError, TypeError, AttributeError):
        raise ValueError("it lacks the step, the cursor or the files") from None
    wrong = [value for value, kind in shapes if type(value) is not kind]
    if wrong or len(state) != 3 or not files or any("\0" in name for name in files):
        raise ValueError("it holds what no checkpoint says of itself")
    if own is not None and own != _own_hash(state):
        raise ValueError("its own hash is another")
    return dict(state)


def _own_hash(state: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def read_cursor(checkpoint: Checkpoint) -> dict[str, Any]:
    """The cursor of `checkpoint`. Takes no lock.

    Raises:
        StorageError: the checkpoint is not whole.
    """
    fault = checkpoint_fault(checkpoint)
    if fault:
        raise StorageError(f"checkpoint {checkpoint.path}: {fault}; use another step or start a new run")
    cursor: dict[str, Any] = _state(checkpoint)["cursor"]
    return cursor


def references(checkpoint: Checkpoint) -> set[int]:
    """The steps that the step of `checkpoint`, which is whole, was kept near: training on needs their checkpoints."""
    return set(_state(checkpoint)["cursor"].get(REFERENCES, ()))


def adapter_digest(checkpoint: Checkpoint) -> str:
    """The hash of the adapter in `checkpoint`, as it was when it was saved.

    Raises:
        StorageError: `state.json` cannot be read.
    """
    try:
        with explained(checkpoint.path, "read the checkpoint"):
            return str(_state(checkpoint)["files"].get(ADAPTER_FILE, ""))
    except ValueError as error:
        raise StorageError(f"checkpoint {checkpoint.path}: its {STATE_FILE} is not what was saved ({error})") from error


def checkpoint_files(checkpoint: Checkpoint) -> list[Path]:
    """What the trainer saved in `checkpoint`, which is whole."""
    return [checkpoint.path / name for name in _state(checkpoint)["files"]]


@contextlib.contextmanager
def held(checkpoint: Checkpoint) -> Iterator[Checkpoint]:
    """Meanwhile nobody deletes `checkpoint`, in this process or another. Needs no lock of the run.

    Raises:
        StorageError: it is not there.
    """
    path = checkpoint.path / STATE_FILE
    with explained(checkpoint.path, "read the checkpoint"):
        descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with explained(checkpoint.path, "read the checkpoint"):
            if not os.path.samestat(os.fstat(descriptor), path.stat()):
                raise StorageError(f"checkpoint {checkpoint.path} was deleted just now; choose another")
        yield checkpoint
    finally:
        os.close(descriptor)


def is_held(checkpoint: Checkpoint) -> bool:
    """Whether somebody reads `checkpoint`, see `held`."""
    try:
        descriptor = os.open(checkpoint.path / STATE_FILE, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def delete(path: Path) -> bool:
    """Delete the checkpoint `path`, at once for whoever looks; False where somebody reads it."""
    away = path.with_name(f".tmp-deleted-{path.name}")
    descriptor = None
    try:
        if (path / STATE_FILE).is_file():  # debris without a state is of use to nobody
            descriptor = os.open(path / STATE_FILE, os.O_RDWR)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(away):
            remove(away)
        path.rename(away)
    except BlockingIOError:
        return False
    finally:
        if descriptor is not None:
            os.close(descriptor)
    remove(away)
    return True


def remove(path: Path) -> None:
    """Remove the folder, or the file, `path`."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def digest(path: Path) -> dict[str, Any]:
    """What `state.json` says of the file `path`."""
    with path.open("rb") as file:
        return {"size_bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def sync(path: Path) -> None:
    """Wait until the file, or the entries of the folder, `path` would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explained(path: Path, action: str) -> Iterator[None]:
    """What the system refuses inside, as a `StorageError` that says what `action` on `path` was to be."""
    try:
        yield
    except ArtError:
        raise
    except OSError as error:
        hint = "; free some space and run the same command again" if error.errno == errno.ENOSPC else ""
        raise StorageError(f"could not {action} {path}: {error.strerror or error}{hint}") from error
