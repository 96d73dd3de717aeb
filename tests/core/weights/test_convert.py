from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from art_core.errors import DataError
from art_core.weights.convert import convert_gguf
from art_core.weights.gguf import GgufFile


@pytest.fixture(scope="module")
def gguf_path(write_gguf: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    result: Path = write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")
    return result


@pytest.fixture(scope="module")
def converted(gguf_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "model"
    convert_gguf(gguf_path, folder)
    return folder


def test_writes_the_files_of_a_model_folder(converted: Path) -> None:
    assert sorted(path.name for path in converted.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_config_holds_the_exact_settings(converted: Path) -> None:
    config = json.loads((converted / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_parameters"] == {"rope_theta": 10000.0, "rope_type": "default"}
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (1, 2, 2)
    assert config["tie_word_embeddings"] is True


def test_the_same_file_gives_the_same_bytes(gguf_path: Path, converted: Path, tmp_path: Path) -> None:
    convert_gguf(gguf_path, tmp_path)
    for path in converted.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_query_rows_of_a_head_are_put_back_from_pairs_to_halves(gguf_path: Path, converted: Path) -> None:
    source = GgufFile.open(gguf_path)
    (tensor,) = [tensor for tensor in source.tensors if tensor.name == "blk.0.attn_q.weight"]
    stored, result = source.read(tensor), _read(converted, "model.layers.0.self_attn.q_proj.weight")
    np.testing.assert_allclose(result[16:24], stored[16:32:2], rtol=2**-8)  # second head: even rows, then odd ones
    np.testing.assert_allclose(result[24:32], stored[17:32:2], rtol=2**-8)


def test_weights_are_rounded_to_the_nearest_bfloat16(write_gguf: Any, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "exact.gguf", quantise=False)
    convert_gguf(path, tmp_path / "model")
    source = GgufFile.open(path)
    (tensor,) = [tensor for tensor in source.tensors if tensor.name == "blk.1.ffn_down.weight"]
    result = _read(tmp_path / "model", "model.layers.1.mlp.down_proj.weight")
    assert np.abs(result / source.read(tensor) - 1).max() <= 2**-8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "qwen2"}, r"general\.architecture is 'qwen2'"),
        ({"pre": "llama-bpe"}, r"tokenizer\.ggml\.pre is 'llama-bpe'"),
        ({"rope_scaling": "linear"}, "positions are scaled"),
        ({"rope_dimensions": 8}, "rotate only a part"),
        ({"add_bos": True}, "opens each text with a token"),
        ({"leave_out": "blk.1.ffn_up.weight"}, r"model\.layers\.1\.mlp\.up_proj\.weight"),
    ],
)
def test_a_model_that_is_not_understood_is_refused(
    write_gguf: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    path = write_gguf(tmp_path / "odd.gguf", **change)
    with pytest.raises(DataError, match=message):
        convert_gguf(path, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_blanks_before_digits_are_split_as_in_training(converted: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(converted / "tokenizer.json"))
    assert tokenizer.encode("hello  12").tokens == ["hello", "ĠĠ", "1", "2"]
    assert tokenizer.encode("\n\n1").tokens == ["ĊĊ", "1"]
    assert tokenizer.encode("<|im_start|><tool>").ids == [1, tokenizer.token_to_id("<tool>")]


def test_special_tokens_are_those_marked_as_control(converted: Path) -> None:
    added = json.loads((converted / "tokenizer.json").read_text())["added_tokens"]
    assert [(token["content"], token["special"]) for token in added] == [
        ("<|endoftext|>", True),
        ("<|im_start|>", True),
        ("<|im_end|>", True),
        ("<tool>", False),
    ]


def test_converting_loads_no_torch(gguf_path: Path, tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from art_core.weights.convert import convert_gguf;"
        "convert_gguf(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(gguf_path), str(tmp_path)], check=True)


@pytest.mark.slow
def test_equals_the_conversion_of_transformers(gguf_path: Path, converted: Path) -> None:
    """Tensor by tensor; transformers' own route is slow and refuses to save, which is why it is not used."""
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name, dtype=torch.float32)
    ours = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.bfloat16)
    wanted = {name: value.to(torch.bfloat16) for name, value in theirs.state_dict().items()}
    result = ours.state_dict()
    assert result.keys() == wanted.keys()
    assert [name for name in wanted if not torch.equal(result[name], wanted[name])] == []


@pytest.mark.slow
def test_texts_get_the_same_ids_as_with_the_tokenizer_of_transformers(gguf_path: Path, converted: Path) -> None:
    """But for blanks before digits, where transformers 5 ignores the splitting that the file names."""
    from tokenizers import Tokenizer
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(gguf_path.parent, gguf_file=gguf_path.name)
    ours = Tokenizer.from_file(str(converted / "tokenizer.json"))
    texts = [
        "hello  hello\n\n",
        "don't 1 23 4.5",
        "é日本🙂\u00a0\u200b",
        "<|im_start|>user\nhell<|im_end|>",
        " \t\r\n",
        "",
    ]
    assert [ours.encode(text).ids for text in texts] == [theirs(text)["input_ids"] for text in texts]


def _read(folder: Path, name: str) -> np.ndarray[Any, Any]:
    """A bfloat16 tensor of model.safetensors as float32, read by the format's own rules."""
    data = (folder / "model.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + size])[name]
    start, end = (8 + size + offset for offset in entry["data_offsets"])
    bits = np.frombuffer(data[start:end], np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(entry["shape"])


def test_file_is_read_by_the_library_of_the_format(converted: Path) -> None:
    from safetensors import safe_open

    with safe_open(str(converted / "model.safetensors"), framework="numpy") as file:
        names = sorted(file.keys())
        assert file.metadata() == {"format": "pt"}
        assert file.get_slice("model.norm.weight").get_dtype() == "BF16"
    assert len(names) == 2 + 2 * 9
