"""Find the base weights that a user means: the built-in small model, a folder, or a model of the hub."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from art_core.errors import ConfigError, ModelNotFoundError

BUILTIN_MODEL = "smollm2-135m"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt"]
_HUB_LEAVE_OUT = ["original/*", "onnx/*", "*consolidated*"]  # the same weights in other formats
_DESCRIBING_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

Say = Callable[[str], None]


@dataclass(frozen=True)
class ModelSource:
    """A model on this machine's disk.

    `folder` holds config.json, tokenizer.json and safetensors. `name` is what the model is served under, `origin` says
    where the weights come from, `sha256` is one hash over the names and contents of the weights, the tokenizer, the
    configuration and the chat template: equal hashes mean equal models.
    """

    folder: Path
    name: str
    origin: str
    sha256: str


def resolve_model(name: str, *, cache: Path | None = None, progress: Say = lambda _: None) -> ModelSource:
    """The model called `name`, fetched if this machine does not have it yet.

    Args:
        name: `smollm2-135m`; or the path of a model folder; or a hub id such as `HuggingFaceTB/SmolLM2-360M-Instruct`.
            A folder that is itself called `smollm2-135m` is meant by `./smollm2-135m`.
        cache: where the built-in model is kept; `$ART_CACHE` or `~/.cache/art-core` if not given. Models of the hub
            live in the hub's own cache.
        progress: gets a line for each thing that takes time.

    Raises:
        ModelNotFoundError: no such model, or its weights cannot be had or are incomplete; the message holds the remedy.
        MissingExtraError: a library that fetching needs is not installed.
        StorageError: the cache folder cannot be written.
    """
    if not name.strip():
        raise ConfigError(f"the name of the model is empty; wanted {BUILTIN_MODEL!r}, a folder, or a hub id")
    if name == BUILTIN_MODEL:
        from art_core.weights.smollm2 import resolve_smollm2

        return resolve_smollm2(cache or default_cache(), progress)
    path = Path(name).expanduser()
    if path.exists():
        return folder_source(path, name=path.resolve().name, origin=f"folder {path.resolve()}")
    if _HUB_ID.fullmatch(name):
        progress(f"looking up {name} on the hub")
        return hub_source(name)
    raise ModelNotFoundError(
        f"model {name!r} is unknown: there is no such folder, and it is not a hub id; wanted {BUILTIN_MODEL!r}, "
        "the path of a model folder, or a hub id like 'HuggingFaceTB/SmolLM2-360M-Instruct'"
    )


def cached_model(name: str, *, cache: Path | None = None) -> Path | None:
    """The folder of the model called `name`, where this machine has it whole; None where it would be fetched.

    Nothing is written, and nobody is asked.
    """
    if name == BUILTIN_MODEL:
        from art_core.weights.smollm2 import cached_smollm2

        source = cached_smollm2(cache or default_cache())
        return source.folder if source else None
    if not _HUB_ID.fullmatch(name):
        return None
    try:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(
            name, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_LEAVE_OUT, local_files_only=True
        )
        return folder_source(Path(folder), name=name, origin="the hub's cache").folder
    except (OSError, ValueError, ModuleNotFoundError):
        return None


def default_cache() -> Path:
    """`$ART_CACHE`, else `art-core` in the user's cache folder."""
    if chosen := os.environ.get("ART_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "art-core"


def folder_source(folder: Path, *, name: str, origin: str) -> ModelSource:
    """The model in `folder`, after checking that everything is there and whole.

    Raises:
        ModelNotFoundError: a file is missing or cut short; the message names it.
    """
    if not folder.is_dir():
        raise ModelNotFoundError(
            f"{folder} is a file; wanted a folder with config.json, tokenizer.json and model.safetensors"
        )
    missing = [file for file in ("config.json", "tokenizer.json") if not (folder / file).is_file()]
    weights = weight_files(folder)
    missing += [file.name for file in weights if not file.is_file()] if weights else ["model.safetensors"]
    if missing:
        raise ModelNotFoundError(
            f"{folder} holds no complete model: {', '.join(missing)} missing; wanted config.json, tokenizer.json and "
            "the weights as safetensors, as `save_pretrained` of model and tokenizer writes them"
        )
    for file in weights:
        _check_safetensors(file)
    return ModelSource(folder, name, origin, content_hash(file_hashes(folder)))


def hub_source(hub_id: str) -> ModelSource:
    """The hub's model `hub_id`, from the hub's cache on this machine or downloaded into it.

    Raises:
        ModelNotFoundError: there is no such model, it may not be downloaded, or the hub cannot be reached.
        MissingExtraError: `huggingface_hub` is not installed.
    """
    try:
        from httpx import HTTPError
        from huggingface_hub import snapshot_download
    except ModuleNotFoundError as error:
        from art_core.errors import MissingExtraError

        raise MissingExtraError(
            f"models of the hub need {error.name!r}, which is not installed; run: pip install 'art-core[train]'"
        ) from error
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=_HUB_FILES, ignore_patterns=_HUB_LEAVE_OUT))
    except (OSError, ValueError, HTTPError) as error:
        raise ModelNotFoundError(
            f"the hub's model {hub_id!r} cannot be had: {' '.join(str(error).split())[:400].rstrip('.')}; check the "
            f"name and the connection (HF_ENDPOINT chooses a mirror, HF_TOKEN opens gated models), or use "
            f"{BUILTIN_MODEL!r} or a folder"
        ) from error
    return folder_source(folder, name=hub_id, origin=f"hub {hub_id} at revision {folder.name}")


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of the model in `folder`, also those that its index names but are not there."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_"))
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFoundError(f"{index} is not an index of weights: {error!r}; download the model again") from error
    return sorted(folder / name for name in names)


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of each file that makes the model in `folder` what it is, by file name."""
    files = [folder / name for name in _DESCRIBING_FILES if (folder / name).is_file()]
    result = {}
    for path in (*files, *weight_files(folder)):
        with path.open("rb") as file:
            result[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def content_hash(hashes: Mapping[str, str]) -> str:
    """One hash for the files of `hashes`; their order does not matter."""
    lines = "".join(f"{sha256}  {name}\n" for name, sha256 in sorted(hashes.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _check_safetensors(path: Path) -> None:
    """Tell a whole file from a download cut short, or from the text that stands for it in a repository without LFS."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if not 2 <= header_size <= size - 8:
                raise ValueError(f"it has {size} bytes and does not begin with a header")
            header = json.loads(file.read(header_size))
        end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
        if size != 8 + header_size + end:
            raise ValueError(f"it has {size} bytes, and its header speaks of {8 + header_size + end}")
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ModelNotFoundError(
            f"{path} is not a whole safetensors file: {error}; download it again (a repository cloned without git-lfs "
            "holds short texts in place of the weights)"
        ) from error
