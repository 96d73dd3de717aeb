"""Turn a GGUF file into the folder that transformers loads: safetensors, tokenizer.json, config.

Only what is understood is converted: Llama layers without rope scaling, and a byte-level BPE whose text splitting is
known. Anything else is an error, since a model converted wrongly still produces text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_core.errors import DataError
from art_core.weights.gguf import GgufFile

if TYPE_CHECKING:
    import numpy as np

# Names of llama.cpp's tensors inside a block, and of the same tensors in transformers.
_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTPUT = "output.weight"
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    _OUTPUT: "lm_head.weight",
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# How text is split before merges apply, by `tokenizer.ggml.pre`. "smollm" takes each digit out first: without that,
# several blanks before a digit would get other ids than the model was trained with.
_PRE_TOKENIZERS: Mapping[str, dict[str, Any]] = {
    "smollm": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL]},
}
_CONTROL, _USER_DEFINED = 3, 4  # values of `tokenizer.ggml.token_type`
_SPECIAL_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def convert_gguf(path: Path, folder: Path, *, progress: Callable[[str], None] = lambda _: None) -> None:
    """Write the model in the GGUF file `path` into `folder`, weights as bfloat16 (quantised ones are expanded).

    Writes `model.safetensors`, `tokenizer.json`, `config.json`, `generation_config.json`, `tokenizer_config.json` and,
    if the file has one, `chat_template.jinja`. The same file always gives the same bytes.

    Raises:
        DataError: not a GGUF file, or a kind of model that this conversion does not know.
        MissingExtraError: the library `gguf` is not installed.
    """
    source = GgufFile.open(path)
    metadata = _Metadata(path, source.metadata)
    config = _config(metadata, tied=all(tensor.name != _OUTPUT for tensor in source.tensors))
    names = _tensor_names(source, config)
    tokenizer = _tokenizer(metadata)
    special = {name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL_IDS.items()}
    ids = {f"{name}_token_id": value for name, value in special.items() if value is not None and name != "unk"}
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    progress(f"converting {len(names)} tensors of {path.name} to bfloat16")
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(source, config, names, folder / "model.safetensors")
    _write_json(folder / "config.json", {**config, **ids})
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ids})
    _write_json(folder / "tokenizer.json", tokenizer)
    _write_json(
        folder / "tokenizer_config.json",
        {
            **{f"{name}_token": tokens[value] for name, value in special.items() if value is not None},
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


class _Metadata:
    """The metadata of a GGUF file by key; a missing or unsuitable value is an error that names the file."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self._path = path
        self._values = values
        self.get = values.get

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise DataError(f"{self._path} has no {key!r}; wanted a Llama model with its tokenizer in one GGUF file")
        return self._values[key]

    def choose(self, key: str, known: list[str]) -> str:
        """The value of `key`, which must be one of `known`."""
        value = self[key]
        if value not in known:
            raise self.refuse(f"{key} is {value!r}, only {known} can be converted")
        return str(value)

    def refuse(self, why: str) -> DataError:
        return DataError(f"{self._path}: {why}; use the model's safetensors instead")

    def __iter__(self) -> Any:
        return iter(self._values)


def _config(metadata: _Metadata, *, tied: bool) -> dict[str, Any]:
    metadata.choose("general.architecture", ["llama"])
    hidden, heads = int(metadata["llama.embedding_length"]), int(metadata["llama.attention.head_count"])
    head_dim = int(metadata.get("llama.attention.key_length") or hidden // heads)
    rotated = int(metadata.get("llama.rope.dimension_count") or head_dim)
    if rotated != head_dim or any(".rope.scaling." in key for key in metadata):
        raise metadata.refuse("its positions are scaled, or rotate only a part of each head")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(metadata["llama.feed_forward_length"]),
        "max_position_embeddings": int(metadata["llama.context_length"]),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": int(metadata["llama.block_count"]),
        "num_key_value_heads": int(metadata.get("llama.attention.head_count_kv") or heads),
        "rms_norm_eps": _float32(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_theta": _float32(metadata["llama.rope.freq_base"]), "rope_type": "default"},
        "tie_word_embeddings": tied,
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
    }


def _float32(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, where the file's 4 bytes read as 9.99999974e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _tensor_names(source: GgufFile, config: Mapping[str, Any]) -> list[str]:
    """The name in transformers of each tensor of the file, in the file's order; together they are a whole model."""
    names = [_tensor_name(tensor.name) for tensor in source.tensors]
    outer = [name for key, name in _OUTER.items() if not (config["tie_word_embeddings"] and key == _OUTPUT)]
    blocks = range(config["num_hidden_layers"])
    wanted = {*outer, *(f"model.layers.{block}.{part}.weight" for block in blocks for part in _BLOCK.values())}
    if wrong := sorted(wanted.symmetric_difference(names)):
        raise DataError(
            f"{source.path} is not a whole plain Llama model: {len(names)} tensors, wanted {len(wanted)}; "
            f"the first that is missing or unknown is {wrong[0]!r}; use the model's safetensors instead"
        )
    return names


def _tensor_name(name: str) -> str:
    """The name in transformers; the name itself where there is none."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK and parts[3] == "weight":
        return f"model.layers.{parts[1]}.{_BLOCK[parts[2]]}.weight"
    return _OUTER.get(name, name)


def _write_safetensors(source: GgufFile, config: Mapping[str, Any], names: list[str], target: Path) -> None:
    """The tensors of `source` under `names`, one at a time: the model never has to fit in memory.

    The format is an 8-byte length, a JSON header of that length, and the data it points into
    (https://huggingface.co/docs/safetensors).
    """
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in zip(names, source.tensors, strict=True):
        start, end = end, end + 2 * tensor.num_elements
        header[name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": (start, end)}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with target.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, tensor in zip(names, source.tensors, strict=True):
            values = source.read(tensor)
            if (num_heads := heads.get(name.split(".")[-2])) is not None:
                values = _unpermute(values, num_heads)
            file.write(_bfloat16(source.path, tensor.name, values).tobytes())


def _unpermute(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of a query or key projection in transformers' order.

    llama.cpp rotates neighbouring pairs (2i, 2i+1) of a head, transformers the pairs (i, i + half); the rows of each
    head are stored accordingly.
    """
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _bfloat16(path: Path, name: str, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The upper 16 bits of float32 values, rounded to nearest, ties to even; little-endian on every machine."""
    import numpy as np

    if not np.isfinite(values).all():
        raise DataError(f"{path}: tensor {name!r} holds infinite or undefined values; download the file again")
    bits = np.ascontiguousarray(values).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _tokenizer(metadata: _Metadata) -> dict[str, Any]:
    """The contents of tokenizer.json. Text is not normalised, and no tokens are put round it."""
    metadata.choose("tokenizer.ggml.model", ["gpt2"])
    splitting = metadata.choose("tokenizer.ggml.pre", sorted(_PRE_TOKENIZERS))
    if metadata.get("tokenizer.ggml.add_bos_token"):
        raise metadata.refuse("its tokenizer opens each text with a token, which cannot be converted")
    tokens = metadata["tokenizer.ggml.tokens"]
    added = [
        {
            "id": index,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for index, (token, kind) in enumerate(zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": _PRE_TOKENIZERS[splitting],
        "post_processor": None,
        "decoder": {**_BYTE_LEVEL, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in metadata["tokenizer.ggml.merges"]],
        },
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")
