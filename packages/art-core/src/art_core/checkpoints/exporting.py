"""A checkpoint as a folder for other programs: merged weights for transformers and vLLM, or the adapter for PEFT."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from art_core.checkpoints.finding import checkpoint_of
from art_core.errors import ConfigError, MissingExtraError, StorageError
from art_core.runs import Run
from art_core.saved import checkpoint_files, explained, held, remove, sync
from art_core.staging import staged
from art_core.types import Checkpoint

ExportDtype = Literal["auto", "float32", "bfloat16", "float16"]
DTYPES: dict[str, ExportDtype] = {name: name for name in get_args(ExportDtype)}
"""Each by its name, to look up what a user wrote."""
ORIGIN_FILE = "exported_from.json"
_TOKENIZER_FILES = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model"),
    *("chat_template*", "additional_chat_templates"),
)
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class Exported:
    """What was written into `folder`: the checkpoint of `step` of `model`, merged or as an adapter."""

    folder: Path
    model: str
    step: int
    merged: bool
    size_bytes: int


def export_checkpoint(
    source: Run,
    step: int | None,
    out: Path,
    *,
    merged: bool = True,
    dtype: ExportDtype = "auto",
    force: bool = False,
) -> Exported:
    """Write the checkpoint of `step` (default: newest) of `source` to the folder `out`, which appears when it is whole.

    `merged` writes base weights plus adapter with the tokenizer and the chat template: what
    `AutoModelForCausalLM.from_pretrained` and vLLM load. Each changed weight is `W + scale B A`, rounded once to
    `dtype`; `auto` is the type in which the base model is stored. Otherwise the adapter alone, for PEFT. `force`
    replaces an earlier export. The source may be served and trained meanwhile.

    Raises:
        ConfigError: `out` is there; or the base model has changed since the run was begun.
        DataError: no such checkpoint.
        ModelNotFoundError: the base model is not there any more.
        AdapterMismatchError: the adapter does not fit the base model.
        StorageError: the disk is full.
    """
    checkpoint = checkpoint_of(source, step)
    identity = source.identity
    model = f"{identity['project']}/{identity['name']}"
    origin = {"model": model, "step": checkpoint.step, "merged": merged, "base_model": identity.get("base_model")}
    with held(checkpoint), _appearing(out, force=force) as folder:
        if merged:
            _write_merged(checkpoint, identity, folder, dtype)
        else:
            _write_adapter(checkpoint, folder)
        (folder / ORIGIN_FILE).write_text(json.dumps(origin, indent=2) + "\n")
        size_bytes = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return Exported(out, model, checkpoint.step, merged, size_bytes)


@contextmanager
def _appearing(out: Path, *, force: bool) -> Iterator[Path]:
    """A new folder that takes the place of `out` when this is left without an error."""
    out = Path(os.path.abspath(out))  # noqa: PTH100 - links are the user's, and stay
    _check_free(out, force=force)
    if not out.parent.is_dir():
        raise ConfigError(f"{out.parent} is no folder; make it, or give another folder to export to")
    with explained(out, "write"), staged(out, is_folder=True) as staging:
        yield staging
        for file in staging.rglob("*"):
            sync(file)
        _check_free(out, force=force)
        if out.exists():
            old = out.with_name(f".{out.name}.{os.getpid()}.old")
            if old.exists():
                remove(old)
            out.rename(old)
            try:
                staging.rename(out)
            except BaseException:
                if not out.exists():
                    old.rename(out)
                raise
            remove(old)
        else:
            staging.rename(out)


def _check_free(out: Path, *, force: bool) -> None:
    if not out.exists():
        return
    if not force:
        raise ConfigError(f"{out} exists; give another folder, or --force to replace an earlier export")
    if not out.is_dir() or (any(out.iterdir()) and not (out / ORIGIN_FILE).is_file()):
        raise ConfigError(f"{out} is not an earlier export, so it is not replaced; give another folder")


def _write_adapter(checkpoint: Checkpoint, folder: Path) -> None:
    for name in _ADAPTER_FILES:
        if checkpoint.path / name not in checkpoint_files(checkpoint):
            raise StorageError(f"checkpoint {checkpoint.path} holds no {name}; its trainer makes no adapter for PEFT")
        shutil.copyfile(checkpoint.path / name, folder / name)


def _write_merged(checkpoint: Checkpoint, identity: dict[str, Any], folder: Path, dtype: ExportDtype) -> None:
    try:
        import torch
        from safetensors import SafetensorError
        from torch import nn

        from art_core.weights.loading import load_causal_lm
        from art_core.weights.lora import check_fits, merged_weight, read_adapter
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "art_core":
            raise
        raise MissingExtraError(
            f"merging weights needs {error.name!r}, which is not installed; run: pip install 'art-core[train]'"
        ) from error
    base = _base_folder(identity)
    adapter = read_adapter(checkpoint.path)
    chosen: torch.dtype | Literal["auto"] = "auto" if dtype == "auto" else getattr(torch, dtype)
    model: Any = load_causal_lm(base, dtype=chosen, device=torch.device("cpu"))
    linears = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    check_fits(adapter, linears, source=str(checkpoint.path))
    with torch.no_grad():
        for name, (a, b) in adapter.factors.items():
            weight = linears[name].weight
            weight.copy_(merged_weight(weight, a, b, adapter.config.scale))
    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # what the library makes of a full disk
        raise StorageError(f"could not write {folder}: {error}; free some space and run again") from error
    _write_tokenizer(base, folder)


def _base_folder(identity: dict[str, Any]) -> Path:
    """The base weights of a run, which are still those that it was begun with."""
    from art_core.weights.source import resolve_model

    source = resolve_model(str(identity.get("base_model", "")))
    if source.sha256 != identity.get("sha256"):
        raise ConfigError(
            f"the weights of {identity.get('base_model')!r} are not those that the run was begun with "
            f"(sha256 {source.sha256[:12]}, was {str(identity.get('sha256'))[:12]}); restore them, or export the "
            "adapter alone"
        )
    return source.folder


def _write_tokenizer(base: Path, folder: Path) -> None:
    """The tokenizer, and the chat template: where the base model has none, the one that it was trained with."""
    for pattern in _TOKENIZER_FILES:
        for file in base.glob(pattern):
            if file.is_dir():
                shutil.copytree(file, folder / file.name)
            else:
                shutil.copyfile(file, folder / file.name)
    from art_core.render import ChatMLHermesRenderer, load_renderer
    from art_core.render.loading import has_chat_template

    if not has_chat_template(folder) and isinstance(load_renderer(base), ChatMLHermesRenderer):
        (folder / "chat_template.jinja").write_text(_CHATML)


_CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""Messages without tools as `ChatMLHermesRenderer` writes them."""
