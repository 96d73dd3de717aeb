"""Load a causal language model from a folder, in the number type this machine computes fastest in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from art_core.errors import ModelNotFoundError
from art_core.types import DtypeName


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_dtype(name: DtypeName, device: torch.device) -> torch.dtype:
    """The type for weights and activations.

    `auto` takes bfloat16 where the hardware multiplies it (GPUs, CPUs with AMX or AVX512-BF16) and float32 elsewhere:
    a CPU without such units emulates bfloat16 at about a sixth of its float32 speed.
    """
    if name == "float32":
        return torch.float32
    if name == "bfloat16":
        return torch.bfloat16
    if device.type == "cuda":
        return torch.bfloat16
    native = torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def load_causal_lm(folder: Path, *, dtype: torch.dtype | Literal["auto"], device: torch.device) -> nn.Module:
    """The model stored in `folder`, in evaluation mode (no dropout), frozen; `dtype` "auto" is the one it has there.

    Raises:
        ModelNotFoundError: `folder` holds no model that transformers can load.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ModelNotFoundError(
            f"{folder}: not a model that can be loaded ({error}); wanted a folder with config.json, "
            "model.safetensors and tokenizer.json, as `save_pretrained` writes it"
        ) from error
    model.requires_grad_(False)
    result: nn.Module = model.eval().to(device)
    return result
