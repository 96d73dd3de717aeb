"""A small but complete GGUF file, written with llama.cpp's own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HIDDEN, FFN, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("Ġ Ġ", "ĠĠ Ġ", "h e", "l l", "he ll", "hell o", "Ċ Ċ")
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"

WriteGguf = Callable[..., Path]


@pytest.fixture(scope="session")
def write_gguf() -> WriteGguf:
    """`write_gguf(path, leave_out=…, **changed metadata)` writes a Llama of 2 layers and returns the path."""
    return _write_gguf


def _write_gguf(path: Path, *, leave_out: str = "", quantise: bool = True, **changes: Any) -> Path:
    import gguf
    import numpy as np

    values: dict[str, Any] = {
        "architecture": "llama",
        "pre": "smollm",
        "rope_scaling": None,
        "rope_dimensions": HIDDEN // HEADS,
        "add_bos": False,
        "template": TEMPLATE,
    }
    values.update(changes)
    alphabet = sorted(set(_bytes_to_unicode()))
    tokens = [*SPECIAL, *alphabet, *("".join(merge.split(" ")) for merge in MERGES), "<tool>"]
    kinds = [3] * len(SPECIAL) + [1] * (len(alphabet) + len(MERGES)) + [4]
    writer = gguf.GGUFWriter(path, values["architecture"])
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(values["rope_dimensions"])
    if values["rope_scaling"]:
        writer.add_rope_scaling_type(gguf.RopeScalingType(values["rope_scaling"]))
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(values["pre"])
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(MERGES))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(values["add_bos"])
    writer.add_chat_template(values["template"])
    random = np.random.default_rng(0)
    for name, shape in _shapes(len(tokens)).items():
        if name == leave_out:
            continue
        array = random.normal(0, 0.2, shape).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q4_1 if ".attn_" in name else gguf.GGMLQuantizationType.Q8_0
        if len(shape) == 1 or not quantise:
            writer.add_tensor(name, array)
        else:
            writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _shapes(num_tokens: int) -> dict[str, tuple[int, ...]]:
    kv = HIDDEN // HEADS * KV_HEADS
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (kv, HIDDEN),
        "attn_v": (kv, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FFN, HIDDEN),
        "ffn_up": (FFN, HIDDEN),
        "ffn_down": (HIDDEN, FFN),
    }
    blocks = {f"blk.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in block.items()}
    return {"token_embd.weight": (num_tokens, HIDDEN), **blocks, "output_norm.weight": (HIDDEN,)}


def _bytes_to_unicode() -> list[str]:
    """The 256 letters of a byte-level vocabulary."""
    from tokenizers import pre_tokenizers

    return list(pre_tokenizers.ByteLevel.alphabet())
