"""A renderer of every family that can be built without a network: real tokenizers, and bytes with a family's tokens."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import renderers
from renderers import create_renderer
from renderers.base import MODEL_RENDERER_MAP
from renderers.configs import config_from_name
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from art_core.render import ChatRenderer, load_renderer
from art_core.render.library import LibraryRenderer
from tests.core.tokenizers_of_families import tokenizer_folder

REAL = {
    "real qwen3": ("qwen3", None),
    "real llama-3": ("llama3", "meta-llama/Llama-3.2-1B-Instruct"),
    "real deepseek-v3": ("deepseek_v3", "deepseek-ai/DeepSeek-V3"),
    "real gemma3": ("gemma3", None),
}
NEEDS_A_DOWNLOAD = {"gpt-oss"}
"""The library takes the vocabulary of this one from the network."""
BYTES = sorted(set(MODEL_RENDERER_MAP.values()) - NEEDS_A_DOWNLOAD)
QUICK = ["chatml", "glm-4.5", "llama-3", "qwen3", "qwen3.5"]
FAMILIES = [
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.slow) for name in (*BYTES, *REAL) if name not in QUICK),
]


@cache
def renderer_of(family: str) -> ChatRenderer:
    if family == "chatml":
        from tests.core.serve.support import RENDERER

        return RENDERER
    if family in REAL:
        package, model_id = REAL[family]
        return load_renderer(tokenizer_folder(package), model_id=model_id)
    tokens = set(_quoted_tokens())
    for _ in range(40):
        tokenizer = _byte_tokenizer(frozenset(tokens))
        try:
            return LibraryRenderer(create_renderer(tokenizer, config_from_name(family)), tokenizer, supports_tools=True)
        except AssertionError as error:  # it names the token that it lacks
            [missing] = re.findall(r"'([^']+)'", str(error).split(", got")[0])
            tokens.add(missing)
    raise AssertionError(f"{family} lacks more and more tokens")


@cache
def _quoted_tokens() -> list[str]:
    """Texts in brackets in the library's source, of which a family may look some up without insisting on them."""
    source = "".join(path.read_text() for path in sorted(Path(renderers.__file__).parent.glob("*.py")))
    quoted = re.findall(r"[\"'](<[^\"'\s\\{}]{1,40}>|\[[A-Za-z_/]+\]|｜DSML｜)[\"']", source)
    return [text for text in quoted if text.count("<") <= 1]


@cache
def _byte_tokenizer(tokens: frozenset[str]) -> Any:
    """Each byte is a token, and so is each of `tokens`."""
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in sorted(tokens)])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)
