"""Turn a GGUF file (llama.cpp's format) into the folder that transformers loads: safetensors, tokenizer.json, config.

Only what is understood is converted: Llama layers without rope scaling, and a byte-level BPE whose text splitting is
known. Anything else is an error, since a model converted wrongly still produces text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_core.errors import DataError, MissingExtraError

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader

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
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# How text is split before merges apply, by `tokenizer.ggml.pre`. "smollm" takes each digit out first; splitting by the
# byte-level pattern alone would give other ids wherever several blanks stand before a digit.
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
        MissingExtraError: `gguf` is not installed.
    """
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise MissingExtraError(
            f"converting a model needs {error.name!r}, which is not installed; run: pip install 'art-core[train]'"
        ) from error
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, KeyError) as error:
        raise DataError(f"{path} is not a readable GGUF file: {error}; download it again") from error
    fields = _Fields(path, reader)
    config = _config(fields, tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    names = _tensor_names(path, reader, config)
    progress(f"converting {len(names)} tensors of {path.name} to bfloat16")
    folder.mkdir(parents=True, exist_ok=True)
    _write_safetensors(path, reader, config, names, folder / "model.safetensors")
    special = {name: fields.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL_IDS.items()}
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    ids = {f"{name}_token_id": value for name, value in special.items() if value is not None and name != "unk"}
    _write_json(folder / "config.json", {**config, **ids})
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **ids})
    _write_json(folder / "tokenizer.json", _tokenizer(fields, tokens))
    _write_json(
        folder / "tokenizer_config.json",
        {
            **{f"{name}_token": tokens[value] for name, value in special.items() if value is not None},
            "clean_up_tokenization_spaces": False,
            "model_max_length": config["max_position_embeddings"],
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    template = fields.get("tokenizer.chat_template")
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


class _Fields:
    """The metadata of a GGUF file by key; a key that is missing is an error that names the file."""

    def __init__(self, path: Path, reader: GGUFReader) -> None:
        self._path = path
        self._fields = reader.fields

    def get(self, key: str) -> Any:
        """The value of `key`, None when the file has none."""
        field = self._fields.get(key)
        return None if field is None else field.contents()

    def __getitem__(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise DataError(f"{self._path} has no {key!r}; wanted a Llama model with its tokenizer in one GGUF file")
        return value

    def refuse(self, what: str, wanted: str) -> DataError:
        return DataError(f"{self._path}: {what}; this conversion knows {wanted}; use the model's safetensors instead")

    def choose(self, key: str, known: list[str]) -> str:
        """The value of `key`, which must be one of `known`."""
        value = self[key]
        if value not in known:
            raise self.refuse(f"{key} is {value!r}", f"only {known}")
        return str(value)

    def scaled_rope(self) -> bool:
        return any(".rope.scaling." in key for key in self._fields)


def _config(fields: _Fields, *, tied: bool) -> dict[str, Any]:
    fields.choose("general.architecture", ["llama"])
    hidden, heads = int(fields["llama.embedding_length"]), int(fields["llama.attention.head_count"])
    head_dim = int(fields.get("llama.attention.key_length") or hidden // heads)
    if fields.scaled_rope() or int(fields["llama.rope.dimension_count"]) != head_dim:
        raise fields.refuse("its positions are scaled or rotate a part of each head only", "only plain rotation")
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_key_value_heads": int(fields.get("llama.attention.head_count_kv") or heads),
        "rms_norm_eps": _float32(fields["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_theta": _float32(fields["llama.rope.freq_base"]), "rope_type": "default"},
        "tie_word_embeddings": tied,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
    }


def _float32(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05, where the file's 4 bytes read as 9.99999974e-06."""
    import numpy as np

    return float(str(np.float32(value)))


def _tensor_names(path: Path, reader: GGUFReader, config: Mapping[str, Any]) -> list[str]:
    """The name in transformers of each tensor of the file, in the file's order; together they are a whole model."""
    names = [_tensor_name(path, tensor.name) for tensor in reader.tensors]
    outer = [name for key, name in _OUTER.items() if not (config["tie_word_embeddings"] and key == "output.weight")]
    blocks = range(config["num_hidden_layers"])
    wanted = {*outer, *(f"model.layers.{block}.{part}.weight" for block in blocks for part in _BLOCK.values())}
    if wrong := sorted(wanted.symmetric_difference(names)):
        raise DataError(
            f"{path} holds {len(names)} tensors; wanted {len(wanted)} (first difference: {wrong[0]}); download it again"
        )
    return names


def _tensor_name(path: Path, name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _BLOCK and parts[3] == "weight":
        return f"model.layers.{int(parts[1])}.{_BLOCK[parts[2]]}.weight"
    raise DataError(f"{path}: tensor {name!r} has no place in a plain Llama model; use the model's safetensors instead")


def _unpermute(weight: np.ndarray[Any, Any], num_heads: int) -> np.ndarray[Any, Any]:
    """Rows of a query or key projection in transformers' order.

    llama.cpp rotates neighbouring pairs (2i, 2i+1) of a head, transformers the pairs (i, i + half); the rows of each
    head are stored accordingly.
    """
    half = weight.shape[0] // num_heads // 2
    return weight.reshape(num_heads, half, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def _bfloat16(path: Path, name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The upper 16 bits of float32 values, rounded to nearest, ties to even; little-endian on every machine."""
    import numpy as np

    values = np.ascontiguousarray(array, dtype=np.float32)
    if not np.isfinite(values).all():
        raise DataError(f"{path}: tensor {name!r} holds infinite or undefined values; download the file again")
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _write_safetensors(
    path: Path, reader: GGUFReader, config: Mapping[str, Any], names: list[str], target: Path
) -> None:
    """The tensors of `reader` under `names`, one at a time: the model never has to fit in memory.

    The format is an 8-byte length, a JSON header of that length, and the data it points into
    (https://huggingface.co/docs/safetensors).
    """
    from gguf.quants import dequantize

    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, tensor in zip(names, reader.tensors, strict=True):
        shape = [int(size) for size in reversed(tensor.shape)]
        start, end = end, end + 2 * int(tensor.n_elements)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    with target.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for name, tensor in zip(names, reader.tensors, strict=True):
            try:
                array = dequantize(tensor.data, tensor.tensor_type).reshape(header[name]["shape"])
            except NotImplementedError as error:
                raise DataError(f"{path}: {tensor.name} is stored as {tensor.tensor_type.name}: {error}") from error
            if (num_heads := heads.get(name.split(".")[-2])) is not None:
                array = _unpermute(array, num_heads)
            file.write(_bfloat16(path, tensor.name, array).data)


def _tokenizer(fields: _Fields, tokens: list[str]) -> dict[str, Any]:
    """The contents of tokenizer.json. No text normalisation, no tokens added round a text."""
    fields.choose("tokenizer.ggml.model", ["gpt2"])
    splitting = fields.choose("tokenizer.ggml.pre", sorted(_PRE_TOKENIZERS))
    if fields.get("tokenizer.ggml.add_bos_token"):
        raise fields.refuse("its tokenizer opens each text with a token", "only tokenizers that add none")
    kinds = fields["tokenizer.ggml.token_type"]
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
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
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
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
